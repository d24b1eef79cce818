"""Types and names of the inputs of a bundle's signatures, and the sources of answers.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from recsys.data.event_log import (
    AGES,
    ASKED_AT,
    EVENT_FACTS,
    KINDS,
    LEAST_WEIGHTS,
    UNKNOWN,
    WEIGHTS,
    Facts,
)
from recsys.errors import UsageError

NO_SCORE = float(np.finfo(np.float32).min)
"""Score of padding after the last item."""

DEFAULT_SIGNATURE = "serving_default"
SCORE = "score"
"""Name of the signature of a bundle that answers scores, and of its output `[n]` float32."""
POPULAR = "popular"
"""Name of the signature that answers by popularity, in a bundle without vectors."""

Arrays = dict[str, np.ndarray]
DTYPES: dict[str, Any] = {
    "DT_STRING": object,
    "DT_BOOL": np.bool_,
    "DT_FLOAT": np.float32,
    "DT_INT32": np.int32,
    "DT_INT64": np.int64,
}
"""NumPy dtypes of inputs by TensorFlow dtype; objects are bytes."""


class SignatureInput(NamedTuple):
    """An input of a signature.

    Attributes:
        dtype: TensorFlow name of the dtype, such as `DT_STRING`.
        shape: Shape; -1 for any size.
    """

    dtype: str
    shape: tuple[int, ...]


Signature = Mapping[str, SignatureInput]
"""Inputs of a function of a SavedModel, by name."""

ONLY = "only_"
QUERY_TIME = "query_time"
"""Input of a model that reads times, as text: the moment of the question, from which stored
histories count back, and at which items have their ages. Facts of a given history are
inputs too, `recsys.data.event_log`: how long before the question each item was, in seconds,
and the weight and the kind of each event."""
WHOLE = r"[0-9]{1,18}(\.0*)?"
DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?"
ISO = rf"{DAY}([T ]{CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}}| UTC)?)?"
"""Texts that a signature parses as times, besides negative integers."""
_OWN = (
    "user_id", "item_id", "history", "exclude_seen", "exclude_ids", *EVENT_FACTS, QUERY_TIME
)  # fmt: skip


def query_facts(facts: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of a query's inputs for the facts that a model reads."""
    names = tuple(facts)
    of_history = tuple(name for name in names if name != ASKED_AT)
    return (*of_history, QUERY_TIME) if {AGES, ASKED_AT} & {*names} else of_history


def fact_texts(facts: Facts, kinds: Sequence[str] = ()) -> Arrays:
    """Returns facts of histories `[n, …]` and of queries `[n]` as texts `[n, …]`, by input.

    Args:
        facts: The facts.
        kinds: The kinds of events by number.
    """
    texts = {name: _texts(name, fact, kinds) for name, fact in facts.items()}
    if ASKED_AT in texts:
        texts[QUERY_TIME] = texts.pop(ASKED_AT)[:, None]
    return texts


def _texts(name: str, fact: np.ndarray, kinds: Sequence[str]) -> np.ndarray:
    """Returns a fact `[…]` int32 as texts for its input; "" for unknown."""
    if name == KINDS:
        return np.array([*kinds, ""], object)[fact]  # The last entry is for `UNKNOWN`.
    texts = fact.astype("U11")
    if name == ASKED_AT:  # A small number would be parsed as a year.
        texts = np.datetime_as_string(fact.astype("datetime64[m]"))
    if name == WEIGHTS:  # Any weight in the bucket is equivalent.
        least = np.concatenate([[0.0], LEAST_WEIGHTS.astype(np.float64)])
        texts = least.astype(str)[np.maximum(fact, 0)]
    return np.where(fact == UNKNOWN, "", texts).astype(object)


def check_fact_texts(
    facts: Mapping[str, Sequence[str]], inputs: Container[str], history: Sequence[str]
) -> None:
    """Checks the facts of a query: ages and weights of its history, and its time.

    Args:
        facts: Texts by input.
        inputs: The inputs that the model reads.
        history: Item ids, the newest first.

    Raises:
        UsageError: The model has no such input, or a text can't be parsed (R549).
    """
    for name, texts in facts.items():
        if name not in inputs:
            rule = f"The model must read {name}."
            cure = (
                "Leave it out, or train a model that reads it: model.pooling.relative_time,"
                " event_weight or event_kind, and for query_time also model.item_age."
            )
        elif name == QUERY_TIME:
            if all(re.fullmatch(rf"|-[0-9]{{1,18}}|{WHOLE}|{ISO}", text.strip()) for text in texts):
                continue
            rule = "The query time must be seconds since 1970 (UTC) or ISO 8601."
            cure = "Write it as 2026-11-23T18:00:00Z."
        else:
            if len(texts) <= len(history) and (
                name == KINDS or all(map(_is_number_or_empty, texts))
            ):
                continue
            what = "kind" if name == KINDS else "number"
            rule = f"{name} must have one {what} per item of history."
            cure = 'Give the history too, and "" where it is unknown.'
        raise UsageError("R549", rule, cure, list(texts))


def _is_number_or_empty(text: str) -> bool:
    try:
        return math.isfinite(float(text or 0))
    except ValueError:
        return False


def raw_inputs(columns: Iterable[str]) -> dict[str, str]:
    """Returns the column of each input for raw values, by name of the input."""
    return _named(columns, "")


def filter_inputs(features: Iterable[str]) -> dict[str, str]:
    """Returns the feature of each filter, by name of the input."""
    return _named(features, ONLY)


def _named(columns: Iterable[str], prefix: str) -> dict[str, str]:
    """Returns the column of each input, by a name that is valid in TensorFlow."""
    column_of: dict[str, str] = {}
    for column in columns:
        name = prefix + re.sub(r"[^A-Za-z0-9]", "_", column)
        is_taken = not prefix and name.startswith(ONLY)
        name = name if name[:1].isalpha() and not is_taken else f"column_{name}"
        taken = {*column_of, *_OWN}
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        column_of[next(name for name in names if name not in taken)] = column
    return column_of


USER, HISTORY, FEATURES, POPULARITY = "user", "history", "features", "popularity"
SOURCES = (USER, HISTORY, FEATURES, POPULARITY)
"""Sources of an answer, the strongest first: the user's own trained row; trained items of the
history; features; popularity."""
