"""The base class of retrieval models: queries, candidates, and their similarity.

Inputs are rows of tables, never ids; `RetrievalModel.inputs_of_sides` lists them:

    user_row   [batch]            row of the user table; 0 for a user without one
    history    [batch, history]   rows of the item table, the newest first; 0 is padding
    <fact>     [batch, history]   what is told of the events of histories, -1: unknown; of
                                  models whose config has `history_facts`
    asked_at   [batch]            when the question is asked [min], -1: after all training events;
                                  of models whose config has `item_age`
    id_row     [candidates]       row of the item table; 0 for an item without one
    <feature>  [batch, width]     token rows of the user, or `[candidates, width]` of the
                                  item; 0 is padding

Training, evaluation and the exported graph feed the same inputs, so a model is written with
`keras.ops` alone: it trains on JAX, and is exported on TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Self

import keras
import numpy as np
from keras import ops

from recsys import registry
from recsys.config import TrainConfig
from recsys.config.architecture import AutoConfig, RetrievalConfig
from recsys.data.catalogue import of_history
from recsys.data.dataset import Data, DataSpec
from recsys.data.history_facts import AGES, ASKED, ASKED_AT, UNKNOWN, WEIGHTS
from recsys.data.history_items import ITEM, PLACE
from recsys.data.kept_events import KeptEvents
from recsys.embedding import FeatureConfig, SparseModel, TableConfig, embedding_layer
from recsys.embedding.optimizers import RowOptimizer
from recsys.errors import UsageError
from recsys.losses import CandidateSharing, Loss
from recsys.losses.sharing import SHARED_BY_ALL
from recsys.models.item_ages import ItemAges
from recsys.models.item_graph import ItemGraph
from recsys.models.layers import Latest, LogTemperature
from recsys.models.spec import ModelSpec, Side

Tensors = dict[str, keras.KerasTensor]
Tables = dict[str, TableConfig]
_READ_BY_ID = {"users": "user_row", "items": "id_row", "item_bias": "item_bias"}
"""Tables whose rows a user or a candidate reads one by one, and what `look_up` calls them."""
_PASSED = ("segment", "at", AGES, ASKED, WEIGHTS, PLACE)
"""Inputs of a query that no table is asked for; nor is one for `asked_at`, which `query` doesn't
read."""
_OF_KERAS = {"_layers", "_metrics", "_tracker", "_inbound_nodes", "_outbound_nodes"}


class InputSpec(NamedTuple):
    """An input of a retrieval model.

    Attributes:
        name: Its name.
        side: Whether the query or the candidate reads it.
        shape: Its shape, without the batch; its type is int32.
    """

    name: str
    side: Side
    shape: tuple[int, ...]


class RetrievalModel(SparseModel):
    """Embeds queries and candidates, which are compared by their dot product or cosine.

    A subclass gives `query` and `candidate`; the tables, their lookups, the loss, the
    temperature and the similarity are here. Its layers are made in `__init__`, as those of
    any Keras model; `Config` is its typed config:

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

    Variables are made by `build`, so that the tables may be placed on the devices and get
    their optimizers first.

    Args:
        spec: What the model is.
        tables: The tables by name; None: those of `make_tables`, without optimizers.
        seed: Seed of the initial weights and of the dropout.
        loss: What training minimises: a `Loss`, or the name of one.
        compute_dtype: What layers may compute in while they train, `float32` or
            `bfloat16`. Weights, loss and lengths are float32 in any case.

    Attributes:
        Config: Type of the model's config.
        spec: What the model is.
        tables: The tables by name; they may be set until the model is built.
        sharing: How its loss shares the candidates of a batch; `train_by` sets it.
        regularisation: Weight of the squared length of each row that a batch reads by its id,
            by table; `train_by` sets it.

    Raises:
        UsageError: The model can't be what its spec says.
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
        if not isinstance(spec.config, self.Config):
            raise UsageError(
                "R346",
                f"{type(self).__name__} must be made with a {self.Config.__qualname__}.",
                "Set model.type in the config to the name that the model is registered by.",
                type(spec.config).__name__,
            )
        super().__init__(name=registry.name_of("model", spec.config))
        spec.check()
        self.spec, self.seed, self.compute_dtype_of_training = spec, seed, compute_dtype
        self.training_loss: Loss = registry.Choice("loss").read(loss)
        self.sharing = SHARED_BY_ALL
        self.tables = self.make_tables(spec) if tables is None else tables
        self.temperature: LogTemperature | None = None
        self.item_graph: ItemGraph | None = None
        self.item_ages: ItemAges | None = None
        self.regularisation: dict[str, float] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Has the layers that a subclass makes draw their seeds from that of the model."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            make: Any = vars(cls)["__init__"]

            @functools.wraps(make)
            def seeded(self: Any, *args: Any, **options: Any) -> None:
                with _keras_seeds(options.get("seed", 0)):
                    make(self, *args, **options)

            setattr(cls, "__init__", seeded)  # noqa: B010  mypy: a method.

    @classmethod
    def from_config(cls, config: Any, data: Data | DataSpec, **kwargs: Any) -> Self:
        """Returns a model of a config for data.

        Args:
            config: A whole `recsys.Config` (its `model` and `train` are read), or the
                model's own config.
            data: The data, or their sizes.
            **kwargs: As of the constructor.

        Raises:
            UsageError: The config is another model's, or doesn't suit the data.
        """
        train = getattr(config, "train", None)
        if train is not None:
            of_train = {
                "seed": train.seed,
                "loss": train.loss,
                "compute_dtype": train.compute_dtype,
            }
            kwargs = {**of_train, **kwargs}
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
        spec = ModelSpec.of(own, sizes.user_rows, sizes.item_rows, sizes.features)
        model = cls(spec, **kwargs)
        if train is not None:
            model.train_by(train)
        return model

    def train_by(self, train: TrainConfig) -> None:
        """Takes what a training loop says of the loss, beside the loss itself.

        Raises:
            UsageError: It regularises a table that the model doesn't have.
        """
        self.sharing = CandidateSharing.of_config(train)
        missing = sorted(set(train.table_regularisation) - set(self.tables))
        if missing:
            raise UsageError(
                "R369",
                "train.table_regularisation must name tables that the model has.",
                f"Leave {', '.join(missing)} out, or set model.user_id or model.item_bias to true.",
                dict(train.table_regularisation),
            )
        self.regularisation = {str(name): x for name, x in train.table_regularisation.items()}

    @property
    def config(self) -> Any:
        """The model's options, a `Config`."""
        return self.spec.config

    # --- what a subclass gives

    def query(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns query vectors `[batch, dim]` float32; a cosine's lengths are set to 1 later.

        Args:
            features: `user_row` `[batch, dim]`, unless `config.user_id` is off; `history`
                `[batch, history, dim]`, the newest first; each feature of the users
                `[batch, feature_dim]`; where `config.history_features`, `history.<feature>`
                `[batch, history, feature_dim]` of each feature of the items; all float32.
                `history_rows` `[batch, history]` int32 is 0 where a history has no item. While a
                model whose config is `over_positions` trains, histories are packed `[rows,
                history, …]`, and `segment` `[rows, history]` and `at` `[rows, batch / rows]` say
                which of them an example reads: see `recsys.data.sequences.SequenceSource`. There
                is also what `config.history_facts` names, `[batch, history]` int32, and with
                ages in packed training `asked_age` `[rows, batch / rows]`. While a
                model whose config has `distinct_history` trains, there may be `history_place`
                `[batch, history]`: `history` `[n, dim]` and `history.<feature>` `[n, feature_dim]`
                are then of the items once each, and it says which of them is where.
            training: Whether the model trains.
        """
        raise NotImplementedError

    def candidate(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns candidate vectors `[candidates, dim]` float32.

        Args:
            features: `id_row` `[candidates, dim]`; each feature of the items `[candidates,
                feature_dim]`; float32.
            training: Whether the model trains.
        """
        raise NotImplementedError

    @classmethod
    def make_tables(
        cls,
        spec: ModelSpec,
        optimizer: RowOptimizer | None = None,
        user_optimizer: RowOptimizer | None = None,
    ) -> Tables:
        """Returns the tables by name: `users`, `items`, `item_bias`, and one for each feature.

        Args:
            spec: What the model is.
            optimizer: Optimizer of the tables; None for a model that is only read.
            user_optimizer: That of the users' own rows, if it is another one.
        """
        config = spec.config
        users = {"users": (spec.user_rows, config.dim)} if config.user_id else {}
        biases = {"item_bias": (spec.item_rows, 1)} if config.item_bias else {}
        sizes = {
            **users,
            "items": (spec.item_rows, config.dim),
            **biases,
            **{f.name: (f.rows, f.dim) for f in spec.features},
        }
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
            )
            for name, (rows, dim) in sizes.items()
        }
        if biases:
            bias = tables["item_bias"]
            bias.initializer = keras.initializers.Zeros()
            if bias.placement == "column":  # It has one.
                bias.placement = "row"
        return tables

    def build_layers(self) -> None:
        """Creates the variables of the layers: by one query and one candidate of zeros."""
        self.query(self._zeros("user"), training=False)
        self.candidate(self._zeros("item"), training=False)

    def history_weights(self, rows: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns weights by which the lookup averages the items of histories.

        `history` then reaches `query` as `[batch, dim]`, and its items are never there one
        by one. A model that does so sets `averages_history`.

        Args:
            rows: The histories `[batch, history]` int32.
        """
        return None

    @property
    def averages_history(self) -> bool:
        """Whether the lookup averages histories by `history_weights`."""
        return False

    # --- inputs and lookups

    @property
    def inputs_of_sides(self) -> tuple[InputSpec, ...]:
        """The inputs: of the query, then of the candidate."""
        config = self.spec.config
        own = (InputSpec("user_row", "user", ()),) if config.user_id else ()
        bags = {
            side: [InputSpec(f.name, side, (f.width,)) for f in self.spec.of_side(side)]
            for side in ("user", "item")
        }
        history = [InputSpec("history", "user", (config.history,))]
        history += [InputSpec(name, "user", (config.history,)) for name in config.history_facts]
        asked = [InputSpec(ASKED_AT, "user", ())] if config.item_age else []
        query = [*history, *asked, *own, *bags["user"]]
        if config.history_features:
            query += [
                InputSpec(of_history(f.name), "user", (config.history, f.width))
                for f in self.spec.of_side("item")
            ]
        return (*query, InputSpec("id_row", "item", ()), *bags["item"])

    def names_of_side(self, side: Side) -> tuple[str, ...]:
        """Returns the names of the inputs that the query, or the candidate, reads."""
        return tuple(x.name for x in self.inputs_of_sides if x.side == side)

    @property
    def embedding(self) -> Any:
        """The layer of the tables, made when it is first used."""
        if not hasattr(self, "_embedding"):
            self._embedding = embedding_layer(
                self._feature_configs(), seed=self.seed, name="embedding"
            )
        return self._embedding

    def _feature_configs(self) -> dict[str, FeatureConfig]:
        """Returns the inputs by name, each with its table and shape."""
        config, tables = self.spec.config, self.tables
        users = {"user_row": ("users", (None,))} if config.user_id else {}
        biases = {"item_bias": ("item_bias", (None,))} if config.item_bias else {}
        n = config.item_neighbours
        close = {"item_neighbours": ("items", (None, n))} if n else {}
        # A history whose items are read one by one is single ids `[batch * history]`.
        history = (None, config.history) if self.averages_history else (None,)
        shapes: dict[str, tuple[str, tuple[int | None, ...]]] = {
            **users,
            "history": ("items", history),
            "id_row": ("items", (None,)),
            **close,
            **biases,
            **{f.name: (f.name, (None, f.width)) for f in self.spec.features},
        }
        if config.history_features:
            of_items = self.spec.of_side("item")
            shapes |= {of_history(f.name): (f.name, (None, f.width)) for f in of_items}
        return {
            name: FeatureConfig(name, tables[table], shape, (None, tables[table].embedding_dim))
            for name, (table, shape) in shapes.items()
        }

    def look_up(self, inputs: Tensors, names: Iterable[str]) -> Tensors:
        """Returns the features that `query` and `candidate` read, of some inputs.

        With `config.item_bias` there is `item_bias` `[candidates, 1]` beside `id_row`, which
        is for neither.
        """
        names = tuple(name for name in names if name not in (*_PASSED, ASKED_AT))
        ids = {name: inputs[name] for name in names}
        weights: dict[str, Any] = dict.fromkeys(names)
        for feature in self.spec.features:
            if feature.name in ids:
                # Row 0 of a feature's table is padding.
                weights[feature.name] = ops.greater(inputs[feature.name], 0)
        if self.spec.config.item_bias and "id_row" in ids:
            ids["item_bias"], weights["item_bias"] = ids["id_row"], None
        if self.item_graph is not None and "id_row" in ids:
            name = "item_neighbours"
            ids[name], weights[name] = self.item_graph.bags(ids["id_row"])
        if "history" not in ids:
            return self.embedding(ids, weights=weights)
        rows = inputs["history"]
        if self.averages_history:
            weights["history"] = self.history_weights(rows)
            return {**self.embedding(ids, weights=weights), "history_rows": rows}
        # Single ids go to the device that has them, and not all of them to every device.
        ids["history"] = ops.reshape(inputs.get(ITEM, rows), (-1,))
        of_items = [of_history(f.name) for f in self.spec.of_side("item")]
        of_items = [name for name in of_items if name in ids]
        for name in of_items:
            ids[name] = ops.reshape(ids[name], (-1, ids[name].shape[-1]))
            weights[name] = ops.greater(ids[name], 0)
        features = self.embedding(ids, weights=weights)
        if PLACE not in inputs:
            for name in ("history", *of_items):
                shape = (-1, self.spec.config.history, features[name].shape[-1])
                features[name] = ops.reshape(features[name], shape)
        passed = {name: inputs[name] for name in _PASSED if name in inputs}
        return {**features, "history_rows": rows, **passed}

    # --- the Keras model

    def settle(self, vectors: Iterable[np.ndarray]) -> None:
        """Sets the weights that follow from the vectors of the items; here there are none.

        Training calls it before the model is validated, and at the end.

        Args:
            vectors: Candidate vectors of the items that training saw, in blocks `[n, dim]`
                float32, embedded as they are taken.
        """

    def build(self, input_shape: Any = None) -> None:
        """Creates every variable, in a fixed order."""
        self.embedding.build()
        if self.spec.config.item_neighbours:
            n = self.spec.config.item_neighbours
            self.item_graph = ItemGraph(self.spec.item_rows, n, name="item_graph")
            self.item_graph.build()
        if self.spec.config.item_age:
            bins = self.spec.config.item_age.bins
            self.item_ages = ItemAges(self.spec.item_rows, bins, name="item_ages")
            self.item_ages.build()
        _name_attributes(self)
        with _keras_seeds(self.seed + 5000):
            self.build_layers()
        if self.spec.config.learn_temperature:
            self.temperature = LogTemperature(self.spec.config.temperature, name="temperature")
            self.temperature.build()
            self.temperature_log = Latest(name="temperature")
        self.built = True

    def embed_query(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns query vectors `[batch, dim]` float32, of length 1 if compared by a cosine.

        With `config.item_bias` vectors are `[…, dim + 1]`: a query's last number is 1, that
        of a candidate its bias, so that their dot product is the whole score. With
        `config.item_age` there follow the numbers of `ItemAges`.
        """
        features = self.look_up(inputs, self.names_of_side("user"))
        return self._query_vectors(inputs, features, training=False)

    def embed_candidate(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns candidate vectors `[candidates, dim]` float32, as `embed_query` does."""
        features = self.look_up(inputs, self.names_of_side("item"))
        return self._candidate_vectors(inputs, features, training=False)

    def call(self, inputs: Tensors, training: bool = False) -> Tensors:
        """Returns `query` `[batch, dim]` and `candidate` `[candidates, dim]`, float32.

        They are those of `embed_query` and `embed_candidate`, in training. There are also the
        rows `[batch or candidates, width]` of tables that are regularised.
        """
        names = [*self.names_of_side("user"), *self.names_of_side("item")]
        if not self.spec.config.trains_on_history:
            names = [name for name in names if name in inputs]
        features = self.look_up(inputs, names)
        own = {_READ_BY_ID[table]: features[_READ_BY_ID[table]] for table in self.regularisation}
        return {
            **own,
            "query": self._query_vectors(inputs, features, training),
            "candidate": self._candidate_vectors(inputs, features, training),
        }

    def _query_vectors(
        self, inputs: Tensors, features: Tensors, training: bool
    ) -> keras.KerasTensor:
        parts = [self._compared(self.query(features, training=training))]
        if self.spec.config.item_bias:
            parts.append(ops.ones_like(parts[0][:, :1]))
        if self.item_ages is not None:
            parts.append(self.item_ages.of_queries(inputs[ASKED_AT]))
        return ops.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]

    def _candidate_vectors(
        self, inputs: Tensors, features: Tensors, training: bool
    ) -> keras.KerasTensor:
        bias = features.pop("item_bias", None)
        if self.item_graph is not None:
            mean = features.pop("item_neighbours")
            features["id_row"] = self.item_graph.averaged(features["id_row"], mean)
        parts = [self._compared(self.candidate(features, training=training))]
        if bias is not None:
            parts.append(bias)
        if self.item_ages is not None:
            parts.append(self.item_ages.of_items(inputs["id_row"]))
        return ops.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]

    def adapt(self, events: KeptEvents) -> None:
        """Takes what the model reads of the training events themselves, before it trains.

        Args:
            events: The events that training sees.
        """
        for layer in (self.item_graph, self.item_ages):
            if layer is not None:
                layer.adapt(events)

    @property
    def adapted(self) -> list[Any]:
        """The weights that `adapt` sets: no training changes them, and no warm start keeps them."""
        of_graph = [] if self.item_graph is None else self.item_graph.weights
        return [*of_graph, *([] if self.item_ages is None else self.item_ages.adapted)]

    def compute_loss(
        self,
        x: Tensors | None = None,
        y: Any = None,
        y_pred: Tensors | None = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """Returns the loss, a scalar.

        `x` has `item_row` and `log_q` beside the inputs; `weight` `[batch]`, that of each
        example in the loss, where the events have one; and `known` where items that a
        user is known to like are to be no negatives. See `recsys.losses.Loss`.
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
        for table, weight in self.regularisation.items():
            rows = y_pred[_READ_BY_ID[table]]
            loss = loss + weight * ops.sum(ops.square(rows)) / y_pred["query"].shape[0]
        return loss

    def _temperature(self) -> Any:
        """Returns what the similarity is divided by; one that is learned is logged too."""
        if self.temperature is None:
            return self.spec.config.temperature
        temperature = self.temperature.temperature()
        self.temperature_log.update_state(temperature)
        return temperature

    def _compared(self, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns vectors as they are compared by a dot product."""
        if self.spec.config.similarity == "dot":
            return vectors
        # An epsilon inside the root: a zero vector stays zero, with a finite gradient.
        squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
        return vectors / ops.sqrt(squares + 1e-12)

    def _zeros(self, side: Side) -> Tensors:
        """Returns features of one query, or of one candidate, that are 0."""
        config, features = self.spec.config, {}
        widths = {f.name: f.dim for f in self.spec.features}
        for name in self.names_of_side(side):
            if name == ASKED_AT:
                continue
            features[name] = ops.zeros((1, widths.get(name, config.dim)))
        if side == "user" and config.history_features:
            for feature in self.spec.of_side("item"):
                shape = (1, config.history, feature.dim)
                features[of_history(feature.name)] = ops.zeros(shape)
        if side == "user":
            if not self.averages_history:
                features["history"] = ops.zeros((1, config.history, config.dim))
            features["history_rows"] = ops.zeros((1, config.history), "int32")
            for name in config.history_facts:
                features[name] = ops.full((1, config.history), UNKNOWN, "int32")
        return features


@contextlib.contextmanager
def _keras_seeds(seed: int) -> Iterator[None]:
    """Seeds Python's random numbers meanwhile, from which Keras takes the seeds of layers."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def model_class(spec: ModelSpec) -> type[RetrievalModel]:
    """Returns the class of a model."""
    cls: type[RetrievalModel] = registry.get("model", registry.name_of("model", spec.config))
    return cls


def _name_layers(name: str, value: Any) -> None:
    """Names layers by their attributes, where Keras numbered them by their order of creation.

    Saved weights are found by the names of layers, and Keras counts the layers of a process.
    """
    if isinstance(value, list | tuple):
        for place, part in enumerate(value):
            _name_layers(f"{name}_{place}", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            _name_layers(f"{name}_{key}", part)
    elif isinstance(value, keras.layers.Layer) and not value.built:
        if re.fullmatch(rf"{_snake_case(type(value).__name__)}(_\d+)?", value.name):
            value.name = name.strip("_")
        if isinstance(value, keras.Sequential):
            _name_layers("layer", value.layers)
        else:
            _name_attributes(value)


def _name_attributes(layer: keras.layers.Layer) -> None:
    for name, value in list(vars(layer).items()):
        if name not in _OF_KERAS and not name.startswith("_self_"):  # As TensorFlow's are.
            _name_layers(name, value)


def _snake_case(name: str) -> str:
    """Returns the name that Keras gives to a layer of a class."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
