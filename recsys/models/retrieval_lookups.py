"""The tables of a retrieval model and the lookups of its inputs.

Inputs are rows of tables, never ids. In addition to the inputs of `LookupModel` there are

    history    [batch, history]   rows of the item table, the newest first; 0 is padding
    <fact>     [batch, history]   property of the events of histories, -1: unknown; of models
                                  whose config has `history_facts`
    asked_at   [batch]            time of the query [min], -1: after all training events;
                                  of models with a term that reads it

`id_row` and the features of items have a row for each candidate of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import keras
from keras import ops

from recsys.data.catalogue import of_history
from recsys.data.event_log import ASKED, ASKED_AT, EVENT_FACTS, ITEM, PLACE
from recsys.models.inputs import ModelSpec
from recsys.models.lookups import InputSpec, LookupModel
from recsys.models.terms.term import Lookup, Tensors

_PASSED = ("segment", "at", ASKED, *EVENT_FACTS, PLACE)
"""Inputs that `query` gets without a lookup. `asked_at` has no lookup either, and `query` doesn't
get it."""


class RetrievalLookups(LookupModel):
    """Reads a query, with its history, and candidates from the tables of a retrieval model."""

    @classmethod
    def table_sizes(cls, spec: ModelSpec) -> dict[str, tuple[int, int]]:
        """Returns rows and width of each table; `users` only with `user_id`."""
        sizes = super().table_sizes(spec)
        return {n: size for n, size in sizes.items() if n != "users" or spec.config.user_id}

    def history_weights(self, rows: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns weights `[batch, history]` by which the lookup averages histories, or None.

        `query` then gets `history` as `[batch, dim]`; the single items are never in memory. A model
        that returns weights must set `averages_history`.

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
        """The inputs of the query, then of the candidate."""
        config = self.spec.config
        own = super().inputs_of_sides
        history = [InputSpec("history", "user", (config.history,))]
        history += [InputSpec(name, "user", (config.history,)) for name in config.history_facts]
        asked = [InputSpec(ASKED_AT, "user", ())] if ASKED_AT in config.query_facts else []
        user = [x for x in own if x.side == "user" and (config.user_id or x.name != "user_row")]
        query = [*history, *asked, *user]
        if config.history_features:
            query += [
                InputSpec(of_history(f.name), "user", (config.history, f.width))
                for f in self.spec.of_side("item")
            ]
        return (*query, *(x for x in own if x.side == "item"))

    @property
    def lookups(self) -> dict[str, Lookup]:
        """Table and shape of each input that reads a table."""
        config, own = self.spec.config, super().lookups
        user_row = own.pop("user_row")
        users = {"user_row": user_row} if config.user_id else {}
        # The items of a history that is not averaged are single ids `[batch * history]`.
        history = (None, config.history) if self.averages_history else (None,)
        read: dict[str, Lookup] = {**users, "history": ("items", history), **own}
        if config.history_features:
            of_items = self.spec.of_side("item")
            read |= {of_history(f.name): (f.name, (None, f.width)) for f in of_items}
        return read

    def look_up(self, inputs: Tensors, names: Iterable[str]) -> Tensors:
        """Returns the features float32 of inputs, as `query` and `candidate` get them.

        The result also has the lookups of terms, such as `item_bias` `[candidates, 1]`, which
        `query` and `candidate` don't get.
        """
        read = [name for name in names if name not in (*_PASSED, ASKED_AT)]
        ids, weights = self._ids_and_weights({name: inputs[name] for name in read})
        if "history" not in ids:
            return self.embedding(ids, weights=weights)
        rows = inputs["history"]
        if self.averages_history:
            weights["history"] = self.history_weights(rows)
            return {**self.embedding(ids, weights=weights), "history_rows": rows}
        # Single ids are sent only to the device that has their rows.
        ids["history"] = ops.reshape(inputs.get(ITEM, rows), (-1,))
        of_items = {of_history(f.name): f.name for f in self.spec.of_side("item")}
        of_items = {name: of_item for name, of_item in of_items.items() if name in ids}
        for name, of_item in of_items.items():
            ids[name] = ops.reshape(ids[name], (-1, ids[name].shape[-1]))
            weights[name] = self.weights_of_tokens(of_item, ids[name])
        features = self.embedding(ids, weights=weights)
        if PLACE not in inputs:
            for name in ("history", *of_items):
                shape = (-1, self.spec.config.history, features[name].shape[-1])
                features[name] = ops.reshape(features[name], shape)
        passed = {name: inputs[name] for name in _PASSED if name in inputs}
        return {**features, "history_rows": rows, **passed}
