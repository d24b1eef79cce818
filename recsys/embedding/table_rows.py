"""Reads, assigns and adds rows of tables outside of training steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from recsys.distributed.collectives import on_each_device
from recsys.embedding.layer import ShardedEmbedding
from recsys.embedding.table import Table, chunk_rows
from recsys.errors import UsageError


class EmbeddingTable:
    """One table of a built model, in logical rows, as `model.tables["items"]` returns it.

    Example, for pre-trained vectors:

        model.tables["items"].assign_rows(rows, vectors)

    Args:
        model: The model.
        layer: Layer of the table.
        name: Name of the table.
    """

    def __init__(self, model: Any, layer: ShardedEmbedding, name: str) -> None:
        self._model, self._layer, self.name = model, layer, name

    @property
    def rows(self) -> int:
        """Number of rows, without padding."""
        return next(m.rows for m in self._table.members if m.name == self.name)

    @property
    def dim(self) -> int:
        """Width of a row [floats]."""
        return self._table.dim

    def read_rows(self, rows: Any = None) -> np.ndarray:
        """Returns rows `[n, dim]` float32.

        Args:
            rows: Logical rows `[n]`; None for all, in order.

        Raises:
            UsageError: A row is out of range (R318), or several processes share the table
                (R319).
        """
        at = self._checked(np.arange(self.rows) if rows is None else rows)
        value = self._table.embeddings.value
        return np.asarray(value[self._table.physical(at)]).astype(np.float32)

    def assign_rows(self, rows: Any, values: Any) -> None:
        """Replaces rows and resets their optimizer state.

        Args:
            rows: Unique logical rows `[n]`.
            values: Their new values `[n, dim]`, finite.

        Raises:
            UsageError: A row is out of range or repeated, or the values have another shape or
                aren't finite (R318); or several processes share the table (R319).
        """
        at, values = self._checked(rows), np.asarray(values)
        is_number = np.issubdtype(values.dtype, np.number) and values.dtype.kind != "c"
        if values.shape != (len(at), self.dim) or not is_number or not np.isfinite(values).all():
            received = f"{values.dtype} of shape {values.shape}"
            raise self._unfit(f"values must be finite numbers [{len(at)}, {self.dim}]", received)
        if len(np.unique(at)) != len(at):
            raise self._unfit("rows must each be there once", rows)
        table = self._table
        slots = () if table.optimizer is None else table.optimizer.slot_list()
        size = (
            1 << max(len(at) - 1, 0).bit_length()
        )  # Powers of 2, so that few programs are compiled.
        for number, variable in enumerate(table.variables_by_row):
            n, width = min(chunk_rows(variable), size), int(variable.shape[1])
            parts = [slice(start, start + n) for start in range(0, len(at), n)]
            chunks = (
                (at[p], values[p])
                if number == 0
                else (at[p], np.full((len(at[p]), width), slots[number - 1].initial))
                for p in parts
            )
            put_rows(table, variable, chunks, n)

    def grow(self, rows: int) -> None:
        """Adds rows at the end; old rows keep their values and optimizer state.

        New rows have the initial values of a new model. The next step is compiled again.

        Args:
            rows: New number of rows.

        Raises:
            UsageError: `rows` is below the old number, gradients are being accumulated, the
                model is a `RetrievalModel`, or several processes share the table (R319).
        """
        self._check_one_process()
        if not self._model.tables_can_grow:
            raise _not_grown(
                f"The tables of {type(self._model).__name__!r} must have the rows of its data.",
                "Train it on the new data, with warm_start or with base=: its tables then grow.",
                rows,
            )
        if rows < self.rows:
            rule = f"Table {self.name!r} must not shrink; it has {self.rows} rows."
            raise _not_grown(rule, "Give the number of all rows, old and new.", rows)
        if self._model.gradient_buffers.parts:
            rule = "A table must not grow while the model accumulates gradients of its rows."
            cure = "Save the weights, and load them into a new model with more rows."
            raise _not_grown(rule, cure, rows)
        self._layer.grow(self.name, rows)
        self._model.forget_steps()

    @property
    def _table(self) -> Table:
        table = self._layer.home_of(self.name)
        if not table.built:
            rule = f"Table {self.name!r} must be built before its rows are used."
            cure = "Call the model on a batch, or build it; a RetrievalModel does so in `adapt`."
            raise UsageError("R318", rule, cure, "a model that is not built")
        return table

    def _checked(self, rows: Any) -> np.ndarray:
        """Returns checked rows of the stored table `[n]` int64."""
        self._check_one_process()
        at = np.asarray(rows)
        if at.size == 0:
            at = at.astype(np.int64)
        is_row = at.ndim == 1 and at.dtype.kind in "iu"
        if not is_row or (at.size and not 0 <= at.min() <= at.max() < self.rows):
            raise self._unfit(f"rows must be integers [n] in 0 … {self.rows - 1}", rows)
        return at.astype(np.int64) + self._table.offset(self.name)

    def _unfit(self, rule: str, received: Any) -> UsageError:
        cure = "An id's row is its number in the vocabulary; row 0 is for unknown ids."
        return UsageError("R318", f"Of table {self.name!r}, {rule}.", cure, received)

    def _check_one_process(self) -> None:
        if jax.process_count() > 1:
            rule = f"Table {self.name!r} must be in one process to be read, assigned or grown."
            cure = "Do so in a process of its own, and save the model for the others."
            raise _not_grown(rule, cure, f"{jax.process_count()} processes")


def _not_grown(rule: str, cure: str, received: Any) -> UsageError:
    return UsageError("R319", rule, cure, received)


def tables_by_name(model: Any) -> dict[str, EmbeddingTable]:
    """Returns the tables of a model, by name."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, ShardedEmbedding)]
    return {
        member.name: EmbeddingTable(model, layer, member.name)
        for layer in layers
        for table in layer.tables
        for member in table.members
    }


