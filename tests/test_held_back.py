"""What validation holds back: the newest events, and the queries that ask for them."""

import numpy as np
import pytest
from batch_sources import N_ITEMS, N_USERS, make_log
from hypothesis import given
from hypothesis import strategies as st

from recsys.config import TrainConfig, TwoTowerConfig, ValidationConfig
from recsys.data import batches as module
from recsys.data.batches import KeptEvents, held_back, training_events
from recsys.errors import RecsysError
from recsys.training.validation import held_back_queries


@st.composite
def logs(draw):
    n = draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    width = draw(st.sampled_from([1, 4, 1000, 2**40]))
    times = rng.integers(0, width, n) + draw(st.sampled_from([0, -50, 1_700_000_000]))
    return make_log(rng.integers(0, N_USERS, n), rng.integers(1, N_ITEMS, n), times)


@given(logs(), st.floats(0.001, 0.999), st.sampled_from([2, 3, 1 << 16]))
def test_the_newest_share_is_held_back(log, share, bins):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BINS", bins)
        held = held_back(log, share)
        again = held_back(log, share)
    n = min(max(round(share * len(log)), 1), len(log) - 1)
    assert len(held) == n
    assert np.array_equal(held, again)
    assert np.array_equal(held, np.unique(held))
    times = np.asarray(log.timestamp)
    assert np.array_equal(np.sort(times[held]), np.sort(times)[-n:])


def test_of_events_of_one_second_a_random_part_is_held_back():
    rng = np.random.default_rng(0)
    n = 20_000
    log = make_log(rng.integers(0, N_USERS, n), rng.integers(1, N_ITEMS, n), np.zeros(n, int))
    held = held_back(log, 0.1)
    items = np.asarray(log.item_row)
    share = np.bincount(items[held], minlength=N_ITEMS)[1:] / np.bincount(items)[1:]
    # About 1,050 events an item: five standard deviations are 0.046.
    assert np.abs(share - 0.1).max() < 0.046


def test_without_a_validation_nothing_is_held_back():
    log = make_log(np.array([1, 5]), np.array([1, 2]), np.array([3, 4]))
    assert len(training_events(log, TrainConfig()).held) == 0
    validation = ValidationConfig(share=0.5)
    assert training_events(log, TrainConfig(validation=validation)).held.tolist() == [1]


def test_one_event_cannot_be_divided():
    log = make_log(np.array([1]), np.array([1]), np.array([3]))
    with pytest.raises(RecsysError, match="R328"):
        held_back(log, 0.5)


def slow_queries(log, held, history_of):
    """(user row, seen, positives) of each query, by a loop."""
    times, items = np.asarray(log.timestamp), np.asarray(log.item_row)
    users = log.user_index(np.arange(len(log)))
    moments = sorted({(users[e], times[e] if history_of == "past" else 0) for e in held})
    for user, moment in moments:
        own = [e for e in range(len(log)) if users[e] == user]
        kept = [items[e] for e in own if e not in held]
        if history_of == "past":
            before = [items[e] for e in own if e in held and times[e] < moment]
            positives = {items[e] for e in own if e in held and times[e] == moment}
        else:
            before, positives = [], {items[e] for e in own if e in held}
        yield log.user_row[next(iter(own))], [*kept, *before], sorted(positives)


@given(logs(), st.floats(0.01, 0.9), st.sampled_from(["past", "others"]))
def test_queries_ask_for_what_was_held_back_knowing_what_was_before(log, share, history_of):
    held = held_back(log, share)
    events = KeptEvents(log, held)
    queries = held_back_queries(events, TwoTowerConfig(history_of=history_of), 1000)
    found = [
        (queries.user_row[q], seen.rows.tolist(), positives.rows.tolist())
        for q in range(len(queries))
        for seen, positives in [
            (queries.seen.part(slice(q, q + 1)), queries.positives.part(slice(q, q + 1)))
        ]
    ]
    assert found == list(slow_queries(log, set(held.tolist()), history_of))


def test_too_many_queries_are_those_of_whole_users():
    rng = np.random.default_rng(0)
    log = make_log(rng.integers(0, N_USERS, 200), rng.integers(1, N_ITEMS, 200), np.arange(200))
    events = KeptEvents(log, held_back(log, 0.5))
    every = held_back_queries(events, TwoTowerConfig(), 1000)
    some = held_back_queries(events, TwoTowerConfig(), 40)
    assert 0 < len(some) <= 40
    for user in np.unique(some.user):
        assert (some.user == user).sum() == (every.user == user).sum()


def test_nothing_held_back_gives_no_queries():
    log = make_log(np.array([1, 5]), np.array([1, 2]), np.array([3, 4]))
    with pytest.raises(RecsysError, match="R329"):
        held_back_queries(KeptEvents(log), TwoTowerConfig(), 10)
