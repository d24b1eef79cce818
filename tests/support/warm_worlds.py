"""Small worlds, and models of them with random numbers in all that a warm start takes over."""

import json

import jax
import keras
import numpy as np
import pyarrow as pa

from benchmarks.stores import save_catalogue, save_features, write_store
from recsys.config import TrainStage, VocabularyConfig
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import Vocabulary
from recsys.embedding.layout import tables_of
from recsys.embedding.table import logical_order
from recsys.models import ModelInputs, TwoTower
from recsys.tasks.model_folder import save_model
from recsys.training.optimization import moments_of, seeds_of, table_optimizers, tower_optimizer
from recsys.training.warm_start import TrainingState, save_state

DAY = 86_400
STAGE = {
    "model": {
        "dim": 4,
        "feature_dim": 2,
        "history": 3,
        "history_of": "past",  # As a training writes it down.
        "widths": [5],
        "dropout": 0.1,
        "table_placement": "row",
    },
    "train": {"batch_size": 8, "uniform_negatives": 8, "epochs": 2},
    "warm_start": {"epochs": 1},
}


def stage(model=(), warm=(), **train):
    parts = {
        "model": {**STAGE["model"], **dict(model)},
        "train": {**STAGE["train"], **train},
        "warm_start": {**STAGE["warm_start"], **dict(warm)},
    }
    return TrainStage.model_validate_json(json.dumps(parts))


class World:
    """The data of a day.

    Args:
        users: Ids of the users' own rows, in order; None for a free row.
        items: Those of the items.
        genres: Genres of each item by its id.
        known_genres: The genres in the order of their rows.
        ages: Age of each user by its id; in `buckets` of equally many.
        counts: Training positives by id, if not 1.
        generation: Of the items' rows.
        hash_buckets: Hash rows of the users.
        kinds: Kinds of event, in the order of their rows.
    """

    def __init__(
        self,
        users,
        items,
        genres=(),
        known_genres=("a", "b", "c"),
        ages=(),
        buckets=2,
        counts=(),
        generation=None,
        hash_buckets=0,
    ):
        genres, ages, counts = dict(genres), dict(ages), dict(counts)
        config = VocabularyConfig(hash_buckets=hash_buckets)
        self.users = _vocabulary(users, counts, config=config)
        self.items = _vocabulary(items, counts, generation=generation)
        names = self.items.names_of_rows()
        tokens = ["", *known_genres]
        bags = np.zeros((len(names), 3), np.int32)
        for row, name in enumerate(names):
            rows = [tokens.index(genre) for genre in genres.get(name, ())]
            bags[row, : len(rows)] = rows
        feature = FeatureBags("genres", len(tokens), bags, tokens)
        self.catalogue = Catalogue(names, names, (feature,))
        self.user_features = (self._ages(ages, buckets),)

    def _ages(self, ages, buckets):
        names = self.users.names_of_rows()
        borders = np.quantile(list(ages.values()) or [0], np.arange(1, buckets) / buckets)
        bags = np.array(
            [[1 + np.searchsorted(borders, ages[n]) if n in ages else 0] for n in names],
            np.int32,
        )
        tokens = ["", *(f"bucket {n} of {buckets}" for n in range(1, buckets + 1))]
        return FeatureBags("age", buckets + 1, bags, tokens)

    @property
    def inputs(self):
        return ModelInputs(self.users, self.items, self.catalogue, self.user_features)

    def save(self, folder, cut=10 * DAY, days=(1, 10), seed=0, per_user=6):
        """Writes a data folder whose users took items at random on some days."""
        (folder / "vocabulary").mkdir(parents=True)
        self.users.save(folder / "vocabulary" / "users.parquet")
        self.items.save(folder / "vocabulary" / "items.parquet")
        save_catalogue(self.catalogue, folder / "catalogue")
        save_features(self.user_features, folder / "user_features")
        draw = np.random.default_rng(seed)
        rows = np.repeat(np.flatnonzero(self.users.has_id()), per_user)
        items = draw.choice(np.flatnonzero(self.items.has_id()), len(rows))
        parts = [
            _events(self.users, rows, items, draw.integers(*np.multiply(days, DAY), len(rows)))
        ]
        later = draw.integers(cut, cut + DAY, len(rows))
        parts.append(_events(self.users, rows, items, later))
        write_store(folder / "store", cut, *parts)
        return folder


