"""Checks before the first step, so that a run neither fails later nor learns nothing."""

from __future__ import annotations

import numpy as np

from recsys.data.catalogue import Catalogue
from recsys.data.hold_out import KeptEvents
from recsys.errors import RecsysError, UsageError
from recsys.tasks.config import TrainConfig

_MANY = 0.02
"""Share of users without an order in time above which there is a remark."""


def uneven_error(train: TrainConfig, n_parts: int) -> UsageError | None:
    """Returns the error for a batch that can't be divided into parts and groups, or None."""
    groups = train.negative_groups
    parts = f"{n_parts}, the parts that devices split a batch into"
    for key, value, fitting in uneven(train, n_parts):
        rule = f"be a multiple of {parts}"
        if key == "negative_groups":
            rule = f"divide {parts}, or be a multiple of it"
        elif groups > n_parts:
            rule = f"be a multiple of {groups}, the parts of train.negative_groups"
        return UsageError("R321", f"train.{key} must {rule}.", f"Use {fitting}.", value)
    return None


def uneven(train: TrainConfig, n_parts: int) -> list[tuple[str, int, int]]:
    """Returns key, value, and the nearest valid value of numbers that can't be divided."""
    groups = train.negative_groups
    if groups % n_parts and n_parts % groups:
        fewer = max(n for n in range(1, groups) if n_parts % n == 0)
        return [("negative_groups", groups, fewer)]
    multiple = max(n_parts, groups)
    numbers = {
        "batch_size": train.batch_size,
        "uniform_negatives": train.uniform_negatives,
        "hard_negatives.count": train.hard_negatives.count,
    }
    if train.loss.negatives == "catalogue":  # It draws none.
        del numbers["uniform_negatives"]
    return [
        (key, value, -(-value // multiple) * multiple)
        for key, value in numbers.items()
        if value % multiple
    ]


def check_events(
    events: KeptEvents, catalogue: Catalogue, history_of: str | None = "others"
) -> list[str]:
    """Checks that a model can learn from the training positives.

    Args:
        events: The positives that training sees.
        catalogue: The items.
        history_of: `model.history_of`: whether times matter.

    Returns:
        Sentences on remarkable facts that are no errors.

    Raises:
        RecsysError: There is one user or one item, no known item, or no weight above 0.
    """
    counts = events.item_counts(catalogue.n_rows)
    n_known = int(counts[catalogue.is_item].sum())
    if len(events) and not n_known:
        raise RecsysError(
            "R325",
            "At least one training positive must be of an item with a row of its own.",
            "Lower data.vocabulary.items.min_count, or check that the interactions and the"
            " items write their ids the same way.",
            f"{len(events)} training positives of unknown items",
        )
    n_items, n_users = int((counts > 0).sum()), events.n_users
    if n_items < 2 or n_users < 2:
        raise RecsysError(
            "R324",
            "Training positives must be of at least two users and two items.",
            "Add data; check whether the columns are mapped correctly.",
            {"training positives": len(events), "users": n_users, "items": n_items},
        )
    n_timeless = _timeless_users(events) if history_of != "others" else 0
    of_events = {
        "are of items without a row of their own": len(events) - n_known,
        "have weight 0 and teach nothing": _weights_of_zero(events),
    }
    remarks = [
        f"{count:,} of {len(events):,} training positives {what}."
        for what, count in of_events.items()
        if count
    ]
    if n_timeless > _MANY * n_users:
        remarks.append(
            f"{n_timeless:,} of {n_users:,} users did all that they did in one second, so no"
            " history comes before it: model.history_of=others takes the user's other items."
        )
    n_single = _single_users(events)
    if n_single == n_users:
        remarks.append(
            "Every user has one training positive, so no example has a history, and nothing says"
            " what goes together: the model will probably be worse than popularity."
            " docs/evaluation.md, Worse than popularity, names a config for such data."
        )
    elif 2 * n_single > n_users:
        remarks.append(
            f"{n_single:,} of {n_users:,} users have one training positive, which says what is"
            " popular and not what goes together: see whether the baselines are ahead."
        )
    return remarks


def _timeless_users(events: KeptEvents) -> int:
    """Returns the number of users with several events, all of them at the same time."""
    n = 0
    for shard in events.log.shards:
        first, end = shard.offsets[:-1], shard.offsets[1:]
        first, last = first[end - first > 1], end[end - first > 1] - 1
        n += int((shard.timestamp[first] == shard.timestamp[last]).sum())
    return n


def _single_users(events: KeptEvents) -> int:
    """Returns the number of users with one kept event."""
    return sum(int((np.diff(shard.offsets) == 1).sum()) for shard in events.shards)


def _weights_of_zero(events: KeptEvents) -> int:
    """Returns the number of kept weights that are 0."""
    n_zero = 0
    for part in events.shards:
        if (weight := part.shard.weight) is not None:
            n_zero += int((weight == 0).sum()) - int((weight[part.held] == 0).sum())
    if n_zero == len(events):
        raise RecsysError(
            "R326",
            "At least one training positive must have a weight above 0.",
            "Check the column data.interactions.columns.weight.",
            f"{n_zero} weights of 0",
        )
    return n_zero
