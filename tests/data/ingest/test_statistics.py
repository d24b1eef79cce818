"""Statistics of earlier events, against plain Python that looks at all rows for each."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from split_worlds import write
from statistic_worlds import DAY, LABELS, START, World, statistics

from recsys.config import DataConfig
from recsys.data.event_features.statistics import prior_mean
from recsys.data.statistics import MOMENTS, StatisticsState
from recsys.stages.ingest import ingest
from recsys.system.manifest import checksums, file_names

AS = [{}, {"as": "dense"}, {"as": "dense", "scale": "log"}]


def encoded(world, one, pairs, **moment):
    """Encodes the statistics of (user, item, time, only training rows) by plain Python."""
    numbers = [world.numbers(one, *pair, **moment) for pair in pairs]
    return one.encode(np.array(numbers, np.float64).astype(np.float32))


@example(seed=1048575, rule=("random", 0), options={})  # Rows newer than all positives.
@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**20),
    rule=st.sampled_from([("time", 0), ("time", 1), ("time", DAY), ("random", 0)]),
    options=st.sampled_from(AS),
)
def test_rows_and_states_are_what_earlier_rows_with_known_labels_say(
    tmp_path_factory, seed, rule, options
):
    split, delay = rule
    world = World(seed, delay_s=delay)
    data = world.write(tmp_path_factory.mktemp("world"), statistics(**options), split)
    store, (user_ids, item_ids) = data.store, (
        x.ids_of_rows.to_pylist() for x in (data.users, data.items)
    )  # fmt: skip
    trained = [row for row in world.rows if row[:3] in world.trained]
    likes = [x.like for x in trained if not delay or x.time + delay <= store.cut]
    known = [like for like in likes if like is not None]
    assert prior_mean(data.event_features[1].learned) == pytest.approx(sum(known) / len(known))
    parts = (store.train_rows, store.train_users), (store.eval_rows, store.eval_users)
    for log, users in parts:
        user = users.ids.take(pa.array(log.user_index(np.arange(len(log))))).to_pylist()
        item, time = (item_ids[row] for row in log.item_row[:]), log.timestamp[:].tolist()
        is_train = log is store.train_rows
        # A bundle has no states of users without a row.
        user = [x if x in user_ids or not is_train else None for x in user]
        pairs = [(*x, is_train) for x in zip(user, item, time, strict=True)]
        for one in data.event_features:
            found = log.features[one.name][:]
            np.testing.assert_array_equal(found, encoded(world, one, pairs))

    user_row, item_row = np.indices((len(user_ids), len(item_ids))).reshape(2, -1)
    ids = [(user_ids[u], item_ids[i]) for u, i in zip(user_row, item_row, strict=True)]
    for which, now in zip(MOMENTS, (store.cut, max(row.time for row in world.rows)), strict=True):
        pairs = [(*pair, now, which == "cut") for pair in ids]
        state = StatisticsState.open(data.folder, which)
        found = state.features(user_row, item_row, data.catalogue)
        for one in data.event_features:
            expected = encoded(world, one, pairs, is_end=which == "newest")
            np.testing.assert_array_equal(found[one.name], expected)
        changed = state.without_users(np.arange(1, 3))
        left = StatisticsState(state.statistics, {**state.states, **changed})
        of_unknown = state.features(np.zeros_like(user_row), item_row, data.catalogue)
        for name, values in left.features(user_row, item_row, data.catalogue).items():
            expected = np.where(user_row[:, None] <= 2, of_unknown[name], found[name])
            np.testing.assert_array_equal(values, expected)


def config(files):
    features = [one for one in statistics(**{"as": "dense"}) if isinstance(one["by"], str)]
    options = {
        "files": str(files),
        "columns": {"user": "user", "item": "item", "timestamp": "time"},
        "labels": LABELS,
        "positive": "like",
        "features": features,
        "label_after": "6h",
    }
    return DataConfig.model_validate_json(json.dumps({"interactions": options}))


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """A file of sessions of a second, whose rows share a label that is drawn for each."""
    rng, rows = np.random.default_rng(3), []
    for session in range(3000):
        time, rating = START + 120 * session, int(rng.choice([1, 5]))
        items = rng.choice(40, 4, replace=False)
        rows += [(f"u{session % 150}", f"i{item}", time, rating, "2.5") for item in items]
    folder = tmp_path_factory.mktemp("sessions")
    write(folder / "rows.csv", rows, "user,item,time,rating,seconds")
    return folder


@pytest.mark.pipeline
def test_statistics_do_not_depend_on_files_and_processes_and_do_not_leak(sessions):
    data = ingest(config(sessions / "rows.csv"), sessions / "plain", progress=False)
    labels = data.store.train_rows.labels["like"][:]
    for one in data.event_features:
        numbers = data.store.train_rows.features[one.name][:]
        for column in numbers[labels >= 0].T:  # The own second, in which all labels are equal.
            assert roc_auc_score(labels[labels >= 0], column) == pytest.approx(0.5, abs=0.04)

    table = pyarrow.csv.read_csv(sessions / "rows.csv")
    pq.write_table(table, sessions / "rows.parquet", row_group_size=999)
    processes = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    others = {"parquet": ("rows.parquet", []), "processes": ("rows.csv", processes)}
    for name, (file, words) in others.items():
        ingest(config(sessions / file), sessions / name, beam_args=words, progress=False)
    plain, *rest = (
        {part: checksums(folder, file_names(folder)) for part in ("store", "statistics",
         "event_features") for folder in [sessions / name / part]}
        for name in ("plain", *others)
    )  # fmt: skip
    assert plain["statistics"]
    assert rest == [plain, plain]
    assert not (sessions / "plain" / "statistics" / "work").exists()
    assert not (sessions / "plain" / "store" / ".late_labels").exists()
