"""Takes users out of the variables of a saved `StoredUsers`, and looks at all who stay."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import tensorflow as tf

from recsys.data.config import read_event_feature
from recsys.data.event_features import LearnedFeature
from recsys.data.event_features.statistics import with_facts
from recsys.data.statistics import TOKEN_BITS, States, StatisticsState, keys_of
from recsys.data.store import ServingHistories
from recsys.data.vocabulary import Vocabulary
from recsys.savedmodel import variables
from recsys.savedmodel.statistics import StoredStatistics
from recsys.tasks.serving.stored_users import StoredIds, StoredUsers

N = 50


NOTHING = pa.table({"value": pa.array([], pa.float32()), "count": pa.array([], pa.int64())})


class Bundle(tf.Module):
    """The part of a bundle that knows users."""

    def __init__(self, users, histories, state):
        super().__init__()
        self._statistics = StoredStatistics(state)
        self._users = StoredUsers(users, histories)
        self._of_user_rows = [tf.Variable(np.arange(2.0 * users.n_rows).reshape(-1, 2) + 1)]


def make(folder):
    """Saves fifty users with events, every third without a row, and five without events."""
    rng = np.random.default_rng(4)
    ids = [f"user {n}" for n in range(N)]
    own = [id_ for n, id_ in enumerate(ids) if n % 3] + [f"silent {n}" for n in range(5)]
    users = Vocabulary(pa.array(own), np.ones(len(own)))
    counts = rng.integers(0, 5, N)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    n = offsets[-1]
    histories = ServingHistories(
        ids=pa.array(ids, pa.large_string()),
        user_rows=users.rows(ids),
        offsets=offsets,
        item_rows=rng.integers(1, 9, n).astype(np.int32),
        times=rng.permutation(n).astype(np.int64) + 100,
        features={"device": rng.integers(1, 9, (n, 2)).astype(np.uint8)},
    )
    statistic = read_event_feature({"name": "n", "kind": "count", "by": ["user", "tags"]})
    learned = with_facts(statistic.learn(NOTHING, None), 0.0, 0)
    keys = np.unique(keys_of(rng.integers(0, users.n_rows, (90, 1)), rng.integers(1, 4, (90, 1))))
    states = {"n": States(keys, rng.random((len(keys), 1)))}
    state = StatisticsState((LearnedFeature(statistic, learned),), states)
    tf.saved_model.save(Bundle(users, histories, state), str(folder))
    return ids + own[-5:], users, histories, state


def main(folder):
    ids, users, histories, state = make(folder)
    rng = np.random.default_rng(5)
    newest = int(np.argmax(histories.times))
    owner = int(np.searchsorted(histories.offsets, newest, "right")) - 1
    gone = sorted({ids[owner], "silent 2", *(ids[n] for n in rng.permutation(N)[:12])})
    stored = StoredIds(folder, [*gone, "nobody"])
    assert sorted(stored.numbers) == gone
    rows = [int(row) for row in users.rows(gone) if row]
    variables.overwrite(folder, stored.overwritten(rows))
    assert StoredIds(folder, gone).numbers == {}
    numbers = StoredIds(folder, ids).numbers
    assert sorted(numbers) == sorted(set(ids) - set(gone))
    assert all(number == ids.index(id_) + 1 for id_, number in numbers.items())

    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    after = StoredIds(folder, [])

    def read(path):
        return reader.get_tensor(after.key(path))

    is_left = np.repeat([id_ not in gone for id_ in ids[:N]], np.diff(histories.offsets))
    assert not is_left.all()
    for path, before in (
        ("_users/_items", histories.item_rows),
        ("_users/_times", histories.times),
        ("_users/_features/device", histories.features["device"]),
    ):
        expected = before.copy()
        expected[~is_left] = 0
        np.testing.assert_array_equal(read(path)[:-1], expected)
    assert read("_users/_times")[-1] == histories.times[is_left].max() < histories.times.max()
    table = np.arange(2.0 * users.n_rows).reshape(-1, 2) + 1
    table[rows] = 0
    np.testing.assert_array_equal(read("_of_user_rows/0"), table)
    left = States(*(read(f"_statistics/_user_{kind}/n") for kind in ("keys", "values")))
    asked = keys_of(np.arange(users.n_rows), np.tile([1, 2, 3], (users.n_rows, 1)))
    expected = state.states["n"].find(asked, 0.0)
    assert expected[rows].any()
    expected[rows] = 0
    np.testing.assert_array_equal(left.find(asked, 0.0), expected)
    assert not np.isin(left.keys >> TOKEN_BITS, rows).any()


main(Path(sys.argv[1]) / "saved")
