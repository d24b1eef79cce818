"""The base class of ranking models, which predict the labels of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from recsys import registry
from recsys.embedding.optimizers import RowOptimizer
from recsys.errors import RecsysError, UsageError
from recsys.losses import (
    Squared,
    joint_labels,
    joint_logits,
    joint_weights,
    sum_over_labels,
    thinned_logits,
)
from recsys.losses.batch import check_scalar, described
from recsys.losses.loss import TrainOptions
from recsys.losses.score_loss import ScoreLoss
from recsys.models.calibration import Calibration
from recsys.models.history_lookups import HistoryLookups
from recsys.models.inputs import FeatureSpec, ModelSpec
from recsys.models.lookups import InputSpec, Tables
from recsys.models.ranking_config import RankingConfig
from recsys.models.terms import Tensors

Scores = dict[str, keras.KerasTensor]

RETRIEVER = "retriever"
"""Input `[rows, RETRIEVER_WIDTH]` float32 of a model with `config.stage_one`; zeros if the list of
the retriever is unknown. See `recsys.pair.lists.list_features`."""
RETRIEVER_WIDTH = 3


class RankingModel(HistoryLookups, makes_layers=False):
    """Scores rows, each a query and an item, for every label.

    A subclass implements `score`, and creates its layers in `__init__`, as any Keras model. This
    class has the loss and the predictions; `HistoryLookups` has the tables and their lookups.
    `Config` is the typed config:

        @recsys.register_model("my_ranking")
        class MyRanking(recsys.RankingModel):
            class Config(recsys.RankingConfig):
                width: int = 64

            def __init__(self, spec, **kwargs):
                super().__init__(spec, **kwargs)
                self.hidden = keras.layers.Dense(spec.config.width, activation="relu")
                self.out = keras.layers.Dense(len(self.label_names))

            def score(self, features, training=False):
                pair = [features["user_row"], features["id_row"]]
                return self.out(self.hidden(ops.concatenate(pair, axis=-1)))

    `build` creates the variables, so that the tables can be placed on the devices and get their
    optimizers first.

    Args:
        spec: What the model is.
        tables: The tables by name; None: from `make_tables`, without optimizers.
        seed: Seed of the initial weights and of the dropout.
        loss: Training loss of yes/no labels: a `ScoreLoss`, or its name.
        compute_dtype: Dtype in which layers may compute in training, `float32` or `bfloat16`.
            Weights and loss are always float32.

    Attributes:
        Config: Type of the model's config.
        spec: What the model is.
        label_names: Names of the labels that the model learns, each after its `given`.
        calibration: Map from log odds to probabilities by label; training sets it. The model's own
            predictions don't read it.
        table_configs: Configs of the tables; can be set until the model is built.
        regularisation: Weight of the squared norm of each row that a batch looks up by id, by
            table; `train_by` sets it.

    Raises:
        UsageError: The config has the wrong type (R346), or is incompatible with the data (R345).
    """

    Config: ClassVar[type[RankingConfig]] = RankingConfig
    calibration: Mapping[str, Calibration]

    def __init__(
        self,
        spec: ModelSpec,
        tables: Tables | None = None,
        seed: int = 0,
        loss: ScoreLoss | str = "binary",
        compute_dtype: str = "float32",
    ) -> None:
        super().__init__(spec, tables, seed, compute_dtype)
        self.training_loss: ScoreLoss = registry.Choice("loss").read(loss)
        self.label_names: tuple[str, ...] = spec.config.learned(spec.labels)
        self.regularisation: dict[str, float] = {}
        self.amounts: Any = None
        self.position: Any = None
        self.prior: Any = None
        self.set_calibration({})

    @classmethod
    def options_of(cls, train: Any) -> dict[str, Any]:
        """Returns the constructor's arguments that follow from `train`, a `TrainConfig`."""
        return {**super().options_of(train), "loss": train.loss}

    def train_by(self, train: TrainOptions) -> None:
        """Sets `regularisation` from `train`, a `TrainConfig`.

        Raises:
            UsageError: It regularises a table that doesn't exist (R369), or sets a loss that fits
                no label (R378).
        """
        loss = self.training_loss
        if not (loss.takes_amounts or self._is_yes_or_no):
            fields = getattr(train, "model_fields_set", ())
            if "loss" in fields:
                raise UsageError(
                    "R378",
                    "train.loss must take amounts: all labels of the model are amounts.",
                    "Leave train.loss out, or set it to squared.",
                    registry.name_of("loss", loss),
                )
        self.regularisation = self._penalties(train)

    def set_calibration(self, calibration: Mapping[str, Calibration]) -> None:
        """Sets the maps from log odds to probabilities, by label, that held-back rows gave."""
        # Bypasses Keras, which tracks attributes.
        object.__setattr__(self, "calibration", calibration)

    # --- methods of a subclass

    def encode_query(self, features: Tensors, training: bool = False) -> Tensors:
        """Returns what `score` reads of queries; by default the features unchanged.

        Override it to compute once what all rows of a query share, such as the mean of a history.

        Args:
            features: The features of queries, see `score`; in training also of the rows.
            training: Whether the model is trained.

        Returns:
            The features by name, each `[queries, …]`; new names may be among them.
        """
        return features

    def score(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns scores `[rows, labels]` float32, in the order of `label_names`.

        The score of a yes/no label is its log odds, given the label that it depends on. That of an
        amount is in standard deviations from the mean that `set_amounts` has set, initially in the
        amount's own unit.

        Args:
            features: Embeddings float32 and int32 inputs by name, an entry for each row.
                `user_row` `[rows, dim]` (if `config.user_id`), `id_row` `[rows, dim]`, `history`
                `[rows, history, dim]`, the newest item first, and features of users, context,
                items and rows `[rows, feature_dim]`, by the names of features. `history_rows`
                `[rows, history]` int32 is 0 at padding. `history.<feature>` `[rows, history,
                feature_dim]` are the attributes of events and, with `config.history_features`,
                the features of items. Features of numbers have their numbers instead of
                `feature_dim` floats; zeros are missing. With `config.stage_one`, `retriever`
                `[rows, 3]`.
            training: Whether the model is trained.
        """
        raise NotImplementedError

    # --- tables

    @classmethod
    def make_tables(
        cls,
        spec: ModelSpec,
        optimizer: RowOptimizer | None = None,
        user_optimizer: RowOptimizer | None = None,
    ) -> Tables:
        """Returns the tables by name, those that are a retriever's without optimizer."""
        tables = super().make_tables(spec, optimizer, user_optimizer)
        for name in _shared(spec).intersection(tables):
            tables[name].optimizer = None
        return tables

    @property
    def shared_tables(self) -> set[str]:
        """Names of the tables that are a retriever's: neither trained nor saved."""
        return _shared(self.spec).intersection(self.table_configs)

    # --- the Keras model

    @property
    def inputs_of_sides(self) -> tuple[InputSpec, ...]:
        """The inputs of the query, of the item, and of the row."""
        of_rows = [InputSpec(f.name, "row", *f.entry) for f in self.spec.of_side("row")]
        if self.config.stage_one:
            of_rows.append(InputSpec(RETRIEVER, "row", (RETRIEVER_WIDTH,), "float32"))
        return (*super().inputs_of_sides, *of_rows)

    def build_layers(self) -> None:
        """Creates the variables of the layers by scoring one row."""
        if self.config.stage_one:
            self.prior = self.add_weight(
                name="prior",
                shape=(RETRIEVER_WIDTH + 1, len(self.label_names)),
                initializer="zeros",
                trainable=False,
            )
        sides = [self._examples(side) for side in ("user", "item", "row")]
        scores = self._scores({name: x for side in sides for name, x in side.items()}, False)
        self._check_finite("score", ops.stack([*scores.values()]))
        if not self._is_yes_or_no.issuperset(self.label_names):
            # Rows: mean and standard deviation of each label; 0 and 1 of a yes/no label.
            self.amounts = self.add_weight(
                name="amounts",
                shape=(2, len(self.label_names)),
                initializer=lambda shape, dtype=None: ops.stack(
                    [ops.zeros(shape[1:], dtype), ops.ones(shape[1:], dtype)]
                ),
                trainable=False,
            )
        if self.config.position_feature is not None:
            shape, dtype = self._position_feature.entry
            self.position = self.add_weight(
                name="position", shape=shape, dtype=dtype, initializer="zeros", trainable=False
            )

    @property
    def _position_feature(self) -> FeatureSpec:
        name = self.config.position_feature
        for feature in self.spec.context:
            if feature.name == name:
                return feature
        raise UsageError(
            "R345",
            "model.position_feature must be a context feature of the data:"
            f" {', '.join(f.name for f in self.spec.context) or 'there are none'}.",
            "Add it to data.interactions.features, or set the key to null.",
            name,
        )

    def set_position(self, entry: np.ndarray) -> None:
        """Sets the encoded `config.position_feature` of the first position `[width]`."""
        self.position.assign(entry)

    def set_prior(self, coefficients: np.ndarray) -> None:
        """Sets what is added to the score of the first label, so that training starts from it.

        Args:
            coefficients: Factors of the entries of `retriever`, and a constant
                `[RETRIEVER_WIDTH + 1]`.
        """
        prior = np.zeros(self.prior.shape, np.float32)
        prior[:, 0] = coefficients
        self.prior.assign(prior)

    def _completed(self, inputs: Tensors) -> Tensors:
        """Returns inputs with `config.position_feature` of the first position.

        Rows without `retriever` get that of an unknown list.
        """
        if self.config.stage_one and RETRIEVER not in inputs and "id_row" in inputs:
            n = ops.shape(inputs["id_row"])[0]
            inputs = {**inputs, RETRIEVER: ops.zeros((n, RETRIEVER_WIDTH))}
        name = self.config.position_feature
        if name is None or name not in inputs:
            return inputs
        return {**inputs, name: ops.broadcast_to(self.position, ops.shape(inputs[name]))}

    def set_amounts(self, labels: Mapping[str, np.ndarray]) -> None:
        """Sets the units of amounts from the training data: mean and standard deviation.

        Args:
            labels: Values of the labels of the training rows `[rows]`, NaN if unknown.
        """
        if self.amounts is None:
            return
        units = np.zeros((2, len(self.label_names)), np.float32)
        units[1] = 1.0
        for number, name in enumerate(self.label_names):
            values = np.asarray(labels.get(name, ()), np.float64)
            known = values[~np.isnan(values)]
            if self.spec.labels[name].is_amount and len(known):
                units[:, number] = known.mean(), known.std() or 1.0
        self.amounts.assign(units)

    @property
    def adapted(self) -> list[Any]:
        """Weights that are set from the data; neither training nor a warm start changes them."""
        own = (self.amounts, self.position, self.prior)
        return [*super().adapted, *(x for x in own if x is not None)]

    def call(self, inputs: Tensors, training: bool = False) -> Scores:
        """Returns the scores `[rows]` float32 by label, as `score` describes them."""
        inputs = inputs if training else self._completed(inputs)
        features = self.look_up(inputs, [x.name for x in self.inputs_of_sides])
        if training and self.regularisation:
            rows = {table: features[self._read_by_id[table]] for table in self.regularisation}
            sums = [self.regularisation[t] * ops.sum(ops.square(x)) for t, x in rows.items()]
            self.add_loss(sum(sums) / features["id_row"].shape[0])
        return self._scores(self.without_terms(features)[0], training)

    def score_pairs(
        self, query_inputs: Tensors, row_inputs: Tensors, place: keras.KerasTensor
    ) -> Scores:
        """Returns the scores `[rows]` of rows that share queries; equal to `call`'s.

        The inputs of a query are looked up and encoded once, for all of its rows. Context is an
        input of either.

        Args:
            query_inputs: Inputs of the queries `[queries, …]`.
            row_inputs: Inputs of the rows `[rows, …]`.
            place: Index of each row's query `[rows]` int32.
        """
        sides = []
        for given in (query_inputs, row_inputs):
            inputs = self._completed(given)
            names = [x.name for x in self.inputs_of_sides if x.name in inputs]
            sides.append(self.without_terms(self.look_up(inputs, names))[0])
        query = self._encoded(sides[0], training=False)
        shared = {name: ops.take(x, place, axis=0) for name, x in query.items()}
        return self._by_label({**shared, **sides[1]}, training=False)

    def _scores(self, features: Tensors, training: bool) -> Scores:
        return self._by_label(self._encoded(features, training), training)

    def _encoded(self, features: Tensors, training: bool) -> Tensors:
        with self._naming_missing(features, "encode_query"):
            return self.encode_query(features, training=training)

    def _by_label(self, features: Tensors, training: bool) -> Scores:
        """Returns the checked result of `score`, by label."""
        with self._naming_missing(features, "score"):
            scores = self.score(features, training=training)
        n_rows, n_labels = features["id_row"].shape[0], len(self.label_names)
        shape = tuple(getattr(scores, "shape", ()))
        if shape not in ((n_rows, n_labels), (None, n_labels)):
            raise RecsysError(
                "R334",
                f"{self._result_of('score')} must be scores [{n_rows}, {n_labels}], one for each"
                f" row and label.",
                "Return len(self.label_names) scores for each row of the features.",
                described(scores),
            )
        scores = ops.cast(scores, "float32")
        if self.prior is not None:
            prior = ops.convert_to_tensor(self.prior)
            scores += ops.matmul(features[RETRIEVER], prior[:-1]) + prior[-1]
        return {name: scores[:, number] for number, name in enumerate(self.label_names)}

    # --- predictions

    @property
    def _is_yes_or_no(self) -> set[str]:
        return {name for name in self.label_names if not self.spec.labels[name].is_amount}

    @property
    def _given(self) -> dict[str, str]:
        """The label that each yes/no label depends on, if any."""
        labels = self.spec.labels
        return {n: given for n in self._is_yes_or_no if (given := labels[n].given) is not None}

    def joint_scores(self, scores: Scores) -> Scores:
        """Returns log odds and amounts of the scores of `call`, by label.

        Those of a yes/no label are log odds given nothing, `P(buy) = P(click) P(buy | click)`.
        Amounts are in their own unit, and given their `given`.
        """
        is_yes_or_no = self._is_yes_or_no
        joint = joint_logits({n: x for n, x in scores.items() if n in is_yes_or_no}, self._given)
        for number, name in enumerate(self.label_names):
            if name not in is_yes_or_no:
                joint[name] = self.amounts[0, number] + self.amounts[1, number] * scores[name]
        return {name: joint[name] for name in self.label_names}

    def predictions(self, joint: Scores) -> Scores:
        """Returns the probabilities of log odds, and amounts, of the result of `joint_scores`."""
        yes_or_no = self._is_yes_or_no
        return {name: ops.sigmoid(x) if name in yes_or_no else x for name, x in joint.items()}

    def predict_labels(self, inputs: Tensors) -> Scores:
        """Returns the probability or the amount of each label `[rows]` float32, uncalibrated."""
        return self.predictions(self.joint_scores(self.call(inputs)))

    # --- the loss

    def compute_loss(
        self,
        x: Tensors | None = None,
        y: Any = None,
        y_pred: Scores | None = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """Returns the loss, including `add_loss` and regularizers; a scalar.

        In addition to the inputs, `x` has `label.<name>` `[rows]` float32, NaN if unknown; and, if
        there are any, `weight` `[rows]` float32; `group` `[rows]` int32, see `ScoreLoss`; and
        `log_rate` `[rows]` float32, the logarithm of the share of negatives that was kept, of rows
        thinned by the first label. The scores are then those of all rows: the first label's are
        corrected by `thinned_logits`, and for labels that don't depend on it, or a loss that
        doesn't give log odds, its negatives have the weight `1 / rate`.
        """
        if x is None or y_pred is None:
            raise ValueError("The loss needs the inputs and the scores.")
        yes_or_no, given = self._is_yes_or_no, self._given
        labels = {name: x[f"label.{name}"] for name in self.label_names}
        scores, weight = {**y_pred}, x.get("weight")
        if weight is None:
            weight = ops.ones_like(labels[self.label_names[0]])
        weights = dict.fromkeys(self.label_names, weight)
        first = self.label_names[0]
        if "log_rate" in x and first in yes_or_no:
            corrected = self._depending_on(first) if self.training_loss.gives_log_odds else set()
            of_negatives = ops.where(labels[first] == 0.0, ops.exp(-x["log_rate"]), 1.0)
            weights = {n: w if n in corrected else w * of_negatives for n, w in weights.items()}
            if corrected:
                scores[first] = thinned_logits(scores[first], x["log_rate"])
        joint = joint_logits({name: x for name, x in scores.items() if name in yes_or_no}, given)
        own = {name: labels[name] for name in joint}
        joint_of = joint_labels(own, given)
        weights |= joint_weights(own, given, weights)
        losses: dict[str, ScoreLoss] = {}
        for number, name in enumerate(self.label_names):
            losses[name] = self.training_loss
            if name in yes_or_no:
                scores[name], labels[name] = joint[name], joint_of[name]
            elif not self.training_loss.takes_amounts or isinstance(self.training_loss, Squared):
                losses[name] = Squared()
                labels[name] = (labels[name] - self.amounts[0, number]) / self.amounts[1, number]
        loss = sum_over_labels(
            losses,
            scores,
            labels,
            weight=weights,
            group=x.get("group"),
            label_weights=self.spec.config.label_weights,
        )
        check_scalar(loss, f"The loss {type(self.training_loss).__name__}")
        return loss + sum(ops.sum(added) for added in self.losses)

    def _depending_on(self, first: str) -> set[str]:
        """Returns a label and those that are given it, or given one of these."""
        found = {first}
        for name in self.label_names:  # Each after its `given`.
            if self.spec.labels[name].given in found:
                found.add(name)
        return found


def _shared(spec: ModelSpec) -> set[str]:
    """Returns the names of the tables of `config.shared_tables`."""
    ids = spec.config.shared_tables
    features = [f.name for f in spec.features if f.side in ("user", "item") and not f.floats]
    return {*ids, *features} if ids else set()
