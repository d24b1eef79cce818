"""A model of another task over the same tables: trained, saved and loaded like any other."""

import dataclasses
import types
from typing import ClassVar

import keras
import numpy as np
import pytest
from keras import ops
from places import ROOT
from tower_models import run
from training_runs import on_devices

import recsys
from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import ModelConfig
from recsys.config.load import load_config
from recsys.data.catalogue import bags_of
from recsys.errors import UsageError
from recsys.models.inputs import ModelSpec
from recsys.tasks import Task
from recsys.tasks.model_folder import load_model, save_model
from recsys.tasks.training_side import TrainingSide

N_ITEMS, N_USERS, BATCH = 40, 30, 32


@recsys.register_task("odd_items")
class OddItems(Task):
    """Users with an odd row like items with an odd row, the others like the others."""

    training: ClassVar[str] = f"{__name__}:Training"
    judging: ClassVar[str] = ""
    serving: ClassVar[str] = ""


@recsys.register_model("odd_items")
class Pointwise(recsys.LookupModel):
    class Config(recsys.ModelConfig):
        task: ClassVar[str] = "odd_items"

    def __init__(self, spec, **kwargs):
        super().__init__(spec, **kwargs)
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.head = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        features = self.look_up(inputs, [x.name for x in self.inputs_of_sides])
        product = features["user_row"] * features["id_row"]
        x = ops.concatenate([*features.values(), product], axis=-1)
        return {"logit": self.head(self.hidden(x))[:, 0]}

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return ops.mean(ops.binary_crossentropy(x["label"], y_pred["logit"], from_logits=True))


def test_a_whole_config_may_name_a_model_of_another_task():
    config = load_config(ROOT / "configs/movielens_small.yaml", ["model={type: odd_items}"])
    assert config.model.task == "odd_items"


def batch_of(step, inputs):
    draw = np.random.default_rng(step)
    user_row = draw.integers(1, N_USERS + 1, BATCH).astype(np.int32)
    item_row = draw.integers(1, N_ITEMS + 1, BATCH).astype(np.int32)
    return {
        "user_row": user_row,
        "id_row": item_row,
        "label": (user_row % 2 == item_row % 2).astype(np.float32),
        **bags_of(inputs.catalogue.features, item_row),
    }


@dataclasses.dataclass
class Examples:
    inputs: object
    epochs: int
    part: object
    batch_size: int = BATCH
    steps_per_epoch: int = 60
    size_of_part: tuple = (BATCH, BATCH, 4 * BATCH)
    bytes_per_epoch: int = 0

    def __len__(self):
        return self.steps_per_epoch * self.epochs

    def batches(self, first, end):
        return [batch_of(step, self.inputs) for step in range(first, end)]


class Training(TrainingSide):
    def source(self, events, train, multiple, part):
        return Examples(self.inputs, train.epochs, part)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    draw = np.random.default_rng(0)
    lists = [draw.choice(N_ITEMS, 6, replace=False).tolist() for _ in range(N_USERS)]
    colours = [["odd" if n % 2 else "even", "item"] for n in range(N_ITEMS)]
    write_data_folder(Csr.of_lists(lists, N_ITEMS), folder / "data", {"colour": colours})
    data = recsys.open_data(folder / "data")
    train = recsys.TrainConfig(
        epochs=3, batch_size=BATCH, tower_learning_rate=0.01, table_learning_rate=0.1
    )
    config = Pointwise.Config(dim=8, feature_dim=4, bag_weights="idf", table_placement="row")
    model = Pointwise.from_config(config, data, seed=3)
    with on_devices(2):
        result = recsys.Trainer(train, checkpoints=folder / "run", verbose=0).fit(model, data)
        side = Training(result.stage, data.store, result.inputs)
        save_model(folder / "model", model, result.stage, data.folder, result.inputs)
        logits = run(model, "call", batch_of(999, result.inputs))["logit"]
    return types.SimpleNamespace(result=result, folder=folder, logits=logits, side=side)


def test_the_trainer_trains_it_as_its_task_says(fitted):
    losses = fitted.result.history["loss"]
    assert len(losses) == 3
    assert losses[-1] < 0.3 < 0.6 < losses[0] < 0.75
    label = batch_of(999, fitted.result.inputs)["label"]
    assert ((fitted.logits > 0) == label).mean() >= 0.9


def test_tables_are_those_of_ids_and_features(fitted):
    model = fitted.result.model
    sizes = {t.name: (t.vocabulary_size, t.embedding_dim) for t in model.table_configs.values()}
    rows = fitted.result.inputs
    assert sizes == {
        "users": (rows.users.n_rows, 8),
        "items": (rows.items.n_rows, 8),
        "colour": (rows.catalogue.features[0].rows, 4),
    }
    assert {v.path for v in model.adapted} == {"odd_items/bag_weights/colour"}


def test_a_model_folder_gives_it_back(fitted):
    loaded = load_model(fitted.folder / "model")
    assert isinstance(loaded.model, Pointwise)
    found = run(loaded.model, "call", batch_of(999, loaded.inputs))["logit"]
    np.testing.assert_allclose(found, fitted.logits, atol=1e-5)


def test_another_config_is_refused():
    class Other(ModelConfig):
        task: ClassVar[str] = "odd_items"

    spec = ModelSpec.model_construct(config=Other(), user_rows=3, item_rows=3, features=())
    with pytest.raises(UsageError, match="R346"):
        Pointwise(spec)
