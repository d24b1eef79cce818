"""A task of one's own: the probability that a user takes an item.

In a config: `plugins: [examples.custom_task]`, `model: {type: pointwise}`, and the metrics and
baselines below in `evaluate` and `bless`. The task then trains, judges, exports and serves like a
built-in one. docs/tutorial/own_task.md reads this file from top to bottom.
"""

import dataclasses
from typing import ClassVar

import keras
import numpy as np
from keras import ops

import recsys
from recsys.data.catalogue import bags_of
from recsys.metrics import pooled
from recsys.metrics.scores import LogLoss, RocAuc, ScoredRows
from recsys.tasks import Task
from recsys.tasks.judging_side import JudgingSide, Measured
from recsys.tasks.model_folder import load_model
from recsys.tasks.training_side import TrainingSide


@recsys.register_task("pointwise")
class Pointwise(Task):
    """Names its three sides; each is imported only in the process that needs it."""

    training: ClassVar[str] = "examples.custom_task:Training"
    judging: ClassVar[str] = "examples.custom_task:Judging"
    serving: ClassVar[str] = "examples.custom_task_serving:Serving"


@recsys.register_model("pointwise")
class PointwiseModel(recsys.LookupModel):
    """A dense layer over the rows and features of a user and an item."""

    class Config(recsys.ModelConfig):
        """The model's options, here only those of every model."""

        task: ClassVar[str] = "pointwise"

    def __init__(self, spec, **kwargs):
        super().__init__(spec, **kwargs)
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.head = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        found = self.look_up(inputs, [x.name for x in self.inputs_of_sides])
        return {"logit": self.head(self.hidden(ops.concatenate([*found.values()], axis=-1)))[:, 0]}

    def compute_loss(self, x, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.losses.binary_crossentropy(x["label"], y_pred["logit"], from_logits=True)


def read(inputs, user_row, item_row):
    """Returns the model's inputs for pairs of rows `[n]`."""
    bags = bags_of(inputs.user_features, user_row) | bags_of(inputs.catalogue.features, item_row)
    return {"user_row": user_row, "id_row": item_row, **bags}


def with_negatives(user_row, item_row, is_item, seed):
    """Returns user rows, item rows and labels: each positive, then an item drawn for its user."""
    drawn = np.random.default_rng(seed).choice(np.flatnonzero(is_item), len(item_row))
    pairs = np.stack([item_row, drawn], axis=1).astype(np.int32).ravel()
    return np.repeat(user_row, 2), pairs, np.tile(np.float32([1, 0]), len(item_row))


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The batches: a function of the seed and the step, so that a killed training can resume."""

    events: object
    inputs: object
    train: object
    part: object
    bytes_per_epoch: int = 0

    @property
    def batch_size(self):
        return self.train.batch_size

    @property
    def steps_per_epoch(self):
        return 2 * len(self.events.log) // self.batch_size

    @property
    def size_of_part(self):
        return (self.part.size(self.batch_size),) * 3

    def __len__(self):
        return self.steps_per_epoch * self.train.epochs

    def batches(self, first, end):
        return [self._batch(step) for step in range(first, end)]

    def _batch(self, step):
        epoch, position = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.train.seed, epoch]).permutation(len(self.events.log))
        n, log = self.batch_size // 2, self.events.log
        events = order[position * n : (position + 1) * n]
        is_item = self.inputs.catalogue.is_item
        rows = with_negatives(log.user_row[events], log.item_row[events], is_item, step)
        user_row, item_row, label = (x[self.part.rows(2 * n)] for x in rows)
        return {**read(self.inputs, user_row, item_row), "label": label}


class Training(TrainingSide):
    """Learns from positives and drawn negatives."""

    def source(self, events, train, multiple, part):
        return Pairs(events, self.inputs, train, part)

    def write(self, folder, model):
        """Writes scores of some pairs, which the exported model must reproduce."""
        users, items = self.inputs.users.has_id(), self.inputs.items.has_id()
        user_row, item_row = np.flatnonzero(users)[:64], np.flatnonzero(items)[:64]
        n = min(len(user_row), len(item_row))
        pairs = {"user_row": np.int32(user_row[:n]), "item_row": np.int32(item_row[:n])}
        logit = np.asarray(model(read(self.inputs, *pairs.values()))["logit"])
        np.savez(folder / "pairs.npz", **pairs, score=1 / (1 + np.exp(-logit)))


@dataclasses.dataclass(frozen=True)
class Case:
    """Held-out pairs and drawn negatives; all systems are measured on the same."""

    user: np.ndarray
    user_row: np.ndarray
    item_row: np.ndarray
    label: np.ndarray

    @property
    def counts(self):
        return {"users": len(np.unique(self.user)), "queries": len(self.user)}


class Judging(JudgingSide):
    """Measures the probabilities of a model, and of baselines, on the held-out pairs."""

    def open_model(self, model, name):
        own = getattr(model, "model", model)
        return lambda case: own(read(self._inputs, case.user_row, case.item_row))["logit"]

    def open_folder(self, folder, name, mesh):
        return self.open_model(load_model(folder, mesh=mesh), name)

    def open_bundle(self, bundle, manifest, name, mesh):
        raise NotImplementedError

    def case(self, systems):
        log, rows = self.data.store.eval, self.data.store.eval_users.rows
        user = np.repeat(np.arange(len(rows)), np.diff(log.offsets))
        is_item = self._inputs.catalogue.is_item
        item = np.asarray(log.item_row)
        known = is_item[item]
        pairs = with_negatives(rows[user[known]], item[known], is_item, self.stage.evaluate.seed)
        return Case(np.repeat(user[known], 2), *pairs)

    def measure(self, system, case, progress):
        probability = 1 / (1 + np.exp(-np.asarray(system(case), np.float64)))
        return self._measured(case, probability)

    def measure_baseline(self, baseline, case, progress):
        return self._measured(case, baseline.fit(self.data)[case.item_row])

    def _measured(self, case, probability):
        users, user = np.unique(case.user, return_inverse=True)
        rows = ScoredRows(probability, case.label, None, user, len(users))
        return Measured(pooled(self.stage.evaluate.metrics, rows), {}, 0.0)

    @property
    def _inputs(self):
        data = self.data
        return recsys.models.ModelInputs(data.users, data.items, data.catalogue, data.user_features)


@recsys.register_metric("pair_log_loss")
class PairLogLoss(LogLoss):
    """The log loss of rankers, for this task."""

    task: ClassVar[str] = "pointwise"


@recsys.register_metric("pair_auc")
class PairAuc(RocAuc):
    """The ROC AUC of rankers, for this task."""

    task: ClassVar[str] = "pointwise"


@recsys.register_baseline("pair_constant")
class Constant(recsys.Baseline):
    """Probability 1/2 for each pair: half of them are negatives."""

    title: ClassVar[str] = "Constant"
    task: ClassVar[str] = "pointwise"

    def fit(self, data):
        return np.full(data.spec.item_rows, 0.5)


@recsys.register_baseline("pair_item_mean")
class ItemMean(recsys.Baseline):
    """The share of positives among the pairs of an item, by its number of events."""

    title: ClassVar[str] = "Mean of the item"
    task: ClassVar[str] = "pointwise"

    def fit(self, data):
        n, n_items = np.asarray(data.items.row_counts, float), data.catalogue.is_item.sum()
        return (n + 1) / (n + 1 + (n.sum() + n_items) / n_items)
