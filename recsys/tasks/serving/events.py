"""Features of events in the graph: raw columns to context and attributes.

A time, the raw time column of the interactions, has several uses. In the context it is the query
time: for the parts of a date, and the gap to the newest event of the history. Without it, these
are missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from recsys.data.catalogue import of_history
from recsys.data.event_features import LearnedFeature
from recsys.data.event_graphs import MISSING, EventEncoder
from recsys.data.label_config import LabelConfig
from recsys.data.statistics import labels_of_users
from recsys.models.inputs import EventInput
from recsys.savedmodel.event_columns import ATTRIBUTE, CONTEXT, Column, EventColumns, Type
from recsys.savedmodel.inputs import typed
from recsys.savedmodel.signatures import encoded_name, event_inputs
from recsys.tasks.model_folder import TrainedModel
from recsys.tasks.serving.stored_users import StoredUsers

_Tensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class EventReads:
    """What a model reads of events besides items.

    Attributes:
        inputs: The model's inputs that come from events.
        features: The features of the events of the data.
        labels: Labels of events that its statistics of users are of, each after its `given`.
    """

    inputs: tuple[EventInput, ...]
    features: tuple[LearnedFeature, ...] = ()
    labels: Mapping[str, LabelConfig] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, saved: TrainedModel) -> EventReads:
        """Returns what a trained model reads."""
        inputs, spec = saved.inputs, saved.model.spec
        read = {feature.name for feature in spec.of_side("row")}
        statistics = [one for one in inputs.event_features if one.name in read]
        labels = labels_of_users(statistics, inputs.labels)
        return cls(inputs.event_inputs(spec.config), inputs.event_features, labels)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model's inputs."""
        return tuple(x.name for x in self.inputs)

    @property
    def context(self) -> tuple[LearnedFeature, ...]:
        """The features that queries have."""
        return tuple(one for one in self.features if one.name in self.names)

    @property
    def attributes(self) -> tuple[LearnedFeature, ...]:
        """The features that the events of histories have."""
        return tuple(one for one in self.features if of_history(one.name) in self.names)

    @property
    def needs_times(self) -> bool:
        """Whether the times of histories' events are needed."""
        return any(f.feature.value == "gap" for f in self.context_parts)

    @property
    def context_parts(self) -> tuple[LearnedFeature, ...]:
        """`context`, and the features that its crosses are made of."""
        return self._parts(self.context)

    @property
    def attribute_parts(self) -> tuple[LearnedFeature, ...]:
        """`attributes`, and the features that their crosses are made of."""
        return self._parts(self.attributes)

    def _parts(self, read: Sequence[LearnedFeature]) -> tuple[LearnedFeature, ...]:
        names = {one.name for one in read}
        for one in read:
            names.update(getattr(one.feature, "of", ()))
        return tuple(one for one in self.features if one.name in names)

    def columns(self, time_column: str) -> EventColumns:
        """Returns the raw columns from which a query is made.

        Args:
            time_column: Column of the times of events.
        """
        return EventColumns(
            _columns(self.context_parts, CONTEXT, time_column, self.needs_times),
            _columns(self.attribute_parts, ATTRIBUTE, time_column, self.needs_times, self.labels),
        )


def _columns(
    features: Sequence[LearnedFeature],
    prefix: str,
    time_column: str,
    needs_time: bool,
    labels: Mapping[str, LabelConfig] | None = None,
) -> dict[str, Column]:
    """Returns the columns of features and labels by name, and of times if they are needed."""
    readers: dict[str, list[LearnedFeature]] = {time_column: []} if needs_time else {}
    types = {x.column: "text" if x.values else "number" for x in (labels or {}).values()}
    readers |= {column: [] for column in types}
    for one in features:
        if one.feature.value != "tokens":
            readers.setdefault(one.feature.column or time_column, []).append(one)
    return {
        name: Column(
            input_, _type(readers[name], types.get(name)), tuple(one.name for one in readers[name])
        )
        for input_, name in event_inputs(readers, prefix).items()
    }


def _type(features: Sequence[LearnedFeature], of_label: str | None) -> Type:
    values: set[str | None] = {of_label}
    values |= {"time" if one.feature.value == "gap" else one.feature.value for one in features}
    types: tuple[Type, ...] = ("time", "vector", "number", "text")
    return next((type_ for type_ in types if type_ in values), "time")


