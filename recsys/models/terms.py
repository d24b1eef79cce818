"""Terms, the parts of a score that a model lists: `Term`, the base class, and the built-in ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import keras
import numpy as np
from keras import ops

from recsys import registry
from recsys.data.event_log import ASKED_AT, OLDEST, UNKNOWN, minutes
from recsys.data.hold_out import KeptEvents
from recsys.data.neighbours import graph_neighbours
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.models.config import ItemAgeConfig, ItemNeighboursConfig, TermConfig
from recsys.models.inputs import ModelInputs, ModelSpec
from recsys.registry import register_term

Tensors = dict[str, keras.KerasTensor]
Lookup = tuple[str, tuple[int | None, ...]]
"""Name of the table that a lookup reads, and the shape of its input."""


@dataclasses.dataclass(frozen=True)
class TermTable:
    """A table of a term, with a row for each user or item.

    Attributes:
        rows_of: `users` or `items`, what the rows are.
        dim: Width [floats].
        initializer: Initial values: a Keras initializer, or its name.
    """

    rows_of: Literal["users", "items"]
    dim: int
    initializer: Any = "zeros"


class Term(keras.layers.Layer):
    """A term of the score, which a model lists in `config.score_terms`.

    Register a subclass that overrides the methods it needs; a config enables it by `model.terms`:

        @recsys.register_term("item_popularity")
        class ItemPopularity(recsys.Term):
            class Config(recsys.TermConfig):
                columns: ClassVar[int] = 1

            def build(self, input_shape=None):
                rows = self.spec.item_rows
                self.log = self.add_weight(name="log", shape=(rows,), trainable=False)
                self.scale = self.add_weight(name="scale", shape=(), initializer="zeros")

            def adapt(self, events, inputs):
                self.log.assign(np.log1p(inputs.items.row_counts))

            @property
            def adapted(self):
                return [self.log]

            def of_query(self, read, vectors):
                return ops.ones_like(vectors[:, :1])

            def of_candidate(self, read, vectors):
                return self.scale * ops.take(self.log, read["id_row"])[:, None]

    Its variables are saved, restored and exported with the model. The model's `query` and
    `candidate` don't get its lookups. `of_query`, `of_candidate` and `item_row` get `read`: the
    inputs by name, and the embeddings of the term's own lookups.

    Args:
        options: Config of the term.
        spec: Config and sizes of the model.
        name: Name of the layer; None: the registered name of the class.

    Attributes:
        Config: Type of the config.
    """

    Config: ClassVar[type[Any]] = TermConfig

    def __init__(self, options: Any, spec: ModelSpec, name: str | None = None) -> None:
        super().__init__(name=name or registry.name_of("term", options))
        self.options, self.spec = options, spec

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables; by default none."""

    # --- tables

    @property
    def tables(self) -> dict[str, TermTable]:
        """The term's own tables by name; by default none."""
        return {}

    @property
    def lookups(self) -> dict[str, Lookup]:
        """Table and input shape of each lookup by name; by default none."""
        return {}

    def ids(self, inputs: Tensors) -> dict[str, tuple[keras.KerasTensor, Any]]:
        """Returns the rows int32 to look up, and their weights or None, by name of the lookup.

        Args:
            inputs: Inputs that the model looks up, by name: of the user, the item, or both.
        """
        return {}

    def token_weights(self, feature: str, tokens: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns weights of the tokens of a feature's bags `[…, width]`; None: no weights."""
        return None

    # --- the score of a retrieval model

    def item_row(self, row: keras.KerasTensor, read: Tensors) -> keras.KerasTensor:
        """Returns the embeddings `[candidates, dim]` that `candidate` reads as `id_row`."""
        return row

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns `[batch, Config.columns]` float32 to append to query vectors `[batch, dim]`.

        Their dot product with the columns of `of_candidate` is added to the similarity.
        """
        return None

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns `[candidates, Config.columns]` float32 to append to candidate vectors."""
        return None

    # --- counted weights

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Sets the weights that are counted from the training data; called before training.

        Args:
            events: The training events.
            inputs: Vocabularies and features.
        """

    @property
    def adapted(self) -> list[Any]:
        """Weights that `adapt` sets; neither training nor a warm start changes them."""
        return []


def terms_of(spec: ModelSpec) -> dict[str, Term]:
    """Returns the unbuilt terms of a model by name."""
    chosen = {registry.name_of("term", options): options for options in spec.config.score_terms}
    return {
        name: registry.class_of("term", options)(options, spec) for name, options in chosen.items()
    }


# --- a bias of each item


@register_term("item_bias")
class ItemBias(Term):
    """Adds a learned bias of the item: the columns are 1 for a query and the bias for a candidate.

    The biases are a table of width 1. Items without training events read row 0, as for embeddings.
    """

    @property
    def tables(self) -> dict[str, TermTable]:
        """The table of the biases."""
        return {"item_bias": TermTable("items", 1)}

    @property
    def lookups(self) -> dict[str, Lookup]:
        """The lookup of the candidates' biases."""
        return {"item_bias": ("item_bias", (None,))}

    def ids(self, inputs: Tensors) -> dict[str, tuple[keras.KerasTensor, Any]]:
        """Returns the item rows of the candidates `[candidates]` int32, without weights."""
        return {"item_bias": (inputs["id_row"], None)} if "id_row" in inputs else {}

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns ones `[batch, 1]`."""
        return ops.ones_like(vectors[:, :1])

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the biases `[candidates, 1]`."""
        return read["item_bias"]


# --- neighbours of items


@register_term("item_neighbours")
class ItemNeighbours(Term):
    """Averages items with their neighbours (LightGCN without user embeddings).

    LightGCN (He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for
    Recommendation", SIGIR 2020) has embeddings e⁰ of users and items, and layers

        e_u^(k+1) = Σ_{i of u} e_i^(k) / √(d_u d_i),    e_i^(k+1) = Σ_{u of i} e_u^(k) / √(d_u d_i)

    and the final vector is the mean over the layers. Without user embeddings (e_u⁰ = 0), a user's
    vector is a weighted sum of the items of the history (layer 1), and an item's vector is

        e_i = (e_i⁰ + Σ_j C_ij e_j⁰) / 2

    since e_i¹ = 0. C sums over the users (`recsys.data.neighbours.graph_neighbours`), so a step
    reads only item rows. Only the `n` largest entries of each row of C are kept, and normalised to
    sum 1. The neighbours are counted from the training events and replicated on all devices.
    """

    def __init__(self, options: ItemNeighboursConfig, spec: ModelSpec) -> None:
        super().__init__(options, spec, name="item_graph")

    @property
    def lookups(self) -> dict[str, Lookup]:
        """The lookup of the candidates' neighbours, in the item table."""
        return {"item_neighbours": ("items", (None, self.options.count))}

    def build(self, input_shape: Any = None) -> None:
        """Creates the neighbours `[rows, n]`, rows of the item table, and their weights."""
        shape = (self.spec.item_rows, self.options.count)
        options: dict[str, Any] = {"shape": shape, "trainable": False}
        self.neighbours = self.add_weight(
            name="neighbours", initializer="zeros", dtype="int32", **options
        )
        self.shares = self.add_weight(name="shares", initializer="zeros", **options)

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Counts the neighbours from the training events."""
        rows, weights = graph_neighbours(events, *self.neighbours.shape)
        self.neighbours.assign(rows)
        self.shares.assign(weights)

    @property
    def adapted(self) -> list[Any]:
        """All of its weights."""
        return list(self.weights)

    def ids(self, inputs: Tensors) -> dict[str, tuple[keras.KerasTensor, Any]]:
        """Returns the rows of the neighbours `[candidates, n]` int32, and their weights."""
        if "id_row" not in inputs:
            return {}
        rows, shares = (
            ops.take(x, inputs["id_row"], axis=0) for x in (self.neighbours, self.shares)
        )
        return {"item_neighbours": (rows, shares)}

    def item_row(self, row: keras.KerasTensor, read: Tensors) -> keras.KerasTensor:
        """Returns the means `[candidates, dim]` of the items' rows and their neighbours' means."""
        return (row + read["item_neighbours"]) / 2


# --- weights of tokens

_BAGS_AT_ONCE = 2**16
"""Bags per block of the count."""


@register_term("bag_weights")
class BagWeights(Term):
    """Weights of a feature's tokens in the mean of a bag: rare tokens count more.

    The weight of a token is its inverse document frequency (Spärck Jones, "A Statistical
    Interpretation of Term Specificity and Its Application in Retrieval", Journal of Documentation
    1972), in the smooth form of scikit-learn,

        w_t = 1 + ln((1 + n) / (1 + n_t))

    for n items (or users), n_t of them with the token. The vector of a bag is Σ w_t e_t / Σ w_t.
    """

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights `[rows]` of each feature, initially 1."""
        self.of_feature = {
            f.name: self.add_weight(
                name=f.name, shape=(f.rows,), initializer="ones", trainable=False
            )
            for f in self.spec.features
        }

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Counts the weights from the bags of each feature."""
        bags = {f.name: f.bags for f in (*inputs.catalogue.features, *inputs.user_features)}
        for name, weight in self.of_feature.items():
            weight.assign(inverse_frequencies(bags[name], weight.shape[0]))

    @property
    def adapted(self) -> list[Any]:
        """All weights of the term."""
        return list(self.weights)

    def token_weights(self, feature: str, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weights of tokens `[…, width]` int32 of a feature, 0 for padding."""
        weights = ops.take(ops.convert_to_tensor(self.of_feature[feature]), tokens, axis=0)
        return ops.where(tokens > 0, weights, 0.0)


def inverse_frequencies(bags: np.ndarray, rows: int) -> np.ndarray:
    """Returns the weight of each token `[rows]` float32.

    Args:
        bags: Token rows `[n, width]`, padded with 0; empty bags are not counted.
        rows: Rows of the feature's table.
    """
    n_of_token, n = np.zeros(rows, np.int64), 0
    for start in range(0, len(bags), _BAGS_AT_ONCE):
        block = np.sort(bags[start : start + _BAGS_AT_ONCE], axis=1)
        is_first = np.diff(block, axis=1, prepend=0) != 0  # Padding comes first.
        n_of_token += np.bincount(block[is_first], minlength=rows)
        n += int(is_first.any(axis=1).sum())
    return (1 + np.log((1 + n) / (1 + n_of_token))).astype(np.float32)


# --- age of items

_N_KNOTS = 16
_HOUR = 60.0
_STEP = math.log1p(OLDEST / 60 / _HOUR) / (_N_KNOTS - 1)
KNOTS = np.expm1(_STEP * np.arange(_N_KNOTS)) * _HOUR
"""Ages at which g is learned `[16]` [min]: equidistant in ln(1 + hours), up to 34 years."""


@register_term("item_age")
class ItemAge(Term):
    """Adds a learned function of an item's age to its score.

    The birth b of an item is the time of its first training event. For a query at time t, the score
    is the similarity plus g(m - b), where m is the last of K reference times that is not after t,
    and g is a learned function that all items share. The item's K columns are g of its ages at the
    K reference times; the query's columns are the one-hot encoding of m. Their dot product is g(m -
    b).

    Ages are measured at a reference time *before* the query, so an event never reveals that its own
    item exists: items that are not born at the reference time share a learned value with items
    without events, as in serving. The last reference time is the end of the training events: it is
    used by all later queries and by no training example. Koren ("Collaborative Filtering with
    Temporal Dynamics", KDD 2009, section 4.1) has time-dependent item biases in bins, with free
    parameters for each item; Covington et al. (RecSys 2016, section 3.3) have the "example age" as
    an input of a ranker.

    Births and reference times are non-trainable weights, so they are saved, restored and exported
    with the model. They are replicated on all devices.
    """

    def __init__(self, options: ItemAgeConfig, spec: ModelSpec) -> None:
        super().__init__(options, spec, name="item_ages")

    def build(self, input_shape: Any = None) -> None:
        """Creates births `[rows]` and reference times `[bins]` [min], and the values of g."""
        options: dict[str, Any] = {"dtype": "int32", "trainable": False}
        unknown = keras.initializers.Constant(UNKNOWN)
        self.births = self.add_weight(
            name="births", shape=(self.spec.item_rows,), initializer=unknown, **options
        )
        self.moments = self.add_weight(
            name="moments", shape=(self.options.bins,), initializer="zeros", **options
        )
        self.at_knots = self.add_weight(
            name="at_knots", shape=(_N_KNOTS,), initializer="zeros", dtype="float32"
        )
        self.unseen = self.add_weight(
            name="unseen", shape=(1,), initializer="zeros", dtype="float32"
        )

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Sets births and reference times from the training events."""
        self.births.assign(item_births(events, self.spec.item_rows))
        self.moments.assign(moments(events, self.options.bins))

    @property
    def adapted(self) -> list[Any]:
        """The weights that `adapt` sets."""
        return [self.births, self.moments]

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the queries' columns `[batch, bins]` float32; see `at_moment`."""
        return self.at_moment(read[ASKED_AT])

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the candidates' columns `[candidates, bins]` float32; see `of_items`."""
        return self.of_items(read["id_row"])

    def of_items(self, rows: keras.KerasTensor) -> keras.KerasTensor:
        """Returns g of the ages of items `[b]` at the reference times, `[b, bins]` float32."""
        birth = ops.take(self.births, rows, axis=0)[:, None]
        moment = ops.convert_to_tensor(self.moments)[None, :]
        was_seen = ops.logical_and(birth != UNKNOWN, birth < moment)
        age = ops.cast(ops.where(was_seen, moment - birth, 0), "float32")
        place = ops.log1p(age / _HOUR) / _STEP
        # Linear interpolation: all but two knots have weight 0.
        distance = ops.abs(place[..., None] - ops.arange(_N_KNOTS, dtype="float32"))
        of_age = ops.sum(ops.maximum(1.0 - distance, 0.0) * self.at_knots, axis=-1)
        return ops.where(was_seen, of_age, ops.convert_to_tensor(self.unseen))

    def at_moment(self, time: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the one-hot encoding `[b, bins]` float32 of the queries' reference times.

        Args:
            time: Query times `[b]` int32 [min]; `UNKNOWN`: after all training events.

        Returns:
            1 at the last reference time that is not after the query; zeros before the first one.
        """
        time = ops.where(time == UNKNOWN, np.iinfo(np.int32).max, time)
        moment = ops.convert_to_tensor(self.moments)[None, :]
        passed = ops.sum(ops.cast(time[:, None] >= moment, "int32"), axis=1)
        places = ops.arange(1, self.options.bins + 1, dtype="int32")
        return ops.cast(passed[:, None] == places, "float32")


def item_births(events: KeptEvents, n_rows: int) -> np.ndarray:
    """Returns the time of each item's first event `[n_rows]` int32 [minutes since 1970, UTC].

    Args:
        events: The training events.
        n_rows: Item rows, including row 0.

    Returns:
        `UNKNOWN` for items without events and for row 0.
    """
    never = np.iinfo(np.int32).max
    births = np.full(n_rows, never, np.int32)
    for item_row, minute in _items_and_minutes(events):
        np.minimum.at(births, item_row, minute)
    births[births == never] = UNKNOWN
    births[UNKNOWN_ROW] = UNKNOWN
    return births


def moments(events: KeptEvents, n: int) -> np.ndarray:
    """Returns the reference times `[n]` int32 [minutes since 1970, UTC], ascending.

    They divide the events into bins of about equal size. The last one is the minute after the
    newest event.

    Args:
        events: The training events; at least one.
        n: Number of reference times.
    """
    newest = max(int(minute.max()) for _, minute in _items_and_minutes(events))
    places = np.arange(1, n) * len(events.times) // n
    return np.append(minutes(events.times[places]), newest + 1).astype(np.int32)


def _items_and_minutes(events: KeptEvents) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the item rows and minutes of the kept events, by shard."""
    for part in events.shards:
        if len(part):
            minute = minutes(part.shard.timestamp)
            yield part.item_row, np.delete(minute, part.held) if len(part.held) else minute
