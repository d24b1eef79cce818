"""Raw values of events for probes: what clients send, and the inputs that a model then gets.

A store has no raw values. Probes need them, as they show that the exported graph encodes events as
the ingest does. So values are drawn for each raw column; times are those of the events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.catalogue import of_history
from recsys.data.event_examples import example_values
from recsys.data.event_features import LearnedFeature, encode_features

MISSING = np.iinfo(np.int64).min
"""A missing time, or gap."""
RAW = "raw."
"""Prefix of the arrays in a file."""
_NOW, _TIMES, _CONTEXT, _HISTORY = (RAW + name for name in ("now", "times", "context.", "history."))
_LONGEST = 64
_MISSING_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class RawEvents:
    """Raw values of queries and of the events of their histories.

    Attributes:
        now: Query times `[n]` int64 [s]; `MISSING`: unknown.
        times: Times of the events `[n, history + 1]`, the newest first; `MISSING` is padding.
        context: Texts of queries `[n]` by column, empty if missing.
        history: Texts of events `[n, history]` by column, empty if missing.
    """

    now: np.ndarray
    times: np.ndarray
    context: Mapping[str, np.ndarray]
    history: Mapping[str, np.ndarray]

    @classmethod
    def drawn(
        cls,
        features: Sequence[LearnedFeature],
        time_column: str,
        now: np.ndarray,
        times: np.ndarray,
    ) -> RawEvents:
        """Returns values for queries and events, for all columns but that of the times.

        Args:
            features: The features of the events.
            time_column: Column of the times.
            now: Query times `[n]`.
            times: Times of the events `[n, history + 1]`.
        """
        rng, context, history = np.random.default_rng(0), {}, {}
        is_event = times[:, :-1] != MISSING
        for column, readers in _readers(features).items():
            if column == time_column:
                continue
            texts = _example_texts(readers)
            context[column] = _drawn(texts, np.ones(len(now), bool), rng)
            history[column] = _drawn(texts, is_event, rng)
        return cls(now, times, context, history)

    def given(
        self, features: Sequence[LearnedFeature], time_column: str, names: Iterable[str]
    ) -> dict[str, np.ndarray]:
        """Returns inputs of a model by name, encoded as by the ingest.

        Args:
            features: The features of the events.
            time_column: Column of the times.
            names: Names of the inputs that come from events.
        """
        n, length = self.times.shape[0], self.times.shape[1] - 1
        to_query = gaps_of(np.concatenate([self.now[:, None], self.times], axis=1))[:, 0]
        context = {**self.context, time_column: _iso(self.now)}
        asked = _encoded(features, context, to_query)
        # The oldest gap needs one event more than the history has.
        history = {**self.history, time_column: _iso(self.times[:, :-1])}
        of_events = _encoded(features, history, gaps_of(self.times)[:, :-1])
        known = {
            **asked,
            **{of_history(k): x.reshape(n, length, *x.shape[1:]) for k, x in of_events.items()},
        }
        return {name: known[name] for name in names}

    def texts(self, columns: Any, time_column: str) -> dict[str, np.ndarray]:
        """Returns what a client sends, `[n, …]` texts by input.

        Args:
            columns: The bundle's `recsys.savedmodel.event_columns.EventColumns`.
            time_column: Column of the times.
        """
        context = {**self.context, time_column: _iso(self.now)}
        history = {**self.history, time_column: _iso(self.times)}
        return {
            **{c.input: context[name][:, None] for name, c in columns.context.items()},
            **{c.input: history[name] for name, c in columns.history.items()},
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns arrays for a file, by name."""
        return {
            _NOW: self.now,
            _TIMES: self.times,
            **{_CONTEXT + name: x.astype(np.str_) for name, x in self.context.items()},
            **{_HISTORY + name: x.astype(np.str_) for name, x in self.history.items()},
        }

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> RawEvents | None:
        """Returns the values in `arrays`; None for a file of an earlier version."""
        if _NOW not in arrays:
            return None
        context, history = (
            {n.removeprefix(p): x.astype(object) for n, x in arrays.items() if n.startswith(p)}
            for p in (_CONTEXT, _HISTORY)
        )
        return cls(arrays[_NOW], arrays[_TIMES], context, history)


