"""Exports as `python -m recsys.export` does, then tries what must be refused."""

import json
import runpy
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np

folder = Path(sys.argv[1])
data, bundle = folder / "data", folder / "bundle"
bundle.mkdir()  # TFX makes the folder before.
sys.argv = ["recsys.export", "--config", str(folder / "export.json"), "--data", str(data)]
sys.argv += ["--model", str(folder / "model"), "--transform", str(folder / "item_transform")]
sys.argv += ["--user-transform", str(folder / "user_transform")]
sys.argv += ["--evaluation", str(folder), "--out", str(bundle)]
runpy.run_module("recsys.export", run_name="__main__")

from recsys.config import ExportStage  # noqa: E402
from recsys.config_file import load_stage  # noqa: E402
from recsys.errors import RecsysError  # noqa: E402
from recsys.export import Sources, export  # noqa: E402

stage = load_stage(folder / "export.json", ExportStage)
refused = {}


def attempt(name, out="refused", model=folder / "model", data=data, transform=None):
    try:
        export(stage, Sources(model, data, transform), folder / out)
    except RecsysError as error:
        refused[name] = [error.code, str(error)]


def with_bent(name, bend):
    model = folder / f"bent-{name}"
    shutil.copytree(folder / "model", model)
    bend(model / name)
    return model


def bend_query(path):
    probe = dict(np.load(path))
    probe["query"][3, 1] += 2e-5
    np.savez(path, **probe)


def bend_candidate(path):
    rows = np.load(path)
    rows[7, 2] += 2e-5
    np.save(path, rows)


attempt("query", model=with_bent("probe.npz", bend_query))
attempt("candidate", model=with_bent("candidates.npy", bend_candidate))
attempt("missing file", model=with_bent("training.json", Path.unlink))
attempt("no transform graph", transform=data)
other = shutil.copytree(data, folder / "other")
shutil.copy(data / "vocabulary" / "items.parquet", other / "vocabulary" / "users.parquet")
attempt("other data", data=other)
attempt("taken folder", out="data")
# A process of Keras on JAX would spend most of this file's time on imports.
with mock.patch("keras.config.backend", return_value="jax"):
    attempt("another backend")
shutil.copytree(bundle, folder / "second")
attempt("over a bundle", out="second")
assert "over a bundle" not in refused
(folder / "refused.json").write_text(json.dumps(refused))
