"""Configs of the models: the keys of any model, of every retrieval model, and the two towers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from recsys.data.config import Order
from recsys.data.label_config import LabelConfig
from recsys.losses.squares import LeastSquares
from recsys.registry import Choice, name_of
from recsys.registry.file_option import BY_CONTENT
from recsys.strict import Strict

Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
LEARNED_TEMPERATURE = (0.01, 10.0)
"""Bounds of a learned temperature. CLIP bounds its temperature below by 0.01 (Radford et al., ICML
2021, section 2.5); well below 10 the softmax is close to uniform."""


class TermConfig(Strict):
    """Options of a term of the score. A term's own config is a subclass.

    Attributes:
        needs_order: Whether the term needs events that have an order.
    """

    needs_order: ClassVar[bool] = False

    @property
    def columns(self) -> int:
        """Floats that the term appends to the vectors of queries and candidates."""
        return 0


class ItemBiasConfig(TermConfig):
    """A learned bias for each item."""

    @property
    def columns(self) -> int:
        """One: the bias."""
        return 1


class ItemNeighboursConfig(TermConfig):
    """Items averaged with the items that occur together with them."""

    count: PositiveInt
    """Number of neighbours of an item [items]."""


class TransitionsConfig(TermConfig):
    """Scores of the items that often follow the newest items of a history."""

    needs_order: ClassVar[bool] = True

    reach: PositiveInt = 5
    """Highest number of places between two events of a pair."""
    newest: PositiveInt = 5
    """Number of newest items of a history that are read."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Factor per newer item of the history (0..1]."""
    count: PositiveInt = 50
    """Number of following items that are kept for each item."""
    shrinkage: NonNegativeFloat = 10.0
    """Summand in the denominator of a pair's weight, which lowers it for items with few events."""
    weight: NonNegativeFloat | None = None
    """Factor of the term in the score; `null`: chosen on held-back events after training."""


class EaseConfig(TermConfig):
    """Scores of the items that go together with those of a history, by EASE."""

    rank: PositiveInt = 512
    """Width of the vectors that are computed for items, and number that is added to the width of
    every vector: how many singular values of the user-item matrix are kept [floats]."""
    regularisation: PositiveFloat = 200.0
    """Strength of the regularisation of the weights between items."""
    weight: NonNegativeFloat | None = None
    """Factor of the term in the score; `null`: chosen on held-back events after training."""

    @property
    def columns(self) -> int:
        """The vectors."""
        return self.rank


class BagWeightsConfig(TermConfig):
    """Weights of tokens by inverse document frequency."""


class ModelConfig(Strict):
    """Keys that every model over sharded lookups has. A model's own config is a subclass.

    Attributes:
        task: Name of the model's task.
        summary: Description of the model for the model card.
        FREE: Keys that weights do not depend on. A warm start may change them.
    """

    task: ClassVar[str]
    reads_labels: ClassVar[bool] = False
    """Whether examples are rows with labels and with features of pairs, not positives."""
    summary: ClassVar[str] = "A model over the ids and features of users and items."
    FREE: ClassVar[frozenset[str]] = frozenset(
        {
            "init_stddev",
            "user_init_stddev",
            "table_placement",
            "table_exchange",
            "distinct_share",
            "exchange_dtype",
            "between_nodes_dtype",
        }
    )

    dim: PositiveInt = 64
    """Width of the id tables; of a retrieval model also of the compared vectors, without bias and
    ages [floats]."""
    feature_dim: PositiveInt = 32
    """Width of the feature tables of items, users and events [floats]."""
    bag_weights: Literal["even", "idf"] = "even"
    """Weights of a feature's tokens in the mean of their embeddings: `even`, or `idf`, the inverse
    document frequency among the items or users of the data, so that rare tokens count more."""
    init_stddev: PositiveFloat = 0.05
    """Standard deviation of the initial values of the tables."""
    user_init_stddev: PositiveFloat | None = None
    """The same for the user table. With a small value users start as their histories; `null`: same
    as `init_stddev`."""
    table_placement: Literal["auto", "row", "column", "replicated"] = "auto"
    """Placement of the tables on several devices: `row` and `column` shard along that dimension,
    `replicated` copies the table to each device; `auto` shards by rows from 50,000 rows on."""
    table_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the tables. `bfloat16` halves their size and uses stochastic rounding."""
    table_exchange: Literal["auto", "cheapest", "gathered", "rows", "nodes", "dense"] = "auto"
    """Exchange of embeddings and gradients between devices. `cheapest`: with the fewest bytes;
    `auto`: the same on more than 8 devices; the others force one strategy."""
    distinct_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Expected share of distinct ids in a device's batch, used to estimate the bytes of an
    exchange (0..1]."""
    exchange_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """Dtype of rows and gradients in exchanges between devices. `bfloat16` halves the bytes and
    rounds; `int8`, with one scale per row, nearly quarters them and rounds stochastically."""
    between_nodes_dtype: Literal["float32", "bfloat16", "int8"] | None = None
    """The same from one node to another, where links are slow, in the exchanges `rows` and
    `nodes`; `null`: same as `exchange_dtype`."""

    @property
    def score_terms(self) -> tuple[TermConfig, ...]:
        """The terms of the score, in the order in which they are built."""
        return (BagWeightsConfig(),) if self.bag_weights == "idf" else ()

    @property
    def reads_features(self) -> bool:
        """Whether the model has a layer that can read features."""
        return True

    def check(self, train: Any) -> None:
        """Checks that the options of the training loop are compatible with the model.

        Args:
            train: A `TrainConfig`.

        Raises:
            ValueError: They are not.
        """

    def check_order(self, order: Order) -> None:
        """Raises `ValueError` if the model can't be trained on events in this order."""

    def learned(self, labels: Mapping[str, LabelConfig]) -> tuple[str, ...]:
        """Returns the names of the labels that the model learns, each after its `given`.

        Args:
            labels: Labels of the data by name, each after its `given`.

        Raises:
            ValueError: The model can't learn from them.
        """
        return ()

    def architecture(self) -> dict[str, Any]:
        """Returns the JSON-serializable options that weights depend on, by key."""
        dumped = self.model_dump(mode="json", context=BY_CONTENT)
        return {key: value for key, value in dumped.items() if key not in self.FREE}


