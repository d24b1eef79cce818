"""The lookups of models whose queries have a history.

In addition to those of `recsys.models.lookups`, the inputs are

    history    [batch, history]   rows of the item table, the newest first; 0 is padding
    <feature>  [batch, width]     context of the query: token rows, or numbers, of a feature of
                                  events; 0 is missing
    history.<feature>  [batch, history, width]  attributes of the history's events, likewise, and
                                  features of its items, if the model reads them

`id_row` and the features of items have a row for each candidate of the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
from keras import ops

from recsys.data.catalogue import of_history
from recsys.data.event_log import ITEM, PLACE
from recsys.errors import RecsysError, UsageError
from recsys.losses.loss import TrainOptions
from recsys.models.inputs import FeatureSpec, ModelSpec, Side, event_inputs
from recsys.models.lookups import SMALL, InputSpec, LookupModel
from recsys.models.terms import Lookup, Tensors

_PASSED = ("segment", "at", PLACE)
"""Inputs that a model gets without a lookup."""


class HistoryLookups(LookupModel):
    """Reads queries with a history, and items, from the tables."""

    @classmethod
    def table_sizes(cls, spec: ModelSpec) -> dict[str, tuple[int, int]]:
        """Returns rows and width of each table; `users` only with `user_id`."""
        sizes = super().table_sizes(spec)
        return {n: size for n, size in sizes.items() if n != "users" or spec.config.user_id}

    @property
    def inputs_of_sides(self) -> tuple[InputSpec, ...]:
        """The inputs of the query, then of the item."""
        config = self.spec.config
        own = super().inputs_of_sides
        history = [InputSpec("history", "user", (config.history,))] if config.history else []
        events = [
            InputSpec(
                x.name, "user", (config.history, *x.shape) if x.of_history else x.shape, x.dtype
            )
            for x in event_inputs(config, self.spec.features)
        ]
        user = [x for x in own if x.side == "user" and (config.user_id or x.name != "user_row")]
        of_items = [
            InputSpec(of_history(f.name), "user", (config.history, *f.entry[0]), f.entry[1])
            for f in self._features_of_history
        ]
        return (*history, *events, *user, *of_items, *(x for x in own if x.side == "item"))

    @property
    def lookups(self) -> dict[str, Lookup]:
        """Table and shape of each input that reads a table."""
        config, own = self.spec.config, super().lookups
        user_row = own.pop("user_row")
        users = {"user_row": user_row} if config.user_id else {}
        context = {f.name: f for f in self.spec.context if not f.floats}
        history: Lookup = ("items", (None,))  # Single ids `[batch * history]`.
        return {
            **users,
            **({"history": history} if config.history else {}),
            **own,
            **{name: (f.name, (None, f.width)) for name, f in context.items()},
            **{name: (f.name, (None, f.width)) for name, f in self._item_bags.items()},
            **{name: (f.name, (None, f.width)) for name, f in self._attributes.items()},
        }

    @property
    def _item_bags(self) -> dict[str, FeatureSpec]:
        """The tokens of the items of histories that the model reads, by input."""
        return {of_history(f.name): f for f in self._features_of_history if not f.floats}

    @property
    def _features_of_history(self) -> tuple[FeatureSpec, ...]:
        """The features of the items of histories that the model reads."""
        config = self.spec.config
        return self.spec.of_side("item") if config.history and config.history_features else ()

    @property
    def _attributes(self) -> dict[str, FeatureSpec]:
        """The tokens of the events of histories, by input."""
        return {of_history(f.name): f for f in self.spec.attributes if not f.floats}

    def look_up(self, inputs: Tensors, names: Iterable[str]) -> Tensors:
        """Returns the features float32 of inputs, as the methods of a model get them.

        The result also has the lookups of terms, such as `item_bias` `[candidates, 1]`, which
        the methods don't get.
        """
        names = [name for name in names if name not in _PASSED]
        read, numbers = self._rows_and_numbers(inputs, names)
        ids, weights = self._ids_and_weights(read)
        if "history" not in ids:
            return {**self.embedding(ids, weights=weights), **numbers}
        rows = inputs["history"]
        # Single ids are sent only to the device that has their rows.
        ids["history"] = ops.reshape(inputs.get(ITEM, rows), (-1,))
        bags = {n: f for n, f in {**self._item_bags, **self._attributes}.items() if n in ids}
        for name, feature in bags.items():
            ids[name] = ops.reshape(ids[name], (-1, feature.width))
            weights[name] = self.weights_of_tokens(feature.name, ids[name])
        features = self.embedding(ids, weights=weights)
        by_item = ("history", *self._item_bags) if PLACE in inputs else ()
        for name in (name for name in ("history", *bags) if name not in by_item):
            shape = (-1, self.spec.config.history, features[name].shape[-1])
            features[name] = ops.reshape(features[name], shape)
        passed = {name: inputs[name] for name in _PASSED if name in inputs}
        return {**features, **numbers, "history_rows": rows, **passed}

    @property
    def _read_by_id(self) -> dict[str, str]:
        """Names of the lookups by id or token that `train.table_regularisation` is of, by table."""
        of_terms = {
            table: name
            for term in self.terms.values()
            for name, (table, shape) in term.lookups.items()
            if shape == (None,)
        }
        read = (f for f in self.spec.features if f.is_context or f.side != "event")
        features = {f.name: f.name for f in read if not f.floats}
        return {**features, **of_terms, "users": "user_row", "items": "id_row"}

    def _penalties(self, train: TrainOptions) -> dict[str, float]:
        """Returns `table_regularisation` of `train`.

        Raises:
            UsageError: It names a table that doesn't exist (R369).
        """
        of_events = {f.name for f in self.spec.of_side("event") if not f.is_context}
        tables = [name for name in self.table_configs if name not in of_events]
        missing = sorted(set(train.table_regularisation) - {*tables})
        if missing:
            raise UsageError(
                "R369",
                f"train.table_regularisation must name tables of the model: {', '.join(tables)}.",
                f"Leave {', '.join(missing)} out, or set model.user_id or model.item_bias to true.",
                dict(train.table_regularisation),
            )
        return dict(train.table_regularisation)

    def _examples(self, side: Side) -> Tensors:
        """Returns small numbers as features of one query without history, or of one item."""
        config, spec = self.spec.config, self.spec
        features: Tensors = {}
        widths = {f.name: f.dim for f in spec.features}
        widths |= {x.name: x.shape[-1] for x in self.inputs_of_sides if x.dtype == "float32"}
        of_entry = {
            "history": config.dim,
            **{of_history(f.name): f.dim for f in (*spec.of_side("item"), *spec.attributes)},
        }
        is_averaged = self.lookups.get("history", ("", ()))[1] == (None, config.history)
        per_event = () if is_averaged else (config.history,)
        for name in self.names_of_side(side):
            if name in of_entry:
                features[name] = ops.full((1, *per_event, of_entry[name]), SMALL)
            else:
                features[name] = ops.full((1, widths.get(name, config.dim)), SMALL)
        if side == "user" and config.history:
            features["history_rows"] = ops.zeros((1, config.history), "int32")
        return features

    def _result_of(self, method: str) -> str:
        return f"The result of {type(self).__name__}.{method}()"

    @contextlib.contextmanager
    def _naming_missing(self, features: Tensors, method: str) -> Iterator[None]:
        """Turns a KeyError of a missing feature in `method` into an error that lists all."""
        there = sorted(features)
        try:
            yield
        except KeyError as error:
            if not _asks(error, features):
                raise
            raise UsageError(
                "R339",
                f"A feature that {type(self).__name__}.{method}() reads must be one of"
                f" {', '.join(there)}.",
                "Read one of these, or add a feature of this name to data.users.features or"
                " data.items.features; user_row needs model.user_id.",
                error.args[0],
            ) from error

    def _check_finite(self, method: str, vectors: keras.KerasTensor) -> None:
        """Checks the vectors that `method` returned for small numbers and an empty history.

        Raises:
            RecsysError: One has entries that are not finite (R334).
        """
        if not _is_concrete(vectors) or bool(ops.all(ops.isfinite(vectors))):
            return
        raise RecsysError(
            "R334",
            f"{self._result_of(method)} must be finite. It is not before any training, for small"
            " inputs and an empty history.",
            "Look there for a division by 0, or a logarithm or root of 0 or less, such as the mean"
            " of no items.",
            "NaN or infinity",
        )


def _asks(error: KeyError, features: Tensors) -> bool:
    """Returns whether an error was raised by `features[name]` and not by another dict."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_there = trace is not None and any(x is features for x in trace.tb_frame.f_locals.values())
    return is_there and error.args[0] not in features