def gaps_of(times: np.ndarray) -> np.ndarray:
    """Returns the time from each event to the newest one in an earlier second `[n, k]` int64.

    Args:
        times: Times `[n, k]`, the newest first; `MISSING` is padding.
    """
    before = np.full_like(times, MISSING)
    for column in range(times.shape[1]):
        later = times[:, column + 1 :]
        earlier = np.where(later < times[:, column, None], later, MISSING)
        before[:, column] = earlier.max(axis=1, initial=MISSING)
    is_known = (times != MISSING) & (before != MISSING)
    return np.where(is_known, times - np.where(is_known, before, 0), MISSING)


def _encoded(
    features: Sequence[LearnedFeature], texts: Mapping[str, np.ndarray], gaps: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the tokens or numbers `[n, …]` of events by feature, from flattened arrays."""
    values, flat = {}, gaps.ravel()
    features = [one for one in features if one.feature.side == "event"]
    for one in features:
        value = one.feature.value
        if value == "gap":
            values[one.name] = pa.array(flat, mask=flat == MISSING)
        elif value != "tokens":
            values[one.name] = _typed(value, texts[str(one.feature.column)].ravel())
    return encode_features(features, values)


def _readers(features: Sequence[LearnedFeature]) -> dict[str, list[LearnedFeature]]:
    readers: dict[str, list[LearnedFeature]] = {}
    for one in features:
        if one.feature.column is not None:
            readers.setdefault(one.feature.column, []).append(one)
    return readers


def _example_texts(readers: Sequence[LearnedFeature]) -> np.ndarray:
    """Returns texts that all features of a column can parse."""
    order = ("vector", "number", "time", "text")
    value = min((one.feature.value for one in readers), key=order.index)
    texts = [
        _text(value, x)
        for one in readers
        if one.feature.value == value
        for x in example_values(one).to_pylist()
    ]
    return np.array([t for t in texts if len(t) <= _LONGEST or value != "text"], object)


def _text(value: str, x: Any) -> str:
    if value == "vector":
        return " ".join(str(np.float32(number)) for number in x)
    if value == "number":
        return str(np.float32(x))
    return str(x)


def _drawn(texts: np.ndarray, is_there: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns texts in the shape of `is_there`; empty where nothing is, and for some others."""
    chosen = texts[rng.integers(0, len(texts), is_there.shape)]
    is_missing = rng.random(is_there.shape) < _MISSING_SHARE
    return np.where(is_there & ~is_missing, chosen, "").astype(object)


def _typed(value: str, texts: np.ndarray) -> pa.Array:
    """Returns the values of texts `[n]`, as the ingest types them."""
    if value == "text":
        return pa.array(texts, pa.string(), mask=texts == "")
    parse: dict[str, tuple[Callable[[str], Any], pa.DataType]] = {
        "number": (float, pa.float32()),
        "time": (_seconds, pa.int64()),
        "vector": (lambda text: [float(x) for x in text.split()], pa.list_(pa.float32())),
    }
    read, kind = parse[value]
    return pa.array([read(text) if text else None for text in texts], kind)


def _seconds(text: str) -> int:
    return (
        int(text) if text.isdigit() else int(np.datetime64(text.removesuffix("Z"), "s").astype(int))
    )


def _iso(times: np.ndarray) -> np.ndarray:
    """Returns times as ISO 8601 texts: a small number would be read as a year."""
    there = np.where(times == MISSING, 0, times)
    texts = np.char.add(np.datetime_as_string(there.astype("datetime64[s]")), "Z")
    return np.where(times == MISSING, "", texts).astype(object)