class QueryConfig(ModelConfig):
    """Keys of the models whose queries have a user and a history."""

    FREE: ClassVar[frozenset[str]] = ModelConfig.FREE | {
        "id_dropout",
        "item_id_dropout",
        "history_dropout",
        "attribute_dropout",
        "new_user_share",
    }

    user_id: bool = True
    """Whether the query reads an embedding of the user id. If false, users are represented by
    their histories and features only."""
    history: PositiveInt = 20
    """Maximum length of a history: the newest positives of a user are kept [items]."""
    id_dropout: Dropout = 0.1
    """Share of ids that training replaces by the unknown id, so that row 0 learns to represent
    users and items without a row [0..1)."""
    item_id_dropout: Dropout | None = None
    """The same share for candidate items only, so that their features learn to represent items
    without events; `null`: same as `id_dropout` [0..1)."""
    history_dropout: Dropout = 0.0
    """Share of history items that training drops [0..1)."""
    attribute_dropout: Dropout = 0.1
    """Share of training histories whose attributes are hidden, and of training examples
    whose context is hidden, so that the model also handles queries without them [0..1). Has no
    effect if events have no features."""
    new_user_share: Dropout = 0.1
    """Share of training examples that are trained as new users, without id and history, so that
    the model learns what to recommend to new users [0..1)."""

    @property
    def reads_attributes(self) -> bool:
        """Whether a query depends on the attributes of its history events."""
        return True


class RetrievalConfig(QueryConfig):
    """Keys that every retrieval model has. A model's own config is a subclass.

    Data loading, evaluation and serving depend on these keys.
    """

    task: ClassVar[str] = "retrieval"
    summary: ClassVar[str] = (
        "A retrieval model: it embeds a user, by id, history and features, and an item with its"
        " features."
    )
    FREE: ClassVar[frozenset[str]] = QueryConfig.FREE | {"temperature"}

    history_of: Literal["past", "others"] | None = None
    """Contents of a training example's history. `past`: the user's positives before the example;
    `others`: all other positives of the user; `null`: `past` if the data have an order, else
    `others`."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """Similarity between a query and a candidate."""
    item_bias: bool = False
    """Whether to learn a bias for each item, which is added to the similarity with any query, so
    that vectors need not encode popularity."""
    item_neighbours: NonNegativeInt = 0
    """Number of most co-occurring items that are averaged with an item in the candidate tower
    (LightGCN); 0: none [items]."""
    terms: tuple[Annotated[Any, Choice("term")], ...] = ()
    """More terms of the score: `transitions`, `ease`, or a plugin's, as `[{type: name, …}]`."""
    temperature: PositiveFloat = 0.15
    """Divisor of the similarity in the loss."""
    learn_temperature: bool = False
    """Whether the temperature is trained, starting from `temperature`."""

    @model_validator(mode="after")
    def _temperature_can_be_learned(self) -> Self:
        low, high = LEARNED_TEMPERATURE
        if self.learn_temperature and not low <= self.temperature <= high:
            raise ValueError(
                f"a learned temperature must start between {low:g} and {high:g}; received"
                f" {self.temperature}"
            )
        return self

    @model_validator(mode="after")
    def _terms_are_listed_once(self) -> Self:
        names = [name_of("term", term) for term in self.score_terms]
        if len({*names}) < len(names):
            raise ValueError(f"each term of the score must be listed once; received {names}")
        return self

    @property
    def score_terms(self) -> tuple[TermConfig, ...]:
        """The terms of the score, in the order in which they are built."""
        n = self.item_neighbours
        return (
            *((ItemNeighboursConfig(count=n),) if n else ()),
            *super().score_terms,
            *((ItemBiasConfig(),) if self.item_bias else ()),
            *self.terms,
        )

    @property
    def vector_dim(self) -> int:
        """Width of the compared vectors, including the terms' columns [floats]."""
        return self.dim + sum(term.columns for term in self.score_terms)

    @property
    def needs_order(self) -> bool:
        """Whether the model depends on the order of a history."""
        return False

    @property
    def reads_history(self) -> bool:
        """Whether a query depends on the items of its history."""
        return True

    @property
    def trains_on_history(self) -> bool:
        """Whether training examples have a history."""
        return True

    @property
    def over_positions(self) -> bool:
        """Whether training uses packed sequences; see `RetrievalModel.query`."""
        return False

    @property
    def reads_attributes(self) -> bool:
        """Whether a query depends on the attributes of its history events."""
        return self.reads_history and self.trains_on_history

    @property
    def history_features(self) -> bool:
        """Whether a query reads the features of its history items."""
        return False

    @property
    def distinct_history(self) -> bool:
        """Whether `query` can take the distinct items of a batch's histories once each."""
        return False

    def check_order(self, order: Order) -> None:
        """Raises `ValueError` if a history has past events, and events have no order."""
        if self.history_of == "past" and order == "none":
            raise ValueError(
                "model.history_of: past needs an order of the events, and data.interactions has"
                " none: remove it, or set others"
            )


