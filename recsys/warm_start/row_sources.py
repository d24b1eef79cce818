"""Which row of an earlier vocabulary each row of today's goes on from: rows follow ids.

A vocabulary that grew from the earlier one keeps the rows of its ids, which is seen by
comparing the two columns; only what differs is looked up by id. So a vocabulary that was
built anew, in which every id has another row, works too, at the cost of an index of it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.id_index import IdIndex
from recsys.data.vocabulary import Vocabulary

NOWHERE = -1


@dataclasses.dataclass(frozen=True, eq=False)
class RowSources:
    """Where the rows of a table come from.

    Attributes:
        source: Row of the earlier table that each row goes on from `[rows]` int32; -1: none.
        is_new: Rows that belong to an id or a token and go on from none `[rows]` bool.
        kept: Ids or tokens whose row goes on.
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
        """Ids or tokens that go on from none, in rows that were nobody's."""
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
        found = IdIndex(new.own_ids.take(pa.array(rest))).find(old.own_ids.take(pa.array(left)))
        place[rest[found[found >= 0]]] = left[found >= 0]
    return place


def _bools(mask: pa.Array) -> np.ndarray:
    """Returns an Arrow mask `[n]`, false where it is null."""
    bools: np.ndarray = pc.fill_null(mask, False).to_numpy(zero_copy_only=False).copy()
    return bools
