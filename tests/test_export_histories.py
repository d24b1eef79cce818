"""Serving histories against a loop over users and events."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.histories import serving_histories
from recsys.data.store import EventLog, InteractionStore
from recsys.data.vocabulary import Vocabulary


def make_store(seed: int, n_trained: int, n_new: int, n_events: int, unknown_items: bool):
    """Returns a store, its users, and the events as a list (id, time, item row)."""
    rng = np.random.default_rng(seed)
    users = Vocabulary(pa.array([f"u{n}" for n in range(1, n_trained + 1)]), np.ones(n_trained))
    rows = rng.integers(1, n_trained + 1, n_events) if n_trained else np.zeros(0, np.int64)
    n = len(rows)
    items, times = rng.integers(1, 50, n), rng.integers(0, 1000, n)
    train = EventLog.from_events(rows, rows, items, times, users.n_rows)

    eval_ids = [f"n{n}" for n in range(n_new)] + [f"u{n}" for n in range(2, n_trained + 1, 3)]
    eval_ids = [eval_ids[n] for n in rng.permutation(len(eval_ids))]
    eval_rows = users.rows(eval_ids)
    index = rng.integers(0, len(eval_ids), n_events) if eval_ids else np.zeros(0, np.int64)
    low = 0 if unknown_items else 1
    eval_items, eval_times = rng.integers(low, 50, len(index)), rng.integers(1000, 1900, len(index))
    log = EventLog.from_events(index, eval_rows[index], eval_items, eval_times, len(eval_ids))
    events = [(f"u{u}", t, i) for u, t, i in zip(rows, times, items, strict=True)]
    events += [(eval_ids[u], t, i) for u, t, i in zip(index, eval_times, eval_items, strict=True)]
    return InteractionStore(train, log, eval_ids, eval_rows, cut=1000), users, events


@pytest.mark.parametrize(
    ("seed", "n_trained", "n_new", "n_events", "unknown_items"),
    [
        (0, 7, 3, 100, False),
        (1, 7, 3, 100, True),
        (2, 7, 0, 40, False),
        (3, 0, 4, 20, False),
        (4, 5, 0, 0, False),
        (5, 40, 30, 25, True),
    ],
    ids=["mixed", "unknown-items", "no-new-users", "no-train", "no-events", "many-without-events"],
)
def test_histories_are_each_users_events_in_time_order(
    seed, n_trained, n_new, n_events, unknown_items
):
    store, users, events = make_store(seed, n_trained, n_new, n_events, unknown_items)
    histories = serving_histories(store, users)
    assert set(histories.ids) == {*users.ids.to_pylist(), *store.eval_user_ids}
    assert len(set(histories.ids)) == len(histories.ids)
    assert histories.user_rows.tolist() == users.rows(histories.ids).tolist()
    for n, id_ in enumerate(histories.ids):
        mine = histories.item_rows[histories.offsets[n] : histories.offsets[n + 1]]
        expected = [item for _, _, item in sorted(e for e in events if e[0] == id_)]
        assert mine.tolist() == expected


def test_newest_puts_the_last_event_first_and_pads_with_0():
    store, users, events = make_store(0, 7, 3, 60, False)
    histories = serving_histories(store, users)
    wide = histories.newest(np.arange(len(histories.ids)), 100)
    for row, id_ in zip(wide, histories.ids, strict=True):
        mine = [item for _, _, item in sorted(e for e in events if e[0] == id_)][::-1]
        assert row.tolist() == mine + [0] * (100 - len(mine))
