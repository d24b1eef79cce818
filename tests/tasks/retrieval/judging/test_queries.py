"""The queries of an evaluation, against what a person would write down."""

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.stores import write_store
from recsys.data.config import read_event_feature
from recsys.data.event_features import LearnedFeature
from recsys.data.split import SplitRule
from recsys.data.store import InteractionStore, serving_histories
from recsys.errors import RecsysError
from recsys.tasks.retrieval.judging.queries import make_queries

TRAIN = [("ann", 1, 11, 1), ("ann", 1, 12, 2), ("bob", 2, 21, 1)]
# Ann (row 1) takes 13, then 14 and 15 within one second; Zoe is new.
HELD_OUT = [("ann", 1, 13, 10), ("ann", 1, 15, 20), ("ann", 1, 14, 20), ("zoe", 0, 30, 12)]


def table(events):
    """`events`: (user id, user row, item row, time)."""
    kinds = {"user_id": "string", "user_row": "int32", "item_row": "int32", "timestamp": "int64"}
    columns = zip(*events, strict=True) if events else [[]] * 4
    arrays = [pa.array(list(c), k) for c, k in zip(columns, kinds.values(), strict=True)]
    return pa.table(arrays, names=list(kinds))


def make_store(folder, train, held_out, cut=10):
    write_store(folder, cut, table(train), table(held_out))
    return InteractionStore.open(folder, verify=True)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path, TRAIN, HELD_OUT)


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


def learned(name, kind, **options):
    feature = read_event_feature({"name": name, "kind": kind, **options})
    return LearnedFeature(
        feature, pa.table({"token": ["a", "b", "c"]}) if kind == "category" else {}
    )


FEATURES = (
    learned("device", "category", column="d"),
    learned("dwell", "category", column="s", outcome=True),
    learned("hour", "hour", column="t"),
    learned("gap", "gap"),
)
OF_EVENTS = ("history.device", "history.dwell", "device", "hour", "gap")


def test_a_query_has_the_context_of_its_first_event_and_the_attributes_of_its_history(tmp_path):
    tables = []
    for events, device in ((TRAIN, [1, 2, 3]), (HELD_OUT, [3, 1, 2, 0])):
        columns = {"device": device, "dwell": device[::-1], "hour": [9] * 4, "gap": [7] * 4}
        part = table(events)
        for name, tokens in columns.items():
            lists_ = pa.array([[token] for token in tokens[: len(events)]], pa.list_(pa.uint8()))
            part = part.append_column(f"feature:{name}", lists_)
        tables.append(part)
    write_store(tmp_path, 10, *tables)
    store = InteractionStore.open(tmp_path)
    moments = make_queries(store, "each_moment", inputs=OF_EVENTS, features=FEATURES)
    given = moments.given(OF_EVENTS, 2)
    # The event of item 14 is before that of 15: events of one second are in the order of items.
    assert given["device"].tolist() == [[3], [2], [0]]
    assert given["history.device"].tolist() == [[[2], [1]], [[3], [2]], [[0], [0]]]
    assert given["history.dwell"].tolist() == [[[2], [3]], [[0], [2]], [[0], [0]]]
    assert (given["hour"].tolist(), given["gap"].tolist()) == ([[9]] * 3, [[7]] * 3)
    assert {name: x.dtype for name, x in given.items()} == dict.fromkeys(given, np.dtype(np.int32))
    at_cut = make_queries(store, "at_cut", inputs=OF_EVENTS, features=FEATURES)
    given = at_cut.given(OF_EVENTS, 2)
    assert given["device"].tolist() == [[3], [0]]
    assert given["hour"].tolist() == [[1], [1]]  # Of the cut, 10 s after midnight.
    gap = FEATURES[3].encode(pa.array([8, None], pa.int64()))  # Ann's last event was at 2.
    assert given["gap"].tolist() == gap.tolist()
    histories = serving_histories(store, ["device"])
    assert histories.features["device"].tolist() == [[1], [2], [3], [2], [1], [3], [0]]


def test_without_times_nobody_knows_how_long_ago_a_history_was(tmp_path):
    write_store(tmp_path, 0, table(TRAIN), table(HELD_OUT), SplitRule("last_out", "file"))
    store = InteractionStore.open(tmp_path)
    assert serving_histories(store, times=True).times is None


def test_stored_histories_report_their_times_in_order(store):
    histories = serving_histories(store, times=True)
    assert histories.ids.to_pylist() == ["ann", "bob", "zoe"]
    assert histories.item_rows.tolist() == [11, 12, 13, 14, 15, 21, 30]
    assert histories.times.tolist() == [1, 2, 10, 20, 20, 1, 12]
    assert serving_histories(store).times is None


def test_stored_histories_are_in_order_though_the_parts_were_drawn_at_random(tmp_path):
    train, held_out = [("ann", 1, 11, 1), ("ann", 1, 13, 3)], [("ann", 1, 12, 2)]
    write_store(tmp_path, 10, table(train), table(held_out), SplitRule("random", "time"))
    histories = serving_histories(InteractionStore.open(tmp_path), times=True)
    assert histories.item_rows.tolist() == [11, 12, 13]
    assert histories.times.tolist() == [1, 2, 3]


def test_users_who_share_a_row_have_separate_histories(tmp_path):
    train = [("ann", 0, 11, 1), ("zoe", 0, 12, 1), ("bob", 5, 21, 1)]
    held_out = [("zoe", 0, 13, 10), ("ann", 0, 14, 11), ("eve", 0, 15, 12), ("bob", 5, 16, 13)]
    queries = make_queries(make_store(tmp_path, train, held_out), "at_cut")
    assert lists(queries.positives) == [[14], [16], [15], [13]]
    assert lists(queries.seen) == [[11], [21], [], [12]]
    assert queries.user_row.tolist() == [0, 5, 0, 0]


def test_an_item_taken_twice_is_one_positive(tmp_path):
    store = make_store(tmp_path, TRAIN, [("ann", 1, 13, 10), ("ann", 1, 13, 11)])
    assert lists(make_queries(store, "at_cut").positives) == [[13]]


def test_nothing_held_out_is_an_error_that_names_the_setting(tmp_path):
    store = make_store(tmp_path, TRAIN, [])
    with pytest.raises(RecsysError, match=r"R401.*data\.eval_share"):
        make_queries(store, "at_cut")


def test_too_many_queries_are_those_of_some_users_each_with_all_of_its_own(tmp_path) -> None:
    n_users, each = 40, 5
    held_out = [
        (f"{user:02}", 0, user * each + n + 1, 100 + n)
        for user in range(n_users)
        for n in range(each)
    ]
    store = make_store(tmp_path, [], held_out, cut=100)
    everyone = make_queries(store, "each_moment", 200)
    assert len(everyone) == 200
    some = make_queries(store, "each_moment", 33)
    assert np.bincount(some.user, minlength=n_users)[np.unique(some.user)].tolist() == [5] * 6
    assert some.user.tolist() == make_queries(store, "each_moment", 33).user.tolist()
    places = [everyone.user.tolist().index(one) for one in np.unique(some.user).tolist()]
    expected = [lists(everyone.seen)[place + i] for place in places for i in range(each)]
    assert lists(some.seen) == expected
    assert len(make_queries(store, "each_moment", 1)) == 5
