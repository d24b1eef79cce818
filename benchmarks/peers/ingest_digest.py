"""A digest of a store, independent of its writer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

Columns = Mapping[str, np.ndarray]
_NAMES = ("user_row", "timestamp", "item_row")
_DAY_S = 86_400


def cut_of(day: np.ndarray, events: np.ndarray) -> int:
    """Returns the UTC midnight that is closest to holding out a tenth [seconds since 1970].

    Args:
        day: The days with events `[days]`, in order, counted from 1970.
        events: How many each has `[days]`.
    """
    after = np.cumsum(events[::-1])[::-1]
    return int(day[1 + np.argmin(np.abs(after[1:] - 0.1 * events.sum()))]) * _DAY_S


def digest_of(train: Columns, held_out: Columns) -> str:
    """Returns the sha256 in hex of both parts of a store.

    Args:
        train: `user_row` int32, `item_row` int32, `timestamp` int64, `[n]` each, in
            the order of the store.
        held_out: The same of the held-out events, whose order is left open.
    """
    digest = hashlib.sha256()
    order = np.lexsort([held_out[name] for name in reversed(_NAMES)])
    for name in _NAMES:
        digest.update(np.ascontiguousarray(train[name]).data)
        digest.update(np.ascontiguousarray(held_out[name][order]).data)
    return digest.hexdigest()


def digest(store: Path) -> str:
    """Returns the digest of a store of ours."""
    from recsys.data.store import InteractionStore

    opened = InteractionStore.open(store)
    parts = [
        {name: np.asarray(getattr(log, name)) for name in _NAMES}
        for log in (opened.train, opened.eval)
    ]
    return digest_of(*parts)
