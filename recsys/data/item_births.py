"""When items were seen first, and moments among the events: what ages of items are counted by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recsys.data.history_facts import UNKNOWN, minutes
from recsys.data.kept_events import KeptEvents
from recsys.data.vocabulary import UNKNOWN_ROW


def item_births(events: KeptEvents, n_rows: int) -> np.ndarray:
    """Returns when each item had its first event `[n_rows]` int32 [minutes since 1970, UTC].

    Args:
        events: The events that training sees.
        n_rows: Item rows, row 0 included.

    Returns:
        `UNKNOWN` of an item without an event, and of row 0, which is none.
    """
    never = np.iinfo(np.int32).max
    births = np.full(n_rows, never, np.int32)
    for item_row, minute in _items_and_minutes(events):
        np.minimum.at(births, item_row, minute)
    births[births == never] = UNKNOWN
    births[UNKNOWN_ROW] = UNKNOWN
    return births


def moments(events: KeptEvents, n: int) -> np.ndarray:
    """Returns moments `[n]` int32 [minutes since 1970, UTC], ascending, that divide the events.

    About as many events lie before the first as between one and the next; the last is the
    minute after the newest event.

    Args:
        events: The events that training sees; at least one.
        n: How many moments.
    """
    newest = max(int(minute.max()) for _, minute in _items_and_minutes(events))
    places = np.arange(1, n) * len(events.times) // n
    return np.append(minutes(events.times[places]), newest + 1).astype(np.int32)


def _items_and_minutes(events: KeptEvents) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the item row and the minute of each kept event, of a shard that has some."""
    for part in events.shards:
        if len(part):
            minute = minutes(part.shard.timestamp)
            yield part.item_row, np.delete(minute, part.held) if len(part.held) else minute
