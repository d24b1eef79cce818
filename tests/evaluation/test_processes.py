"""An evaluation on the devices of several processes equals one process's."""

import json

import keras
import numpy as np
import pytest
import system_worlds
from hanging import error_of_hanging

from recsys.config import EvaluateConfig, EvaluateStage
from recsys.embedding import device_mesh
from recsys.evaluation.evaluation_file import evaluate
from recsys.stages import evaluate as stage
from recsys.tasks.model_folder import load_model

STAGE = EvaluateStage(evaluate=EvaluateConfig(baselines=("popularity", "ials"), k=(5, 10)))


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
    """Evaluates on two devices of this process as if they belonged to two processes."""
    try:
        return evaluate(STAGE, model, data, out, blessed, device_mesh(devices=2))
    finally:
        keras.distribution.set_distribution(None)


@pytest.fixture(scope="module")
def split(world, tmp_path_factory):
    """An evaluation on data of other vocabularies, on two devices."""
    out = tmp_path_factory.mktemp("split")
    return on_mesh(world / "model", world / "later", out, world / "other")


def assert_alike(a, b):
    """All is equal, floats within the rounding of embeddings."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a.keys() - {"seconds"}:
            assert_alike(a[key], b[key])
    elif isinstance(a, list):
        for one, other in zip(a, b, strict=True):
            assert_alike(one, other)
    else:
        assert a == (pytest.approx(b, rel=1e-6) if isinstance(b, float) else b)


def test_a_mesh_gives_the_figures_of_one_process(world, split, tmp_path):
    alone = evaluate(STAGE, world / "model", world / "later", tmp_path / "a", world / "other")
    assert alone["metrics"]["recall@5"] > 0.2
    assert_alike(alone, split)


def test_two_processes_write_what_one_with_as_many_devices_writes(world, split, tmp_path):
    folders = {"config": "stage.json", "model": "model", "data": "later", "blessed": "other"}
    words = [f"--{name}={world / folder}" for name, folder in folders.items()]
    result = stage.main([*words, f"--out={tmp_path}", "--processes=2"])
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert_alike(written, split)
    assert result["metrics"]["recall@5"] == written["metrics"]["recall@5"]
    assert result["process"] == 0


@pytest.mark.faults
@pytest.mark.parametrize(
    "function", ["sharded_candidates:ShardedCandidates.embedded", "ranking_devices:_pairs"]
)
def test_a_process_that_hangs_is_named_by_those_that_wait(function, world, tmp_path):
    folders = {"config": "stage.json", "model": "model", "data": "later"}
    words = [f"--{name}={world / folder}" for name, folder in folders.items()]
    words.append(f"--out={tmp_path}")
    error = error_of_hanging(
        "recsys.stages.evaluate", f"recsys.tasks.retrieval.judging.{function}", words
    )
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