class ServedEvents(tf.Module):
    """Makes the model's inputs of events from texts of clients and from stored events.

    Args:
        reads: What the model reads.
        length: Maximum length of a history.
        time_column: Column of the times of events.
    """

    def __init__(self, reads: EventReads, length: int, time_column: str) -> None:
        super().__init__(name="served_events")
        self._reads, self._length, self._time_column = reads, length, time_column
        self.columns = reads.columns(time_column)
        self._of_context = EventEncoder(reads.context_parts)
        self._of_history = EventEncoder(reads.attribute_parts)

    def inputs(
        self,
        texts: Mapping[str, tf.Tensor],
        users: StoredUsers,
        user: tf.Tensor,
        given: tf.Tensor,
        n_values: int | tf.Tensor = 1,
    ) -> tuple[_Tensors, _Tensors]:
        """Returns the inputs of the model by name, and the context `[b, n_values, …]` by feature.

        Args:
            texts: Texts `[b, any]` by input of `columns`.
            users: The stored events.
            user: Numbers of the users `[b]`.
            given: Whether the query has a history of its own, in place of the stored `[b]` bool.
            n_values: Number of values of the context; further ones are ignored.
        """
        reads, length, inputs = self._reads, self._length, dict[str, tf.Tensor]()
        if not reads.inputs:
            return inputs, {}
        context = {
            name: padded(texts[column.input], n_values)
            for name, column in self.columns.context.items()
        }
        # One event more than the history, for the gap of the oldest.
        history = {
            name: padded(texts[column.input], length + 1)
            for name, column in self.columns.history.items()
        }
        times = self._times(ATTRIBUTE, history)
        encoded = self._encoded(ATTRIBUTE, history, length + 1, lambda: _gaps(times))
        for one in reads.attributes:
            stored = users.feature(one.name, user, length)
            own = encoded[one.name][:, :length]
            inputs[of_history(one.name)] = tf.where(given[:, None, None], own, stored)
        before = times
        if reads.needs_times:
            before = tf.where(given[:, None], times, users.times(user, length + 1))
        now = self._times(CONTEXT, context)
        encoded = self._encoded(
            CONTEXT, context, n_values, lambda: _gaps_to(now, before[:, None, :])
        )
        return inputs, {one.name: encoded[one.name] for one in reads.context}

    def _times(self, prefix: str, texts: _Tensors) -> tf.Tensor:
        """Returns the times `[b, n]`; missing ones if there is no column of times."""
        name = self._time_column
        if name in texts:
            return typed(prefix + name, "time", texts[name])
        return tf.fill([1, 1], MISSING)

    def _encoded(
        self,
        prefix: str,
        texts: _Tensors,
        n: int | tf.Tensor,
        gaps: Callable[[], tf.Tensor],
    ) -> _Tensors:
        """Returns token rows int32 or numbers `[b, n, …]` of texts `[b, n]`, by feature."""
        is_context, values = prefix == CONTEXT, {}
        features = self._reads.context_parts if is_context else self._reads.attribute_parts
        for one in features:
            column, value = one.feature.column, one.feature.value
            if value == "gap":
                values[one.name] = tf.reshape(gaps(), [-1])
            elif column is not None:
                size = getattr(one.feature, "length", 0)
                found = typed(prefix + column, value, texts[column], size)
                values[one.name] = tf.reshape(found, [-1, size] if size else [-1])
        encoder = self._of_context if is_context else self._of_history
        sizes = {one.name: one.feature.floats or one.feature.width for one in features}
        made = {name: tf.reshape(x, [-1, n, sizes[name]]) for name, x in encoder(values).items()}
        return {
            name: x if x.dtype == tf.float32 else tf.cast(x, tf.int32) for name, x in made.items()
        }


def _gaps(times: tf.Tensor) -> tf.Tensor:
    """Returns the time from each event to the newest one in an earlier second `[b, n]`.

    Args:
        times: Times of the events `[b, n]`, the newest first.
    """
    n = tf.shape(times)[1]
    is_before = (tf.range(n)[None, :] > tf.range(n)[:, None])[None]
    return _gaps_to(times, tf.where(is_before, times[:, None, :], MISSING))


def _gaps_to(times: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Returns the time from each event to the newest of `before` in an earlier second `[b, n]`.

    Args:
        times: Times of the events `[b, n]`.
        before: Times of other events `[b, n or 1, any]`.
    """
    before = tf.where(before < times[:, :, None], before, MISSING)
    before = tf.reduce_max(before, axis=2)
    is_known = (times != MISSING) & (before != MISSING)
    return tf.where(is_known, times - before, MISSING)


def padded(texts: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Returns the first texts `[b, length]` of `[b, any]`, padded with empty ones."""
    missing = tf.maximum(0, length - tf.shape(texts)[1])
    padded = tf.pad(texts[:, :length], [[0, 0], [0, missing]], constant_values="")
    # Layers need the static shape.
    return tf.ensure_shape(padded, [None, length if isinstance(length, int) else None])


def encoded_inputs(inputs: Sequence[EventInput], length: int) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of events of a signature of encoded inputs.

    Args:
        inputs: Inputs of the model that come from events.
        length: Maximum length of a history.
    """
    names = [encoded_name(x.name) for x in inputs]
    shapes = [[None, *([length] if x.of_history else []), *x.shape] for x in inputs]
    return {
        name: tf.TensorSpec(shape, x.dtype, name)
        for name, shape, x in zip(names, shapes, inputs, strict=True)
    }
