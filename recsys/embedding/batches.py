"""Whatever `fit` takes, with ids checked while they are still 64 bits wide."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from recsys.embedding.ids import checked_batch
from recsys.errors import UsageError


def checked_data(x: Any) -> Any:
    """Returns `x` such that no 64-bit integer in it is cut down unseen.

    Args:
        x: Arrays, nested or not; a generator; a `keras.utils.PyDataset`; or a
            `tf.data.Dataset`.

    Raises:
        UsageError: Another kind of source.
    """
    if isinstance(x, keras.utils.PyDataset):
        return _Checked(x)
    if isinstance(x, types.GeneratorType) or (hasattr(x, "__next__") and hasattr(x, "__iter__")):
        return _checked_batches(x)
    if type(x).__module__.startswith("tensorflow") and hasattr(x, "map"):
        return _checked_dataset(x)
    if type(x).__module__.startswith("torch.utils"):
        raise UsageError(
            "R364",
            "A SparseModel must be fed arrays, a generator, a PyDataset or a tf.data.Dataset.",
            "Wrap the loader: (tuple(t.numpy() for t in batch) for batch in loader).",
            type(x).__name__,
        )
    return checked_batch(_listed(x))


def _listed(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, list) and x and isinstance(x[0], int) else x


def _checked_batches(batches: Any) -> Iterator[Any]:
    for batch in batches:
        yield checked_batch(batch)


class _Checked(keras.utils.PyDataset):
    """A PyDataset whose batches are checked."""

    def __init__(self, inner: keras.utils.PyDataset) -> None:
        super().__init__(
            workers=inner.workers,
            use_multiprocessing=inner.use_multiprocessing,
            max_queue_size=inner.max_queue_size,
        )
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def num_batches(self) -> int | None:
        return self._inner.num_batches

    def __getitem__(self, index: int) -> Any:
        return checked_batch(self._inner[index])

    def on_epoch_begin(self) -> None:
        self._inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._inner.on_epoch_end()


def _checked_dataset(dataset: Any) -> Any:
    tf: Any = sys.modules["tensorflow"]  # The data set is the caller's own.

    def check(leaf: Any) -> Any:
        if leaf.dtype not in (tf.int64, tf.uint64):
            return leaf
        fits = leaf <= tf.constant(2**31 - 1, leaf.dtype)
        if leaf.dtype == tf.int64:
            fits &= leaf >= -(2**31)
        return tf.where(fits, tf.cast(leaf, tf.int32), -1)

    def check_all(*batch: Any) -> Any:
        checked = tf.nest.map_structure(check, batch)
        return checked if len(checked) > 1 else checked[0]

    return dataset.map(check_all)
