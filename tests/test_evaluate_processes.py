"""An evaluation on the devices of several processes, against that of one."""

import json
import shutil

import keras
import numpy as np
import pytest
import system_worlds
from hanging import error_of_hanging
from model_parts import change

from recsys.config import EvaluateConfig, EvaluateStage
from recsys.embedding import device_mesh
from recsys.errors import RecsysError
from recsys.evaluation import sharded_systems, stage
from recsys.evaluation.evaluation_file import evaluate
from recsys.models import load_model

STAGE = EvaluateStage(evaluate=EvaluateConfig(baselines=("popularity",), k=(5, 10)))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Models whose tables are split by rows, data of their own, and of other vocabularies."""
    folder = tmp_path_factory.mktemp("world")
    system_worlds.make_data(folder)
    for name, seed in (("model", 3), ("other", 9)):
        data, options = folder / "data", {"table_placement": "row", "item_bias": True}
        system_worlds.write_model(folder / name, data, seed, **options)
    (folder / "stage.json").write_text(STAGE.model_dump_json())
    return folder


def on_mesh(model, data, out, blessed=None):
    """Evaluates on two devices of this process as on those of several."""
    try:
        return evaluate(STAGE, model, data, out, blessed, device_mesh(devices=2))
    finally:
        keras.distribution.set_distribution(None)


@pytest.fixture(scope="module")
def split(world, tmp_path_factory):
    """An evaluation on data of other vocabularies, on two devices."""
    out = tmp_path_factory.mktemp("split")
    return on_mesh(world / "model", world / "later", out, world / "other")


def without_times(evaluation):
    return {name: value for name, value in evaluation.items() if name != "seconds"}


def assert_alike(a, b):
    """All is equal but what is computed of embeddings and is no rank: the last bits of those."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if str(key).startswith("diversity@"):
                assert value == pytest.approx(b[key], rel=1e-6)
            elif key != "seconds":
                assert_alike(value, b[key])
    else:
        assert a == b


def test_a_mesh_gives_the_figures_of_one_process(world, split, tmp_path):
    alone = evaluate(STAGE, world / "model", world / "later", tmp_path / "a", world / "other")
    assert alone["metrics"]["recall@5"] > 0.2
    assert_alike(alone, split)


@pytest.mark.thorough
def test_a_mesh_gives_the_figures_of_one_process_for_data_of_its_own(world, tmp_path):
    folders = world / "model", world / "data"
    assert_alike(evaluate(STAGE, *folders, tmp_path / "a"), on_mesh(*folders, tmp_path / "b"))


def test_two_processes_write_what_one_with_as_many_devices_writes(world, split, tmp_path):
    folders = {"config": "stage.json", "model": "model", "data": "later", "blessed": "other"}
    words = [f"--{name}={world / folder}" for name, folder in folders.items()]
    result = stage.main([*words, f"--out={tmp_path}", "--processes=2"])
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert without_times(written) == without_times(split)
    assert result["metrics"]["recall@5"] == written["metrics"]["recall@5"]
    assert result["process"] == 0


def test_who_works_alone_shows_the_others_now_and_then_that_it_works(world, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sharded_systems, "_SIGN_EVERY_S", -1)
    monkeypatch.setattr(sharded_systems, "agreed", lambda decide, *_: asked.append(decide()))
    on_mesh(world / "model", world / "data", tmp_path)
    assert {"rows": []} in asked
    assert "result" in asked[-1]


@pytest.mark.faults
@pytest.mark.parametrize(
    "function", ["sharded_candidates:ShardedCandidates.embedded", "ranking_devices:_pairs"]
)
def test_a_process_that_hangs_is_named_by_those_that_wait(function, world, tmp_path):
    folders = {"config": "stage.json", "model": "model", "data": "later"}
    words = [f"--{name}={world / folder}" for name, folder in folders.items()]
    words.append(f"--out={tmp_path}")
    error = error_of_hanging("recsys.evaluation.stage", f"recsys.evaluation.{function}", words)
    assert error["code"] == "R389"
    assert error["received"] == "{'processes that did not wait': [1]}"


@pytest.mark.parametrize("devices", [1, 8])
def test_tables_are_placed_as_they_were_saved(world, devices):
    whole = load_model(world / "model").model
    split = load_model(world / "model", mesh=device_mesh(devices=devices)).model
    for table, own in zip(whole.embedding.tables, split.embedding.tables, strict=True):
        assert own.embeddings.value.sharding.num_devices == devices
        held = own.embeddings.value.addressable_shards[0].data.shape
        assert held == (own.n_physical // devices, own.dim)
        rows = np.asarray(table.embeddings.value)[table.physical(np.arange(table.rows))]
        now = np.asarray(own.embeddings.value)[own.physical(np.arange(own.rows))]
        assert now.tobytes() == rows.tobytes()


def without_last(rows):
    return np.where(np.arange(len(rows))[:, None] == len(rows) - 1, np.nan, rows)


def test_what_is_refused_of_one_process_is_refused_of_a_mesh(world, tmp_path):
    changed = shutil.copytree(world / "model", tmp_path / "changed")
    candidates = np.load(changed / "candidates.npy")
    candidates[-1] += 1
    np.save(changed / "candidates.npy", candidates)
    with pytest.raises(RecsysError, match="R311"):
        on_mesh(changed, world / "later", tmp_path / "out")
    bad = shutil.copytree(world / "model", tmp_path / "bad")
    change(bad, "item_bias/embeddings", without_last)
    with pytest.raises(RecsysError, match="R402"):
        on_mesh(bad, world / "data", tmp_path / "out")
    with pytest.raises(RecsysError, match="R404"):
        on_mesh(tmp_path, world / "data", tmp_path / "out")
