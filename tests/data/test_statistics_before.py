"""Statistics at any time, against plain Python that looks at all rows for each."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistic_worlds import DAY, START, World, statistics

from recsys.data import statistics_before
from recsys.data.statistics_before import StatisticsBefore


def before(data, part, most=40):
    sources = data.catalogue, data.users, data.items, data.event_features
    return StatisticsBefore(data.store, part, *sources, most)


def stored(log):
    numbers = np.arange(len(log))
    return log.user_index(numbers), log.item_row[numbers], log.timestamp[numbers]


@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**20),
    rule=st.sampled_from([("time", 0), ("time", 1), ("time", DAY), ("random", 0)]),
    options=st.sampled_from([{}, {"as": "dense"}]),
)
def test_a_statistic_at_any_time_is_of_the_rows_before(tmp_path_factory, seed, rule, options):
    split, delay = rule
    world, rng = World(seed, delay_s=delay), np.random.default_rng(seed)
    data = world.write(tmp_path_factory.mktemp("world"), statistics(**options), split)
    store, user_ids = data.store, data.users.ids_of_rows.to_pylist()
    for part, log, users in (
        ("train", store.train_rows, store.train_users),
        ("eval", store.eval_rows, store.eval_users),
    ):
        if part == "eval" and delay:  # The store has no labels that became known after the cut.
            continue
        lookup = before(data, part)
        for name, values in lookup.features(*stored(log)).items():
            np.testing.assert_array_equal(values, log.features[name][:])
        user = rng.integers(0, len(users.rows), 60)
        item_row = rng.integers(0, data.items.n_rows, 60)
        time = START + rng.integers(-1, 13, 60) * DAY // 2 + rng.choice([0, 1, 7, 9], 60)
        time = np.minimum(time, store.cut) if delay else time
        ids = users.ids.take(pa.array(user)).to_pylist()
        if part == "train":
            ids = [x if x in user_ids else None for x in ids]
        items = data.items.ids_of_rows.take(pa.array(item_row)).to_pylist()
        found = lookup.features(user, item_row, time)
        for one in data.event_features:
            pairs = zip(ids, items, time.tolist(), strict=True)
            numbers = [world.numbers(one, *pair, part == "train") for pair in pairs]
            expected = one.encode(np.array(numbers, np.float64).astype(np.float32))
            np.testing.assert_array_equal(found[one.name], expected)


def test_a_look_at_later_rows_is_seen(tmp_path, monkeypatch):
    data = World(3).write(tmp_path, statistics(**{"as": "dense"}))
    log = data.store.train_rows
    monkeypatch.setattr(statistics_before, "end_seen", lambda time, _: time + DAY)
    later = before(data, "train").features(*stored(log))
    for name, values in later.items():
        with pytest.raises(AssertionError):
            np.testing.assert_array_equal(values, log.features[name][:])
