"""The interaction store: what shards hold, how they are written, and what damage is seen."""

import json
import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from benchmarks.stores import sorted_shard, write_shard, write_store
from recsys.data import store as store_module
from recsys.data.event_log import EventLog, newest_first
from recsys.data.store import InteractionStore, verify_store, write_manifest
from recsys.errors import RecsysError

TYPES = {
    "user_id": pa.string(),
    "user_row": pa.int32(),
    "item_row": pa.int32(),
    "timestamp": pa.int64(),
    "weight": pa.float32(),
}
EVENT = st.tuples(
    st.sampled_from(["ann", "bob", "007", "é", "🙂", ""]),
    st.integers(0, 9),
    st.integers(-3, 3) | st.sampled_from([-(2**62), 2**62]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
ROW_OF = {"ann": 3, "bob": 0, "007": 7, "é": 0, "🙂": 0, "": 5}


def table(events, with_weight=True):
    """`events`: (user id, item row, time, weight); rows as in `ROW_OF`."""
    rows = [(user, ROW_OF[user], item, time, weight) for user, item, time, weight in events]
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 5
    names = list(TYPES)[: 5 if with_weight else 4]
    return pa.table({n: pa.array(c, TYPES[n]) for n, c in zip(names, columns, strict=False)})


def read(log, users):
    """Returns what a log holds as (user id, user row, times, items, weights)."""
    found = []
    for n, id_ in enumerate(users.ids.to_pylist()):
        span = slice(int(log.offsets[n]), int(log.offsets[n + 1]))
        assert set(log.user_row[span].tolist()) == {int(users.rows[n])}
        columns = (log.timestamp, log.item_row, log.weight)
        found.append((id_, *(column[span].tolist() for column in columns)))
    return found


@given(events=st.lists(EVENT, min_size=1, max_size=40), seed=st.integers(0, 9))
def test_a_shard_holds_each_users_events_in_the_order_of_plain_python(
    tmp_path_factory, events, seed
):
    folder = tmp_path_factory.mktemp("store")
    shuffled = [events[i] for i in np.random.default_rng(seed).permutation(len(events))]
    write_store(folder, 5, table(events), table(shuffled))
    store = InteractionStore.open(folder, verify=True)
    ids = sorted({event[0] for event in events})
    assert store.eval_users.ids.to_pylist() == ids
    assert store.train_users.ids.to_pylist() == sorted(ids, key=lambda id_: (ROW_OF[id_], id_))
    for log, users in ((store.train, store.train_users), (store.eval, store.eval_users)):
        for id_, times, items, weights in read(log, users):
            mine = sorted((time, item, weight) for one, item, time, weight in events if one == id_)
            assert list(zip(times, items, weights, strict=True)) == mine


def test_the_order_in_which_rows_come_changes_no_byte(tmp_path):
    rng = np.random.default_rng(0)
    events = [
        (user, int(item), int(time), 1.0)
        for user, item, time in zip(
            rng.choice(list(ROW_OF), 500), rng.integers(0, 5, 500), rng.integers(0, 9, 500),
            strict=True,
        )
    ]  # fmt: skip
    whole = table(events)
    pieces = pa.concat_tables([whole.slice(start, 50) for start in range(450, -1, -50)])
    for part in ("train", "eval"):
        one = write_shard(tmp_path / "one", part, 0, whole)
        two = write_shard(tmp_path / "two", part, 0, pieces)
        assert one == two


def test_histories_leave_out_what_happens_within_one_second():
    # User 1 takes 5, then 8 and 7 within one second, then 9; user 2 takes 4.
    user = np.array([2, 1, 1, 1, 1])
    item, time = np.array([4, 9, 8, 7, 5]), np.array([1, 30, 20, 20, 10])
    shard = sorted_shard(user, user, item, time, n_users=4)
    log = EventLog((shard,))
    assert log.item_row[:].tolist() == [5, 7, 8, 9, 4]
    assert log.offsets.tolist() == [0, 0, 4, 5, 5]
    assert log.user_index(np.arange(5)).tolist() == [1, 1, 1, 1, 2]
    assert shard.tied.tolist() == [0, 0, 1, 0, 0]
    assert log.histories(np.array([4, 3, 2, 1, 0]), 3).tolist() == [
        [0, 0, 0],
        [8, 7, 5],
        [5, 0, 0],
        [5, 0, 0],
        [0, 0, 0],
    ]
    assert log.histories(np.array([3]), 2).tolist() == [[8, 7]]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12))), st.integers(0, 15))
