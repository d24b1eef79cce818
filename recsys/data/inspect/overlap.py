"""Finds the columns of interactions and of a catalogue that hold the same ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pyarrow as pa

from recsys.data.farmhash import fingerprints
from recsys.data.inspect.names import name_score
from recsys.data.inspect.profile import Profile

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


def find_overlap(
    role: str,
    profiles: Mapping[str, Profile],
    side: Mapping[str, Profile],
    taken: Mapping[str, str],
) -> Overlap | None:
    """Returns the columns that hold the same ids; `None` if none do, or it is not clear which.

    The column that the catalogue has most of wins, then the one whose name says the role,
    then the one that covers more of the catalogue: counts from 1 to 300 are all ids of a
    catalogue of whole numbers too, but they don't cover it.

    Args:
        role: `item` or `user`.
        profiles: The columns of the interactions.
        side: The columns of the catalogue.
        taken: Columns that are decided, by role.
    """
    if role in taken:
        columns = [profiles[taken[role]]] if taken[role] in profiles else []
    else:
        free = [profile for profile in profiles.values() if profile.name not in taken.values()]
        columns = [profile for profile in free if _may_be_id(profile)]
    overlaps = [
        _overlap(profile, side[name]) for profile in columns for name in unique_columns(side)
    ]
    return _clear([overlap for overlap in overlaps if overlap.share >= _NEARLY_ALL], role)


def unique_columns(profiles: Mapping[str, Profile]) -> list[str]:
    """Returns the columns that have another value in nearly every row."""
    return [
        profile.name
        for profile in profiles.values()
        if profile.kind in ("whole number", "text")
        and not profile.is_url
        and len(profile.distinct) >= _NEARLY_ALL * max(2, profile.n_rows)
    ]


def _may_be_id(profile: Profile) -> bool:
    is_id = profile.kind in ("whole number", "text") and not profile.is_url
    is_time = profile.unit is not None and name_score(profile.name, "timestamp") > 0
    return is_id and not is_time and len(profile.distinct) > _MOST_SCALE


def _overlap(profile: Profile, ids: Profile) -> Overlap:
    share = ids.distinct.share_of(fingerprints(pa.array(profile.sample, pa.string())))
    coverage = min(1.0, share * len(profile.distinct) / max(1, len(ids.distinct)))
    return Overlap(profile.name, ids.name, share, coverage)


def _clear(overlaps: Sequence[Overlap], role: str) -> Overlap | None:
    """Returns the one overlap that is clearly the best; `None` if there is none."""
    most = max((overlap.share for overlap in overlaps), default=0.0)
    best = [overlap for overlap in overlaps if overlap.share >= most - 0.01]
    named = [overlap for overlap in best if name_score(overlap.column, role) >= 2]
    best = sorted(named or best, key=lambda overlap: -overlap.coverage)
    if len(best) > 1 and best[0].coverage < 1.5 * best[1].coverage:
        return None
    return best[0] if best else None
