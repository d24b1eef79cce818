"""Which column of the interactions and which of a catalogue hold the same ids, by their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from recsys.check.dialect import Understood
from recsys.check.names import name_score
from recsys.check.profile import Profile
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.values import to_ids

_IDS_COMPARED = 2_000_000
_NEARLY_ALL = 0.9
_MOST_SCALE = 21


@dataclasses.dataclass(frozen=True)
class Overlap:
    """A column of the interactions whose values are ids of a catalogue.

    Attributes:
        column: The column of the interactions.
        id: The column of the catalogue.
        share: Share of the column's values that the catalogue has [0..1].
        coverage: Share of the catalogue's ids that the column may have [0..1].
    """

    column: str
    id: str
    share: float
    coverage: float


Looked = tuple[Understood, dict[str, Profile]]
"""How files are written, and their columns."""


def find_overlap(
    role: str, profiles: Mapping[str, Profile], side: Looked, what: str, taken: Mapping[str, str]
) -> Overlap | None:
    """Returns the columns that hold the same ids; `None` if none do, or it is not clear which.

    The column that the catalogue has most of wins, then the one whose name says the role,
    then the one that covers more of the catalogue: counts from 1 to 300 are all ids of a
    catalogue of whole numbers too, but they don't cover it.

    Args:
        role: `item` or `user`.
        profiles: The columns of the interactions.
        side: The catalogue.
        what: `items` or `users`.
        taken: Columns that were said, by role.
    """
    ids = _ids(side[0], what, unique_columns(side[1]))
    if role in taken:
        columns = [profiles[taken[role]]] if taken[role] in profiles else []
    else:
        free = [one for one in profiles.values() if one.name not in taken.values()]
        columns = [one for one in free if _may_be_id(one)]
    found = [
        _overlap(one, name, known) for one in columns for name, known in ids.items() if len(known)
    ]
    return _clear([one for one in found if one.share >= _NEARLY_ALL], role)


def unique_columns(profiles: Mapping[str, Profile]) -> list[str]:
    """Returns the columns that have another value in nearly every row."""
    return [
        one.name
        for one in profiles.values()
        if one.kind in ("whole number", "text")
        and not one.is_url
        and len(one.distinct) >= _NEARLY_ALL * max(2, one.n_rows)
    ]


def _may_be_id(one: Profile) -> bool:
    is_id = one.kind in ("whole number", "text") and not one.is_url
    is_time = one.unit is not None and name_score(one.name, "timestamp") > 0
    return is_id and not is_time and len(one.distinct) > _MOST_SCALE


def _overlap(one: Profile, name: str, known: pa.Array) -> Overlap:
    values = pa.array(one.sample, pa.string())
    share = (pc.sum(pc.is_in(values, value_set=known)).as_py() or 0) / max(1, len(values))
    return Overlap(one.name, name, share, min(1.0, share * len(one.distinct) / len(known)))


def _clear(found: Sequence[Overlap], role: str) -> Overlap | None:
    """Returns the one overlap that is clearly the best; `None` if there is none."""
    most = max((one.share for one in found), default=0.0)
    best = [one for one in found if one.share >= most - 0.01]
    named = [one for one in best if name_score(one.column, role) >= 2]
    best = sorted(named or best, key=lambda one: -one.coverage)
    if len(best) > 1 and best[0].coverage < 1.5 * best[1].coverage:
        return None
    return best[0] if best else None


def _ids(understood: Understood, what: str, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Returns the different values of columns, of a part of very many."""
    parts: dict[str, list[pa.Array]] = {name: [] for name in columns}
    n_rows = 0
    for piece in plan_pieces(understood.source, what, columns) if columns else ():
        for batch in read_piece(piece):
            for name, column in parts.items():
                column.append(pc.unique(to_ids(batch.columns.column(name)).drop_null()))
            n_rows += batch.n_read
            if n_rows >= _IDS_COMPARED:
                break
    return {name: pc.unique(pa.chunked_array(part, pa.string())) for name, part in parts.items()}