class MeanConfig(Strict):
    """Mean of a history, weighted by learned weights of its positions."""


class NoHistoryConfig(Strict):
    """No history: users are represented by their rows and features."""


class FoldInConfig(Strict):
    """Closed-form iALS solution over a history; training learns user rows instead."""

    negative_weight: PositiveFloat = 6.0
    """Weight of the mean over all items relative to an item of the history."""
    regularisation: PositiveFloat = 0.6
    """Weight of the squared norm of the user vector, times the square root of the history
    length."""


class AttentionConfig(Strict):
    """Mean of a history, weighted by attention over its items and positions."""


class SelfAttentionConfig(Strict):
    """Blocks of self-attention over a history."""

    layers: PositiveInt = 2
    """Number of blocks, each of attention and a feed-forward layer."""
    heads: PositiveInt = 2
    """Number of attention heads; must divide `model.dim`."""
    dropout: Dropout = 0.2
    """Dropout rate of the activations [0..1)."""


class PositionConfig(SelfAttentionConfig):
    """Self-attention that is trained at every position of packed sequences."""

    add_mean: bool = True
    """Whether to add the mean of the items so far, weighted by learned weights of their distance,
    to the output of self-attention. Training then starts close to `mean`."""


class SasRecConfig(PositionConfig):
    """Self-attention that is trained at every position (SASRec: Kang and McAuley, ICDM 2018)."""

    width: PositiveInt | None = None
    """Width of the feed-forward layers; `null`: `model.dim` [floats]."""
    filter_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Weight of a frequency filter beside attention, which has the rest (BSARec: Shin et al., AAAI
    2024); 0: no filter [0..1)."""
    filter_frequencies: PositiveInt = 3
    """Number of frequencies that the filter passes unchanged, including the mean, of the `history
    // 2 + 1` that a history has; the others are rescaled by learned weights."""


class LigrConfig(SasRecConfig):
    """Self-attention with gated blocks (LiGR: Borisyuk et al., 2025)."""


class TwoTowerConfig(RetrievalConfig):
    """The two-tower model."""

    summary: ClassVar[str] = (
        "A two-tower retrieval model: one tower embeds a user with the newest items of the"
        " user's history and with the user's features, where the data have any; the other embeds"
        " an item with its features."
    )
    FREE: ClassVar[frozenset[str]] = RetrievalConfig.FREE | {"dropout"}

    pooling: Annotated[Any, Choice("encoder")] = MeanConfig()
    """Encoder of a history: `mean` (weights of positions), `none`, `fold_in` (iALS at query time),
    `attention` (weights of items and positions), `sasrec` and `ligr` (self-attention trained at
    every position), or one of a plugin. With options `{type: sasrec, layers: 3}`."""
    widths: tuple[PositiveInt, ...] | None = (128,)
    """Hidden widths of both towers [floats]; `[]`: one linear layer; `null`: no layer, the vectors
    are the embeddings themselves, and features are not used."""
    history_tower: bool = False
    """Whether history items pass through the candidate tower, so that their features are used.
    Requires an encoder that reads single items."""
    activation: Literal["silu", "relu", "gelu", "tanh"] = "silu"
    """Activation of the hidden layers."""
    dropout: Dropout = 0.0
    """Dropout rate of the towers' inputs and activations [0..1)."""

    @property
    def reads_features(self) -> bool:
        """Whether there are layers."""
        return self.widths is not None

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        encoder = self.encoder
        if isinstance(encoder, SelfAttentionConfig) and self.dim % encoder.heads:
            raise ValueError(
                f"dim must be a multiple of the number of attention heads; received dim {self.dim}"
                f" and {encoder.heads} heads"
            )
        return self

    @model_validator(mode="after")
    def _users_are_something(self) -> Self:
        if isinstance(self.pooling, NoHistoryConfig) and not self.user_id:
            raise ValueError("pooling: none requires user_id: true")
        return self

    @model_validator(mode="after")
    def _users_can_be_solved(self) -> Self:
        fits = (
            self.user_id
            and self.similarity == "dot"
            and not (self.item_bias or self.item_neighbours or self.terms)
            and (self.temperature, self.learn_temperature) == (1.0, False)
            and (self.widths is None or self.history_tower)
        )
        if isinstance(self.pooling, FoldInConfig) and not fits:
            raise ValueError(
                "pooling fold_in solves for user vectors by dot products with the item vectors: set"
                " user_id to true, similarity to dot, temperature to 1, and history_tower to true"
                " unless widths is null; remove learn_temperature, item_bias,"
                " item_neighbours and terms"
            )
        return self

    @model_validator(mode="after")
    def _history_passes_a_tower(self) -> Self:
        reads_no_items = isinstance(self.encoder, MeanConfig | NoHistoryConfig)
        if self.history_tower and (self.widths is None or reads_no_items):
            raise ValueError(
                "history_tower needs layers and an encoder that reads single items: set widths to"
                f" [] and pooling to attention or sasrec; received widths {self.widths} and pooling"
                f" {Choice('encoder').write(self.pooling)}"
            )
        return self

    def check(self, train: Any) -> None:
        """Checks that `fold_in` is trained with the loss that its solution minimises."""
        if isinstance(self.pooling, FoldInConfig) and not isinstance(train.loss, LeastSquares):
            raise ValueError(
                "model.pooling: fold_in requires the loss that it minimizes: set train.loss to"
                " least_squares"
            )

    @property
    def encoder(self) -> Any:
        """Config of the encoder."""
        return self.pooling

    @property
    def needs_order(self) -> bool:
        """Whether the model depends on the order of a history: true of self-attention."""
        return isinstance(self.pooling, SelfAttentionConfig)

    @property
    def reads_history(self) -> bool:
        """Whether a query depends on the items of its history."""
        return not isinstance(self.pooling, NoHistoryConfig)

    @property
    def trains_on_history(self) -> bool:
        """Whether training examples have a history: false of `fold_in`."""
        return not isinstance(self.pooling, FoldInConfig)

    @property
    def over_positions(self) -> bool:
        """Whether training uses packed sequences and learns at every position."""
        return isinstance(self.encoder, PositionConfig)

    @property
    def history_features(self) -> bool:
        """Whether a query reads the features of its history items."""
        return self.history_tower

    @property
    def distinct_history(self) -> bool:
        """Whether `query` can take the unique items of a batch's histories; false with dropout."""
        return self.history_tower and not self.dropout and self.trains_on_history

    def architecture(self) -> dict[str, Any]:
        """Returns the JSON-serializable options that weights and vectors depend on, by key."""
        pooling = Choice("encoder").write(self.encoder, BY_CONTENT)
        options = {**super().architecture(), "pooling": pooling}
        if isinstance(self.encoder, SelfAttentionConfig):
            del options["pooling"]["dropout"]
        return options


class AutoConfig(RetrievalConfig):
    """Chooses the model that suits the data, at the start of training.

    Keys that the config sets take precedence over the choice.
    """

    minutes: PositiveFloat | None = None
    """Time for a comparison of several models on held-back training events, before a training from
    scratch; the best is chosen. `null`: the shape of the data decides [min]."""
    keep: tuple[str, ...] | None = None
    """Keys of `train` that the choice leaves unchanged; `null`: those that the config sets."""
    own: tuple[str, ...] | None = None
    """Keys of the model that the choice leaves unchanged; `null`: those that the config sets."""


class EaseModelConfig(AutoConfig):
    """EASE as a model: the score is that of the term `ease`.

    Keys that the config sets take precedence, as with `auto`.
    """


class TransitionsModelConfig(AutoConfig):
    """Transitions as a model: the score is that of the term `transitions`.

    Keys that the config sets take precedence, as with `auto`.
    """


class IalsModelConfig(AutoConfig):
    """Implicit ALS as a model: least squares, and users solved from their histories.

    Keys that the config sets take precedence, as with `auto`.
    """
