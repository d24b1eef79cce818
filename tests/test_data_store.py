"""The event log: whose history an event has, and what a second holds together."""

import numpy as np
import pytest

from recsys.data.store import EventLog, InteractionStore
from recsys.errors import RecsysError


@pytest.fixture
def log():
    """User 1 takes 5, then 8 and 7 within one second, then 9; user 2 takes 4."""
    user = np.array([2, 1, 1, 1, 1])
    item, time = np.array([4, 9, 8, 7, 5]), np.array([1, 30, 20, 20, 10])
    return EventLog.from_events(user, user, item, time, n_users=4)


def test_events_are_sorted_by_user_time_and_item(log):
    assert log.item_row.tolist() == [5, 7, 8, 9, 4]
    assert log.offsets.tolist() == [0, 0, 4, 5, 5]
    assert log.user_index(np.arange(5)).tolist() == [1, 1, 1, 1, 2]


def test_what_happens_within_one_second_is_no_history_of_itself(log):
    assert log.tied.tolist() == [0, 0, 1, 0, 0]
    assert log.histories(np.arange(5), 3).tolist() == [
        [0, 0, 0],
        [5, 0, 0],
        [5, 0, 0],
        [8, 7, 5],
        [0, 0, 0],
    ]


def test_a_short_history_keeps_the_newest(log):
    assert log.histories(np.array([3]), 2).tolist() == [[8, 7]]


def test_a_store_comes_back_as_it_was_saved(log, tmp_path):
    store = InteractionStore(log, log, ["007", "é", "x", "y"], np.zeros(4, np.int32), 86_400)
    store.save(tmp_path)
    again = InteractionStore.open(tmp_path)
    assert again.eval_user_ids == ["007", "é", "x", "y"]
    assert again.cut == 86_400
    assert np.array_equal(again.train.histories(np.arange(5), 3), log.histories(np.arange(5), 3))


@pytest.mark.parametrize(
    ("file", "code"),
    [("store.json", "R220"), ("eval/users.parquet", "R220"), ("train/item_row.npy", "R221")],
)
def test_a_damaged_store_is_refused(log, tmp_path, file, code):
    InteractionStore(log, log, list("abcd"), np.zeros(4, np.int32), 0).save(tmp_path)
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:-3])
    with pytest.raises(RecsysError, match=code):
        InteractionStore.open(tmp_path)


def test_columns_of_other_lengths_are_refused(log, tmp_path):
    log.save(tmp_path)
    np.save(tmp_path / "tied.npy", np.zeros(3, np.int32))
    with pytest.raises(RecsysError, match=r"R221.*'tied': 3"):
        EventLog.open(tmp_path)
