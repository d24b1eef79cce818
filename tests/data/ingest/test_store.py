"""The store that segments make is the one that plain Python makes."""

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from recsys.config import VocabularyConfig
from recsys.data.hashes import hash_buckets
from recsys.data.ingest import buckets, user_order
from recsys.data.ingest.segment_parts import (
    FOLDER,
    SegmentPart,
    read_parts,
    write_events,
    write_index,
)
from recsys.data.ingest.store_writer import build_store
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import merge_counts
from tests.support.growing import grow

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


def as_table(events):
    columns = list(zip(*events, strict=True)) if events else [[]] * 5
    return pa.table(
        [pa.array(c, t) for c, t in zip(columns, _TYPES.values(), strict=True)], [*_TYPES]
    )


def positives_of(events):
    return [event for event in events if event[3]]


def write_segments(folder, parts, n_buckets):
    """Writes the events of each split as segments, in buckets of users.

    Segments have two seconds, or all of them if they aren't split yet (split None).
    """
    written = []
    for split, events in parts.items():
        width = 2 if split else 100
        keyed = [(e[2] // width, hash_buckets(pa.array([e[0]]), n_buckets)[0], e) for e in events]
        for moment, bucket in sorted({key[:2] for key in keyed}):
            some = as_table([e for at, home, e in keyed if (at, home) == (moment, bucket)])
            name = f"{moment:05d}-{bucket:05d}"
            part = folder / FOLDER / name
            n = write_events(part, some.filter(pc.equal(some["label"], 1)))
            written += [SegmentPart(split, part, n)] if n else []
    write_index(folder, written, [], _CUT)


@given(
    events=_EVENTS,
    min_count=st.integers(1, 3),
    hash_rows=st.sampled_from([0, 2]),
    most=st.integers(1, 20),
    is_split=st.booleans(),
)
def test_every_positive_is_in_the_store_once_with_its_user(
    tmp_path_factory, events, min_count, hash_rows, most, is_split
):
    folder = tmp_path_factory.mktemp("store")
    train = [event for event in events if event[2] < _CUT]
    held_out = [event for event in events if event[2] >= _CUT]
    config = VocabularyConfig(min_count=min_count, hash_buckets=hash_rows)
    parts = {"train": train, "eval": held_out} if is_split else {None: events}
    write_segments(folder, parts, 2)
    trained_parts = read_parts(folder, "train")
    users, items = (
        grow(None, merge_counts([part.counts(name) for part in trained_parts]), config, _CUT)[0]
        for name in ("users.parquet", "items.parquet")
    )
    users.save(folder / "users.parquet")
    items.save(folder / "items.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_order, "_MOST_RUNS", 1 + most % 4)
        patch.setattr(buckets, "_BUCKET_IDS", 1 + most % 3)
        patch.setattr(buckets, "_RUN_ROWS", 1 + most % 5)
        build_store(folder, folder, _CUT, folder / "store", most=most)
    store = InteractionStore.open(folder / "store", verify=True)
    for log, known, some in (
        (store.train, store.train_users, train),
        (store.eval, store.eval_users, held_out),
    ):
        check_log(log, known, positives_of(some), users, items)
        heaviest = max(np.diff(log.offsets), default=0)
        assert all(len(shard) <= most + heaviest for shard in log.shards)
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


def test_events_without_weights_make_a_store_without(tmp_path):
    positives = as_table([("u", "a", 1, 1, 1.0)])
    write_events(tmp_path / "with", positives)
    write_events(tmp_path / "without", positives.drop_columns(["weight"]))
    names = [{path.name for path in (tmp_path / name).iterdir()} for name in ("with", "without")]
    assert names[0] - names[1] == {"weight.npy"}