def _vocabulary(ids, counts, **more):
    numbers = np.array([0 if id_ is None else counts.get(id_, 1) for id_ in ids])
    return Vocabulary(pa.array(list(ids), pa.large_string()), numbers, **more)


def _events(users, user_row, item_row, timestamp):
    ids = users.ids_of_rows.take(pa.array(user_row))
    rows = user_row.astype(np.int32), item_row.astype(np.int32)
    return pa.table(
        [ids, *rows, timestamp.astype(np.int64)],
        names=["user_id", "user_row", "item_row", "timestamp"],
    )


def compiled(inputs, stage, updates_before=0):
    """A model as a training has it before its first step, on the mesh that is active."""
    spec = inputs.spec(stage.model)
    tables = TwoTower.make_tables(spec, *table_optimizers(stage.train, 10, updates_before))
    model = TwoTower(spec, tables, stage.train.seed)
    model.build()
    model.compile(optimizer=tower_optimizer(stage.train, 10, updates_before))
    model.optimizer.build(model.trainable_variables)
    return model


def randomize(model, seed=1):
    """Gives all variables of a compiled model other numbers."""
    draw = np.random.default_rng(seed)
    tables = [v for table in tables_of(model) for v in table.variables_by_row]
    whole = [*model.trainable_variables, *moments_of(model).values(), *seeds_of(model).values()]
    for variable in [*tables, *whole]:
        values = draw.uniform(0.5, 2, variable.shape)
        if variable.dtype == "uint32":
            values = draw.integers(0, 2**32, variable.shape)
        variable.assign(values.astype(variable.dtype))
    for table in tables_of(model):
        table.steps.assign(30)
    model.optimizer._iterations.assign(30)


def save_base(folder, data, world, stage, until=9 * DAY, cut=10 * DAY, steps=30):
    """Writes a model folder with random numbers everywhere; returns it."""
    model = compiled(world.inputs, stage)
    randomize(model)
    save_model(folder, model, stage, data, world.inputs)
    save_state(folder, model, TrainingState(cut, until, updates=30, steps=steps))
    return folder


class Folder:
    """A model folder, read only from its files."""

    def __init__(self, folder):
        kept = json.loads((folder / "training_state/state.json").read_text())
        self.state = kept["state"]
        self._weights = self._arrays(
            folder / "weights", json.loads((folder / "model.json").read_text())
        )
        self._kept = self._arrays(folder / "training_state", kept)

    @staticmethod
    def _arrays(folder, summary):
        return {
            variable["path"]: np.load(folder / f"{number}.npy")
            for number, variable in enumerate(summary["variables"])
        }

    def everything(self):
        return {**self._weights, **self._kept}

    def table(self, name):
        return self._weights[f"two_tower/embedding/{name}/embeddings"]

    def slot(self, name, slot="accumulator"):
        return self._kept[f"two_tower/embedding/{name}/{slot}"]


def table_of(model, name):
    """The weights of a table and its slots, in the order of its rows."""
    (table,) = [table for table in tables_of(model) if table.name == name]
    return [logical_order(table, variable) for variable in table.variables_by_row]


def all_in_order(model):
    """Every variable of a compiled model, tables in the order of their rows."""
    found = {v.path: np.asarray(v.value) for v in model.optimizer.variables}
    found |= {v.path: np.asarray(v.value) for v in model.trainable_variables}
    found |= {path: np.asarray(v.value) for path, v in seeds_of(model).items()}
    for table in tables_of(model):
        found |= {v.path: logical_order(table, v) for v in table.variables_by_row}
        found[table.steps.path] = np.asarray(table.steps.value)
    return found


def store_of(data):
    return InteractionStore.open(data / "store")


def devices():
    return jax.device_count(), keras.distribution.distribution()
