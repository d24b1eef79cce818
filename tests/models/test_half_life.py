"""Weights of examples that halve with their age, in a world of new items."""

import numpy as np
import pytest
from tower_models import run
from training_runs import on_devices

from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import TrainConfig, TwoTowerConfig
from recsys.data.dataset import open_data
from recsys.data.split import SplitRule
from recsys.errors import UsageError
from recsys.models import TwoTower
from recsys.training.trainer import Trainer

DAY = 86_400


# --- a world where an item is taken for three days after its first event, and never again

DAYS, BORN, TAKEN_FOR, PER_DAY = 40, 4, 3, 30


def write_world(folder):
    """Writes the events of `DAYS` days: `PER_DAY` new users a day take 3 of the newest items."""
    rng = np.random.default_rng(2)
    lists, times = [], []
    for day in range(DAYS):
        newest = np.arange(max(0, day - TAKEN_FOR + 1) * BORN, (day + 1) * BORN)
        for _ in range(PER_DAY):
            lists.append(rng.choice(newest, 3, replace=False).tolist())
            times.append(np.sort(day * DAY + rng.integers(0, DAY, 3)))
    write_data_folder(Csr.of_lists(lists, DAYS * BORN), folder, times=np.concatenate(times))


def fitted(folder, checkpoints, half_life=None):
    config = TwoTowerConfig(dim=8, history=4, widths=None, item_bias=True, table_placement="row")
    train = TrainConfig(
        batch_size=128,
        uniform_negatives=64,
        epochs=4,
        validation=None,
        tower_learning_rate=0.05,
        half_life=half_life,
    )
    data = open_data(folder)
    model = TwoTower.from_config(config, data)
    with on_devices(1):
        Trainer(train, checkpoints=checkpoints, verbose=0).fit(model, data)
    return model


def best_of_a_stranger(model, n):
    """Returns the item rows that score best for who has no history."""
    asked = {"user_row": np.zeros(1, np.int32), "history": np.zeros((1, 4), np.int32)}
    rows = np.arange(1, DAYS * BORN + 1, dtype=np.int32)
    query, items = run(model, "embed_query", asked), run(model, "embed_candidate", {"id_row": rows})
    return 1 + np.argsort(-(query @ items.T)[0])[:n]


@pytest.mark.thorough
def test_weights_of_two_days_half_life_find_what_was_taken_most_of_late(tmp_path):
    """Which isn't the newest."""
    write_world(tmp_path / "data")
    n = BORN * (TAKEN_FOR - 1)
    plain = best_of_a_stranger(fitted(tmp_path / "data", tmp_path / "plain"), n)
    weighed = fitted(tmp_path / "data", tmp_path / "weighed", half_life=2 / DAYS)
    assert (plain > (DAYS - 6) * BORN).mean() <= 0.5
    assert (best_of_a_stranger(weighed, n) > (DAYS - 6) * BORN).mean() >= 0.8


def test_events_without_times_are_refused(tmp_path):
    by_place = SplitRule(split="last_out", order="file")
    write_data_folder(Csr.of_lists([[0, 1, 2]] * 9, 3), tmp_path / "data", rule=by_place)
    with pytest.raises(UsageError, match=r"R336.*half_life needs events that have times"):
        fitted(tmp_path / "data", tmp_path / "run", half_life=0.1)
