"""Serving histories against a loop over users and events."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.stores import write_shard
from recsys.data.store import InteractionStore, serving_histories, write_manifest


def table(ids, rows, items, times):
    columns = {
        "user_id": pa.array(ids, pa.string()),
        "user_row": pa.array(rows, pa.int32()),
        "item_row": pa.array(items, pa.int32()),
        "timestamp": pa.array(times, pa.int64()),
    }
    return pa.table(columns)


def make_store(folder, seed, n_trained, n_new, n_events, unknown):
    """Returns a store, the row of each id, and the events as a list (id, time, item row).

    Where `unknown` is set, users `u1`, `u4` … share row 0, and items may be 0.
    """
    rng = np.random.default_rng(seed)
    ids = [f"u{n}" for n in range(1, n_trained + 1)]
    row_of = {id_: 0 if unknown and n % 3 == 0 else n + 1 for n, id_ in enumerate(ids)}
    eval_ids = [f"n{n}" for n in range(n_new)] + ids[1::3] + ids[:1]
    row_of.update(dict.fromkeys(eval_ids[:n_new], 0))
    low, events, infos = 0 if unknown else 1, [], {}
    for part, some, times in (("train", ids, (0, 1000)), ("eval", eval_ids, (1000, 1900))):
        n = n_events if some else 0
        who = [some[i] for i in rng.integers(0, len(some), n)] if some else []
        time, item = rng.integers(*times, n).tolist(), rng.integers(low, 50, n).tolist()
        events += zip(who, time, item, strict=True)
        # Two shards with different users.
        infos[part] = []
        for number in (0, 1):
            chosen = [i for i, id_ in enumerate(who) if len(id_) % 2 == number]
            if chosen:
                columns = [who, [row_of[id_] for id_ in who], item, time]
                shard = table(*([column[i] for i in chosen] for column in columns))
                infos[part].append(write_shard(folder, part, number, shard))
    write_manifest(folder, 1000, infos)
    return InteractionStore.open(folder), row_of, events


@pytest.mark.parametrize(
    ("seed", "n_trained", "n_new", "n_events", "unknown"),
    [
        (0, 7, 3, 100, False),
        (1, 12, 3, 100, True),
        (2, 7, 0, 40, False),
        (3, 0, 4, 20, False),
        (4, 5, 0, 0, False),
        (5, 40, 30, 25, True),
    ],
    ids=["mixed", "unknown", "no-new-users", "no-train", "no-events", "many-without-events"],
)
def test_histories_are_each_users_events_in_time_order(
    tmp_path, seed, n_trained, n_new, n_events, unknown
):
    store, row_of, events = make_store(tmp_path, seed, n_trained, n_new, n_events, unknown)
    histories = serving_histories(store)
    ids = histories.ids.to_pylist()
    assert sorted(ids) == sorted({id_ for id_, _, _ in events})
    assert histories.user_rows.tolist() == [row_of[id_] for id_ in ids]
    for n, id_ in enumerate(ids):
        mine = histories.item_rows[histories.offsets[n] : histories.offsets[n + 1]]
        expected = [item for _, _, item in sorted(e for e in events if e[0] == id_)]
        assert mine.tolist() == expected
