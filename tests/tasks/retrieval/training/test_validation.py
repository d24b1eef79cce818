"""The events that validation holds back, and their queries."""

import numpy as np
import pytest
from batch_sources import N_ITEMS, N_USERS, make_log
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.stores import sorted_shard
from recsys.config import TrainConfig, TwoTowerConfig, ValidationConfig
from recsys.data.event_log import EventLog
from recsys.data.hold_out import (
    KeptEvents,
    given_part,
    has_one_query_per_user,
    held_back,
    last_events,
    newest_share,
    random_share,
)
from recsys.data.split import SplitRule
from recsys.errors import RecsysError, UsageError
from recsys.tasks.retrieval.training.epoch_work import held_back_queries
from recsys.tasks.training_side import training_events


@st.composite
def logs(draw):
    n = draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    width = draw(st.sampled_from([1, 4, 1000, 2**40]))
    times = rng.integers(0, width, n) + draw(st.sampled_from([0, -50, 1_700_000_000]))
    return make_log(rng.integers(0, N_USERS, n), rng.integers(1, N_ITEMS, n), times)


@given(logs(), st.floats(0.001, 0.999))
def test_the_newest_share_is_held_back(log, share):
    held, again = newest_share(log, share), newest_share(log, share)
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
    held = newest_share(log, 0.1)
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
        held_back(log, ValidationConfig(share=0.5), "newest")


def slow_queries(log, held, has_one_query_per_user):
    """(user row, seen, positives) of each query, by a loop."""
    times, items = np.asarray(log.timestamp), np.asarray(log.item_row)
    users = log.user_index(np.arange(len(log)))
    moments = sorted({(users[e], 0 if has_one_query_per_user else times[e]) for e in held})
    for user, moment in moments:
        own = [e for e in range(len(log)) if users[e] == user]
        kept = [items[e] for e in own if e not in held]
        if has_one_query_per_user:
            before, positives = [], {items[e] for e in own if e in held}
        else:
            before = [items[e] for e in own if e in held and times[e] < moment]
            positives = {items[e] for e in own if e in held and times[e] == moment}
        yield log.user_row[next(iter(own))], [*kept, *before], sorted(positives)


DRAWS = {
    "newest": ValidationConfig(share=0.3),
    "last": ValidationConfig(like="last", last=2),
    "random": ValidationConfig(like="random", share=0.3),
}


@given(logs(), st.sampled_from(sorted(DRAWS)), st.sampled_from(["past", "others"]))
def test_queries_ask_for_what_was_held_back_knowing_what_was_before(log, draw, history_of):
    events = training_events(log, TrainConfig(validation=DRAWS[draw]))
    assume(len(events.held))
    queries = held_back_queries(events, TwoTowerConfig(history_of=history_of), 1000)
    found = [
        (queries.user_row[q], seen.rows.tolist(), positives.rows.tolist())
        for q in range(len(queries))
        for seen, positives in [
            (queries.seen.part(slice(q, q + 1)), queries.positives.part(slice(q, q + 1)))
        ]
    ]
    at_once = history_of == "others" or draw == "random"
    assert found == list(slow_queries(log, set(events.held.tolist()), at_once))


def test_too_many_queries_are_those_of_whole_users():
    rng = np.random.default_rng(0)
    log = make_log(rng.integers(0, N_USERS, 200), rng.integers(1, N_ITEMS, 200), np.arange(200))
    events = KeptEvents(log, newest_share(log, 0.5))
    every = held_back_queries(events, TwoTowerConfig(), 1000)
    some = held_back_queries(events, TwoTowerConfig(), 40)
    assert 0 < len(some) <= 40
    for user in np.unique(some.user):
        assert (some.user == user).sum() == (every.user == user).sum()


def test_nothing_held_back_gives_no_queries():
    log = make_log(np.array([1, 5]), np.array([1, 2]), np.array([3, 4]))
    with pytest.raises(RecsysError, match="R329"):
        held_back_queries(KeptEvents(log), TwoTowerConfig(), 10)


# --- of each user


@given(logs(), st.integers(1, 5))
def test_the_last_events_of_each_user_are_held_back_but_for_a_first(log, n):
    held, times = set(last_events(log, n).tolist()), np.asarray(log.timestamp)
    users = log.user_index(np.arange(len(log)))
    for user in np.unique(users):
        own = np.flatnonzero(users == user).tolist()
        kept, taken = [e for e in own if e not in held], [e for e in own if e in held]
        assert len(taken) == min(n, len(own) - 1)
        assert not taken or times[kept].max() <= times[taken].min()


@given(logs(), st.floats(0.01, 0.99))
def test_a_random_share_takes_a_users_events_of_one_item_together(log, share):
    held = random_share(log, share)
    assert np.array_equal(held, np.unique(held))
    users, items = log.user_index(np.arange(len(log))), np.asarray(log.item_row)
    pairs = set(zip(users[held], items[held], strict=True))
    kept = np.delete(np.arange(len(log)), held)
    assert pairs.isdisjoint(zip(users[kept], items[kept], strict=True))
    assert set(users[kept]) == set(users)


