"""Training examples: the events that training sees, read with the histories of their users."""

from __future__ import annotations

import numpy as np

from recsys.data.event_log import split_sorted
from recsys.data.history_facts import ASKED_AT, minutes
from recsys.data.kept_events import KeptEvents
from recsys.models.config import RetrievalConfig
from recsys.tasks.config import TrainConfig


def read_events(
    events: KeptEvents,
    numbers: np.ndarray,
    model: RetrievalConfig,
    train: TrainConfig,
    with_items: bool = True,
) -> dict[str, np.ndarray]:
    """Reads events at any places, with the histories of their users.

    Sorted, they meet each shard once and its pages in order, which is several times
    faster for many events than as they come.

    Args:
        events: The events that training sees.
        numbers: Which of them `[n]` int64.
        model: What a history is, and how long.
        train: What is known of a user, and what an event weighs. `user_balance` divides by a
            power of its user's events: at 1 all users weigh the same, whatever they did
            (Covington et al., "Deep Neural Networks for YouTube Recommendations", RecSys 2016,
            section 3.3, takes equally many examples of each). `half_life` halves it with the
            events that came after (Ding and Li, "Time Weight Collaborative Filtering", CIKM
            2005, there with days in place of events).
        with_items: Whether their own items are read.

    Returns:
        `user_row` and, where wanted, `item_row` `[n]` int32; `history` `[n, model.history]`
        int32, what the user did before, or did else; where `train.known_positives` is not 0,
        `known` of that width int32, the newest items of the user, its own among them or not;
        `weight` `[n]` float32 where one is not 1; and `asked_at` `[n]` int32 [min] where the
        model reads it, when the events happened. Items are the newest first, padded with 0.
    """
    n, order = len(numbers), np.argsort(numbers)
    known = train.known_positives
    widths = {"history": model.history, **({"known": known} if known else {})}
    names = ("user_row", "item_row") if with_items else ("user_row",)
    read = {name: np.empty(n, np.int32) for name in names}
    read |= {name: np.empty((n, width), np.int32) for name, width in widths.items()}
    if events.log.weight is not None or train.user_balance > 0 or train.half_life:
        read["weight"] = np.empty(n, np.float32)
    if model.item_age:
        read[ASKED_AT] = np.empty(n, np.int32)
    for number, part in split_sorted(numbers[order], events.starts):
        kept, to = events.shards[number], order[part]
        ordered, shard = numbers[to] - events.starts[number], kept.shard
        places = kept.places(ordered)
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
