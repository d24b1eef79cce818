"""The base class of retrieval models: queries, candidates, similarity, and auxiliary losses."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops

from recsys import registry
from recsys.data.transitions import TransitionScores
from recsys.errors import UsageError
from recsys.losses import CandidateSharing, Loss
from recsys.losses.batch import check_pair, check_scalar, check_vectors
from recsys.losses.loss import SHARED_BY_ALL, TrainOptions
from recsys.models.config import RetrievalConfig
from recsys.models.history_lookups import RetrievalLookups
from recsys.models.inputs import ModelSpec
from recsys.models.layers import Latest, LogTemperature
from recsys.models.lookups import Tables
from recsys.models.terms import Tensors, Term

REGULARIZATION, OF_LAYERS = "regularization", "added_losses"
"""Names of the weights' regularizers and of the losses that layers add by `add_loss`."""
_RESERVED = (
    "loss", "temperature", "unknown_ids", "exchange_overflows", "step", "epoch",
    REGULARIZATION, OF_LAYERS,
)  # fmt: skip
_NAME = re.compile(r"(?!val_)[A-Za-z][A-Za-z0-9_]*")


class RetrievalModel(RetrievalLookups, makes_layers=False):
    """Embeds queries and candidates, which are compared by their dot product or cosine.

    A subclass implements `query` and `candidate`, and creates its layers in `__init__`, as any
    Keras model. This class has the loss, the temperature and the similarity; `RetrievalLookups` has
    the tables and their lookups. `Config` is the typed config:

        @recsys.register_model("my_retrieval")
        class MyRetrieval(recsys.RetrievalModel):
            class Config(recsys.RetrievalConfig):
                width: int = 64

            def __init__(self, spec, **kwargs):
                super().__init__(spec, **kwargs)
                self.hidden = keras.layers.Dense(spec.config.width, activation="silu")
                self.out = keras.layers.Dense(spec.config.dim)

            def query(self, features, training=False):
                return self.out(self.hidden(features["user_row"]))

            def candidate(self, features, training=False):
                return features["id_row"]

    `build` creates the variables, so that the tables can be placed on the devices and get their
    optimizers first.

    Args:
        spec: What the model is.
        tables: The tables by name; None: from `make_tables`, without optimizers.
        seed: Seed of the initial weights and of the dropout.
        loss: Training loss: a `Loss`, or its name.
        compute_dtype: Dtype in which layers may compute in training, `float32` or `bfloat16`.
            Weights, loss and norms are always float32.

    Attributes:
        Config: Type of the model's config.
        spec: What the model is.
        table_configs: Configs of the tables; can be set until the model is built.
        sharing: How the loss shares the candidates of a batch; `train_by` sets it.
        regularisation: Weight of the squared norm of each row that a batch looks up by id, by
            table; `train_by` sets it.

    Raises:
        UsageError: The config has the wrong type (R346), or is incompatible with the data (R345).
    """

    Config: ClassVar[type[RetrievalConfig]] = RetrievalConfig

    def __init__(
        self,
        spec: ModelSpec,
        tables: Tables | None = None,
        seed: int = 0,
        loss: Loss | str = "sampled_softmax",
        compute_dtype: str = "float32",
    ) -> None:
        super().__init__(spec, tables, seed, compute_dtype)
        self.training_loss: Loss = registry.Choice("loss").read(loss)
        self.sharing = SHARED_BY_ALL
        self.temperature: LogTemperature | None = None
        self.regularisation: dict[str, float] = {}
        self._auxiliary = AuxiliaryLosses()

    @classmethod
    def options_of(cls, train: Any) -> dict[str, Any]:
        """Returns the constructor's arguments that follow from `train`, a `TrainConfig`."""
        return {**super().options_of(train), "loss": train.loss}

    def train_by(self, train: TrainOptions) -> None:
        """Sets `sharing` and `regularisation` from `train`, a `TrainConfig`.

        Raises:
            UsageError: It regularises a table that doesn't exist.
        """
        self.sharing = CandidateSharing.of_config(train)
        self.regularisation = self._penalties(train)

    # --- methods of a subclass

    def query(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns query vectors `[batch, dim]` float32, not yet normalised.

        Args:
            features: Embeddings float32 and int32 inputs by name. `user_row` `[batch, dim]` (if
                `config.user_id`), `history` `[batch, history, dim]`, the newest item first, the
                features of users and the context of the query `[batch, feature_dim]`, by the names
                of features. `history_rows` `[batch, history]` int32 is 0 at padding. With
                `config.reads_attributes` also `history.<feature>` `[batch, history, feature_dim]`
                of each attribute of events, and with `config.history_features` of each item
                feature. Features of numbers have their numbers instead of `feature_dim` floats;
                zeros are missing. If the lookup averages histories, it also averages the
                attributes `[batch, …]`. In training, if `config.over_positions`, histories are
                packed `[rows, history, …]`; `segment` `[rows, history]` and `at` `[rows, batch /
                rows]` select what an example reads, see
                `recsys.tasks.retrieval.training.sequences.SequenceSource`. In training, if
                `config.distinct_history`, there may be `history_place` `[batch, history]`, the
                index of each history entry in `history` `[n, dim]` and `history.<feature>` `[n,
                feature_dim]`, which then have the unique items.
            training: Whether the model is trained.
        """
        raise NotImplementedError

    def candidate(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns candidate vectors `[candidates, dim]` float32.

        Args:
            features: `id_row` `[candidates, dim]`; each feature of the items `[candidates,
                feature_dim]`; float32.
            training: Whether the model is trained.
        """
        raise NotImplementedError

    def build_layers(self) -> None:
        """Creates the variables of the layers by embedding one query and one candidate.

        An override may create them differently; its vectors are then not checked before training.
        """
        query = self._queries(self._examples("user"), training=False)
        candidate = self._candidates(self._examples("item"), training=False)
        check_pair(query, candidate, type(self).__name__)
        for name, vectors in (("query", query), ("candidate", candidate)):
            self._check_finite(name, vectors)

    # --- the Keras model

    def settle(self, vectors: Iterable[np.ndarray]) -> None:
        """Sets the weights that are computed from the item vectors; by default none.

        Training calls this before each validation, and at the end.

        Args:
            vectors: Candidate vectors of the training items, in blocks `[n, dim]` float32, which
                are computed on demand.
        """

    def build(self, input_shape: Any = None) -> None:
        """Creates every variable, in a fixed order."""
        with self._auxiliary.collecting() as added:
            super().build(input_shape)
        names = [*added]
        self._auxiliary.names = frozenset(names)
        if self._losses_of_layers():
            names.append(OF_LAYERS)
        if any(weight.regularizer is not None for weight in self.trainable_weights):
            names.append(REGULARIZATION)
        self.loss_parts = {name: keras.metrics.Mean(name=name) for name in names}
        if self.spec.config.learn_temperature:
            self.temperature = LogTemperature(self.spec.config.temperature, name="temperature")
            self.temperature.build()
            self.temperature_log = Latest(name="temperature")

    @property
    def transitions(self) -> TransitionScores | None:
        """What the model adds to the similarity for pairs of items; None: nothing."""
        scores = (term.of_pairs() for term in self.terms.values())
        return next((x for x in scores if x is not None), None)

    def embed_query(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns query vectors `[batch, config.vector_dim]` float32, of norm 1 for a cosine.

        The columns of the terms are appended, so that the dot product is the whole score: for
        `config.item_bias` a 1 to queries, and the bias to candidates.
        """
        features = self.look_up(inputs, self.names_of_side("user"))
        return self._query_vectors(inputs, features, training=False)

    def embed_candidate(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns candidate vectors `[candidates, vector_dim]` float32; see `embed_query`."""
        features = self.look_up(inputs, self.names_of_side("item"))
        return self._candidate_vectors(inputs, features, training=False)

    def call(self, inputs: Tensors, training: bool = False) -> Tensors:
        """Returns `query` and `candidate` vectors by name, as `embed_query` and `embed_candidate`.

        The result also has the rows `[batch or candidates, width]` of regularised tables, and
        `added`, the auxiliary losses by name.
        """
        names = [*self.names_of_side("user"), *self.names_of_side("item")]
        if not self.spec.config.trains_on_history:
            names = [name for name in names if name in inputs]
        features = self.look_up(inputs, names)
        regularised = [self._read_by_id[table] for table in self.regularisation]
        own = {name: features[name] for name in regularised}
        unbuilt = [layer for layer in self._flatten_layers() if not layer.built]
        with self._auxiliary.collecting() as added:
            query = self._query_vectors(inputs, features, training)
            losses = self._losses_of_layers()
            candidate = self._candidate_vectors(inputs, features, training)
            losses += self._losses_of_layers()
        check_pair(query, candidate, type(self).__name__)
        self._check_not_built_late(unbuilt)
        if losses:
            total = sum(ops.sum(loss) for loss in losses)
            added[OF_LAYERS] = Added(total, total)
        outputs: Any = {**own, "query": query, "candidate": candidate}
        return {**outputs, "added": added} if added else outputs

    def add_auxiliary(self, name: str, value: keras.KerasTensor, weight: float = 1.0) -> None:
        """Adds `weight * value` to the loss of a step; call it in `query` or `candidate`.

        Loss curve, TensorBoard, `training.json` and report show the mean of `value` under `name`.
        Values of one name are summed. Call it in inference too, where it has no effect: its metric
        is created when the model is built.

            self.add_auxiliary("reconstruction", ops.mean(ops.square(x - y)), weight=0.1)

        Args:
            name: Letters, digits and `_`.
            value: A scalar, such as a mean over the batch; float32.
            weight: Weight of the value in the loss.

        Raises:
            RecsysError: The value is not a scalar (R334).
            UsageError: The name or the weight is invalid, or the name was not added when the model
                was built (R347).
        """
        check_scalar(value, f"The auxiliary loss {name!r}")
        self._auxiliary.add(name, value, weight)

    def _check_not_built_late(self, unbuilt: list[keras.layers.Layer]) -> None:
        """Checks that no layer created variables in a step: they would never be trained.

        Raises:
            UsageError: One did (R334).
        """
        late = [layer.name for layer in unbuilt if layer.built]
        if late:
            raise UsageError(
                "R334",
                f"Each layer of {type(self).__name__} must be called, or built, when the model is"
                " built: variables that a step makes are never trained.",
                "Call it outside of `if training:` too, or build it in build_layers.",
                ", ".join(late),
            )

    def _losses_of_layers(self) -> list[Any]:
        """Returns the losses that layers have added by `add_loss`, and clears them.

        Keras would clear them at the next call of the layer, and the towers may share a layer.
        """
        losses = [loss for layer in self._flatten_layers() for loss in layer._get_own_losses()]
        self._clear_losses()
        return losses

    def _queries(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the checked result of `query`."""
        with self._naming_missing(features, "query"):
            vectors = self.query(features, training=training)
        at = features.get("at")
        read = features.get("history_rows", features.get("user_row"))
        rows = None if read is None else read.shape[0]
        check_vectors(
            vectors, self._result_of("query"), rows if at is None else at.shape[0] * at.shape[1]
        )
        return vectors

    def _candidates(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the checked result of `candidate`."""
        with self._naming_missing(features, "candidate"):
            vectors = self.candidate(features, training=training)
        check_vectors(vectors, self._result_of("candidate"), features["id_row"].shape[0])
        return vectors

    def _query_vectors(
        self, inputs: Tensors, features: Tensors, training: bool
    ) -> keras.KerasTensor:
        features, of_terms = self.without_terms(features)
        vectors = self._compared(self._queries(features, training))
        read = {**inputs, **of_terms}
        terms = self._terms_of_vectors(training)
        return _joined(vectors, [x.of_query(read, vectors) for x in terms])

    def _terms_of_vectors(self, training: bool) -> list[Term]:
        return [x for x in self.terms.values() if x.in_training or not training]

    def _candidate_vectors(
        self, inputs: Tensors, features: Tensors, training: bool
    ) -> keras.KerasTensor:
        features, of_terms = self.without_terms(features)
        read = {**inputs, **of_terms}
        for term in self.terms.values():
            features["id_row"] = term.item_row(features["id_row"], read)
        vectors = self._compared(self._candidates(features, training))
        terms = self._terms_of_vectors(training)
        return _joined(vectors, [x.of_candidate(read, vectors) for x in terms])

    def compute_loss(
        self,
        x: Tensors | None = None,
        y: Any = None,
        y_pred: Tensors | None = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """Returns the loss, including auxiliary losses, `add_loss` and regularizers; a scalar.

        In addition to the inputs, `x` has `item_row` and `log_q`; `weight` `[batch]` if the events
        have weights; and `known` if the known positives of a user are excluded from the negatives.
        See `recsys.losses.Loss`.
        """
        if x is None or y_pred is None:
            raise ValueError("The loss needs the inputs and the embeddings.")
        is_plain = self.sharing == SHARED_BY_ALL
        loss = self.training_loss(
            y_pred["query"],
            y_pred["candidate"],
            item_row=x["item_row"],
            log_q=x["log_q"],
            temperature=self._temperature(),
            sample_weight=x.get("weight"),
            known=x.get("known"),
            **({} if is_plain else {"sharing": self.sharing}),
        )
        check_scalar(loss, f"The loss {type(self.training_loss).__name__}")
        for table, weight in self.regularisation.items():
            rows = y_pred[self._read_by_id[table]]
            loss = loss + weight * ops.sum(ops.square(rows)) / y_pred["query"].shape[0]
        added: Any = {**y_pred.get("added", {})}
        regularizers = self.losses  # `added` already has the losses of layers.
        if regularizers:
            total = sum(ops.sum(x) for x in regularizers)
            added[REGULARIZATION] = Added(total, total)
        for name, (value, weighted) in added.items():
            loss = loss + weighted
            if name in self.loss_parts:
                self.loss_parts[name].update_state(value)
        return loss

    def _temperature(self) -> Any:
        """Returns the temperature, and logs it if it is learned."""
        if self.temperature is None:
            return self.spec.config.temperature
        temperature = self.temperature.temperature()
        self.temperature_log.update_state(temperature)
        return temperature

    def _compared(self, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns vectors whose dot product is the similarity: normalised for a cosine."""
        if self.spec.config.similarity == "dot":
            return vectors
        # With the epsilon inside the root, a zero vector stays zero and has a finite gradient.
        squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
        return vectors / ops.sqrt(squares + 1e-12)


def _joined(vectors: keras.KerasTensor, columns: Iterable[Any]) -> keras.KerasTensor:
    """Returns vectors with the columns of the terms appended."""
    there = [x for x in columns if x is not None]
    return ops.concatenate([vectors, *there], axis=-1) if there else vectors


# --- auxiliary losses


class Added(NamedTuple):
    """The sum of the auxiliary losses of one name.

    Attributes:
        value: Sum of the values, a scalar.
        weighted: Weighted sum of the values, which is added to the loss.
    """

    value: Any
    weighted: Any


class AuxiliaryLosses:
    """Collects the auxiliary losses of one call of a model.

    Attributes:
        names: Names that may be added; each has a metric. None until the model is built.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None
        self._added: dict[str, Added] | None = None

    @contextlib.contextmanager
    def collecting(self) -> Iterator[dict[str, Added]]:
        """Yields the losses that the block adds, by name; outside of it `add` does nothing."""
        self._added = {}
        try:
            yield self._added
        finally:
            self._added = None

    def add(self, name: str, value: Any, weight: float = 1.0) -> None:
        """Adds a scalar `value` to the loss, times `weight`.

        Raises:
            UsageError: The name is invalid, the weight is not a number, or the name was not added
                when the model was built (R347).
        """
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise UsageError(
                "R347",
                "The name of an auxiliary loss must be letters, digits and _, and not val_… or one"
                f" of {', '.join(_RESERVED)}.",
                "Choose another name.",
                name,
            )
        number: Any = weight
        if not isinstance(number, int | float) or not math.isfinite(number):
            raise UsageError(
                "R347",
                f"The weight of the auxiliary loss {name!r} must be a finite number.",
                "Pass a Python float; multiply the value by what changes from step to step.",
                weight,
            )
        if self.names is not None and name not in self.names:
            raise UsageError(
                "R347",
                "An auxiliary loss must be added whether the model trains or not, as its metric is"
                " made when the model is built.",
                "Call add_auxiliary outside of `if training:`; it does nothing unless a step is"
                " computed.",
                f"{name!r}; when it was built: {', '.join(sorted(self.names)) or 'none'}",
            )
        if self._added is None:
            return
        before = self._added.get(name)
        weighted = weight * value
        self._added[name] = (
            Added(value, weighted)
            if before is None
            else Added(before.value + value, before.weighted + weighted)
        )
