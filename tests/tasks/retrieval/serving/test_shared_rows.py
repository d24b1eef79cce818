"""A bundle of vocabularies with hash rows and free rows, against the trainer's own towers."""

import json

import numpy as np
import pytest
from data_folders import counted, event_table, write_data
from on_tensorflow import run_on_tensorflow
from places import SUPPORT
from training_runs import train_here

from recsys.config import VocabularyConfig
from recsys.data.catalogue import write_titles
from recsys.models.inference import embed_queries
from recsys.tasks.model_folder import load_model

pytestmark = pytest.mark.slow

_SCRIPT = SUPPORT / "shared_rows.py"
_STAGE = {
    "model": {"dim": 8, "history": 4, "widths": [10], "id_dropout": 0.0},
    "train": {"batch_size": 64, "epochs": 2},
}
# More hash rows than the unknown ids of training fill: some have no training positive.
_USERS, _ITEMS = VocabularyConfig(hash_buckets=7), VocabularyConfig(hash_buckets=5)


def write_world_data(folder):
    rng = np.random.default_rng(5)
    user_ids = np.array([f"u{n}" for n in range(40)])
    item_ids = np.array([f"i{n}" for n in range(30)])
    user, item = rng.integers(0, 40, 900), rng.integers(0, 30, 900)
    # Item i4 has left: none trains on it, and histories of held-out events have it.
    item[:800] = np.where(item[:800] == 4, 5, item[:800])
    # The last ten of each have no row of their own; row 3 of the own ones is free.
    own_users = [None if n == 3 else id_ for n, id_ in enumerate(user_ids[:30].tolist())]
    own_items = [None if n == 3 else id_ for n, id_ in enumerate(item_ids[:20].tolist())]

    taken = user_ids[user].tolist(), item_ids[item].tolist()
    users, items = counted(own_users, taken[0], _USERS), counted(own_items, taken[1], _ITEMS)
    gone = items.rows(["i4"])[0]
    items.row_counts[gone], items.last_seen[gone - items.first_own_row] = 0, items.cut - 1
    times = rng.integers(0, 1000, 900).tolist()
    events = event_table([*zip(*taken, times, strict=True)], users, items)
    write_data(folder, 900, events[:800], events[800:], users, items)
    write_titles(folder / "catalogue", items, ())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    write_world_data(folder / "data")
    train_here(_STAGE, folder / "data", folder / "model")
    ids = {
        "users": [*(f"u{n}" for n in range(40)), *(f"nobody {n}" for n in range(60)), ""],
        "items": [*(f"i{n}" for n in range(30)), *(f"nothing {n}" for n in range(30))],
    }
    (folder / "ids.json").write_text(json.dumps(ids))
    run_on_tensorflow(_SCRIPT, folder)
    return load_model(folder / "model"), ids, json.loads((folder / "result.json").read_text())


def test_unknown_users_and_items_read_the_rows_that_they_share(world):
    saved, ids, result = world
    rows = saved.users.rows(ids["users"][:-1])
    assert set(rows[40:]) == set(range(1, 8))
    given = np.zeros((len(rows) + 1, 4), np.int32)
    given[:, 0] = saved.items.rows(["no such item"])
    # The empty id is no id.
    expected = embed_queries(saved.model, np.append(rows, 0), given, saved.inputs)
    np.testing.assert_allclose(result["query"], expected, atol=1e-5)


def test_unknown_items_are_embedded_from_the_rows_that_they_share(world):
    saved, ids, result = world
    rows = saved.items.rows(ids["items"])
    expected = np.asarray(saved.model.embed_candidate(saved.inputs.candidate(rows)))
    np.testing.assert_allclose(result["candidate"], expected, atol=1e-5)
    assert len(np.unique(np.round(expected[30:], 4), axis=0)) > 1


def test_only_items_with_a_row_of_their_own_that_are_in_the_data_are_recommended(world):
    saved, _, result = world
    own = {f"i{n}" for n in range(20)} - {"i3", "i4"}
    assert all(set(answer) == own for answer in result["answers"])
    assert len(result["answers"][0]) == 18
    # The one that has left has its row still, as in any history that names it.
    assert saved.items.ids_of_rows[saved.items.rows(["i4"])[0]].as_py() == "i4"


def test_rows_shared_in_another_way_are_seen_by_the_gate(world):
    assert world[2]["refused"] == "R530"
