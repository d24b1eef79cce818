"""The best k of the whole catalogue inside the graph: exact, block by block.

The scores of a batch are never there all at once: a block of items is scored, masked,
and its best are merged with the best so far. A catalogue of one block has no loop.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from recsys.serving.constants import constant
from recsys.serving.stored_embeddings import StoredEmbeddings

NO_SCORE = float(np.finfo(np.float32).min)
"""Of a place that no item has."""

ONE_BLOCK_ROWS = 131_072
"""Items that are scored without a loop."""

BLOCK_ROWS = 65_536
MOST_SCORES = 1 << 25
"""A block has a multiple of `BLOCK_ROWS` items: as many as give `MOST_SCORES` (128 MiB), so
that a single query of many items has few blocks, and a large batch little memory."""

Allow = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Tells which items may be recommended `[b, n]` bool, of a first row and of `n` rows."""

_Best = tuple[tf.Tensor, tf.Tensor]


class Candidates(tf.Module):
    """The items, by row.

    Args:
        embeddings: Of each item row `[item rows, dim]`.
        is_item: Which rows are items `[item rows]` bool.
        popularity: What they score for who nothing is known of `[item rows]` float32.
        k: Candidates of an answer; at most as many as there are item rows.
    """

    def __init__(
        self, embeddings: StoredEmbeddings, is_item: np.ndarray, popularity: np.ndarray, k: int
    ) -> None:
        super().__init__(name="candidates")
        self._n_rows, self._k = len(embeddings), k
        self._values = constant(embeddings.values, tf.as_dtype(embeddings.values.dtype))
        # Short numbers are made floats block by block: no more than in a catalogue of one.
        is_short = embeddings.values.dtype != np.float32
        self._most_rows = max(BLOCK_ROWS, ONE_BLOCK_ROWS) if is_short else self._n_rows
        scale = embeddings.scale
        self._scale = None if scale is None else constant(scale, tf.float32)
        # Row 0 is masked with what the user did.
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

        Of equal scores the smaller row comes first. Where fewer items remain, the rest
        has `NO_SCORE` and any row.

        Args:
            query: Embeddings `[b, dim]`.
            by_popularity: Which queries are answered by popularity `[b]` bool.
            hidden: Item rows that each query's answer must not have `[b, any]`, row 0
                among them.
            allow: Which items may be recommended; None: all.
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
            # The smaller rows stand first, so that they stay first among equals.
            both = tf.concat([scores, more[0]], axis=1)
            scores, places = tf.math.top_k(both, self._k)
            rows = tf.gather(tf.concat([rows, more[1]], axis=1), places, batch_dims=1)
            return start + n_rows, scores, rows

        nothing = tf.fill([n, self._k], NO_SCORE), tf.zeros([n, self._k], tf.int32)
        _, scores, rows = tf.while_loop(
            lambda start, *_: start < self._n_rows,
            step,
            (tf.constant(0), *nothing),
            # Blocks that are scored side by side would need the memory of them all.
            parallel_iterations=1,
            shape_invariants=(tf.TensorShape([]), *2 * [tf.TensorShape([None, self._k])]),
        )
        return scores, rows

    def _scores(
        self, query: tf.Tensor, by_popularity: tf.Tensor, start: tf.Tensor, size: tf.Tensor
    ) -> tf.Tensor:
        """Returns the scores `[b, size]` of a block."""
        values = tf.slice(self._values, [start, 0], [size, -1])
        scores = tf.matmul(query, tf.cast(values, tf.float32), transpose_b=True)
        if self._scale is not None:
            scores *= tf.slice(self._scale, [start], [size])
        return tf.cond(
            tf.reduce_any(by_popularity),
            lambda: tf.where(
                by_popularity[:, None], tf.slice(self._popularity, [start], [size]), scores
            ),
            lambda: scores,
        )


def _mask(scores: tf.Tensor, rows: tf.RaggedTensor, start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns `scores` `[b, size]` with `NO_SCORE` at the item rows of each query."""
    columns = rows.values - start
    places = tf.stack([rows.value_rowids(), tf.cast(columns, tf.int64)], axis=1)
    places = tf.boolean_mask(places, (columns >= 0) & (columns < size))
    lowest = tf.fill([tf.shape(places)[0]], tf.constant(NO_SCORE))
    return tf.tensor_scatter_nd_update(scores, places, lowest)
