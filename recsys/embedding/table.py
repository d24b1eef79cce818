"""An embedding table as a Keras layer: its weights, slots and sharding.

In memory the rows of a row-split table are in physical order, interleaved
(`recsys.embedding.sharding`); on disk, and everywhere else, they are in logical order.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from recsys.embedding.initial import Filled, InPlace, initial_rows
from recsys.embedding.sharding import (
    TableSharding,
    logical_rows,
    padded_rows,
    physical_rows,
    sharding_of,
)
from recsys.embedding.table_config import Placement, TableSpec
from recsys.errors import UsageError
from recsys.formats import count, size

WEIGHTS = "embeddings"


class Table(keras.layers.Layer):
    """One table, or a stack of tables of one width.

    The variables are not trainable for Keras: the model's optimizer never sees them, and
    `SparseModel` updates the rows that a step touched.

    Args:
        members: The tables stored here, one after the other. They may differ only in name,
            rows, initial values, combiner, and handling of unknown ids.
        n_shards: Devices that a table may be split over; for padding.
        seed: Seed of the initial values and of stochastic rounding.
    """

    def __init__(
        self, members: Sequence[TableSpec], n_shards: int = 1, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(name="_".join(member.name for member in members), **kwargs)
        self.seed, self.n_shards = seed, n_shards
        self._read: Callable[[], Any] | None = None
        self._unfit: UsageError | None = None
        self._resize(members)

    def _resize(self, members: Sequence[TableSpec]) -> None:
        """Sets the attributes that depend on the members' rows."""
        self.members = tuple(members)
        self.spec = members[0]
        self.rows = sum(member.rows for member in members)
        self.dim = self.spec.dim
        self.optimizer = self.spec.optimizer
        self.exchange = dataclasses.replace(self.spec.exchange, rows=self.rows)
        self.is_interleaved = self.spec.placement == "row"
        self.refuses_unknown = any(member.unknown == "error" for member in members)
        n = padded_rows(self.rows, self.n_shards) if self.is_interleaved else self.rows
        self.n_physical = n
        if self.n_physical >= 2**31:
            raise UsageError(
                "R354",
                f"Table {self.name!r} must have fewer than 2³¹ rows, padding included.",
                "Split it into several tables, or hash its ids into fewer rows.",
                self.n_physical,
            )

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights `[physical rows, dim]`, the slots and the step count."""
        start = InPlace(self._initial, functools.partial(self._where, self.dim))
        self.embeddings = self._weight(WEIGHTS, self.dim, start, self.spec.dtype)
        self.slots = []
        if self.optimizer is not None:
            for slot in self.optimizer.slot_list():
                width = 1 if slot.per_row else self.dim
                fill = Filled(slot.initial, functools.partial(self._where, width))
                self.slots.append(self._weight(slot.name, width, fill, "float32"))
        self.steps = self._counter("steps")
        if self.refuses_unknown:
            self.unknown_ids = self._counter("unknown_ids")

    def save_own_variables(self, store: Any) -> None:
        """Saves the weights, the slots, the step count and the order of the rows."""
        for number, variable in enumerate([*self.variables_by_row, self.steps]):
            store[str(number)] = variable
        store["order"] = np.array(self._order())

    def load_own_variables(self, store: Any) -> None:
        """Loads saved variables, also of a table with fewer rows; other rows keep their values.

        Raises:
            UsageError: The file has more rows than the table (R368).
        """
        order, names = self._order(), {*store.keys()}
        if not names and self._unfit is not None:
            raise self._unfit  # Keras tries other names in the file, and shows the last error.
        if "order" in names:
            order = np.asarray(store["order"]).tolist()
        for number, variable in enumerate(self.variables_by_row):
            saved = store[str(number)]
            if order != self._order() or saved.shape[0] != self.n_physical:
                saved = self._with_saved(variable, np.asarray(saved), *order)
            variable.assign(saved)
        self.steps.assign(store[str(len(self.variables_by_row))])

    def _order(self) -> list[int]:
        """Returns whether rows are interleaved, and the rows of each member."""
        return [int(self.is_interleaved), *(member.rows for member in self.members)]

    def _with_saved(
        self, variable: Any, saved: np.ndarray, interleaved: int, *rows: int
    ) -> np.ndarray:
        """Returns a variable's value with saved rows `[physical rows, width]` written into it."""
        own = [member.rows for member in self.members]
        if len(rows) != len(own) or any(n > m for n, m in zip(rows, own, strict=True)):
            self._unfit = UsageError(
                "R368",
                f"Table {self.name!r} must have at least the rows of the file; it has"
                f" {', '.join(map(str, own))}.",
                "Make the model with as many rows, and with the same stacks of tables.",
                list(rows),
            )
            raise self._unfit
        out, first = np.array(keras.ops.convert_to_numpy(variable)), 0
        for member, n in zip(self.members, rows, strict=True):
            rows_saved = np.arange(first, first + n)
            if interleaved:
                rows_saved = physical_rows(rows_saved, len(saved))
            out[self.physical_of(member.name, np.arange(n))] = saved[rows_saved]
            first += n
        return out

    def grow(self, name: str, rows: int) -> None:
        """Grows the member `name` to `rows` rows; new rows have initial values."""
        kept: dict[str, Any] = {}
        self.save_own_variables(kept)
        self._resize(
            [dataclasses.replace(m, rows=rows) if m.name == name else m for m in self.members]
        )
        for variable in self.variables:
            self._untrack_variable(variable)
        self._tracker.unlock()
        self.build()
        self.load_own_variables(kept)

    def read_from(self, weights: Any, read: Callable[[], Any]) -> None:
        """Makes lookups read `weights` `[rows, dim]`, in logical order, without own variables.

        For serving: the table then counts as built, and can't be trained.

        Args:
            weights: A variable of the backend.
            read: Returns its value as a tensor, without a copy.
        """
        self.embeddings, self.slots, self._read = weights, [], read
        self.is_interleaved, self.n_physical = False, self.rows
        self.built = True

    def for_lookups(self) -> Any:
        """Returns the weights `[physical rows, dim]` to gather from."""
        return self.embeddings if self._read is None else self._read()

    def _where(self, width: int) -> tuple[TableSharding, PartitionSpec]:
        sharding = sharding_of(f"{self.path}/{WEIGHTS}")
        return sharding, sharding.slot_spec(per_row=width < self.dim)

    def _weight(self, name: str, width: int, initializer: Any, dtype: str) -> Any:
        return self.add_weight(
            name=name,
            shape=(self.n_physical, width),
            initializer=initializer,
            dtype=dtype,
            trainable=False,
            autocast=False,
        )

    def _initial(self, physical: jax.Array) -> jax.Array:
        """Returns the initial weights `[n, dim]` float32 of physical rows `[n]` int32."""
        row = logical_rows(physical, self.n_physical) if self.is_interleaved else physical
        values = jnp.zeros((len(physical), self.dim), jnp.float32)
        for member in self.members:
            start = self.offset(member.name)
            inside = (row >= start) & (row < start + member.rows)
            # Seeded by name: tables of one layer must start with different values.
            seed = zlib.crc32(f"{self.seed} {member.name}".encode())
            own = initial_rows(member.initializer, row - start, member.dim, seed)
            values = jnp.where(inside[:, None], own, values)
        return values

    def _counter(self, name: str) -> Any:
        return self.add_weight(
            name=name, shape=(), initializer="zeros", dtype="int32", trainable=False
        )

    @property
    def variables_by_row(self) -> list[Any]:
        """Variables with an entry per row: the weights, then the slots."""
        return [self.embeddings, *self.slots]

    @property
    def learns(self) -> bool:
        """Whether a `SparseModel` trains its rows."""
        return bool(self.trainable) and self.optimizer is not None

    @property
    def sharding(self) -> TableSharding:
        """Sharding under the active distribution."""
        return sharding_of(self.embeddings.path)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of logical rows, and the width of a row."""
        return self.rows, self.dim

    def physical(self, rows: Any) -> Any:
        """Returns the physical rows of logical `rows`, an array of any library."""
        return physical_rows(rows, self.n_physical) if self.is_interleaved else rows

    def physical_of(self, name: str, rows: Any) -> Any:
        """Returns the physical rows of `rows` of the member `name`."""
        return self.physical(rows + self.offset(name))

    def offset(self, name: str) -> int:
        """Returns the first row of the member `name`."""
        names = [member.name for member in self.members]
        return sum(member.rows for member in self.members[: names.index(name)])


@dataclasses.dataclass(frozen=True)
class TablePlacement:
    """Placement of one table on the devices.

    Attributes:
        table: Name of the table.
        placement: `row`, `column`, or `replicated`.
        rows: Logical rows, without padding.
        padded_rows: Physical rows, with the padding that makes shards equal.
        dim: Width of a row [floats].
        shards: Number of devices that one copy is split over.
        bytes_per_device: Size of the weights on each device [bytes].
        slot_bytes_per_device: Size of the optimizer's slots on each device [bytes].
    """

    table: str
    placement: Placement
    rows: int
    padded_rows: int
    dim: int
    shards: int
    bytes_per_device: int
    slot_bytes_per_device: int


def planned(table: Table, n_shards: int) -> TablePlacement:
    """Returns the placement of `table`, built or not, split over `n_shards` devices."""
    spec = table.spec
    n_shards = 1 if spec.placement == "replicated" else n_shards
    slots = () if spec.optimizer is None else spec.optimizer.slot_list()
    per_row = sum(slot.per_row for slot in slots)
    full = (len(slots) - per_row) * table.n_physical * spec.dim * 4 // n_shards
    # Every device of a column-wise table has the per-row slots of all rows.
    rows_here = table.n_physical // (n_shards if spec.placement == "row" else 1)
    return TablePlacement(
        table=table.name,
        placement=spec.placement,
        rows=table.rows,
        padded_rows=table.n_physical,
        dim=spec.dim,
        shards=n_shards,
        bytes_per_device=table.n_physical * spec.dim * spec.itemsize // n_shards,
        slot_bytes_per_device=full + per_row * rows_here * 4,
    )


class FeatureInput(NamedTuple):
    """One feature's lookup in its table.

    Attributes:
        table: The table, or the stack that contains it.
        spec: Spec of the table.
        ids: Ids `[batch]`, `[batch, length]`, or a `Ragged`; int32.
        weights: Weights of the ids, or None.
        name: Name of the feature.
    """

    table: Table
    spec: TableSpec
    ids: Any
    weights: Any
    name: str


def checked_columns(spec: TableSpec, n_shards: int) -> None:
    """Checks that the width of a column-wise table is a multiple of `n_shards`.

    Raises:
        UsageError: It isn't (R355).
    """
    if spec.placement == "column" and spec.dim % n_shards:
        raise UsageError(
            "R355",
            f"The width of table {spec.name!r} must be a multiple of the {n_shards} devices"
            " that split its columns.",
            f"Use embedding_dim={math.ceil(spec.dim / n_shards) * n_shards}, or placement='row'.",
            spec.dim,
        )


_CHUNK_BYTES = 2**26


def chunk_rows(variable: Any) -> int:
    """Returns the number of rows of a variable that are read or written at a time."""
    return max(1, _CHUNK_BYTES // (4 * int(variable.shape[1])))


def logical_chunks(table: Table, variable: Any) -> Iterator[Any]:
    """Yields `variable` `[physical rows, width]` in logical order, without padding, in chunks.

    Chunks are float32, on the devices if several share the table, else on the host.

    Args:
        table: The table.
        variable: Its weights or one of its slots.
    """
    value, n = variable.value, chunk_rows(variable)
    is_on_mesh = isinstance(getattr(value, "sharding", None), NamedSharding)
    whole: Any = value if is_on_mesh else keras.ops.convert_to_numpy(value)
    for start in range(0, table.rows, n):
        rows = table.physical(np.arange(start, min(start + n, table.rows)))
        yield whole[rows].astype(np.float32)


def logical_order(table: Table, variable: Any) -> np.ndarray:
    """Returns `variable` in logical order `[rows, width]`, on the host."""
    return np.concatenate(list(logical_chunks(table, variable)))


def physical_order(table: Table, values: Any) -> np.ndarray:
    """Returns rows `[rows, width]` in physical order `[physical rows, width]`; padding is 0.

    Args:
        table: The table.
        values: An array, or an object that slices like one.
    """
    if not table.is_interleaved:
        return np.asarray(values)
    out, n = np.zeros((table.n_physical, values.shape[1]), values.dtype), chunk_rows(values)
    for start in range(0, len(values), n):
        rows = np.arange(start, min(start + n, len(values)))
        out[table.physical(rows)] = values[start : start + n]
    return out


def summary_lines(tables: Iterable[Table]) -> Iterator[str]:
    """Yields a line per table: rows and width, size, optimizer and slots."""
    for table in tables:
        placement = planned(table, 1)
        what = f" {table.name}: {count(table.rows)} rows × {count(table.dim)}"
        weights = f"{what}, {size(placement.bytes_per_device)}"
        if not table.learns:
            yield f"{weights}; fixed"
            continue
        slots = size(placement.slot_bytes_per_device)
        yield f"{weights}; trained by {type(table.optimizer).__name__}, with slots of {slots}"
