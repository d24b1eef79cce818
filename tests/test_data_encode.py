"""The store that shards make of examples is the one that plain Python makes."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from recsys.config import VocabularyConfig
from recsys.data import encode
from recsys.data.buckets import hash_buckets
from recsys.data.examples import read_examples, write_examples
from recsys.data.id_counts import count_ids
from recsys.data.shard import write_shard
from recsys.data.shards import eval_buckets, plan_train_shards, train_buckets
from recsys.data.store import InteractionStore, write_manifest
from recsys.data.vocabulary_growth import grow

_CUT = 6
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["u", "v", "007", "7", "x", "é", ""]),
        st.sampled_from("abcd"),
        st.integers(0, 9),
        st.integers(0, 1),
        st.sampled_from([0.5, 1.0, 3.0]),
    ),
    min_size=1,
    max_size=60,
)
_TYPES = {
    "user_id": pa.string(),
    "item_id": pa.string(),
    "timestamp": pa.int64(),
    "label": pa.int64(),
    "weight": pa.float32(),
}


def as_table(events, with_weight=True):
    columns = list(zip(*events, strict=True)) if events else [[]] * 5
    table = pa.table(
        [pa.array(c, t) for c, t in zip(columns, _TYPES.values(), strict=True)], [*_TYPES]
    )
    return table if with_weight else table.drop_columns(["weight"])


def positives_of(events):
    return [event for event in events if event[3]]


def vocabulary_of(events, column, config):
    positives = as_table(positives_of(events))
    return grow(None, count_ids(positives[column], positives["timestamp"]), config, _CUT)[0]


def encoded(events, users, items):
    """Encodes events in two batches, as workers do."""
    half = len(events) // 2
    for some in (events[:half], events[half:]):
        yield encode.encode_positives(as_table(some), users, items)


def write_part(folder, part, batches, buckets):
    table, buckets = pa.Table.from_batches(batches), np.concatenate(buckets)
    return [
        write_shard(folder, part, int(bucket), table.filter(pa.array(buckets == bucket)))
        for bucket in np.unique(buckets)
    ]


@given(
    events=_EVENTS,
    min_count=st.integers(1, 3),
    hash_buckets=st.sampled_from([0, 2]),
    most=st.integers(1, 20),
)
def test_every_positive_is_in_the_store_once_with_its_user(
    tmp_path_factory, events, min_count, hash_buckets, most
):
    folder = tmp_path_factory.mktemp("store")
    train = [event for event in events if event[2] < _CUT]
    held_out = [event for event in events if event[2] >= _CUT]
    config = VocabularyConfig(min_count=min_count, hash_buckets=hash_buckets)
    users, items = (vocabulary_of(train, c, config) for c in ("user_id", "item_id"))
    plan = plan_train_shards(users, most)
    batches = list(encoded(train, users, items))
    parts = {
        "train": write_part(folder, "train", batches, [train_buckets(b, plan) for b in batches])
    }
    batches = list(encoded(held_out, users, items))
    parts["eval"] = write_part(folder, "eval", batches, [eval_buckets(b, 3) for b in batches])
    write_manifest(folder, _CUT, parts)
    store = InteractionStore.open(folder, verify=True)
    for log, known, some in (
        (store.train, store.train_users, train),
        (store.eval, store.eval_users, held_out),
    ):
        check_log(log, known, positives_of(some), users, items)
    trained = {event[0]: n for n, event in enumerate(positives_of(train))}
    for id_, place in zip(store.eval_users.ids.to_pylist(), store.trained_user, strict=True):
        assert (place >= 0) == (id_ in trained)
        if place >= 0:
            assert store.train_users.ids[int(place)].as_py() == id_


def check_log(log, known, positives, users, items):
    ids = known.ids.to_pylist()
    assert sorted(ids) == sorted({event[0] for event in positives})
    assert known.rows.tolist() == users.rows(ids).tolist()
    for n, id_ in enumerate(ids):
        span = slice(int(log.offsets[n]), int(log.offsets[n + 1]))
        columns = (log.timestamp, log.item_row, log.weight)
        got = list(zip(*(column[span].tolist() for column in columns), strict=True))
        mine = [event for event in positives if event[0] == id_]
        rows = items.rows([event[1] for event in mine]).tolist()
        assert got == sorted((e[2], row, e[4]) for e, row in zip(mine, rows, strict=True))


def test_examples_without_weights_make_events_without(tmp_path):
    events = [("u", "a", 1, 1, 1.0), ("v", "b", 2, 0, 1.0)]
    users, items = (vocabulary_of(events, c, VocabularyConfig()) for c in ("user_id", "item_id"))
    for with_weight in (True, False):
        file = tmp_path / f"{with_weight}.parquet"
        pq.write_table(as_table(events, with_weight), file)
        names = encode.columns(str(file))
        batch = encode.encode_positives(pq.read_table(file, columns=names), users, items)
        assert batch.num_rows == 1
        assert ("weight" in batch.schema.names) == with_weight


def test_examples_come_back_as_plain_columns(tmp_path):
    table = pa.table({"id": ["ü", ""], "n": [1, 2], "x": pa.array([0.5, 1], pa.float32())})
    with (tmp_path / "f.parquet").open("wb") as sink:
        write_examples(table, sink)
    (back,) = read_examples(str(tmp_path / "f.parquet"), ["id", "n", "x"])
    assert back.to_pylist() == table.to_pylist()


@pytest.mark.parametrize("n_buckets", [1, 3, 1000])
def test_all_rows_of_an_id_go_into_one_bucket(n_buckets):
    rng = np.random.default_rng(0)
    ids = [f"user {n}" for n in rng.integers(0, 3000, 9000)]
    buckets = hash_buckets(pa.array(ids), n_buckets).tolist()
    assert len(set(zip(ids, buckets, strict=True))) == len(set(ids))
    assert set(buckets) <= set(range(n_buckets))
    assert len(Counter(buckets)) > 0.9 * n_buckets
