"""The store that the parts make is the one that plain Python makes."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from recsys.data import encode
from recsys.data.buckets import hash_buckets, split_by_bucket
from recsys.data.catalogue import FeatureBags
from recsys.data.examples import read_examples, write_examples
from recsys.data.vocabulary import Vocabulary

_EVENTS = st.lists(
    st.tuples(
        st.sampled_from("uvwxyz"), st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 1)
    ),
    min_size=1,
    max_size=60,
)


def as_table(events):
    columns = zip(*events, strict=True) if events else ([], [], [], [])
    types = (pa.string(), pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(list(one), kind) for one, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=["user_id", "item_id", "timestamp", "label"])


def vocabularies(events):
    users = Counter(user for user, _, _, label in events if label)
    items = Counter(item for _, item, _, label in events if label)
    return encode.build_vocabulary(dict(users)), encode.build_vocabulary(dict(items))


@given(_EVENTS, st.integers(1, 3))
def test_the_training_log_has_each_users_positives_in_time(events, n_parts):
    users, items = vocabularies(events)
    n_parts = min(n_parts, max(1, users.n_rows // 2))
    encoded = encode.encode_positives(as_table(events), users, items)
    buckets = encode.train_buckets(encoded, users.n_rows, n_parts)
    parts = dict(split_by_bucket(encoded, buckets))
    log = encode.join_parts(
        [
            encode.train_part(pa.Table.from_batches([parts[i]]), i, users.n_rows, n_parts)
            for i in sorted(parts)
        ]
    )
    if not parts:
        return
    assert len(log.offsets) == users.n_rows + 1
    for row in range(1, users.n_rows):
        user = users.ids[row - 1].as_py()
        wanted = sorted(
            (time, int(items.rows([item])[0]))
            for one, item, time, label in events
            if label and one == user
        )
        span = slice(log.offsets[row], log.offsets[row + 1])
        got = zip(log.timestamp[span].tolist(), log.item_row[span].tolist(), strict=True)
        assert list(got) == wanted
        assert set(log.user_row[span].tolist()) == {row}


@given(_EVENTS)
def test_the_evaluation_log_knows_its_users_by_id(events):
    users = Vocabulary(pa.array(["u", "v"]), np.array([2, 1]))
    items = Vocabulary(pa.array(["a", "b"]), np.array([2, 1]))
    encoded = encode.encode_positives(as_table(events), users, items)
    log, ids, rows = encode.eval_part(pa.Table.from_batches([encoded]))
    assert ids == sorted({user for user, _, _, label in events if label})
    assert rows.tolist() == [{"u": 1, "v": 2}.get(user, 0) for user in ids]
    assert [int(n) for n in np.diff(log.offsets)] == [
        sum(1 for user, _, _, label in events if label and user == one) for one in ids
    ]


def test_a_vocabulary_has_the_most_frequent_first_and_then_the_order_of_ids():
    vocabulary = encode.build_vocabulary({"b": 2, "a": 2, "c": 9, "new": 0})
    assert vocabulary.ids.to_pylist() == ["c", "a", "b", "new"]
    assert vocabulary.row_counts.tolist() == [0, 9, 2, 2, 0]


def test_the_catalogue_follows_the_rows_of_the_vocabulary():
    items = encode.build_vocabulary({"b": 2, "a": 1, "unlisted": 1})
    bags = FeatureBags("genres", 5, np.array([[1, 2], [3, 0], [4, 4]]))
    catalogue = encode.build_catalogue(
        items,
        pa.table({"item_id": ["a", "b", "stranger"], "title": ["A", "B", "?"]}),
        [bags],
        pa.array(["a", "b", "stranger"]),
    )
    assert catalogue.ids == ["", "b", "a", "unlisted"]
    assert catalogue.titles == ["", "B", "A", "unlisted"]
    assert catalogue.features[0].bags.tolist() == [[0, 0], [3, 0], [1, 2], [0, 0]]


def test_examples_come_back_as_plain_columns(tmp_path):
    table = pa.table({"id": ["ü", ""], "n": [1, 2], "x": pa.array([0.5, 1], pa.float32())})
    with (tmp_path / "f.parquet").open("wb") as sink:
        write_examples(table, sink)
    (back,) = read_examples(str(tmp_path / "f.parquet"), ["id", "n", "x"])
    assert back.to_pylist() == table.to_pylist()


@pytest.mark.parametrize("n_buckets", [1, 3])
def test_all_rows_of_an_id_go_into_one_bucket(n_buckets):
    ids = pa.array(["a", "b", "a", "c", "b", "a"])
    batch = pa.RecordBatch.from_pydict({"id": ids, "n": list(range(6))})
    parts = split_by_bucket(batch, hash_buckets(ids, n_buckets))
    homes = [(id_, bucket) for bucket, part in parts for id_ in set(part["id"].to_pylist())]
    assert sorted(id_ for id_, _ in homes) == ["a", "b", "c"]
    assert all(part["n"].to_pylist() == sorted(part["n"].to_pylist()) for _, part in parts)