def test_newest_first_is_a_reversed_slice(slices, length):
    column = np.arange(1, 13, dtype=np.int32)
    bounds = [(min(pair), max(pair)) for pair in slices]
    start, end = np.array(bounds, np.int64).reshape(-1, 2).T
    got = newest_first(column, start, end, length)
    for row, (first, last) in zip(got, bounds, strict=True):
        wanted = column[first:last][::-1][:length].tolist()
        assert row.tolist() == wanted + [0] * (length - len(wanted))


@given(
    st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(-40, 40)), st.integers(-40, 40),
    st.integers(-40, 40), st.sampled_from([1, 2, -1]),
)  # fmt: skip
def test_columns_of_many_shards_read_as_one(sizes, places, start, stop, step):
    logs = [
        sorted_shard(*(np.full(n, k) for _ in range(3)), np.arange(n), n_users=k + 1)
        for k, n in enumerate(sizes)
    ]
    column, whole = EventLog(tuple(logs)).item_row, np.repeat(np.arange(len(sizes)), sizes)
    assert len(column) == len(whole)
    assert np.array_equal(np.asarray(column), whole)
    assert column[start:stop:step].tolist() == whole[start:stop:step].tolist()
    inside = np.array([p for p in places if -len(whole) <= p < len(whole)], np.int64)
    assert column[inside].tolist() == whole[inside].tolist()
    with pytest.raises(IndexError):
        column[np.array([len(whole)])]


# --- writing


@pytest.fixture
def folder(tmp_path):
    events = [("ann", 1, 10, 1.0), ("bob", 2, 20, 0.5), ("ann", 3, 30, 1.0)]
    write_store(tmp_path / "store", 86_400, table(events), table(events[:1]))
    return tmp_path / "store"


def test_a_store_says_what_is_in_it(folder):
    manifest = json.loads((folder / "store.json").read_text())
    assert manifest["cut"] == InteractionStore.open(folder).cut == 86_400
    assert (manifest["train_events"], manifest["train_users"]) == (3, 2)
    assert (manifest["eval_events"], manifest["eval_users"]) == (1, 1)
    shard = manifest["parts"]["train"][0]
    assert shard == {"name": "00000", "events": 3, "users": 2}
    assert {name for name in manifest["files"] if name.startswith("train/00000/")} == {
        f"train/00000/{path.name}" for path in (folder / "train" / "00000").iterdir()
    }


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", ["item_row.npy", "offsets.npy", "users.parquet", "weight.npy"])
def test_a_truncated_or_missing_file_is_named(folder, name, verify):
    path = folder / "train" / "00000" / name
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    with pytest.raises(RecsysError, match=rf"R221.*{name}.*bytes"):
        InteractionStore.open(folder, verify)
    path.unlink()
    with pytest.raises(RecsysError, match=rf"R221.*{name}"):
        InteractionStore.open(folder, verify)


@pytest.mark.parametrize("name", ["item_row.npy", "timestamp.npy", "users.parquet"])
def test_a_flipped_bit_is_seen_by_a_reader_who_verifies(folder, name):
    path = folder / "train" / "00000" / name
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    InteractionStore.open(folder)
    with pytest.raises(RecsysError, match=rf"R221.*{name}.*other content"):
        InteractionStore.open(folder, verify=True)


