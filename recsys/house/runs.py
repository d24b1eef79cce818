"""Which runs stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from recsys.config.keep import KeepConfig
from recsys.house.known import Known, PastRun

_DAY_S = 86_400.0
_LAST_STEP = "Reporter"


def kept_runs(known: Known, keep: KeepConfig, now: float) -> set[str]:
    """Returns the ids of the runs that stay whole.

    Those that `keep` names, and the last one that came to its end: after a week of failed
    nights a rerun must still find it.

    Args:
        known: All that is known of the pipeline.
        keep: The limits.
        now: Seconds since 1970.
    """
    ids = [run.id for run in known.runs]
    if keep.runs is None and keep.days is None:
        return set(ids)
    kept = set(ids[-keep.runs :]) if keep.runs is not None else set()
    if keep.days is not None:
        kept |= {run.id for run in known.runs if run.started >= now - keep.days * _DAY_S}
    return kept | set(_last_finished(known))


def records_since(runs: Sequence[PastRun], keep: KeepConfig) -> float | None:
    """Returns when the oldest run started whose record stays; None where all of them do."""
    if keep.records is None or len(runs) <= keep.records:
        return None
    return runs[-keep.records].started


def _last_finished(known: Known) -> list[str]:
    finished = {one.run for one in known.executions if one.step == _LAST_STEP and one.ended_well}
    return [run.id for run in known.runs if run.id in finished][-1:]