def _is_concrete(x: Any) -> bool:
    """Returns whether a tensor has values, and isn't traced."""
    if keras.backend.backend() != "jax":
        return False
    import jax  # JAX is not installed where a model is exported.

    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)


class RetrievalLookups(HistoryLookups):
    """Reads a query and candidates; the lookup may average the query's history."""

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
    def lookups(self) -> dict[str, Lookup]:
        """Table and shape of each input that reads a table."""
        own, length = super().lookups, self.spec.config.history
        if self.averages_history:
            own["history"] = ("items", (None, length))
            for name, feature in self._attributes.items():
                own[name] = (feature.name, (None, length * feature.width))
        return own

    def look_up(self, inputs: Tensors, names: Iterable[str]) -> Tensors:
        """Returns the features float32 of inputs, as `query` and `candidate` get them."""
        names = [*names]
        if not self.averages_history or "history" not in names:
            return super().look_up(inputs, names)
        names = [name for name in names if name not in _PASSED]
        read, numbers = self._rows_and_numbers(inputs, names)
        ids, weights = self._ids_and_weights(read)
        rows = inputs["history"]
        of_items = self.history_weights(rows)
        weights["history"] = of_items
        shares = {}
        for name in (of_history(f.name) for f in self.spec.attributes):
            if name in numbers:
                numbers[name] = _mean_of_events(numbers[name], of_items)
            elif name in ids:
                ids[name], weights[name] = _token_weights(ids[name], of_items)
                shares[name] = _share(weights[name], of_items)
        features = self.embedding(ids, weights=weights)
        features |= {name: features[name] * share for name, share in shares.items()}
        return {**features, **numbers, "history_rows": rows}