# --- rows into a sharded table


def put_rows(
    table: Table,
    variable: Any,
    chunks: Iterable[tuple[np.ndarray, np.ndarray]],
    size: int | None = None,
) -> None:
    """Assigns values to rows of a table; other rows keep theirs.

    All processes must call it with the same chunks; each device writes its own rows. The
    variable's old array is donated.

    Args:
        table: The table.
        variable: Its weights, or one of its slots.
        chunks: Logical rows `[n]` and their values `[n, width]`; rows are unique.
        size: Largest number of rows in a chunk; None for `chunk_rows`.
    """
    value = variable.value
    is_on_mesh = isinstance(value.sharding, NamedSharding)
    write = _write_on_mesh(value.sharding) if is_on_mesh else _write
    n, width = size or min(chunk_rows(variable), table.rows), int(variable.shape[1])
    for rows, values in chunks:
        # Padded to one length, to compile once; rows past the end are dropped.
        physical = np.full(n, value.shape[0], np.int32)
        padded = np.zeros((n, width), np.float32)
        physical[: len(rows)], padded[: len(rows)] = table.physical(rows.astype(np.int64)), values
        value = write(value, physical, padded)
    variable.assign(value)


@functools.partial(jax.jit, donate_argnums=0)
def _write(value: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    return value.at[rows].set(values.astype(value.dtype), mode="drop")


@functools.lru_cache(maxsize=16)
def _write_on_mesh(sharding: NamedSharding) -> Callable[..., jax.Array]:
    row_axis, column_axis = (*sharding.spec, None, None)[:2]

    def own(value: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
        n_rows, width = value.shape
        if row_axis is not None:
            rows = rows - jax.lax.axis_index(row_axis) * n_rows
        if column_axis is not None:
            first = jax.lax.axis_index(column_axis) * width
            values = jax.lax.dynamic_slice_in_dim(values, first, width, axis=1)
        # Drops rows of other devices; a negative index would wrap around.
        rows = jnp.where((rows >= 0) & (rows < n_rows), rows, n_rows)
        return value.at[rows].set(values.astype(value.dtype), mode="drop")

    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    specs = (sharding.spec, everywhere.spec, everywhere.spec)
    mapped = on_each_device(own, sharding.mesh, specs, sharding.spec)
    write = jax.jit(mapped, donate_argnums=0, out_shardings=sharding)

    def on_all(value: jax.Array, *arrays: np.ndarray) -> jax.Array:
        whole = (
            jax.make_array_from_callback(array.shape, everywhere, array.__getitem__)
            for array in arrays
        )
        return write(value, *whole)

    return on_all