def many_events(n_users=400, of_a_user=40, n_items=200):
    """A log in which item i is drawn with probability proportional to 1/i, once per user."""
    rng = np.random.default_rng(0)
    chance = 1 / np.arange(1, n_items + 1)
    item = np.concatenate(
        [
            rng.choice(np.arange(1, n_items + 1), of_a_user, replace=False, p=chance / chance.sum())
            for _ in range(n_users)
        ]
    )
    user = np.repeat(np.arange(n_users), of_a_user)
    time = rng.integers(0, 1000, len(user))
    half = n_users // 2 * of_a_user
    shards = [
        sorted_shard(user[part] - first, user[part] + 1, item[part], time[part], n_users // 2)
        for part, first in ((slice(half), 0), (slice(half, None), n_users // 2))
    ]
    return EventLog(tuple(shards))


def test_a_share_is_drawn_whatever_the_item():
    log = many_events()
    is_held = np.isin(np.arange(len(log)), random_share(log, 0.1))
    count = np.bincount(np.asarray(log.item_row))[np.asarray(log.item_row)]
    for of in np.array_split(np.argsort(count), 5):
        assert abs(is_held[of].mean() - 0.1) < 5 * np.sqrt(0.1 * 0.9 / len(of))


# --- which draw, and what it needs


RULES = {
    "time": SplitRule("time"),
    "last_out": SplitRule("last_out"),
    "random": SplitRule("random", "none"),
    "given": SplitRule("given", "none"),
}


@pytest.mark.parametrize(
    ("split", "names_part", "draw"),
    [
        ("time", False, "newest"),
        ("last_out", False, "last"),
        ("random", False, "random"),
        ("given", False, "newest"),
        ("given", True, "given"),
    ],
)
def test_by_default_the_draw_is_that_of_the_test_part(split, names_part, draw):
    rng = np.random.default_rng(0)
    n = 60
    valid = rng.random(n) < 0.2 if names_part else None
    shard = sorted_shard(
        np.sort(rng.integers(0, 9, n)), np.ones(n), rng.integers(1, 9, n), np.arange(n), 9,
        **({"valid": valid} if names_part else {}),
    )  # fmt: skip
    log = EventLog((shard,))
    events = training_events(log, TrainConfig(validation=ValidationConfig()), RULES[split])
    assert events.draw == draw
    expected = {
        "newest": newest_share(log, 0.05),
        "last": last_events(log),
        "random": random_share(log, 0.05),
        "given": given_part(log),
    }[draw]
    assert np.array_equal(events.held, expected)
    if names_part:
        assert np.array_equal(expected, np.flatnonzero(log.valid))


@pytest.mark.parametrize(
    ("rule", "like", "at_once"),
    [
        (SplitRule("time"), None, False),
        (SplitRule("last_out", "file"), None, False),
        (SplitRule("random", "time"), None, True),
        (SplitRule("random", "time"), "newest", False),
        (SplitRule("time"), "random", True),
        (SplitRule("given", "time"), None, False),
    ],
)
def test_users_are_asked_at_once_where_held_out_events_are_no_newer(rule, like, at_once):
    log = make_log(np.array([1, 5, 9]), np.array([1, 1, 2]), np.array([3, 4, 3]))
    config = None if like is None else ValidationConfig(like=like)
    assert has_one_query_per_user(log, config, rule) == at_once


@given(st.integers(0, 10**6), st.sampled_from(["last", "first", "random"]), st.integers(1, 3))
def test_a_given_part_is_asked_at_once_unless_it_comes_last(seed, part, n_shards):
    rng = np.random.default_rng(seed)
    shards = []
    for lengths in np.array_split(rng.integers(1, 12, 200), n_shards):
        user = np.repeat(np.arange(len(lengths)), lengths)
        place = np.concatenate([np.arange(n) for n in lengths])
        n_held = lengths // 3
        valid = {
            "last": place >= (lengths - n_held)[user],
            "first": place < n_held[user],
            "random": rng.random(len(user)) < 0.3,
        }[part]
        rows = np.ones(len(user), np.int32), rng.integers(1, 9, len(user)), place
        mixed = rng.permutation(len(user))
        columns = [column[mixed] for column in (user, *rows)]
        shards.append(sorted_shard(*columns, len(lengths), valid=valid[mixed]))
    log = EventLog(tuple(shards))
    assert has_one_query_per_user(log, None, SplitRule("given", "time")) == (part != "last")


@pytest.mark.parametrize(
    ("like", "named"),
    [("last", "have an order"), ("given", "valid_parts")],
)
def test_a_draw_that_the_data_cannot_give_is_refused(like, named):
    log = make_log(np.array([1, 5]), np.array([1, 2]), np.array([3, 4]))
    config = TrainConfig(validation=ValidationConfig(like=like))
    with pytest.raises(UsageError, match=f"R337.*{named}"):
        training_events(log, config, RULES["random"])


def test_a_part_of_everything_is_refused():
    every = sorted_shard(*np.ones((4, 3), int), 2, valid=np.ones(3, bool))
    with pytest.raises(RecsysError, match="R337"):
        given_part(EventLog((every,)))


@pytest.mark.parametrize(
    "keys",
    [{"popularity": 1.0}, {"popularity": 1.0, "like": "random"}, {"last": 2, "like": "given"}],
)
def test_a_setting_of_another_draw_is_refused(keys):
    with pytest.raises(ValueError, match=r"popularity|last"):
        ValidationConfig(**keys)
