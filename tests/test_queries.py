"""The queries of an evaluation, against what a person would write down."""

import numpy as np
import pytest

from recsys.data.store import EventLog, InteractionStore
from recsys.errors import RecsysError
from recsys.queries import make_queries


def log(events, n_users, rows=None):
    """`events`: (user, item row, time); `rows`: user row of each user of the log."""
    user, item, time = (np.array(column, int) for column in zip(*events, strict=True))
    row = user if rows is None else np.array(rows)[user]
    return EventLog.from_events(user, row, item, time, n_users)


@pytest.fixture
def store():
    return InteractionStore(
        train=log([(1, 11, 1), (1, 12, 2), (2, 21, 1)], 3),
        # Ann (row 1) takes 13, then 14 and 15 within one second; Zoe is new.
        eval=log([(0, 13, 10), (0, 15, 20), (0, 14, 20), (1, 30, 12)], 2, rows=[1, 0]),
        eval_user_ids=["ann", "zoe"],
        eval_user_rows=np.array([1, 0], np.int32),
        cut=10,
    )


def lists(part):
    return [part.rows[a:b].tolist() for a, b in zip(part.offsets, part.offsets[1:], strict=False)]


def test_each_moment_asks_with_all_that_came_before(store):
    queries = make_queries(store, "each_moment")
    assert queries.user.tolist() == [0, 0, 1]
    assert queries.user_row.tolist() == [1, 1, 0]
    assert lists(queries.positives) == [[13], [14, 15], [30]]
    assert lists(queries.seen) == [[11, 12], [11, 12, 13], []]
    assert queries.histories(2).tolist() == [[12, 11], [13, 12], [0, 0]]


def test_at_cut_asks_once_a_user(store):
    queries = make_queries(store, "at_cut")
    assert queries.user.tolist() == [0, 1]
    assert lists(queries.positives) == [[13, 14, 15], [30]]
    assert lists(queries.seen) == [[11, 12], []]


def test_an_item_taken_twice_is_one_positive(store):
    twice = log([(0, 13, 10), (0, 13, 11)], 1, rows=[0])
    store = InteractionStore(store.train, twice, ["ann"], np.zeros(1, np.int32), 10)
    assert lists(make_queries(store, "at_cut").positives) == [[13]]


def test_nothing_held_out_is_an_error_that_names_the_setting(store):
    empty = EventLog.from_events(*(np.zeros(0, int),) * 4, n_users=0)
    store = InteractionStore(store.train, empty, [], np.zeros(0, np.int32), 10)
    with pytest.raises(RecsysError, match=r"R401.*data\.eval_share"):
        make_queries(store, "at_cut")


def test_too_many_queries_are_those_of_some_users_each_with_all_of_its_own() -> None:
    n_users, each = 40, 5
    user = np.repeat(np.arange(n_users), each)
    log = EventLog.from_events(
        user_index=user,
        user_row=np.zeros(len(user), np.int32),
        item_row=np.arange(len(user)) + 1,
        timestamp=np.tile(np.arange(each) + 100, n_users),
        n_users=n_users,
    )
    nobody = np.zeros(0, np.int64)
    store = InteractionStore(
        train=EventLog.from_events(nobody, nobody, nobody, nobody, 1),
        eval=log,
        eval_user_ids=[str(number) for number in range(n_users)],
        eval_user_rows=np.zeros(n_users, np.int32),
        cut=100,
    )
    everyone = make_queries(store, "each_moment", 200)
    assert len(everyone) == 200
    some = make_queries(store, "each_moment", 33)
    assert np.bincount(some.user, minlength=n_users)[np.unique(some.user)].tolist() == [5] * 6
    assert some.user.tolist() == make_queries(store, "each_moment", 33).user.tolist()
    places = [everyone.user.tolist().index(one) for one in np.unique(some.user).tolist()]
    expected = [lists(everyone.seen)[place + i] for place in places for i in range(each)]
    assert lists(some.seen) == expected
    assert len(make_queries(store, "each_moment", 1)) == 5
