"""The time cut: train on what came before it, evaluate on what came after."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.errors import RecsysError

DAY_S = 86_400
MIN_DAYS = 2
"""UTC days with positives without which there is no cut [days]."""


def count_positive_days(table: pa.Table) -> dict[int, int]:
    """Returns the positives of each UTC day [days since 1970] in `table`."""
    positives = table["timestamp"].to_numpy()[table["label"].to_numpy() == 1]
    days, counts = np.unique(positives // DAY_S, return_counts=True)
    return dict(zip(days.tolist(), counts.tolist(), strict=True))


def choose_cut(positives_of_day: Mapping[int, int], eval_share: float) -> int:
    """Returns the UTC midnight that holds out about `eval_share` of the positives.

    Args:
        positives_of_day: Positives of each day [days since 1970].
        eval_share: Share of positives wanted at or after the cut [0..1].

    Returns:
        The midnight for which the share is closest, the earlier of two; both
        sides of it have positives [seconds since 1970, UTC].

    Raises:
        RecsysError: The positives lie on less than two days.
    """
    days = np.array(sorted(positives_of_day), np.int64)
    if len(days) < MIN_DAYS:
        raise too_few_days(sum(positives_of_day.values()), len(days))
    counts = np.array([positives_of_day[day] for day in days.tolist()], np.int64)
    from_day_on = np.cumsum(counts[::-1])[::-1]
    closest = 1 + int(np.argmin(np.abs(from_day_on[1:] - eval_share * counts.sum())))
    return int(days[closest]) * DAY_S


def too_few_days(n_positives: int, n_days: int) -> RecsysError:
    """Returns the error for positives that no midnight splits."""
    return RecsysError(
        "R207",
        f"The positives must lie on at least {MIN_DAYS} UTC days, to be split by time.",
        "Name more data, or lower data.interactions.positive_at_least.",
        f"{n_positives} positives on {n_days} days",
    )


def split_at(table: pa.Table, cut: int) -> dict[str, pa.Table]:
    """Returns the rows before `cut` as `train`, those from it on as `eval`."""
    before = pc.less(table["timestamp"], cut)
    return {"train": table.filter(before), "eval": table.filter(pc.invert(before))}
