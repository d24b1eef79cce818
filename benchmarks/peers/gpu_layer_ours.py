"""The engine's own lookup and update on one accelerator, as `ShardedEmbedding` calls them."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.measure import peak_rss_mib
from benchmarks.peers.gpu_layer_case import LEARNING_RATE, Case, Measured, copy_rate, timed_ms
from recsys.embedding import RowWiseAdagrad, rows
from recsys.embedding.rows import Lookups

OPTIMIZER = RowWiseAdagrad(LEARNING_RATE)
State = tuple[jax.Array, tuple[jax.Array, ...]]


@functools.partial(jax.jit, donate_argnums=0)
def step(state: State, ids: jax.Array, grads: jax.Array) -> tuple[jax.Array, State]:
    """Returns the rows that were looked up `[n, dim]`, and the state after the update.

    Args:
        state: Table `[rows, dim]` and slots; donated.
        ids: Rows `[n]` int32.
        grads: Their gradients `[n, dim]` float32.
    """
    table, slots = state
    lookups, n = Lookups(ids), ids.shape[0]
    out = rows.pool(table, lookups, lookups.weights(), n)
    # As in the training step, the update waits for the lookup.
    grads, out = jax.lax.optimization_barrier((grads, out))
    rate = jnp.float32(LEARNING_RATE)
    numbers = rows.Numbers(rate, rate, jnp.float32(1), jnp.uint32(0), jnp.int32(0))
    return out, rows.update(OPTIMIZER, table, slots, rows.Gradients(lookups, grads), numbers)


class Run:
    """A table in training.

    Args:
        case: What is measured.
    """

    def __init__(self, case: Case) -> None:
        self.sets = [jax.device_put(ids) for ids in case.read_ids()]
        n = self.sets[0].shape[0]
        self.grads = jax.random.normal(jax.random.key(1), (n, case.dim)) * 0.01
        (slot,) = OPTIMIZER.slot_list()
        self.state: Any = (
            jax.jit(lambda: jax.random.uniform(jax.random.key(0), (case.rows, case.dim)))(),
            (jnp.full((case.rows, 1), slot.initial, jnp.float32),),
        )
        self.out: Any = None

    def step(self, i: int) -> None:
        """Starts the i-th step."""
        self.out, self.state = step(self.state, self.sets[i % len(self.sets)], self.grads)

    def wait(self) -> None:
        """Waits for all steps."""
        jax.block_until_ready((self.out, self.state))


def copies_ms(case: Case) -> list[float]:
    """Returns the time of a copy of `case.copied_floats` [ms]."""
    copy, made = jax.jit(jnp.copy), [jnp.arange(case.copied_floats, dtype=jnp.float32)]
    source = made[0]

    def one(_: int) -> None:
        made[0] = copy(source)

    return timed_ms(one, lambda: jax.block_until_ready(made[0]), case)


def main() -> None:
    """Measures the case that the command line names."""
    case = Case.from_command()
    device = jax.devices()[0]
    if device.platform == "cpu" and not case.on_cpu:
        sys.exit("JAX sees no GPU here: install jax[cuda13] or jax[cuda12] beside the driver.")
    bandwidth = copy_rate(copies_ms(case), case)
    run = Run(case)
    found = timed_ms(run.step, run.wait, case)
    measured = Measured(
        step_ms={"row-wise adagrad": found},
        copy_gb_s=bandwidth,
        peak_device_bytes=(device.memory_stats() or {}).get("peak_bytes_in_use", 0),
        peak_rss_mib=peak_rss_mib(),
        device=device.device_kind,
        versions={"jax": importlib.metadata.version("jax")},
    )
    print(measured.to_json(), flush=True)


if __name__ == "__main__":
    main()
