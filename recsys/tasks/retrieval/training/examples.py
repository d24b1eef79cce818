"""Training examples: events with the histories of their users."""

from __future__ import annotations

import numpy as np

from recsys.data.event_log import ASKED_AT, minutes, split_sorted
from recsys.data.hold_out import KeptEvents
from recsys.models.config import RetrievalConfig
from recsys.tasks.config import TrainConfig


def read_events(
    events: KeptEvents,
    numbers: np.ndarray,
    model: RetrievalConfig,
    train: TrainConfig,
    with_items: bool = True,
) -> dict[str, np.ndarray]:
    """Reads events at any indices, with the histories of their users.

    The events are read in sorted order, shard by shard, which is several times faster.

    Args:
        events: The events that training sees.
        numbers: Numbers of the events `[n]` int64.
        model: Kind and length of a history.
        train: Number of known positives, and weights of events. `user_balance` divides a weight
            by a power of the number of the user's events: at 1 all users have the same weight
            (Covington et al., "Deep Neural Networks for YouTube Recommendations", RecSys 2016,
            section 3.3, use equally many examples of each user). `half_life` halves it with the
            number of later events (Ding and Li, "Time Weight Collaborative Filtering", CIKM
            2005, use days instead of events).
        with_items: Whether to read the events' own items.

    Returns:
        `user_row` and, with `with_items`, `item_row` `[n]` int32; `history` `[n, model.history]`
        int32, the user's earlier items, or all others; if `train.known_positives` is not 0,
        `known` of that width, int32, the user's newest items, maybe including the event's;
        `weight` `[n]` float32 if any is not 1; and `asked_at` `[n]` int32 [min], the times of
        the events, if the model reads it. Items are the newest first, padded with 0.
    """
    n, order = len(numbers), np.argsort(numbers)
    known = train.known_positives
    widths = {"history": model.history, **({"known": known} if known else {})}
    names = ("user_row", "item_row") if with_items else ("user_row",)
    read = {name: np.empty(n, np.int32) for name in names}
    read |= {name: np.empty((n, width), np.int32) for name, width in widths.items()}
    if events.log.weight is not None or train.user_balance > 0 or train.half_life:
        read["weight"] = np.empty(n, np.float32)
    if ASKED_AT in model.query_facts:
        read[ASKED_AT] = np.empty(n, np.int32)
    for number, part in split_sorted(numbers[order], events.starts):
        kept, to = events.shards[number], order[part]
        ordered, shard = numbers[to] - events.starts[number], kept.shard
        places = kept.log_indices(ordered)
        for name in names:
            read[name][to] = getattr(shard, name)[places]
        if model.history and model.history_of == "others":
            read["history"][to] = kept.others(ordered, model.history)
        elif model.history:
            read["history"][to] = kept.past(ordered, model.history)
        if known:
            read["known"][to] = kept.newest(ordered, known)
        if ASKED_AT in read:
            read[ASKED_AT][to] = minutes(shard.timestamp[places])
        if "weight" in read:
            weight = kept.of_user(ordered) ** -train.user_balance
            if shard.weight is not None:
                weight = weight * shard.weight[places]
            if train.half_life:
                newer = events.newer_share(shard.timestamp[places])
                weight = weight * 0.5 ** (newer / train.half_life)
            read["weight"][to] = weight
    return read