@pytest.mark.parametrize("shares", [1, 2, 4])
def test_each_file_is_verified_in_one_share(folder, shares):
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in (".npy", ".parquet")]
    for path in paths:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        wrong = []
        for share in range(shares):
            try:
                verify_store(folder, share, shares)
            except RecsysError as error:
                wrong.append(str(error))
        assert len(wrong) == 1
        assert "R221" in wrong[0]
        assert str(path) in wrong[0]
        content[-1] ^= 1
        path.write_bytes(content)
    for share in range(shares):
        verify_store(folder, share, shares)


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{", '{"format": 1}', '{"format": 2, "cut": 1, "parts": {}}']
)
def test_a_folder_without_a_whole_manifest_is_no_store(folder, content):
    (folder / "store.json").unlink()
    if content is not None:
        (folder / "store.json").write_text(content)
    with pytest.raises(RecsysError, match="R220"):
        InteractionStore.open(folder)


def test_a_store_of_an_earlier_version_says_to_ingest_again(folder):
    manifest = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps({**manifest, "format": 3}))
    with pytest.raises(RecsysError, match=r"R220.*format 3.*Ingest again"):
        InteractionStore.open(folder)


def test_a_column_of_another_type_is_refused(folder):
    path = folder / "train" / "00000" / "item_row.npy"
    np.save(path, np.load(path).astype(np.int64))
    manifest = json.loads((folder / "store.json").read_text())
    manifest["files"]["train/00000/item_row.npy"]["size"] = path.stat().st_size
    (folder / "store.json").write_text(json.dumps(manifest))
    with pytest.raises(RecsysError, match=r"R221.*item_row.*int64.*int32"):
        InteractionStore.open(folder)


_KILLED = """
import os, sys, pathlib, pyarrow as pa
from benchmarks import stores
folder, calls, sync = pathlib.Path(sys.argv[1]), [0], os.fsync
def synced(descriptor):
    calls[0] += 1
    if calls[0] == 3:
        os.kill(os.getpid(), 9)
    sync(descriptor)
os.fsync = synced
events = pa.table({"user_id": ["a"], "user_row": pa.array([1], pa.int32()),
                   "item_row": pa.array([1], pa.int32()), "timestamp": [1]})
stores.write_shard(folder, "train", 0, events)
"""


def test_a_writer_that_is_killed_leaves_no_shard_and_the_next_one_writes_it(tmp_path):
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -9
    assert not (tmp_path / "train" / "00000").exists()
    info = write_shard(tmp_path, "train", 0, table([("ann", 1, 1, 1.0)]))
    write_manifest(tmp_path, 0, {"train": [info], "eval": []})
    assert len(InteractionStore.open(tmp_path, verify=True).train) == 1


def test_a_shard_written_twice_is_the_same_and_there_once(tmp_path):
    events = table([("ann", 1, 1, 1.0), ("bob", 2, 2, 1.0)])
    infos = [write_shard(tmp_path, "train", 4, events) for _ in range(2)]
    assert infos[0] == infos[1]
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["00004"]


def test_a_full_disk_leaves_the_shard_of_before(tmp_path, monkeypatch):
    first = write_shard(tmp_path, "train", 0, table([("ann", 1, 1, 1.0)]))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.pq, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        write_shard(tmp_path, "train", 0, table([("bob", 1, 1, 1.0)]))
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["00000"]
    write_manifest(tmp_path, 0, {"train": [first], "eval": []})
    assert InteractionStore.open(tmp_path, verify=True).train_users.ids.to_pylist() == ["ann"]


def test_a_store_without_events_is_a_store(tmp_path):
    write_manifest(tmp_path, 3, {"train": [], "eval": []})
    store = InteractionStore.open(tmp_path)
    assert (len(store.train), len(store.eval), store.cut) == (0, 0, 3)
    assert store.train.weight is None
    assert store.trained_user.tolist() == []


def test_sorting_a_shard_takes_few_bytes_an_event(tmp_path):
    import tracemalloc

    n, rng = 200_000, np.random.default_rng(0)
    user = rng.integers(0, 5000, n)
    events = pa.table(
        {
            "user_id": user.astype(str).tolist(),
            "user_row": user.astype(np.int32),
            "item_row": rng.integers(0, 100, n).astype(np.int32),
            "timestamp": rng.integers(0, 10**9, n),
        }
    )
    tracemalloc.start()
    write_shard(tmp_path, "train", 0, events)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / n < 60
