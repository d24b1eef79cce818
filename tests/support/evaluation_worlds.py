"""Three users whom one can count by hand, six items, and a model."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from data_folders import write_data, write_embeddings

from recsys.config import TrainStage, TwoTowerConfig
from recsys.data.vocabulary import Vocabulary
from recsys.models import ModelSpec, TwoTower
from recsys.tasks.model_folder import save_model

TRAINED = TrainStage(model=TwoTowerConfig(dim=4, history=3, widths=(5,)))


class World(NamedTuple):
    """A data folder, a model folder, and the scores `[queries, item rows]` of the model."""

    data: Path
    model: Path
    scores: np.ndarray


def table(events):
    """Events (user id, user row, item row, time)."""
    kinds = {"user_id": "string", "user_row": "int32", "item_row": "int32", "timestamp": "int64"}
    columns = zip(*events, strict=True) if events else [[]] * len(kinds)
    arrays = [pa.array(c, k) for c, k in zip(columns, kinds.values(), strict=True)]
    return pa.table(arrays, names=list(kinds))


def a_small_world(folder):
    """Writes a data folder with items 1 … 6, the third most popular, and an untrained model."""
    data, model_folder = folder / "data", folder / "model"
    model_folder.mkdir()
    train = table([("ann", 1, 1, 1), ("ann", 1, 2, 2), ("bob", 2, 1, 1)])
    held_out = table([("ann", 1, 3, 10), ("ann", 1, 4, 20), ("zoe", 0, 2, 12)])
    users = Vocabulary(pa.array(["ann", "bob"]), np.array([2, 1]))
    items = Vocabulary(pa.array([f"i{n}" for n in range(1, 7)]), np.array([2, 3, 6, 4, 5, 1]))
    titles = [f"Title {id_}" for id_ in items.names_of_rows()]
    known = write_data(data, 10, train, held_out, users, items, titles=titles)
    model = TwoTower(ModelSpec.for_data(TRAINED.model, users.n_rows, known.catalogue), seed=1)
    model.build()
    save_model(model_folder, model, TRAINED, data)
    user_row, history = np.array([1, 1, 0]), np.array([[2, 1, 0], [3, 2, 1], [0, 0, 0]])
    query, candidates = write_embeddings(model_folder, model, known, user_row, history)
    return World(data, model_folder, query @ candidates.T)