def _mean_of_events(numbers: keras.KerasTensor, weights: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the weighted means `[batch, floats]` of histories `[batch, history, floats]`."""
    total = ops.sum(weights, axis=1, keepdims=True)
    return ops.sum(weights[..., None] * numbers, axis=1) / ops.where(total > 0, total, 1.0)


def _token_weights(
    tokens: keras.KerasTensor, weights: keras.KerasTensor
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Returns the tokens of histories and their weights, both `[batch, history * width]`.

    Args:
        tokens: Token rows `[batch, history, width]`; 0 is missing.
        weights: Weights of the events `[batch, history]`; an event's tokens have equal shares.
    """
    is_there = ops.cast(tokens > 0, "float32")
    n = ops.maximum(ops.sum(is_there, axis=-1, keepdims=True), 1.0)
    of_tokens = weights[..., None] * is_there / n
    shape = (-1, tokens.shape[1] * tokens.shape[2])
    return ops.reshape(tokens, shape), ops.reshape(of_tokens, shape)


def _share(of_tokens: keras.KerasTensor, weights: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the weight of the events that have tokens relative to that of all `[batch, 1]`.

    The lookup divides by the first; the mean over all events, missing ones as 0, by the second.
    """
    total = ops.sum(weights, axis=1, keepdims=True)
    return ops.sum(of_tokens, axis=1, keepdims=True) / ops.where(total > 0, total, 1.0)
