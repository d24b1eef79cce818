"""A file that a plugin reads: found, part of every key, and kept with the model."""

import json
import sys

import keras
import numpy as np
import pytest
from registrations import undone
from training_runs import STAGE, train_here

import recsys
from recsys.config import TrainStage, canonical_json, stage_of
from recsys.errors import ConfigError, RecsysError
from recsys.models.inference import Inference
from recsys.registry.file_option import File
from recsys.tasks.model_folder import load_model
from recsys.training.run_folders import RunFolders

PLUGIN = """
import keras
import numpy as np
import recsys


@recsys.register_model("file_reader")
class FileReader(recsys.RetrievalModel):
    \"\"\"Items by their rows and by vectors of a file.\"\"\"

    class Config(recsys.RetrievalConfig):
        \"\"\"Options.\"\"\"

        vectors: recsys.File
        more: tuple[recsys.File, ...] = ()

    def __init__(self, spec, **kwargs):
        super().__init__(spec, **kwargs)
        self.text = np.load(spec.config.vectors)

    def query(self, features, training=False):
        return features["user_row"]

    def candidate(self, features, training=False):
        return features["id_row"] + self.text[:1]
"""
DATA = {"interactions": {"files": "*.csv", "columns": {"user": "u", "item": "i", "timestamp": "t"}}}


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch):
    """A plugin whose model reads `vectors`."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "file_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with undone():
        yield
    sys.modules.pop("file_plugin", None)


def stage(vectors, **train):
    model = {"type": "file_reader", "dim": 8, "vectors": str(vectors)}
    train = {**STAGE["train"], "epochs": 1, **train}
    return {"plugins": ["file_plugin"], "model": model, "train": train}


def validated(vectors):
    return TrainStage.model_validate_json(json.dumps(stage(vectors)))


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.full((1, 8), value, np.float32))
    return path


def config_in(folder, **model):
    folder.mkdir(exist_ok=True)
    model = {"type": "file_reader", **model}
    config = {"name": "n", "root": "out", "data": DATA, "model": model, "plugins": ["file_plugin"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def test_paths_are_relative_to_the_config_and_in_overrides_to_the_current_folder(
    tmp_path, monkeypatch
):
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        for name in ("a.npy", "b.npy", "c.npy"):
            write(folder / name, len(folder.name))
    config = config_in(there, vectors="a.npy", more=["./b.npy"])
    monkeypatch.chdir(here)
    model = recsys.load_config(config).model
    assert [model.vectors.path, model.more[0].path] == [str(there / "a.npy"), str(there / "b.npy")]
    model = recsys.load_config(config, ["model.vectors=c.npy"]).model
    assert [model.vectors.path, model.more[0].path] == [str(here / "c.npy"), str(there / "b.npy")]
    with pytest.raises(ConfigError, match=r"R107.*model.vectors.*absolute"):
        recsys.load_config(config, ["model.vectors=a.npy"])


@pytest.mark.parametrize("value", ["gone.npy", ".", 7, {"path": "a.npy", "other": 1}])
def test_a_file_that_cannot_be_read_is_an_error_that_names_the_key(tmp_path, value):
    write(tmp_path / "a.npy", 1)
    with pytest.raises(ConfigError, match=r"R107.*config.json.*'model.vectors'.*file"):
        recsys.load_config(config_in(tmp_path, vectors=value))


def test_the_content_is_part_of_the_keys_and_the_path_is_not_part_of_the_fingerprint(
    tmp_path, data
):
    def keys(path):
        config = recsys.load_config(config_in(tmp_path, vectors=str(path)))
        train = stage_of(config, TrainStage)
        identity = RunFolders.of_run(tmp_path, validated(path), data).identity
        return canonical_json(train), identity, train.model.architecture()

    file = write(tmp_path / "a.npy", 1)
    first = keys(file)
    assert keys(file) == first
    moved = keys(write(tmp_path / "b.npy", 1))
    assert moved[1:] == first[1:]
    changed = keys(write(file, 2))
    assert all(now != before for now, before in zip(changed, first, strict=True))


def test_a_model_folder_keeps_the_file_and_is_read_from_it(tmp_path, data):
    file, out = write(tmp_path / "a.npy", 3), tmp_path / "out" / "model"
    train_here(stage(file), data, out)
    trained = np.load(out / "candidates.npy")
    [copy] = [path for path in (out / "files").rglob("*") if path.is_file()]
    assert copy.read_bytes() == file.read_bytes()
    assert str(tmp_path) not in (out / "model.json").read_text()
    file.unlink()
    moved = out.rename(tmp_path / "moved")
    read = load_model(moved)
    assert read.stage.model.vectors.path == str(moved / copy.relative_to(out))
    blocks = [*Inference(read.model).catalogue_blocks(read.inputs)]
    np.testing.assert_allclose(np.concatenate(blocks), trained, atol=1e-6)
    write(moved / copy.relative_to(out), 4)
    with pytest.raises(RecsysError, match="R317"):
        load_model(moved)


def test_other_content_in_the_same_path_trains_another_model(tmp_path, data):
    file, out = write(tmp_path / "a.npy", 1), tmp_path / "out" / "model"
    train_here(stage(file), data, out)
    first = np.load(out / "candidates.npy")
    write(file, -1)
    train_here(stage(file), data, out)
    assert np.abs(np.load(out / "candidates.npy") - first).max() > 0.1
    assert len([path for path in (out / "files").rglob("*") if path.is_file()]) == 1


def test_a_file_that_changes_after_the_config_was_read_is_refused(tmp_path):
    file = write(tmp_path / "a.npy", 1)
    text = canonical_json(validated(file))
    write(file, 2)
    with pytest.raises(RecsysError, match="R317"):
        TrainStage.model_validate_json(text)
    assert (
        File.of(file)
        == TrainStage.model_validate_json(canonical_json(validated(file))).model.vectors
    )


def test_a_keras_layer_gets_the_file_itself(tmp_path):
    config = validated(write(tmp_path / "a.npy", 1)).model
    assert keras.ops.shape(np.load(config.model_dump()["vectors"])) == (1, 8)
