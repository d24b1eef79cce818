"""The model: what every retrieval model has, and the two towers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from recsys.registry import Choice
from recsys.strict import Strict

Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
AGES, WEIGHTS = "history_age", "history_weight"
"""What may be read of the events of a history beside their items: see
`recsys.data.history_facts`."""
ASKED_AT = "asked_at"
"""When a question is asked, likewise."""
LEARNED_TEMPERATURE = (0.01, 10.0)
"""Bounds of a learned temperature. CLIP bounds its own below, by 0.01 (Radford et al.,
ICML 2021, section 2.5); a mean of losses is least sharp long before 10."""


class ItemAgeConfig(Strict):
    """What the age of an item adds to its score."""

    bins: Annotated[int, Field(ge=2, le=1024)] = 32
    """Moments that ages are counted at, as many training events between one and the next: each
    adds a number to every vector."""


class RetrievalConfig(Strict):
    """What every retrieval model has; a model's own config is a subclass.

    Data loading, evaluation and serving go by these keys.

    Attributes:
        summary: What the model is, for the model card.
        FREE: Keys that no weight or vector depends on: a training that goes on from an
            earlier model may change them.
    """

    summary: ClassVar[str] = (
        "A retrieval model: it embeds a user, by id, history and features, and an item with its"
        " features."
    )
    FREE: ClassVar[frozenset[str]] = frozenset(
        {
            "temperature",
            "id_dropout",
            "item_id_dropout",
            "history_dropout",
            "new_user_share",
            "init_stddev",
            "user_init_stddev",
            "table_placement",
            "table_exchange",
            "distinct_share",
            "exchange_dtype",
        }
    )

    dim: PositiveInt = 64
    """Width of the id tables and of the vectors that are compared, without bias and ages
    [floats]."""
    feature_dim: PositiveInt = 32
    """Width of the tables of the items' and users' features [floats]."""
    user_id: bool = True
    """Whether the query reads a row of the user's own; without, users are their
    histories and features."""
    history: PositiveInt = 20
    """Newest positives of a user that the query reads [items]."""
    history_of: Literal["past", "others"] | None = None
    """What a training example's history holds: `past`, what the user did before it;
    `others`, what else the user did; `null`: `past` where the data have an order, else
    `others`."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """How a query and a candidate are compared."""
    item_bias: bool = False
    """Whether each item has a learned bias, which is added to its similarity with any query,
    and with that divided by the temperature: popularity needs no room in the vectors. Items
    without training events share the bias of row 0, as they share its vector."""
    item_age: ItemAgeConfig | None = None
    """What the time since an item's first training event adds to its similarity with any query,
    as a learned function of that age, the same for all items; `null`: nothing. Needs events with
    times."""
    item_neighbours: NonNegativeInt = 0
    """Items that are most taken together with an item, and whose mean is averaged with its own
    vector where it is a candidate: propagation over the graph of users and items (LightGCN);
    0: none [items]."""
    temperature: PositiveFloat = 0.15
    """Divides the similarity in the loss."""
    learn_temperature: bool = False
    """Whether training goes on from `temperature` to a better one."""
    id_dropout: Dropout = 0.1
    """Share of training ids read as unknown, so that row 0 learns to stand in for
    users and items without one [0..1)."""
    item_id_dropout: Dropout | None = None
    """That share of the items alone, as candidates, so that their features learn to stand for
    items without events; `null`: as `id_dropout` [0..1)."""
    history_dropout: Dropout = 0.0
    """Share of the items of a history that training leaves out [0..1)."""
    new_user_share: Dropout = 0.1
    """Share of training examples whose user is shown as a new one, without id and
    history, so that the model learns what to recommend to them [0..1)."""
    init_stddev: PositiveFloat = 0.05
    """Standard deviation of the tables' first weights."""
    user_init_stddev: PositiveFloat | None = None
    """That of the users' rows: small, so that users start as their histories; `null`: as the
    others'."""
    table_placement: Literal["auto", "row", "column", "replicated"] = "auto"
    """How a table lies on several devices: `row` and `column` split it, `replicated`
    repeats it; `auto` splits by rows from 50,000 rows on."""
    table_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the tables' weights; `bfloat16` halves them and rounds stochastically."""
    table_exchange: Literal["auto", "cheapest", "gathered", "rows", "nodes", "dense"] = "auto"
    """How bags and gradients travel between devices: `auto` as on few devices up to 8, by
    bytes beyond; `cheapest` by bytes on any number; the others force one way."""
    distinct_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of a device's ids that is expected to be distinct, by which the bytes of an
    exchange are reckoned (0..1]."""
    exchange_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """Type in which rows and their gradients travel between devices; `bfloat16` halves the
    bytes and rounds; `int8`, with a scale a row, nearly quarters them and rounds at random."""

    @model_validator(mode="after")
    def _temperature_can_be_learned(self) -> Self:
        low, high = LEARNED_TEMPERATURE
        if self.learn_temperature and not low <= self.temperature <= high:
            raise ValueError(
                f"a temperature that is learned starts between {low:g} and {high:g}; received"
                f" {self.temperature}"
            )
        return self

    @property
    def vector_dim(self) -> int:
        """Width of the vectors that are compared, bias and ages included [floats]."""
        return self.dim + self.item_bias + (self.item_age.bins if self.item_age else 0)

    @property
    def needs_order(self) -> bool:
        """Whether the places of a history mean something to the model."""
        return False

    @property
    def reads_history(self) -> bool:
        """Whether a query depends on the items of its history."""
        return True

    @property
    def trains_on_history(self) -> bool:
        """Whether a training example has a history."""
        return True

    @property
    def over_positions(self) -> bool:
        """Whether training packs whole sequences; see `RetrievalModel.query`."""
        return False

    @property
    def history_facts(self) -> tuple[str, ...]:
        """What a query reads of the events of a history beside their items: inputs' names.

        Of `recsys.data.history_facts`; for models that are `over_positions` alone.
        """
        return ()

    @property
    def query_facts(self) -> tuple[str, ...]:
        """What a query reads beside rows and features: `history_facts`, and when it is asked."""
        return (*self.history_facts, *((ASKED_AT,) if self.item_age else ()))

    @property
    def reads_times(self) -> bool:
        """Whether a query reads when the events of a history happened."""
        return AGES in self.history_facts

    @property
    def history_features(self) -> bool:
        """Whether the query reads the features of a history's items."""
        return False

    @property
    def distinct_history(self) -> bool:
        """Whether `query` takes the items of a training batch's histories once each, too."""
        return False

    def architecture(self) -> dict[str, Any]:
        """Returns the options that weights and vectors depend on, by key, fit for JSON."""
        dumped = self.model_dump(mode="json")
        dumped["item_age"] = self.item_age is not None  # No weight depends on the moments.
        return {key: value for key, value in dumped.items() if key not in self.FREE}


