"""The tables of a retrieval model, and what its inputs read of them.

Inputs are rows of tables, never ids; `LookupModel.inputs_of_sides` lists them:

    user_row   [batch]            row of the user table; 0 for a user without one
    history    [batch, history]   rows of the item table, the newest first; 0 is padding
    <fact>     [batch, history]   what is told of the events of histories, -1: unknown; of
                                  models whose config has `history_facts`
    asked_at   [batch]            time of the query [min], -1: after all training events;
                                  of models whose config has `item_age`
    id_row     [candidates]       row of the item table; 0 for an item without one
    <feature>  [batch, width]     token rows of the user, or `[candidates, width]` of the
                                  item; 0 is padding
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import keras
from keras import ops

from recsys.data.catalogue import of_history
from recsys.data.history_facts import ASKED, ASKED_AT, ITEM, OF_EVENTS, PLACE
from recsys.embedding import FeatureConfig, SparseModel, TableConfig, embedding_layer
from recsys.embedding.optimizers import RowOptimizer
from recsys.models.counted_layers import BagWeights, ItemGraph
from recsys.models.inputs import ModelSpec, Side

Tensors = dict[str, keras.KerasTensor]
Tables = dict[str, TableConfig]
_PASSED = ("segment", "at", ASKED, *OF_EVENTS, PLACE)
"""Inputs of a query that no table is asked for; nor is one for `asked_at`, which `query` doesn't
read."""


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


class LookupModel(SparseModel):
    """Has the tables of a retrieval model, and looks its inputs up in them.

    Args:
        spec: What the model is.
        tables: The tables by name; None: those of `make_tables`, without optimizers.
        seed: Seed of the initial rows.
        name: Name of the model.

    Attributes:
        spec: What the model is.
        table_configs: The configs of the tables; they may be set until the model is built.
    """

    def __init__(self, spec: ModelSpec, tables: Tables | None, seed: int, name: str) -> None:
        super().__init__(name=name)
        spec.check()
        self.spec, self.seed = spec, seed
        self.table_configs = self.make_tables(spec) if tables is None else tables
        self.item_graph: ItemGraph | None = None
        self.bag_weights: BagWeights | None = None

    tables_can_grow = False  # They have the rows of the data; a warm start adds some.
    weights_by_row: ClassVar[Mapping[str, tuple[Literal["users", "items"], int]]] = {}
    """Weights of layers with an entry for each row of users or items, which a warm start carries
    over by id: whose rows, and the axis, by path without the model's name, such as
    `{"head/kernel": ("items", 1)}`. Entries of new ids keep their initial values."""

    @property
    def config(self) -> Any:
        """The model's options, a `Config`."""
        return self.spec.config

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
                between_nodes_dtype=config.between_nodes_dtype,
            )
            for name, (rows, dim) in sizes.items()
        }
        if biases:
            bias = tables["item_bias"]
            bias.initializer = keras.initializers.Zeros()
            if bias.placement == "column":  # It has one.
                bias.placement = "row"
        return tables

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
        config, tables = self.spec.config, self.table_configs
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
                weights[feature.name] = self._weights_of(feature.name, ids[feature.name])
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
        of_items = {of_history(f.name): f.name for f in self.spec.of_side("item")}
        of_items = {name: of_item for name, of_item in of_items.items() if name in ids}
        for name, of_item in of_items.items():
            ids[name] = ops.reshape(ids[name], (-1, ids[name].shape[-1]))
            weights[name] = self._weights_of(of_item, ids[name])
        features = self.embedding(ids, weights=weights)
        if PLACE not in inputs:
            for name in ("history", *of_items):
                shape = (-1, self.spec.config.history, features[name].shape[-1])
                features[name] = ops.reshape(features[name], shape)
        passed = {name: inputs[name] for name in _PASSED if name in inputs}
        return {**features, "history_rows": rows, **passed}

    def _weights_of(self, feature: str, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weights of the tokens of a feature's bags `[…, width]`."""
        if self.bag_weights is not None:
            return self.bag_weights.of_tokens(feature, tokens)
        return ops.greater(tokens, 0)  # Row 0 of a feature's table is padding.
