"""Exact top-k over the catalogue inside the graph, and filters by item features.

Items are ranked block by block: a block is scored and masked, and its best items are merged with
the best so far. So the scores `[batch, items]` are never all in memory. A catalogue of one block
needs no loop.

Item embeddings are stored as float32, float16 or int8. float16 takes half of the memory, int8 a
quarter. int8 is symmetric with a scale per row: `number = int8 * scale`, `scale = largest
magnitude of the row / 127` (Krishnamoorthi, "Quantizing deep convolutional networks for efficient
inference", 2018, section 2.2: symmetric, per channel). Numbers are dequantized block by block,
never all at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np
import tensorflow as tf

from recsys.data.catalogue import FeatureBags
from recsys.data.store import ServingHistories
from recsys.errors import RecsysError
from recsys.ragged import slices
from recsys.savedmodel.inputs import IdTable
from recsys.savedmodel.signatures import NO_SCORE, filter_inputs
from recsys.savedmodel.variables import constant

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
        added: _Best | None = None,
    ) -> _Best:
        """Returns scores `[b, k]`, the best first, and item rows `[b, k]`.

        Ties go to the lower row. If fewer than k items remain, the others have the score
        `NO_SCORE` and an arbitrary row.

        Args:
            query: Embeddings `[b, dim]`.
            by_popularity: Queries that get popular items `[b]` bool.
            hidden: Item rows to exclude for each query `[b, any]`, including row 0.
            allow: Items that may be recommended; None: all.
            added: Item rows `[b, n]`, and the summands of their scores `[b, n]`, which are 0 for
                padding and for queries by popularity; None: there are none.
        """

        def block(start: tf.Tensor, size: tf.Tensor) -> _Best:
            scores = self._scores(query, by_popularity, start, size)
            if added is not None:
                scores = _add(scores, *added, start, size)
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


def _add(
    scores: tf.Tensor, rows: tf.Tensor, summands: tf.Tensor, start: tf.Tensor, size: tf.Tensor
) -> tf.Tensor:
    """Returns `scores` `[b, size]` with summands added at the item rows of each query."""
    columns = rows - start
    is_there = (columns >= 0) & (columns < size) & (summands > 0)
    places = tf.cast(tf.where(is_there), tf.int32)
    at = tf.stack([places[:, 0], tf.boolean_mask(columns, is_there)], axis=1)
    return tf.tensor_scatter_nd_add(scores, at, tf.boolean_mask(summands, is_there))


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


# --- embeddings in fewer bits

Kind = Literal["float32", "float16", "int8"]

_LARGEST = 127
# Items whose exact scores differ by less may be in any order: float32 sums depend on the order.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class StoredEmbeddings:
    """Embeddings in one of the dtypes.

    Attributes:
        values: `[rows, dim]` float32, float16 or int8.
        scale: Factor of each row `[rows]` float32; None: 1.
    """

    values: np.ndarray
    scale: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def floats(self, rows: slice) -> np.ndarray:
        """Returns the dequantized numbers of some rows `[n, dim]` float32, as in the graph."""
        values = np.asarray(self.values[rows], np.float32)
        return values if self.scale is None else values * self.scale[rows, None]


def stored(embeddings: np.ndarray, kind: Kind) -> StoredEmbeddings:
    """Returns `embeddings` `[rows, dim]` float32, memory-mapped or not, as `kind`.

    Raises:
        RecsysError: A number is too large for float16 (R539).
    """
    if kind == "float32":
        return StoredEmbeddings(embeddings)
    values = np.empty(embeddings.shape, kind)
    scale = np.zeros(len(embeddings), np.float32) if kind == "int8" else None
    for rows in slices(len(embeddings), BLOCK_ROWS):
        block = np.asarray(embeddings[rows], np.float32)
        largest = np.abs(block).max(axis=1, initial=0)
        if scale is not None:
            scale[rows] = largest / np.float32(_LARGEST)
            block = np.rint(block / np.where(scale[rows] > 0, scale[rows], 1)[:, None])
            block = np.clip(block, -_LARGEST, _LARGEST)
        elif largest.max(initial=0) > np.finfo(np.float16).max:
            rule = f"Item embeddings of float16 must be at most {np.finfo(np.float16).max:g}."
            cure = "Set export.item_embeddings to int8 or float32, or model.similarity to cosine."
            raise RecsysError("R539", rule, cure, float(largest.max()))
        values[rows] = block
    return StoredEmbeddings(values, scale)


def check_parity(
    answers: np.ndarray,
    is_asked: np.ndarray,
    blocks: Iterable[tuple[slice, np.ndarray]],
    is_item: np.ndarray,
    least: float,
) -> float:
    """Returns the recall of answers relative to exact float32, at their own k.

    An item counts as found if its score is at least that of the last of the exact k, so ties
    may be in any order.

    Args:
        answers: Item rows of each answer `[n, k]`, padded with 0.
        is_asked: Which answers to compare `[n]` bool.
        blocks: Slices of the item rows, and their exact scores `[n, part]`, as in `best_scores`.
        is_item: Whether each row is an item `[rows]` bool.
        least: Lowest allowed recall [0..1].

    Raises:
        RecsysError: The recall is lower (R538).
    """
    k = min(answers.shape[1], int(is_item.sum()))
    if not k or not is_asked.any():
        return 1.0
    best, scores = best_scores(answers[:, :k], blocks, is_item)
    room = _ROUNDING * np.maximum(1, np.abs(best[:, -1:]))
    is_hit = ((answers[:, :k] > 0) & (scores >= best[:, -1:] - room))[is_asked]
    recall = int(is_hit.sum()) / is_hit.size
    if recall < least:
        rule = (
            f"With short item embeddings, {least:.2%} of the best {k} must be those of exact"
            " float32."
        )
        cure = (
            "Set export.item_embeddings to float16 or float32, or export.min_parity lower;"
            " then run again: recsys run."
        )
        raise RecsysError("R538", rule, cure, f"{recall:.4f}")
    return recall


def best_scores(
    rows: np.ndarray, blocks: Iterable[tuple[slice, np.ndarray]], is_item: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best scores `[n, k]`, the best first, and the scores of some item rows `[n, k]`.

    Args:
        rows: The item rows `[n, k]`.
        blocks: Slices of the item rows, and their scores `[n, part]`, which are overwritten;
            one at a time, to bound the memory.
        is_item: Whether each row is an item `[rows]` bool.
    """
    n, k = rows.shape
    best = np.full((n, k), -np.inf, np.float32)
    of_rows = np.zeros((n, k), np.float32)
    for part, scores in blocks:
        who, place = np.nonzero((rows >= part.start) & (rows < part.stop))
        of_rows[who, place] = scores[who, rows[who, place] - part.start]
        scores[:, ~is_item[part]] = -np.inf
        both = np.concatenate([best, scores], axis=1)
        best = np.partition(both, both.shape[1] - k, axis=1)[:, both.shape[1] - k :]
    return -np.sort(-best, axis=1), of_rows