class MeanConfig(Strict):
    """The mean of a history, weighted by learned weights of its places."""


class NoHistoryConfig(Strict):
    """No history: users are their own rows and features."""


class FoldInConfig(Strict):
    """The closed form of iALS over a history; training learns users' rows in its place."""

    negative_weight: PositiveFloat = 6.0
    """Weight of the mean over all items against an item of the history."""
    regularisation: PositiveFloat = 0.6
    """Weight of the vector's squared length, times the root of the history's items."""


class AttentionConfig(Strict):
    """The mean of a history, weighted by what the items are and by their places."""


class SelfAttentionConfig(Strict):
    """Blocks of self-attention over a history."""

    layers: PositiveInt = 2
    """Blocks of attention and a feed-forward layer, one after the other."""
    heads: PositiveInt = 2
    """Heads of the attention; must divide `model.dim`."""
    dropout: Dropout = 0.2
    """Share of activations that training drops [0..1)."""


class SequenceConfig(SelfAttentionConfig):
    """The self-attention over a history (SASRec: Kang and McAuley, ICDM 2018)."""

    width: PositiveInt | None = None
    """Width of the feed-forward layers; `null`: `model.dim` [floats]."""


class PositionConfig(SelfAttentionConfig):
    """Self-attention that learns at every position of packed sequences."""

    add_mean: bool = True
    """Whether the mean of the items so far, each weighted by how far back it is, is added to
    the state that self-attention gives; training then begins near `mean`."""
    event_weight: bool = False
    """Whether self-attention reads the weight of each event of a history, by a learned vector
    for its bucket that is added to the item's; needs `data.interactions.columns.weight`."""
    fact_dropout: Dropout = 0.1
    """Share of training rows whose times and weights are hidden, so that a history of which
    nobody tells them is answered well too [0..1); only where one of them is read."""


