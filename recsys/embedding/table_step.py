"""One training step as one table sees it."""

from __future__ import annotations

import dataclasses
import zlib

import jax
import jax.numpy as jnp

from recsys.embedding import accumulation, exchange
from recsys.embedding.exchange import Use
from recsys.embedding.optimizers import RowOptimizer
from recsys.embedding.rounding import mixed
from recsys.embedding.rows import Numbers
from recsys.embedding.table import Table

Arrays = list[jax.Array]
_GOLDEN = 0x9E3779B9


class TableStep:
    """What one step knows of one table: its uses, and the gradients of what they returned."""

    def __init__(self, table: Table, optimizer: RowOptimizer) -> None:
        self.table, self.optimizer = table, optimizer
        self.uses: list[Use] = []
        self.grads: Arrays = []

    def add(self, use: Use, grad: jax.Array) -> None:
        """Adds a use of the table."""
        self.uses.append(use)
        self.grads.append(grad)

    def kept_if(self, condition: jax.Array) -> TableStep:
        """Returns this with nothing to update unless `condition`."""
        kept = TableStep(self.table, self.optimizer)
        for use, grad in zip(self.uses, self.grads, strict=True):
            rows = jnp.where(condition, use.lookups.rows, -1)
            kept.add(dataclasses.replace(use, lookups=use.lookups._replace(rows=rows)), grad)
        return kept

    def scaled(self, scale: jax.Array) -> TableStep:
        """Returns this with gradients times `scale`."""
        scaled = TableStep(self.table, self.optimizer)
        for use, grad in zip(self.uses, self.grads, strict=True):
            scaled.add(use, grad * scale)
        return scaled

    def squares(self) -> jax.Array:
        """Returns the sum of squares of the table's gradient, a scalar."""
        table = self.table
        return exchange.squares(table.site, table.places, self.uses, self.grads)

    def updated(self, values: Arrays, scale: jax.Array, is_due: jax.Array | None) -> Arrays:
        """Returns the new values of the table's weights, slots and step count.

        Args:
            values: The values.
            scale: Factor on every gradient.
            is_due: Whether to update at all, a scalar bool; None for always.
        """
        if is_due is None:
            return self._apply(values, scale)
        return accumulation.only_if(is_due, lambda v: self._apply(v, scale), values)

    def _apply(self, values: Arrays, scale: jax.Array) -> Arrays:
        *values, step = values
        table, optimizer = self.table, self.optimizer
        rate = optimizer.rate(step)
        name = zlib.crc32(f"{table.seed} {table.name}".encode())
        numbers = Numbers(
            rate=rate,
            step_size=optimizer.step_size(rate, step),
            scale=jnp.asarray(scale, jnp.float32),
            seed=mixed(step.astype(jnp.uint32) * jnp.uint32(_GOLDEN) ^ jnp.uint32(name)),
            row_offset=jnp.int32(0),
        )
        weights, slots = exchange.apply(
            table.site,
            optimizer,
            values[0],
            tuple(values[1:]),
            self.uses,
            self.grads,
            numbers,
        )
        return [weights, *slots, step + 1]


def by_table(tables: list[Table], uses: list[Use], grads: Arrays) -> list[TableStep]:
    """Returns the steps of the tables that learn, each with all its uses."""
    steps: dict[int, TableStep] = {}
    for table, use, grad in zip(tables, uses, grads, strict=True):
        if table.optimizer is not None:
            steps.setdefault(id(table), TableStep(table, table.optimizer)).add(use, grad)
    return list(steps.values())


def after(reads: Arrays) -> jax.Array:
    """Returns 1.0, which isn't known before all of `reads` are.

    An update writes where lookups read, and where the gradients of learned weights do.
    It must wait for all of them, also where it doesn't need them, or XLA copies the
    table; an optimization barrier is gone by the time that XLA orders its program.
    """
    total = sum((jnp.sum(x, dtype=jnp.float32) for x in reads), jnp.float32(0))
    return jnp.where(total > jnp.inf, jnp.float32(2.0), jnp.float32(1.0))
