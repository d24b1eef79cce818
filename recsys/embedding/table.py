"""An embedding table as a Keras layer: its weights, its slots, its place."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from recsys.embedding import spread
from recsys.embedding.config import ResolvedTable
from recsys.embedding.site import Site, site_of
from recsys.errors import UsageError

WEIGHTS = "embeddings"


class Table(keras.layers.Layer):
    """One table, or several of one width that are stored as one.

    The variables are not trainable in the sense of Keras: the model's optimizer never
    sees them, and `SparseModel` updates the rows that a step touched.

    Args:
        members: The tables stored here, alike but for their names, rows and initial
            values; their rows follow each other.
        n_shards: Devices that a table may be split over; for padding.
        seed: Seed of the initial values and of stochastic rounding.
    """

    def __init__(
        self, members: Sequence[ResolvedTable], n_shards: int = 1, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(name="_".join(member.name for member in members), **kwargs)
        self.members, self.seed = tuple(members), seed
        self.kind = members[0]
        self.rows = sum(member.rows for member in members)
        self.dim = self.kind.dim
        self.optimizer = self.kind.optimizer
        self._read: Callable[[], Any] | None = None
        self.is_spread = self.kind.placement == "row"
        self.places = spread.padded_rows(self.rows, n_shards) if self.is_spread else self.rows
        if self.places >= 2**31:
            raise UsageError(
                "R354",
                f"Table {self.name!r} must have fewer than 2³¹ rows, padding included.",
                "Split it into several tables, or hash its ids into fewer rows.",
                self.places,
            )

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights `[places, dim]`, the slots, and the table's step count."""
        self.embeddings = self._weight(WEIGHTS, self.dim, self._initial, self.kind.dtype)
        self.slots = []
        if self.optimizer is not None:
            for slot in self.optimizer.slot_list():
                start = keras.initializers.Constant(slot.initial)
                width = 1 if slot.per_row else self.dim
                self.slots.append(self._weight(slot.name, width, start, "float32"))
        self.steps = self.add_weight(
            name="steps", shape=(), initializer="zeros", dtype="int32", trainable=False
        )

    def read_from(self, weights: Any, read: Callable[[], Any]) -> None:
        """Has lookups read `weights` `[rows, dim]`, in the order of rows, and makes none.

        For who serves: the table is built with it, and can't be trained.

        Args:
            weights: A variable of the backend.
            read: Returns its numbers, as a tensor that is no copy.
        """
        self.embeddings, self.slots, self._read = weights, [], read
        self.is_spread, self.places = False, self.rows
        self.built = True

    def for_lookups(self) -> Any:
        """Returns the weights `[places, dim]` to gather from."""
        return self.embeddings if self._read is None else self._read()

    def _weight(self, name: str, width: int, initializer: Any, dtype: str) -> Any:
        return self.add_weight(
            name=name,
            shape=(self.places, width),
            initializer=initializer,
            dtype=dtype,
            trainable=False,
            autocast=False,
        )

    @property
    def variables_by_row(self) -> list[Any]:
        """The variables with an entry for each row: the weights, then the slots."""
        return [self.embeddings, *self.slots]

    @property
    def site(self) -> Site:
        """Where the table lies under the active distribution."""
        return site_of(self.embeddings.path)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that mean something, and the width of a row."""
        return self.rows, self.dim

    def place(self, rows: Any) -> Any:
        """Returns the places of `rows` of the table, an array of any library."""
        return spread.places(rows, self.places) if self.is_spread else rows

    def offset(self, name: str) -> int:
        """Returns the row at which the member `name` begins."""
        names = [member.name for member in self.members]
        return sum(member.rows for member in self.members[: names.index(name)])

    @functools.cached_property
    def _initial(self) -> keras.initializers.Initializer:
        return _Initial(self)


class _Initial(keras.initializers.Initializer):
    """Gives every place the initial values of the row that lies there."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        if keras.backend.backend() != "jax":
            # Other backends only read: the values are about to be loaded.
            return ops.zeros(shape, dtype)
        import jax

        return jax.jit(functools.partial(self._values, dtype=dtype))()

    def _values(self, dtype: Any) -> Any:
        import jax.numpy as jnp

        from recsys.embedding.initial import initial_rows

        table = self._table
        places = jnp.arange(table.places, dtype=jnp.int32)
        row = spread.rows_at(places, table.places) if table.is_spread else places
        values = jnp.zeros((table.places, table.dim), jnp.float32)
        for member in table.members:
            start = table.offset(member.name)
            inside = (row >= start) & (row < start + member.rows)
            # By name: tables of one layer must not start alike.
            seed = zlib.crc32(f"{table.seed} {member.name}".encode())
            own = initial_rows(member.initializer, row - start, member.dim, seed)
            values = jnp.where(inside[:, None], own, values)
        return values.astype(dtype)


class FeatureInput(NamedTuple):
    """What one feature asks of its table.

    Attributes:
        table: The table, or the stack that it is part of.
        kind: What the table is.
        ids: Ids `[batch]`, `[batch, length]`, or a `Ragged`; int32.
        weights: Weights of the ids, or None.
    """

    table: Table
    kind: ResolvedTable
    ids: Any
    weights: Any


def bytes_per_row(kind: ResolvedTable) -> tuple[int, int]:
    """Returns the bytes of a row's weights, and of its slots."""
    slots = () if kind.optimizer is None else kind.optimizer.slot_list()
    return kind.dim * kind.itemsize, sum(4 * (1 if s.per_row else kind.dim) for s in slots)


def checked_columns(kind: ResolvedTable, n_shards: int) -> None:
    """Checks that the width of a column-wise table divides.

    Raises:
        UsageError: It doesn't.
    """
    if kind.placement == "column" and kind.dim % n_shards:
        raise UsageError(
            "R355",
            f"The width of table {kind.name!r} must be a multiple of the {n_shards} devices"
            " that split its columns.",
            f"Use embedding_dim={math.ceil(kind.dim / n_shards) * n_shards}, or placement='row'.",
            kind.dim,
        )
