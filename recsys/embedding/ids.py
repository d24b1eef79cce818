"""Checks 64-bit ids on the host, then casts them to int32.

JAX silently truncates int64 to int32, so 2³² + 3 would read row 3. Ids that don't fit become
-1, which every vocabulary treats as unknown.
"""

from __future__ import annotations

import sys
import types
from typing import Any, NamedTuple

import keras
import numpy as np

from recsys.errors import RecsysError, UsageError

UNKNOWN = -1
_INT32 = np.iinfo(np.int32)


class Ragged(NamedTuple):
    """Bags of any length, without padding.

    Attributes:
        values: Ids of all bags, one bag after the other `[capacity]`; the rest is padding. On
            a mesh of n devices each n-th part holds the bags of one device: see
            `recsys.embedding.ids.ragged`.
        lengths: Number of ids in each bag `[batch]` int32.
        weights: Weight of each id `[capacity]` float32; None for ones.
    """

    values: Any
    lengths: Any
    weights: Any = None


def as_int32(ids: Any, name: str = "ids") -> np.ndarray:
    """Returns `ids` `[...]` as int32; ids that don't fit become -1.

    Args:
        ids: Integers of any width, on the host.
        name: Name of the ids, for the error.

    Raises:
        UsageError: They aren't integers (R362).
    """
    original, ids = ids, np.asarray(ids)
    if ids.size == 0 and ids.dtype == np.float64:  # numpy's dtype of []
        return ids.astype(np.int32)
    if ids.dtype == np.float64 and not hasattr(original, "dtype"):
        # numpy's dtype of a list with integers below and above 2⁶³.
        ids = np.asarray(original, object)
    if ids.dtype == object:
        # Integers past 64 bits are stored as objects.
        ids = np.array([_limited(x, name) for x in ids.ravel()], np.int64).reshape(ids.shape)
    if not np.issubdtype(ids.dtype, np.integer):
        raise _not_integers(name, ids.dtype)
    if ids.dtype.itemsize <= 4 and ids.dtype != np.uint32:
        return ids.astype(np.int32)
    fits = (ids >= _INT32.min) & (ids <= _INT32.max)
    # Signed first: numpy has no unsigned -1.
    return np.where(fits, ids.astype(np.int64), UNKNOWN).astype(np.int32)


def _limited(x: Any, name: str) -> int:
    if not isinstance(x, int | np.integer) or isinstance(x, bool):
        raise _not_integers(name, type(x).__name__)
    return int(x) if _INT32.min <= x <= _INT32.max else UNKNOWN


def _not_integers(name: str, received: Any) -> UsageError:
    return UsageError(
        "R362",
        f"Ids of {name!r} must be integers.",
        "Map raw ids to rows by a vocabulary first.",
        received,
    )


def checked_ids(ids: Any, name: str) -> Any:
    """Returns ids on the host as checked int32, and tensors unchanged.

    Args:
        ids: Ids of one feature: numbers on the host, a `Ragged`, or a tensor.
        name: Name of the feature.

    Raises:
        UsageError: They aren't integers (R362).
    """
    if isinstance(ids, Ragged):
        return ids._replace(
            values=checked_ids(ids.values, name), lengths=checked_ids(ids.lengths, name)
        )
    if isinstance(ids, np.ndarray | list | tuple | int | np.integer):
        return keras.ops.convert_to_tensor(as_int32(ids, name))
    if not hasattr(ids, "dtype"):
        raise _not_integers(name, type(ids).__name__)
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" not in dtype:
        raise _not_integers(name, dtype)
    return ids


def checked_batch(batch: Any) -> Any:
    """Casts 64-bit integers on the host to int32 as `as_int32`.

    Args:
        batch: Nested structure of arrays, as for `fit` and `predict`.
    """

    def check(leaf: Any) -> Any:
        is_wide = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iu"
        return as_int32(leaf) if is_wide and leaf.dtype.itemsize > 4 else leaf

    return keras.tree.map_structure(check, batch)


def ragged(bags: Any, capacity: int, n_parts: int = 1, weights: Any = None) -> Ragged:
    """Returns bags of any length as one `Ragged` of a fixed size.

    Args:
        bags: Sequence of sequences of ids; its length is a multiple of `n_parts`.
        capacity: Largest number of ids [ids]; a multiple of `n_parts`.
        n_parts: Number of parts that the batch is split into, one after the other.
        weights: Weights in the structure of `bags`, or None.

    Raises:
        RecsysError: A part's bags hold more ids than its share of the capacity (R363).
    """
    lengths = np.array([len(bag) for bag in bags], np.int32)
    room, n_bags = capacity // n_parts, len(lengths) // n_parts
    values = np.zeros(capacity, np.int32)
    out = None if weights is None else np.zeros(capacity, np.float32)
    for part in range(n_parts):
        mine = slice(part * n_bags, (part + 1) * n_bags)
        used = int(lengths[mine].sum())
        if used > room:
            raise RecsysError(
                "R363",
                f"The ragged bags of part {part} must hold at most {room} ids together.",
                "Raise the capacity, or shorten the longest bags.",
                used,
            )
        at = slice(part * room, part * room + used)
        values[at] = _chained([as_int32(bag) for bag in bags[mine]], np.int32)
        if out is not None:
            out[at] = _chained(weights[mine], np.float32)
    return Ragged(values, lengths, out)


def _chained(bags: Any, dtype: Any) -> np.ndarray:
    parts = [np.asarray(bag, dtype) for bag in bags if len(bag)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def checked_data(x: Any) -> Any:
    """Returns `x` with checked 64-bit integers, so that none is truncated silently.

    Args:
        x: Arrays, nested or not; a generator; a `keras.utils.PyDataset`; or a
            `tf.data.Dataset`.

    Raises:
        UsageError: `x` is another kind of source (R364).
    """
    if isinstance(x, keras.utils.PyDataset):
        return _Checked(x)
    if isinstance(x, types.GeneratorType) or (hasattr(x, "__next__") and hasattr(x, "__iter__")):
        return (checked_batch(batch) for batch in x)
    if type(x).__module__.startswith("tensorflow") and hasattr(x, "map"):
        return _checked_dataset(x)
    if type(x).__module__.startswith("torch.utils"):
        raise UsageError(
            "R364",
            "A SparseModel must be fed arrays, a generator, a PyDataset or a tf.data.Dataset.",
            "Wrap the loader: (tuple(t.numpy() for t in batch) for batch in loader).",
            type(x).__name__,
        )
    is_list_of_ids = isinstance(x, list) and x and isinstance(x[0], int)
    return checked_batch(np.asarray(x) if is_list_of_ids else x)


class _Checked(keras.utils.PyDataset):
    """A PyDataset with checked batches."""

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
    tf: Any = sys.modules["tensorflow"]  # The caller imported it.

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
