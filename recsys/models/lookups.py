"""The base class of models over sharded tables.

Inputs are rows of tables, never ids; `LookupModel.inputs_of_sides` lists them:

    user_row   [batch]         row of the user table; 0 for a user without one
    id_row     [batch]         row of the item table; 0 for an item without one
    <feature>  [batch, width]  token rows of the user or the item; 0 is padding; a feature of
                               numbers is [batch, floats] float32, and has no table

`recsys.models.history_lookups` adds the inputs of a query.

Training, evaluation and the exported graph feed the same inputs, so a model is written with
`keras.ops` alone: it trains on JAX, and is exported on TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import keras
from keras import ops

from recsys import registry
from recsys.data.dataset import Data, DataSpec
from recsys.data.hold_out import KeptEvents
from recsys.embedding import FeatureConfig, SparseModel, TableConfig, embedding_layer
from recsys.embedding.optimizers import RowOptimizer
from recsys.errors import UsageError
from recsys.losses.loss import TrainOptions
from recsys.models.config import AutoConfig, ModelConfig
from recsys.models.inputs import ModelInputs, ModelSpec, Side
from recsys.models.layers import keras_seeds, name_attributes
from recsys.models.terms import Lookup, Tensors, Term, TermTable, terms_of

Tables = dict[str, TableConfig]
SMALL = 0.05
"""Entries of the features that a model is built with; zero vectors would have no direction."""


class InputSpec(NamedTuple):
    """An input of a model.

    Attributes:
        name: Name of the input.
        side: Side of the input, user or item.
        shape: Shape without the batch axis.
        dtype: Dtype: int32, or float32 for numbers, which are not looked up.
    """

    name: str
    side: Side
    shape: tuple[int, ...]
    dtype: str = "int32"


class LookupModel(SparseModel):
    """A model that reads users, items and their features from sharded tables.

    `recsys.Trainer` trains such a model by the task of its config. A subclass creates its layers in
    `__init__`, as any Keras model, and implements `call` and `compute_loss`; `Config` is its typed
    config. `RetrievalModel` is the subclass for queries and candidates, `RankingModel` that for
    rows with labels.

        @recsys.register_model("pointwise")
        class Pointwise(recsys.LookupModel):
            class Config(recsys.ModelConfig):
                task: ClassVar[str] = "pointwise"

            def __init__(self, spec, **kwargs):
                super().__init__(spec, **kwargs)
                self.head = keras.layers.Dense(1)

            def call(self, inputs, training=False):
                features = self.look_up(inputs, [x.name for x in self.inputs_of_sides])
                return {"logit": self.head(ops.concatenate([*features.values()], axis=-1))[:, 0]}

            def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
                logits = y_pred["logit"]
                return ops.mean(keras.losses.binary_crossentropy(x["label"], logits, True))

    `build` creates the variables, so that the tables can be placed on the devices and get their
    optimizers first.

    Args:
        spec: Config and sizes of the model.
        tables: The tables by name; None: from `make_tables`, without optimizers.
        seed: Seed of the initial weights and of the dropout.
        compute_dtype: Dtype in which layers may compute in training, `float32` or `bfloat16`.

    Attributes:
        Config: Type of the model's config.
        spec: Config and sizes of the model.
        table_configs: Configs of the tables; can be set until the model is built.
        terms: Terms of `config.score_terms` by name.

    Raises:
        UsageError: The config has the wrong type (R346), or is incompatible with the data (R345).
    """

    Config: ClassVar[type[ModelConfig]] = ModelConfig
    tables_can_grow = False  # They have the rows of the data; a warm start adds some.
    weights_by_row: Mapping[str, tuple[Literal["users", "items", "labels"], int]] = {}
    """Weights with an entry for each row of users or items, or for each label that the model
    learns, which a warm start copies by id or name. Maps the path without the model's name to
    `users`, `items` or `labels` and the axis, such as `{"head/kernel": ("items", 1)}`. Entries of
    new ids keep their initial values."""

    def __init__(
        self,
        spec: ModelSpec,
        tables: Tables | None = None,
        seed: int = 0,
        compute_dtype: str = "float32",
    ) -> None:
        if not isinstance(spec.config, self.Config):
            raise UsageError(
                "R346",
                f"{type(self).__name__} must be made with a {self.Config.__qualname__}.",
                "Set model.type in the config to the name that the model is registered by.",
                type(spec.config).__name__,
            )
        super().__init__(name=registry.name_of("model", spec.config))
        spec.check()
        self.spec, self.seed = spec, seed
        self.compute_dtype_of_training = compute_dtype
        self.table_configs = self.make_tables(spec) if tables is None else tables
        self.terms: dict[str, Term] = {}
        self._reads_tables = True

    def __init_subclass__(cls, makes_layers: bool = True, **kwargs: Any) -> None:
        """Makes the layers that a subclass creates draw their seeds from the seed of the model."""
        super().__init_subclass__(**kwargs)
        if makes_layers and "__init__" in vars(cls):
            make: Any = vars(cls)["__init__"]

            @functools.wraps(make)
            def seeded(self: Any, *args: Any, **options: Any) -> None:
                with keras_seeds(options.get("seed", 0)):
                    make(self, *args, **options)

            setattr(cls, "__init__", seeded)  # noqa: B010  mypy: a method.

    @classmethod
    def from_config(cls, config: Any, data: Data | DataSpec, **kwargs: Any) -> Self:
        """Returns an unbuilt model for a config and data.

        Args:
            config: A whole `recsys.Config` (its `model` and `train` are read), or the
                model's own config.
            data: The data, or its sizes.
            **kwargs: Arguments of the constructor.

        Raises:
            UsageError: The config belongs to another model, or is incompatible with the data.
        """
        train = getattr(config, "train", None)
        if train is not None:
            kwargs = {**cls.options_of(train), **kwargs}
        sizes = data.spec if isinstance(data, Data) else data
        own = getattr(config, "model", config)
        if isinstance(own, AutoConfig):
            raise UsageError(
                "R349",
                "A model must be chosen for the data before it is made.",
                "config = recsys.for_data(config, data); then make it, and train with"
                " config.train. Or name a key of model.",
                "model: auto",
            )
        spec = ModelSpec.of(own, sizes.user_rows, sizes.item_rows, sizes.features, sizes.labels)
        model = cls(spec, **kwargs)
        if train is not None:
            model.train_by(train)
        return model

    @classmethod
    def options_of(cls, train: Any) -> dict[str, Any]:
        """Returns the constructor's arguments that follow from `train`, a `TrainConfig`."""
        return {"seed": train.seed, "compute_dtype": train.compute_dtype}

    def train_by(self, train: TrainOptions) -> None:
        """Sets the options of `train` that the loss depends on; by default none."""

    @property
    def config(self) -> Any:
        """The model's options, a `Config`."""
        return self.spec.config

    # --- tables and lookups

    @classmethod
    def table_sizes(cls, spec: ModelSpec) -> dict[str, tuple[int, int]]:
        """Returns rows and width of each table: `users`, `items`, terms' tables and features."""
        dim, rows = spec.config.dim, {"users": spec.user_rows, "items": spec.item_rows}
        of_terms = {name: (rows[t.rows_of], t.dim) for name, t in tables_of_terms(spec).items()}
        features = {f.name: (f.rows, f.dim) for f in spec.features if not f.floats}
        return {**{name: (n, dim) for name, n in rows.items()}, **of_terms, **features}

    @classmethod
    def make_tables(
        cls,
        spec: ModelSpec,
        optimizer: RowOptimizer | None = None,
        user_optimizer: RowOptimizer | None = None,
    ) -> Tables:
        """Returns the tables of `table_sizes` by name.

        Args:
            spec: Config and sizes of the model.
            optimizer: Optimizer of the tables; None for inference.
            user_optimizer: Optimizer of the user table; None: `optimizer`.
        """
        config = spec.config
        stddev = {"users": config.user_init_stddev or config.init_stddev}
        optimizers = {"users": user_optimizer or optimizer}
        tables = {
            name: TableConfig(
                name,
                rows,
                dim,
                initializer=keras.initializers.RandomNormal(
                    stddev=stddev.get(name, config.init_stddev)
                ),
                optimizer=optimizers.get(name, optimizer),
                combiner="mean",
                placement=config.table_placement,
                dtype=config.table_dtype,
                exchange=config.table_exchange,
                distinct_share=config.distinct_share,
                exchange_dtype=config.exchange_dtype,
                between_nodes_dtype=config.between_nodes_dtype,
            )
            for name, (rows, dim) in cls.table_sizes(spec).items()
        }
        for name, own in tables_of_terms(spec).items():
            table = tables[name]
            table.initializer = keras.initializers.get(own.initializer)
            if own.dim == 1 and table.placement == "column":
                table.placement = "row"
        return tables

    @property
    def shared_tables(self) -> set[str]:
        """Names of the tables that are another model's: neither trained nor saved."""
        return set()

    def rows_of_table(self, name: str) -> str:
        """Returns what the rows of a table are: `users`, `items`, or the name of a feature."""
        own = tables_of_terms(self.spec)
        return own[name].rows_of if name in own else name

    @property
    def inputs_of_sides(self) -> tuple[InputSpec, ...]:
        """The inputs of the user, then of the item."""
        sides: tuple[Side, Side] = ("user", "item")
        users, items = (
            [InputSpec(f.name, side, *f.entry) for f in self.spec.of_side(side)] for side in sides
        )
        user_row, id_row = InputSpec("user_row", "user", ()), InputSpec("id_row", "item", ())
        return (user_row, *users, id_row, *items)

    def names_of_side(self, side: Side) -> tuple[str, ...]:
        """Returns the names of the inputs of `side`, `user` or `item`."""
        return tuple(x.name for x in self.inputs_of_sides if x.side == side)

    @property
    def lookups(self) -> dict[str, Lookup]:
        """Table and shape of each input that reads a table."""
        features: dict[str, Lookup] = {
            f.name: (f.name, (None, f.width))
            for f in self.spec.features
            if f.side != "event" and not f.floats
        }
        of_terms = {
            name: lookup
            for term in terms_of(self.spec).values()
            for name, lookup in term.lookups.items()
        }
        rows: dict[str, Lookup] = {"user_row": ("users", (None,)), "id_row": ("items", (None,))}
        return {**rows, **of_terms, **features}

    @property
    def embedding(self) -> Any:
        """The `ShardedEmbedding` of the tables, created on first use."""
        if not hasattr(self, "_embedding"):
            tables = self.table_configs
            configs = {
                name: FeatureConfig(name, tables[table], shape, (None, tables[table].embedding_dim))
                for name, (table, shape) in self.lookups.items()
            }
            self._embedding = embedding_layer(configs, seed=self.seed, name="embedding")
        return self._embedding

    def look_up(self, inputs: Tensors, names: Iterable[str]) -> Tensors:
        """Returns the embeddings `[batch, dim]` float32 of inputs, by name; numbers unchanged.

        Args:
            inputs: Inputs by name.
            names: Names of the inputs to look up.
        """
        rows, numbers = self._rows_and_numbers(inputs, names)
        if not self._reads_tables:
            lookups, tables = self.lookups, self.table_configs
            widths = {name: tables[lookups[name][0]].embedding_dim for name in rows}
            return {n: ops.full((1, width), SMALL) for n, width in widths.items()} | numbers
        ids, weights = self._ids_and_weights(rows)
        return {**self.embedding(ids, weights=weights), **numbers}

    def _rows_and_numbers(self, inputs: Tensors, names: Iterable[str]) -> tuple[Tensors, Tensors]:
        """Returns the named inputs, those that are rows of tables and those that are numbers."""
        of_numbers = {x.name for x in self.inputs_of_sides if x.dtype == "float32"}
        rows = {name: inputs[name] for name in names}
        return rows, {name: rows.pop(name) for name in [*rows] if name in of_numbers}

    def _ids_and_weights(self, inputs: Tensors) -> tuple[Tensors, dict[str, Any]]:
        """Returns the rows that inputs and terms look up, and their weights or None."""
        features = {feature.name for feature in self.spec.features}
        ids = dict(inputs)
        weights: dict[str, Any] = {
            name: self.weights_of_tokens(name, x) if name in features else None
            for name, x in ids.items()
        }
        for term in self.terms.values():
            for name, (rows, of_rows) in term.ids(inputs).items():
                ids[name], weights[name] = rows, of_rows
        return ids, weights

    def weights_of_tokens(self, feature: str, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weights of the tokens of a feature's bags `[…, width]`."""
        for term in self.terms.values():
            weights = term.token_weights(feature, tokens)
            if weights is not None:
                return weights
        return ops.greater(tokens, 0)  # Row 0 of a feature's table is padding.

    # --- the Keras model

    def build(self, input_shape: Any = None) -> None:
        """Creates every variable, in a fixed order."""
        self.embedding.build()
        self.terms = terms_of(self.spec)
        for term in self.terms.values():
            term.build()
        name_attributes(self)
        with keras_seeds(self.seed + 5000):
            self.build_layers()
        self.built = True

    def build_layers(self) -> None:
        """Creates the variables of the layers by calling the model on one example.

        During this call `look_up` returns small numbers and reads no table.
        """
        self._reads_tables = False
        try:
            self.call({x.name: ops.zeros((1, *x.shape), x.dtype) for x in self.inputs_of_sides})
        finally:
            self._reads_tables = True

    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds the model if needed, without the batch of `fit` that Keras would take."""
        if not self.built:
            self.build()
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        self._post_build()

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Sets the weights that are counted from the training data; called before training.

        Args:
            events: The training events.
            inputs: Vocabularies and features.
        """
        for term in self.terms.values():
            term.adapt(events, inputs)

    @property
    def adapted(self) -> list[Any]:
        """Weights that `adapt` sets; neither training nor a warm start changes them."""
        return [weight for term in self.terms.values() for weight in term.adapted]

    def without_terms(self, features: Tensors) -> tuple[Tensors, Tensors]:
        """Splits looked-up features into the model's own and the terms'."""
        names = {name for term in self.terms.values() for name in term.lookups}
        own = {name: x for name, x in features.items() if name not in names}
        return own, {name: x for name, x in features.items() if name in names}


def tables_of_terms(spec: ModelSpec) -> dict[str, TermTable]:
    """Returns the tables of a model's terms by name."""
    return {name: table for term in terms_of(spec).values() for name, table in term.tables.items()}


def model_class(config: ModelConfig) -> type[LookupModel]:
    """Returns the model class that is registered for a config."""
    cls: type[LookupModel] = registry.class_of("model", config)
    return cls
