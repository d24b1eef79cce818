"""Statistics in TensorFlow, against those of NumPy and of plain Python."""

import numpy as np
from on_tensorflow import run_on_tensorflow
from places import SUPPORT
from statistic_worlds import Row, World, statistics

from recsys.data.statistics import StatisticsState


def test_stored_states_and_given_histories_have_the_statistics_of_numpy(tmp_path):
    world = World(seed=5, n=300, users=20, items=12)
    numbers = statistics(**{"as": "dense", "scale": "log"})
    numbers = [{**one, "name": f"{one['name']}_log"} for one in numbers]
    data = world.write(tmp_path, [*statistics(), *numbers])
    n_users, n_items, length = data.users.n_rows, data.items.n_rows, 6
    rng, names = np.random.default_rng(1), data.items.ids_of_rows.to_pylist()
    user_row = np.arange(n_users)
    item_row = rng.integers(0, n_items, (n_users, 5))
    events = rng.integers(1, n_items, (n_users, length))
    like = rng.choice([0.0, 1.0, np.nan], events.shape)
    seconds = rng.choice([0.5, 30.0, np.nan], events.shape)
    given = {
        "is_there": np.arange(length) < (user_row % (length + 1))[:, None],
        "rating": np.where(np.isnan(like), " ", np.where(like == 1, "4", "3.5")),
        "seconds": np.where(np.isnan(seconds), "", seconds.astype(str)),
    }
    tags = np.asarray(data.catalogue.features[0].bags)
    more = {"tags": tags[item_row], "history_tags": tags[events]}
    np.savez(tmp_path / "given.npz", user_row=user_row, item_row=item_row, **given, **more)
    run_on_tensorflow(SUPPORT / "stored_statistics.py", tmp_path)
    stored, own = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("stored", "own"))

    state = StatisticsState.open(data.folder, "newest")
    pairs = np.repeat(user_row, item_row.shape[1]), item_row.ravel()
    expected = state.features(*pairs, data.catalogue)
    asked = np.argwhere(item_row >= 0)
    labels = {"like": like, "seconds": np.where(like == 1, seconds, np.nan)}
    values = {name: np.where(np.isnan(x), None, x) for name, x in labels.items()}
    for one in data.event_features:
        by_user = expected[one.name].reshape(*item_row.shape, -1)
        np.testing.assert_allclose(stored[one.name], by_user, rtol=1e-6)
        numbers = []
        for user, at in asked:
            # The newest event comes first, and has the highest time.
            world.rows = [
                Row("u", names[item], length - n, *(values[x][user, n] for x in values))
                for n, item in reversed([*enumerate(events[user])])
                if given["is_there"][user, n]
            ]
            numbers.append(world.numbers(one, "u", names[item_row[user, at]], length + 1, False))
        own_history = one.encode(np.array(numbers, np.float64).astype(np.float32))
        own_history = own_history.reshape(by_user.shape)
        has_own = given["is_there"].any(axis=1) & (one.feature.by != "item")
        np.testing.assert_allclose(own[one.name][has_own], own_history[has_own], rtol=1e-6)
        np.testing.assert_allclose(own[one.name][~has_own], by_user[~has_own], rtol=1e-6)
