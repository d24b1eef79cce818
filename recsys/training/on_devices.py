"""Where the arrays of a batch go: each device gets its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from recsys.data.batches import Batch

Placer = Callable[[Batch], dict[str, Any]]


def batch_placer() -> Placer:
    """Returns what puts whole batches where Keras' trainer would.

    The active distribution is asked for now: Keras keeps it by thread, and batches are
    placed in another one. In one process the arrays are sent to the devices; the copy
    goes on while the caller does. In several, each gets its rows of each array on the
    host, for that is what `fit` takes there: all processes make the same whole batch,
    so the model and the loss see one batch, in the order of a single process.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return lambda batch: {name: jax.device_put(x) for name, x in batch.items()}
    mesh, axis = distribution.device_mesh.backend_mesh, distribution.batch_dim_name
    place = jax.device_put if jax.process_count() == 1 else rows_of_process

    def placed(batch: Batch) -> dict[str, Any]:
        return {
            # Spelled as Keras spells it, so that it finds the array where it wants it.
            name: place(x, NamedSharding(mesh, PartitionSpec(axis, *[None] * (x.ndim - 1))))
            for name, x in batch.items()
        }

    return placed


def rows_of_process(array: np.ndarray, sharding: Sharding) -> np.ndarray:
    """Returns the rows of `array` that this process' devices hold, in order.

    That is what `jax.make_array_from_process_local_data` makes the array of again.
    """
    parts = sharding.addressable_devices_indices_map(array.shape).values()
    rows = {index[0].indices(len(array))[:2] for index in parts if index is not None}
    return np.concatenate([array[first:end] for first, end in sorted(rows)])
