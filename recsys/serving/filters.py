"""Which items a query wants to see alone, by the tokens of their features, inside the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from recsys.data.catalogue import FeatureBags
from recsys.serving.candidates import Allow
from recsys.serving.id_table import IdTable
from recsys.serving.input_names import filter_inputs


class ItemFilters(tf.Module):
    """Filters by the features of the items whose tokens have names.

    Args:
        features: The features of the items.
        bags: Token rows of each item row `[item rows, width]` int32, by feature.
    """

    def __init__(self, features: Iterable[FeatureBags], bags: Mapping[str, tf.Variable]) -> None:
        super().__init__(name="item_filters")
        tokens = {f.name: list(f.tokens) for f in features if f.tokens is not None}
        self._filters = {
            input_: _Filter(tokens[feature], bags[feature])
            for input_, feature in filter_inputs(tokens).items()
        }

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that say what a query wants."""
        return tuple(self._filters)

    def allow(self, only: Mapping[str, tf.Tensor]) -> Allow:
        """Returns what tells which items are wanted.

        Args:
            only: Names of tokens `[b, any]` by `inputs`, padded with the empty string.
                Padding alone wants any item; one of several tokens is enough; all
                features must be as wanted.
        """
        wanted = {name: self._filters[name].wanted(names) for name, names in only.items()}
        # Read once: a variable that is gathered from is copied at every read.
        bags = {name: tf.convert_to_tensor(self._filters[name].bags) for name in only}

        def allowed(start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
            n = tf.shape(next(iter(only.values())))[0]
            result = tf.fill([n, size], value=True)
            for name, tokens in wanted.items():
                # Of a width that the graph knows before it runs.
                block = tf.slice(bags[name], [start, 0], [size, bags[name].shape[1]])
                result &= _have(tokens, tf.ensure_shape(block, [None, bags[name].shape[1]]))
            return result

        return allowed


class _Filter(tf.Module):
    """One feature."""

    def __init__(self, tokens: list[str], bags: tf.Variable) -> None:
        super().__init__(name="item_filter")
        rows = np.array([row for row, token in enumerate(tokens) if token], np.int64)
        self._table = IdTable([tokens[row] for row in rows], rows)
        self._n_tokens, self.bags = len(tokens), bags

    def wanted(self, names: tf.Tensor) -> tf.Tensor:
        """Returns which tokens each query wants `[b, tokens]` bool; all, if it says nothing."""
        rows = self._table.lookup(names)
        n, width = tf.unstack(tf.shape(rows))
        who = tf.repeat(tf.range(n), width)
        places = tf.stack([who, tf.reshape(rows, [-1])], axis=1)
        # Unknown names and padding have row 0, which stands for no token.
        named = tf.reshape(rows > 0, [-1])
        places = tf.boolean_mask(places, named)
        ones = tf.fill([tf.shape(places)[0]], value=1)
        wants = tf.scatter_nd(places, ones, [n, self._n_tokens]) > 0
        says_nothing = tf.reduce_all(names == "", axis=1)
        return wants | says_nothing[:, None]


def _have(wanted: tf.Tensor, bags: tf.Tensor) -> tf.Tensor:
    """Returns which items of a block `[b, n]` have one of the wanted tokens.

    Args:
        wanted: Which tokens each query wants `[b, tokens]` bool.
        bags: Token rows of the items of the block `[n, width]`.
    """
    found = tf.gather(wanted, bags[:, 0], axis=1)
    # Token by token: all at once would be as wide as the bags.
    for column in range(1, bags.shape[1]):
        found |= tf.gather(wanted, bags[:, column], axis=1)
    return found
