"""Features of users help for users without events."""

import numpy as np
import pyarrow as pa
import pytest
from data_folders import write_data
from training_runs import train_here

from recsys.config import EvaluateStage
from recsys.data.catalogue import FeatureBags
from recsys.data.vocabulary import Vocabulary
from recsys.evaluation.evaluation_file import evaluate
from recsys.tasks.model_folder import load_model

pytestmark = pytest.mark.slow

N_TRAINED, N_NEW, N_ITEMS, N_TASTES = 60, 40, 60, 3
CUT_DAY = 90
STAGE = {
    "model": {"dim": 16, "feature_dim": 8, "history": 5, "widths": [16], "new_user_share": 0.3},
    "train": {"batch_size": 64, "uniform_negatives": 32, "epochs": 12, "table_learning_rate": 0.2},
}


def events(rng, users, n, days):
    """User `n` has the taste `n % 3`, and item row `r` is of the taste `r % 3`."""
    user = np.repeat(users, n)
    item = 1 + rng.integers(0, N_ITEMS // N_TASTES, len(user)) * N_TASTES
    item += (user - item) % N_TASTES
    return {
        "user_id": pa.array([f"u{one}" for one in user]),
        # Every user has a row, also new users: they are in the users' file.
        "user_row": user.astype(np.int32) + 1,
        "item_row": item.astype(np.int32),
        "timestamp": rng.integers(days[0] * 86400, days[1] * 86400, len(user)),
    }


def write_world_data(folder):
    rng = np.random.default_rng(3)
    trained = np.arange(N_TRAINED)
    train = pa.table(events(rng, trained, 30, (10, CUT_DAY)))
    # A new user's first day, so that all of its queries are without a history.
    new = events(rng, np.arange(N_TRAINED, N_TRAINED + N_NEW), 10, (CUT_DAY, CUT_DAY + 1))
    new["timestamp"] = np.full(len(new["timestamp"]), CUT_DAY * 86400 + 7)
    n_users = N_TRAINED + N_NEW
    counts = np.where(np.arange(n_users) < N_TRAINED, 30, 0)
    users = Vocabulary(pa.array([f"u{n}" for n in range(n_users)]), counts)
    counts = np.bincount(train["item_row"], minlength=N_ITEMS + 1)[1:]
    items = Vocabulary(pa.array([f"i{n}" for n in range(N_ITEMS)]), counts)
    bags = np.concatenate([[0], 1 + np.arange(n_users) % N_TASTES])[:, None]
    tastes = [FeatureBags("taste", 1 + N_TASTES, bags.astype(np.int32))]
    cut, held_out = CUT_DAY * 86400, pa.table(new)
    write_data(folder, cut, train, held_out, users, items, user_features=tastes)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A model with the users' feature, and its evaluation."""
    folder = tmp_path_factory.mktemp("features")
    write_world_data(folder / "data")
    train_here(STAGE, folder / "data", folder / "model")
    result = evaluate(EvaluateStage(), folder / "model", folder / "data", folder / "out")
    return folder / "model", result


def test_a_feature_that_decides_the_taste_finds_it_for_new_users(results):
    # A third of 60 items are of the taste: 10 of the right ones are half of it, 10 of any
    # a sixth.
    assert results[1]["metrics"]["recall@10"] > 0.4


def test_users_whose_features_alone_are_known_are_new_to_training(results):
    (part,) = (s for s in results[1]["slices"] if s["name"] == "cold users")
    assert part["users"] == N_NEW


def test_the_probe_asks_for_users_of_whom_features_alone_are_known(results):
    folder = results[0]
    saved = load_model(folder)
    with np.load(folder / "probe.npz") as probe:
        untrained = saved.users.row_counts[probe["user_row"]] == 0
    assert untrained.sum() == 1 + N_NEW  # And the unknown user.
    # Users of one taste without a history have equal queries.
    taste = saved.model.embedding.get_embedding_tables()["taste"]
    assert np.linalg.norm(taste[1] - taste[2]) > 0.1
