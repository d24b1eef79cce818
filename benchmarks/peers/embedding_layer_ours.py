"""Our row operations, by the C kernels or by JAX alone (`RECSYS_NATIVE=0`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from benchmarks.peers.embedding_layer_case import EPSILON, INITIAL, LEARNING_RATE, take_turns
from recsys.embedding import optimizers, rows
from recsys.embedding.rows import Lookups

_OPTIMIZERS = {
    "sgd": optimizers.SGD(LEARNING_RATE),
    "adagrad": optimizers.Adagrad(LEARNING_RATE, initial_accumulator_value=0.0, epsilon=EPSILON**2),
    "rowwise_adagrad": optimizers.RowWiseAdagrad(
        LEARNING_RATE, initial_accumulator_value=0.0, epsilon=EPSILON**2
    ),
}


class Layer:
    """A table, its slots, and a step on them."""

    def __init__(self, grads: str, n_rows: int, dim: int, optimizer: str) -> None:
        self.optimizer = _OPTIMIZERS[optimizer]
        self.grads = jnp.asarray(np.load(grads))
        self.table = jnp.full((n_rows, dim), INITIAL)
        self.slots = tuple(
            jnp.full((n_rows, 1 if slot.per_row else dim), slot.initial)
            for slot in self.optimizer.slot_list()
        )
        # Two programs: in one, nothing would tell XLA to read before it writes, as the
        # gradients of a training step do, and it would copy the table.
        self._pool = jax.jit(self._pooled)
        self._update = jax.jit(self._updated, donate_argnums=(0, 1))

    def _pooled(self, table: jax.Array, ids: jax.Array) -> jax.Array:
        lookups = Lookups(ids)
        return rows.pool(table, lookups, lookups.weights(), self.grads.shape[0])

    def _updated(
        self, table: jax.Array, slots: rows.Slots, ids: jax.Array, grads: jax.Array
    ) -> tuple[jax.Array, rows.Slots]:
        rate = jnp.float32(LEARNING_RATE)
        numbers = rows.Numbers(rate, rate, jnp.float32(1), jnp.uint32(0), jnp.int32(0))
        gradients = rows.Gradients(Lookups(ids), grads)
        return rows.update(self.optimizer, table, slots, gradients, numbers)

    def step(self, ids: object) -> None:
        """Looks up and updates."""
        out = self._pool(self.table, ids)
        self.table, self.slots = self._update(self.table, self.slots, ids, self.grads)
        jax.block_until_ready((out, self.table, self.slots))

    def read(self) -> npt.NDArray[np.float32]:
        """Returns the table."""
        return np.asarray(self.table)


def main(ids: str, grads: str, rows: int, dim: int, optimizer: str) -> None:
    """Takes turns on a table, with ids `[batches, bags, length]` and gradients `[bags, dim]`."""
    layer = Layer(grads, rows, dim, optimizer)
    take_turns(
        ids, lambda bags: jnp.asarray(bags.reshape(-1)), layer.step, layer.read, ["jax", "jaxlib"]
    )
