"""`python -m benchmarks.worlds`: a bundle of any size, without a training.

Weights are random, so scores mean nothing; shapes, files and signatures are real: the export writes
and checks the bundle. User `u3` is row 3, item `i7` is row 7. With `--clusters` items are in
clusters with users near them, as a training leaves them, and not as the hardest that an index can
meet.

Beside OUT lies OUT.work, with the `data` and the `model` that it was made of.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"  # Before anything imports Keras.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


import json
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

from benchmarks.measure import run
from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import ExportConfig, ExportStage, TrainStage, TwoTowerConfig
from recsys.models import ModelInputs, ModelSpec, TwoTower
from recsys.tasks.model_folder import save_model

_EVENTS_OF_A_USER, _BLOCK = 20, 8192
_SPREAD, _DECAY = 0.6, 4
"""Way of an item or a user from the middle of its cluster, as a share of that one's way
from the origin; directions until the variance of one is half of the first's."""
_WORDS = ("Red", "Blue", "Night", "Sea", "Wolf", "Über", "City", "<b>Bold</b>")


def main(
    out: Annotated[Path, Option(help="Folder of the bundle; new.")],
    users: int = 1000,
    items: int = 1000,
    dim: Annotated[int, Option(help="Width of the embeddings [floats].")] = 64,
    k: Annotated[int, Option(help="Candidates of an answer.")] = 100,
    clusters: Annotated[int, Option(help="Of the items; 0: weights as drawn.")] = 0,
) -> None:
    """Writes the bundle, and beside it what it was made of."""
    work = out.parent / f"{out.name}.work"
    inputs = write_data(work / "data", users, items)
    config = TwoTowerConfig(dim=dim, history=8, widths=() if clusters else (dim,))
    write_model(work, TrainStage(model=config), inputs, clusters)
    # Imports TensorFlow.
    from recsys.bundles.export import Sources, export

    stage = ExportStage(name="world", export=ExportConfig(k=k))
    print(json.dumps(export(stage, Sources(work / "model", work / "data"), out)))


def write_data(folder: Path, n_users: int, n_items: int) -> ModelInputs:
    """Writes a data folder, and returns what the model reads of users and items."""
    titles = [f"{_WORDS[n % 8]} {_WORDS[n // 8 % 8]} {n}" for n in range(1, n_items + 1)]
    train = Csr.drawn(n_users, n_items, _EVENTS_OF_A_USER)
    write_data_folder(train, folder, titles=titles, first_id=1)
    return ModelInputs.open(folder)


def write_model(work: Path, stage: TrainStage, inputs: ModelInputs, clusters: int = 0) -> None:
    """Writes a model folder whose towers were never trained."""
    spec = ModelSpec.for_data(stage.model, inputs.users.n_rows, inputs.catalogue)
    model = TwoTower(spec)
    model.build()
    rng = np.random.default_rng(0)
    for variable in model.weights:  # As drawn, whatever the layers begin with.
        variable.assign(0.1 * rng.standard_normal(variable.shape, np.float32))
    if clusters:
        gather_in_clusters(model, clusters, rng)
    folder = work / "model"
    save_model(folder, model, stage, work / "data")
    n = inputs.items.n_rows
    blocks = np.array_split(np.arange(n), 1 + n // _BLOCK)
    candidates = [np.asarray(model.embed_candidate(inputs.candidate(rows))) for rows in blocks]
    np.save(folder / "candidates.npy", np.concatenate(candidates))
    user_row = rng.integers(1, inputs.users.n_rows, 520, np.int32)
    history = rng.integers(1, n, (520, stage.model.history), np.int32)
    query = np.asarray(model.embed_query(inputs.query(user_row, history, model.spec.config)))
    np.savez(folder / "probe.npz", user_row=user_row, history=history, query=query)
    training = {"steps": 0, "examples": 0, "devices": 1, "platform": "cpu", "seconds": 0.0}
    training |= {"curve": [], "examples_per_s": 0.0, "unknown_id_share": 0.0}
    (folder / "training.json").write_text(json.dumps(training))


def gather_in_clusters(model: TwoTower, n: int, rng: np.random.Generator) -> None:
    """Puts items into `n` clusters and users near them; the towers add up what they read."""
    middles = None
    for variable in model.weights:
        *_, part, name = variable.path.split("/")
        if name == "embeddings":
            rows, dim = variable.shape
            # The first directions matter most, as in what was trained.
            scale = (1 / np.sqrt(1 + np.arange(dim) / _DECAY)).astype(np.float32)
            if middles is None:
                middles = scale * rng.standard_normal((n, dim), np.float32)
            ways = np.float32(_SPREAD) * scale * rng.standard_normal((rows, dim), np.float32)
            variable.assign(middles[rng.integers(0, n, rows)] + ways)
        elif name == "kernel" and part == "out":
            inner, dim = variable.shape
            variable.assign(np.tile(np.eye(dim, dtype=np.float32), (inner // dim, 1)))


if __name__ == "__main__":
    run(main)
