"""Transfers rows into a sharded table by chunks; no device or host holds it twice."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jax.sharding import NamedSharding, PartitionSpec

from recsys.data.catalogue import FeatureBags
from recsys.data.vocabulary import IdIndex, Vocabulary
from recsys.embedding.table import Table

_CHUNK_BYTES = 2**26


def chunk_rows(variable: Any) -> int:
    """Returns how many rows of a table's variable are put at a time."""
    return max(1, _CHUNK_BYTES // (4 * int(variable.shape[1])))


def transfer_rows(
    table: Table, variable: Any, chunks: Iterator[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Gives rows of a table their values; others keep what they have.

    Every process of a run calls it with the same chunks; each device takes its part of
    them. The arrays that the variable holds are freed as it goes.

    Args:
        table: The table.
        variable: Its weights, or one of its slots.
        chunks: Rows `[n]` and their values `[n, width]` float32; each row once, at most
            `chunk_rows` in a chunk.
    """
    value = variable.value
    put, on_all = _row_writer(value.sharding)
    n = min(chunk_rows(variable), table.rows)
    width = int(variable.shape[1])
    for rows, values in chunks:
        # A place behind the last one is none: all chunks are of one length, and compiled once.
        places = np.full(n, value.shape[0], np.int32)
        padded = np.zeros((n, width), np.float32)
        places[: len(rows)], padded[: len(rows)] = table.physical(rows.astype(np.int64)), values
        value = put(value, on_all(places), on_all(padded))
    variable.assign(value)


def _row_writer(sharding: Any) -> tuple[Callable[..., jax.Array], Callable[[np.ndarray], Any]]:
    """Returns what puts values at places, and what brings both to all devices."""
    if not isinstance(sharding, NamedSharding):
        return _write_local, jnp.asarray
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())

    def on_all(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

    return _write_on_mesh(sharding), on_all


@functools.partial(jax.jit, donate_argnums=0)
def _write_local(value: jax.Array, places: jax.Array, rows: jax.Array) -> jax.Array:
    return value.at[places].set(rows.astype(value.dtype), mode="drop")


@functools.lru_cache(maxsize=16)
def _write_on_mesh(sharding: NamedSharding) -> Callable[..., jax.Array]:
    row_axis, column_axis = (*sharding.spec, None, None)[:2]

    def own(value: jax.Array, places: jax.Array, rows: jax.Array) -> jax.Array:
        n_places, width = value.shape
        if row_axis is not None:
            places = places - jax.lax.axis_index(row_axis) * n_places
        if column_axis is not None:
            first = jax.lax.axis_index(column_axis) * width
            rows = jax.lax.dynamic_slice_in_dim(rows, first, width, axis=1)
        # What lies on another device comes before or behind; a negative place would wrap.
        places = jnp.where((places >= 0) & (places < n_places), places, n_places)
        return value.at[places].set(rows.astype(value.dtype), mode="drop")

    spec, all_of_it = sharding.spec, PartitionSpec()
    mapped = jax.shard_map(
        own,
        mesh=sharding.mesh,
        in_specs=(spec, all_of_it, all_of_it),
        out_specs=spec,
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=0, out_shardings=sharding)


NOWHERE = -1


@dataclasses.dataclass(frozen=True, eq=False)
class RowSources:
    """Where the rows of a table come from.

    Attributes:
        source: Row of the earlier table that each row goes on from `[rows]` int32; -1: none.
        is_new: Rows of an id or a token that had no earlier row `[rows]` bool.
        kept: Ids or tokens whose row is kept.
        reset: Of the new ones, those in a row that was another's.
        dropped: Ids or tokens of the earlier table that have no row any more.
        moved: Of those kept, those in another row than before.
    """

    source: np.ndarray
    is_new: np.ndarray
    kept: int
    reset: int
    dropped: int
    moved: int

    @property
    def new(self) -> int:
        """Ids or tokens without an earlier row, in rows that were free."""
        return int(self.is_new.sum()) - self.reset

    def counts(self) -> dict[str, int]:
        """Returns what became of ids or tokens, by name."""
        names = ("kept", "new", "reset", "dropped", "moved")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, source: np.ndarray, before: np.ndarray, now: np.ndarray, shared: int) -> RowSources:
        """Counts what `source` does.

        Args:
            source: Row of the earlier table of each row `[rows]`; -1: none.
            before: Rows of the earlier table that belonged to somebody `[rows before]` bool.
            now: Rows that belong to somebody `[rows]` bool.
            shared: First rows, which belong to nobody and go on as they are.
        """
        source = source.astype(np.int32)
        own = source[shared:]
        kept = int((own >= 0).sum())
        is_new = now & (source < 0)
        recycled = np.flatnonzero(is_new[: len(before)])
        return cls(
            source=source,
            is_new=is_new,
            kept=kept,
            reset=int(before[recycled].sum()),
            dropped=int(before.sum()) - len(np.unique(own[own >= 0])),
            moved=int(((own >= 0) & (own != np.arange(shared, len(source)))).sum()),
        )


def sources_of_ids(old: Vocabulary, new: Vocabulary) -> RowSources:
    """Returns where the rows of users or of items come from.

    Row 0 and the hash rows go on as they are: both vocabularies have as many. A row whose
    `generation` went up was free or another's in between, so it is reset, whoever has it.

    Args:
        old: The earlier vocabulary.
        new: Today's.
    """
    place = _places(old, new)
    n = min(len(old.own_ids), len(new.own_ids))
    is_again = new.generation[:n] > old.generation[:n]
    place[:n][is_again & (place[:n] == np.arange(n))] = NOWHERE
    shared = new.first_own_row
    own = np.where(place >= 0, place + shared, NOWHERE)
    source = np.concatenate([np.arange(shared), own])
    return RowSources.of(source, old.has_id(), new.has_id(), shared)


def _places(old: Vocabulary, new: Vocabulary) -> np.ndarray:
    """Returns where each own id of `new` is among those of `old` `[n]` int64; -1: nowhere."""
    n = min(len(old.own_ids), len(new.own_ids))
    place = np.full(len(new.own_ids), NOWHERE, np.int64)
    is_same = _bools(pc.equal(old.own_ids.slice(0, n), new.own_ids.slice(0, n)))
    place[:n][is_same] = np.flatnonzero(is_same)
    rest = np.flatnonzero((place == NOWHERE) & _bools(new.own_ids.is_valid()))
    unmatched = _bools(old.own_ids.is_valid())
    unmatched[:n] &= ~is_same
    left = np.flatnonzero(unmatched)
    if len(rest) and len(left):
        matches = IdIndex(new.own_ids.take(pa.array(rest))).find(old.own_ids.take(pa.array(left)))
        place[rest[matches[matches >= 0]]] = left[matches >= 0]
    return place


def _bools(mask: pa.Array) -> np.ndarray:
    """Returns an Arrow mask `[n]`, false where it is null."""
    bools: np.ndarray = pc.fill_null(mask, False).to_numpy(zero_copy_only=False).copy()
    return bools


_MONTHS = 12
_CHUNK_ROWS = 1 << 20


def kind_of(feature: FeatureBags) -> str:
    """Returns what the tokens of a feature are: `hashed`, `known`, `buckets`, `buckets, months`."""
    if feature.tokens is None:
        return "hashed"
    second = feature.tokens[1] if feature.rows > 1 else ""
    for kind, n_buckets in (
        ("buckets, months", feature.rows - 1 - _MONTHS),
        ("buckets", feature.rows - 1),
    ):
        if n_buckets > 0 and second == f"bucket 1 of {n_buckets}":
            return kind
    return "known"


def sources_of_tokens(old: FeatureBags, new: FeatureBags, ids: np.ndarray) -> RowSources:
    """Returns where the rows of a feature's table come from.

    Args:
        old: The feature then.
        new: The feature now, of the same `kind_of`.
        ids: Row that each item or user had then `[rows now]`; -1: none.
    """
    source = np.full(new.rows, NOWHERE, np.int64)
    source[0] = 0
    kind = kind_of(new)
    if kind == "hashed":
        source = np.arange(new.rows)
    elif kind == "known":
        names = [pa.array(list(f.tokens or ())[1:], pa.large_string()) for f in (new, old)]
        matches = pc.index_in(names[0], value_set=names[1])
        source[1:] = pc.fill_null(matches, NOWHERE - 1).to_numpy(zero_copy_only=False) + 1
    else:
        months = _MONTHS if "months" in kind else 0
        n_old, n_new = (feature.rows - 1 - months for feature in (old, new))
        source[1 : 1 + n_new] = _buckets(_together(old, new, ids, n_old, n_new))
        source[1 + n_new :] = np.arange(1 + n_old, old.rows)
    before, now = np.ones(old.rows, bool), np.ones(new.rows, bool)
    before[0] = now[0] = False
    return RowSources.of(source, before, now, 1)


def _together(
    old: FeatureBags, new: FeatureBags, ids: np.ndarray, n_old: int, n_new: int
) -> np.ndarray:
    """Returns how many were in each bucket then and in each now `[now, then]` int64."""
    counts = np.zeros((1 + n_new) * (1 + n_old), np.int64)
    for start in range(0, len(ids), _CHUNK_ROWS):
        rows = start + np.flatnonzero(ids[start : start + _CHUNK_ROWS] >= 0)
        then, now = _bucket(old.bags[ids[rows]], n_old), _bucket(new.bags[rows], n_new)
        counts += np.bincount(now * (1 + n_old) + then, minlength=len(counts))
    return counts.reshape(1 + n_new, 1 + n_old)[1:, 1:]


def _bucket(bags: np.ndarray, n_buckets: int) -> np.ndarray:
    """Returns the bucket among the token rows `[n, width]` of each `[n]`; 0: none."""
    return np.where(bags <= n_buckets, bags, 0).max(axis=1, initial=0).astype(np.int64)


def _buckets(counts: np.ndarray) -> np.ndarray:
    """Returns the row `[now]` of the bucket that most were in `[now, then]`; -1: nobody was.

    Of several with as many it is the one that lies nearest on the way from the first
    bucket to the last.
    """
    places = [(np.arange(n) + 0.5) / n for n in counts.shape]
    distance = np.abs(places[0][:, None] - places[1][None, :])
    nearest = np.argmax(counts - distance / 2, axis=1) + 1
    return np.where(counts.sum(axis=1) > 0, nearest, NOWHERE)
