"""Exact top-k over the catalogue inside the graph, and filters by item features.

Items are ranked block by block: a block is scored and masked, and its best items are merged with
the best so far. So the scores `[batch, items]` are never all in memory. A catalogue of one block
needs no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf

from recsys.data.catalogue import FeatureBags
from recsys.data.store import ServingHistories
from recsys.savedmodel.inputs import IdTable
from recsys.savedmodel.signatures import NO_SCORE, filter_inputs
from recsys.savedmodel.variables import constant
from recsys.tasks.retrieval.serving.quantization import StoredEmbeddings

ONE_BLOCK_ROWS = 131_072
"""Maximum number of items that are scored without a loop."""

BLOCK_ROWS = 65_536
MOST_SCORES = 1 << 25
"""A block has a multiple of `BLOCK_ROWS` items, for about `MOST_SCORES` scores (128 MiB): a single
query over many items needs few blocks, and a large batch little memory."""

Allow = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Returns which items may be recommended `[b, n]` bool, given the first row and the number `n`."""

_Best = tuple[tf.Tensor, tf.Tensor]


class GraphRanker(tf.Module):
    """The items, by row.

    Args:
        embeddings: Embeddings of the item rows `[item rows, dim]`; None: they are not in the
            bundle, and all queries get popular items.
        is_item: Whether each row is an item `[item rows]` bool.
        popularity: Scores for queries without information `[item rows]` float32.
        k: Number of candidates per query, at most the number of item rows.
    """

    def __init__(
        self,
        embeddings: StoredEmbeddings | None,
        is_item: np.ndarray,
        popularity: np.ndarray,
        k: int,
    ) -> None:
        super().__init__(name="candidates")
        self._n_rows, self._k = len(is_item), k
        self._most_rows = self._n_rows
        self._values = self._scale = None
        if embeddings is not None:
            self._values = constant(embeddings.values, tf.as_dtype(embeddings.values.dtype))
            # Quantized numbers are converted to floats block by block, to bound the memory.
            if embeddings.values.dtype != np.float32:
                self._most_rows = max(BLOCK_ROWS, ONE_BLOCK_ROWS)
            if embeddings.scale is not None:
                self._scale = constant(embeddings.scale, tf.float32)
        # Row 0 is masked together with the user's history.
        self._is_item = None if is_item[1:].all() else constant(is_item, tf.bool)
        self._popularity = constant(popularity, tf.float32)

    def best(
        self,
        query: tf.Tensor,
        by_popularity: tf.Tensor,
        hidden: tf.RaggedTensor,
        allow: Allow | None = None,
    ) -> _Best:
        """Returns scores `[b, k]`, the best first, and item rows `[b, k]`.

        Ties go to the lower row. If fewer than k items remain, the others have the score
        `NO_SCORE` and an arbitrary row.

        Args:
            query: Embeddings `[b, dim]`.
            by_popularity: Queries that get popular items `[b]` bool.
            hidden: Item rows to exclude for each query `[b, any]`, including row 0.
            allow: Items that may be recommended; None: all.
        """

        def block(start: tf.Tensor, size: tf.Tensor) -> _Best:
            scores = self._scores(query, by_popularity, start, size)
            if self._is_item is not None:
                scores = tf.where(tf.slice(self._is_item, [start], [size]), scores, NO_SCORE)
            if allow is not None:
                scores = tf.where(allow(start, size), scores, NO_SCORE)
            scores = _mask(scores, hidden, start, size)
            best, places = tf.math.top_k(scores, tf.minimum(self._k, size))
            return best, places + start

        if self._n_rows <= ONE_BLOCK_ROWS:
            return block(tf.constant(0), tf.constant(self._n_rows))
        return self._looped(block, tf.shape(query)[0])

    def _looped(self, block: Callable[[tf.Tensor, tf.Tensor], _Best], n: tf.Tensor) -> _Best:
        n_rows = MOST_SCORES // tf.maximum(n, 1) // BLOCK_ROWS * BLOCK_ROWS
        n_rows = tf.clip_by_value(n_rows, BLOCK_ROWS, max(BLOCK_ROWS, self._most_rows))

        def step(start: tf.Tensor, scores: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
            more = block(start, tf.minimum(n_rows, self._n_rows - start))
            # The lower rows come first, since `top_k` takes the first of equal scores.
            both = tf.concat([scores, more[0]], axis=1)
            scores, places = tf.math.top_k(both, self._k)
            rows = tf.gather(tf.concat([rows, more[1]], axis=1), places, batch_dims=1)
            return start + n_rows, scores, rows

        nothing = tf.fill([n, self._k], NO_SCORE), tf.zeros([n, self._k], tf.int32)
        _, scores, rows = tf.while_loop(
            lambda start, *_: start < self._n_rows,
            step,
            (tf.constant(0), *nothing),
            # Computing blocks in parallel would need the memory of all of them.
            parallel_iterations=1,
            shape_invariants=(tf.TensorShape([]), *2 * [tf.TensorShape([None, self._k])]),
        )
        return scores, rows

    def _scores(
        self, query: tf.Tensor, by_popularity: tf.Tensor, start: tf.Tensor, size: tf.Tensor
    ) -> tf.Tensor:
        """Returns the scores `[b, size]` of a block."""
        popularity = tf.slice(self._popularity, [start], [size])
        if self._values is None:
            return tf.tile(popularity[None], [tf.shape(query)[0], 1])
        values = tf.slice(self._values, [start, 0], [size, -1])
        scores = tf.matmul(query, tf.cast(values, tf.float32), transpose_b=True)
        if self._scale is not None:
            scores *= tf.slice(self._scale, [start], [size])
        return tf.cond(
            tf.reduce_any(by_popularity),
            lambda: tf.where(by_popularity[:, None], popularity, scores),
            lambda: scores,
        )


def _mask(scores: tf.Tensor, rows: tf.RaggedTensor, start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns `scores` `[b, size]` with `NO_SCORE` at the item rows of each query."""
    columns = rows.values - start
    places = tf.stack([rows.value_rowids(), tf.cast(columns, tf.int64)], axis=1)
    places = tf.boolean_mask(places, (columns >= 0) & (columns < size))
    lowest = tf.fill([tf.shape(places)[0]], tf.constant(NO_SCORE))
    return tf.tensor_scatter_nd_update(scores, places, lowest)


class GraphFilters(tf.Module):
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
        """Names of the inputs that filter the items of a query."""
        return tuple(self._filters)

    def allow(self, only: Mapping[str, tf.Tensor]) -> Allow:
        """Returns which items are allowed.

        only: Names of tokens `[b, any]` by `inputs`, padded with the empty string.
            Only padding allows any item. Otherwise an item must have one of the tokens, for
            every feature.
        """
        wanted = {name: self._filters[name].wanted(names) for name, names in only.items()}
        # Converted once: gathering from a variable copies it each time.
        bags = {name: tf.convert_to_tensor(self._filters[name].bags) for name in only}

        def allowed(start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
            n = tf.shape(next(iter(only.values())))[0]
            result = tf.fill([n, size], value=True)
            for name, tokens in wanted.items():
                # The width is static.
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
        """Returns the tokens that each query allows `[b, tokens]` bool; all if it names none."""
        rows = self._table.lookup(names)
        n, width = tf.unstack(tf.shape(rows))
        who = tf.repeat(tf.range(n), width)
        places = tf.stack([who, tf.reshape(rows, [-1])], axis=1)
        # Unknown names and padding have row 0, which is no token.
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
    has_token = tf.gather(wanted, bags[:, 0], axis=1)
    # Token by token, since all at once would take the bags' width in memory.
    for column in range(1, bags.shape[1]):
        has_token |= tf.gather(wanted, bags[:, column], axis=1)
    return has_token


def popularity_shares(histories: ServingHistories, is_item: np.ndarray) -> np.ndarray:
    """Returns the share of each item in the positives of all users `[item rows]` float32.

    All positives count, before and after the cut, as in the baseline `popularity`. This needs no
    reference time, and the answers of an old bundle don't change. Ties go to the lower row.

    Args:
        histories: The positives of every user.
        is_item: Whether each item row is an item `[item rows]` bool; others have 0.
    """
    counts = np.bincount(histories.item_rows, minlength=len(is_item))
    shares = np.where(is_item, counts, 0) / max(1, len(histories.item_rows))
    return shares.astype(np.float32)