class HstuConfig(PositionConfig):
    """Attention without a softmax, gated (HSTU: Zhai et al., ICML 2024)."""

    relative_time: bool = False
    """Whether attention reads how long ago each event was, before the events that see it and
    before the question, beside how many events back it is; needs events with times."""


class SasRecConfig(PositionConfig):
    """Self-attention that learns at every position (SASRec: Kang and McAuley, ICDM 2018)."""

    width: PositiveInt | None = None
    """Width of the feed-forward layers; `null`: `model.dim` [floats]."""


class LigrConfig(SasRecConfig):
    """Self-attention whose blocks are gated (LiGR: Borisyuk et al., 2025)."""


class UserGateConfig(Strict):
    """A gate between a user's own row and the history (SimpleX: Mao et al., CIKM 2021)."""

    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of the row in the user's vector; the history has the rest (0..1)."""
    learned: bool = False
    """Whether training goes on from `share` to a better one."""


class TwoTowerConfig(RetrievalConfig):
    """The two towers."""

    summary: ClassVar[str] = (
        "A two-tower retrieval model: one tower embeds a user with the newest items of the"
        " user's history and with the user's features, where the data have any; the other embeds"
        " an item with its features."
    )
    FREE: ClassVar[frozenset[str]] = RetrievalConfig.FREE | {"dropout", "sequence"}

    pooling: Annotated[Any, Choice("encoder")] = MeanConfig()
    """How a history becomes one vector: `mean`, weighted by learned weights of its places;
    `none`, not at all, so that users are their own rows and features;
    `fold_in`, by the closed form of iALS when a user is asked for, in place of the row that
    training learns by `least_squares`;
    `attention`, weighted by what the items are too; self-attention that
    learns at every position, `sasrec`, `ligr` and `hstu`, with options
    `{type: sasrec, layers: 3}`; `sequence`, one that learns at the newest item alone; or an
    encoder of a plugin, `{type: name, …}`."""
    user_gate: UserGateConfig | None = None
    """How a user's own row and the history become one vector: weighed, `{share: 0.5}`, the
    history mapped linearly; `null`: they are added."""
    sequence: SequenceConfig = SequenceConfig()
    """The self-attention of `pooling: sequence`, where that has no options of its own."""
    widths: tuple[PositiveInt, ...] | None = (128,)
    """Hidden widths of both towers [floats]; `[]`: a linear layer; `null`: no layer, the
    vectors are the embeddings themselves, without features."""
    history_tower: bool = False
    """Whether the items of a history pass the candidate tower, and so bring their features; for
    encoders that read items one by one."""
    activation: Literal["silu", "relu", "gelu", "tanh"] = "silu"
    """Activation of the hidden layers."""
    dropout: Dropout = 0.0
    """Share of the towers' inputs and activations that training drops [0..1)."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        encoder = self.encoder
        if isinstance(encoder, SelfAttentionConfig) and self.dim % encoder.heads:
            raise ValueError(
                f"the heads of the attention must divide dim; received {encoder.heads} and"
                f" {self.dim}"
            )
        return self

    @model_validator(mode="after")
    def _users_are_something(self) -> Self:
        if isinstance(self.pooling, NoHistoryConfig) and not self.user_id:
            raise ValueError("pooling none needs rows of users: user_id must be true")
        if self.user_gate is not None and not (self.user_id and self.reads_history):
            raise ValueError(
                "user_gate weighs rows of users against histories, and needs both: set user_id to"
                " true and pooling to another one than none"
            )
        return self

    @model_validator(mode="after")
    def _users_can_be_solved(self) -> Self:
        fits = (
            self.user_id
            and self.similarity == "dot"
            and not (self.item_bias or self.item_age or self.item_neighbours or self.user_gate)
            and (self.temperature, self.learn_temperature) == (1.0, False)
            and (self.widths is None or self.history_tower)
        )
        if isinstance(self.pooling, FoldInConfig) and not fits:
            raise ValueError(
                "pooling fold_in solves users by dot products with the items' vectors: set user_id"
                " to true, similarity to dot, temperature to 1, history_tower to true unless widths"
                " is null; leave learn_temperature, item_bias, item_age, item_neighbours and"
                " user_gate out"
            )
        return self

    @model_validator(mode="after")
    def _history_passes_a_tower(self) -> Self:
        reads_no_items = isinstance(self.encoder, MeanConfig | NoHistoryConfig)
        if self.history_tower and (self.widths is None or reads_no_items):
            raise ValueError(
                "history_tower needs layers, and an encoder that reads items one by one: set"
                " widths to [] and pooling to attention or sasrec; received widths"
                f" {self.widths} and pooling {Choice('encoder').write(self.pooling)}"
            )
        return self

    @property
    def encoder(self) -> Any:
        """The config of the encoder, with the options of `sequence` where it is meant."""
        return self.sequence if self.pooling == SequenceConfig() else self.pooling

    @property
    def needs_order(self) -> bool:
        """Whether the places of a history mean something: to self-attention."""
        return isinstance(self.pooling, SelfAttentionConfig)

    @property
    def reads_history(self) -> bool:
        """Whether a query depends on the items of its history."""
        return not isinstance(self.pooling, NoHistoryConfig)

    @property
    def trains_on_history(self) -> bool:
        """Whether a training example has a history: not where users are solved from theirs."""
        return not isinstance(self.pooling, FoldInConfig)

    @property
    def over_positions(self) -> bool:
        """Whether training learns at every position of a history."""
        return isinstance(self.encoder, PositionConfig)

    @property
    def history_facts(self) -> tuple[str, ...]:
        """What the encoder reads of the events of a history beside their items."""
        encoder = self.encoder
        has_times = isinstance(encoder, HstuConfig) and encoder.relative_time
        has_weights = isinstance(encoder, PositionConfig) and encoder.event_weight
        return (*((AGES,) if has_times else ()), *((WEIGHTS,) if has_weights else ()))

    @property
    def history_features(self) -> bool:
        """Whether the query reads the features of a history's items: through a tower."""
        return self.history_tower

    @property
    def distinct_history(self) -> bool:
        """Whether an item of many histories may pass the tower once: where nothing is dropped."""
        return self.history_tower and not self.dropout and self.trains_on_history

    def architecture(self) -> dict[str, Any]:
        """Returns the options that weights and vectors depend on, by key, fit for JSON."""
        options = {**super().architecture(), "pooling": Choice("encoder").write(self.encoder)}
        if isinstance(self.encoder, SelfAttentionConfig):
            del options["pooling"]["dropout"]
        if isinstance(self.encoder, PositionConfig):
            del options["pooling"]["fact_dropout"]
        if isinstance(self.encoder, SequenceConfig):
            options["pooling"]["width"] = self.encoder.width or self.dim
        return options


class AutoConfig(RetrievalConfig):
    """The model that suits the data, chosen when they are there (`recsys.models.auto`).

    Keys of every model, where they differ from the default, replace what the rules say.
    """

    keep: tuple[str, ...] | None = None
    """Keys of `train` that the rules leave as they are; `null`: those that the config
    names."""
