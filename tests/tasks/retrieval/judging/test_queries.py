"""The queries of an evaluation, against what a person would write down."""

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.stores import write_store
from recsys.data.event_log import FACTS, weight_buckets
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


def test_a_query_reports_how_long_ago_its_history_was(store):
    moments = make_queries(store, "each_moment", facts=FACTS)
    assert lists(moments.facts["history_age"]) == [[9, 8], [19, 18, 10], []]
    assert moments.fact_inputs(FACTS, 2)["history_age"].tolist() == [[8, 9], [10, 18], [0, 0]]
    assert moments.select(np.array([1])).fact_inputs(FACTS, 2)["history_age"].tolist() == [[10, 18]]
    assert moments.select(np.array([1])).fact_inputs(["asked_at"], 2)["asked_at"].tolist() == [0]
    # At the cut, whatever the user does later.
    at_cut = make_queries(store, "at_cut", facts=FACTS)
    assert lists(at_cut.facts["history_age"]) == [[9, 8], []]
    assert [*at_cut.facts] == ["history_age"]  # The events have no weights.
    assert [*make_queries(store, "at_cut").fact_inputs(FACTS, 2)] == ["asked_at"]


def test_at_the_cut_histories_count_back_from_there_though_nobody_did_anything_then(tmp_path):
    queries = make_queries(make_store(tmp_path, TRAIN, HELD_OUT, cut=7), "at_cut", facts=FACTS)
    assert lists(queries.facts["history_age"]) == [[6, 5], []]


def test_a_query_reports_the_weights_and_the_kinds_of_its_history(tmp_path):
    tables = [table(events) for events in (TRAIN, HELD_OUT)]
    weights = [[1.0, 4.0, 0.5], [2.0, 8.0, 0.0, 3.0]]
    kinds = [pa.array(rows, pa.uint8()) for rows in ([1, 2, 2], [3, 1, 0, 2])]
    tables = [t.append_column("weight", pa.array(w)) for t, w in zip(tables, weights, strict=True)]
    tables = [t.append_column("kind", rows) for t, rows in zip(tables, kinds, strict=True)]
    write_store(tmp_path, 10, *tables)
    store = InteractionStore.open(tmp_path)
    queries = make_queries(store, "each_moment", facts=["history_weight", "history_kind"])
    assert lists(queries.facts["history_kind"]) == [[0, 1], [0, 1, 2], []]
    expected = [[1, 4], [1, 4, 2], []]
    buckets = [weight_buckets(np.float32(w)).tolist() for w in expected]
    assert lists(queries.facts["history_weight"]) == buckets
    histories = serving_histories(store, FACTS)
    assert histories.facts["history_kind"].tolist() == [0, 1, 2, -1, 0, 1, 1]
    assert (
        histories.facts["history_weight"].tolist()
        == weight_buckets(np.float32([1, 4, 2, 0, 8, 0.5, 3])).tolist()
    )


def test_without_times_nobody_knows_how_long_ago_a_history_was(tmp_path):
    write_store(tmp_path, 0, table(TRAIN), table(HELD_OUT), SplitRule("last_out", "file"))
    store = InteractionStore.open(tmp_path)
    assert not make_queries(store, "each_moment", facts=FACTS).facts
    assert serving_histories(store, FACTS).times is None


def test_stored_histories_report_their_times_in_order(store):
    histories = serving_histories(store, FACTS)
    assert histories.ids.to_pylist() == ["ann", "bob", "zoe"]
    assert histories.item_rows.tolist() == [11, 12, 13, 14, 15, 21, 30]
    assert histories.times.tolist() == [1, 2, 10, 20, 20, 1, 12]
    assert serving_histories(store).times is None


def test_stored_histories_are_in_order_though_the_parts_were_drawn_at_random(tmp_path):
    train, held_out = [("ann", 1, 11, 1), ("ann", 1, 13, 3)], [("ann", 1, 12, 2)]
    write_store(tmp_path, 10, table(train), table(held_out), SplitRule("random", "time"))
    histories = serving_histories(InteractionStore.open(tmp_path), FACTS)
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
