"""Inputs of a bundle for features of events: context of a query, attributes of a history.

Clients send raw columns as text, and several features may read one column. `context_<column>`
`[batch, any]` has one value per query. `history_<column>` `[batch, any]` has one per item of
`history`. The empty text means unknown.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from recsys.errors import UsageError

CONTEXT, ATTRIBUTE = "context_", "history_"
"""Prefixes of the inputs."""
WHOLE = r"[0-9]{1,18}(\.0*)?"
DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?"
ISO = rf"{DAY}([T ]{CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}}| UTC)?)?"
"""Texts that a signature parses as times, besides negative integers."""
Type = Literal["text", "number", "time", "vector"]
"""Type of the values of a column; vectors are numbers separated by blanks."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A raw column of events.

    Attributes:
        input: Name of the input.
        type: Type of its values.
        features: Features that read it.
    """

    input: str
    type: Type
    features: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class EventColumns:
    """The raw columns of events that a bundle reads, by name.

    Attributes:
        context: Columns of the context of a query.
        history: Columns of the attributes of a history.
    """

    context: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    history: Mapping[str, Column] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> EventColumns:
        """Returns the columns of a bundle; none for a bundle of scores."""
        context, history = (
            {
                name: Column(column["input"], column["type"], tuple(column["features"]))
                for name, column in manifest.get(side, {}).items()
            }
            for side in ("context", "history")
        )
        return cls(context, history)

    def to_json(self) -> dict[str, Any]:
        """Returns the manifest's fields `context` and `history`."""
        return dataclasses.asdict(self)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(c.input for c in (*self.context.values(), *self.history.values()))

    def of_context(self, context: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
        """Returns values of contexts by input.

        Args:
            context: Values by column.

        Raises:
            UsageError: The model has no such column, or a value can't be parsed (R549).
        """
        return dict(_inputs(context, self.context, "context"))

    def of_history(
        self, attributes: Mapping[str, Sequence[str]], length: int
    ) -> dict[str, Sequence[str]]:
        """Returns attributes of a history's events by input.

        Args:
            attributes: Values by column, in the order of the history.
            length: Number of items of the history.

        Raises:
            UsageError: The model has no such column, a value can't be parsed, or there are more
                values than items (R549).
        """
        for name, values in attributes.items():
            if len(values) > length:
                rule = f"{name} must have at most one value per item of the history."
                cure = 'Give the history too, and "" where the value is unknown.'
                raise UsageError("R549", rule, cure, list(values))
        return dict(_inputs(attributes, self.history, "history"))


def _inputs(
    values: Mapping[str, Sequence[str]], columns: Mapping[str, Column], where: str
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields checked values with the name of their input."""
    for name, texts in values.items():
        if name not in columns:
            listed = ", ".join(columns) or "none"
            rule = f"The model must read the column {name!r} of the {where}."
            raise UsageError("R549", rule, f"Leave it out; the model reads {listed}.", name)
        column = columns[name]
        for text in texts:
            if not _can_be_parsed(text.strip(), column.type):
                rule = f"{name} must be {_EXPECTED[column.type]}, or empty if it is unknown."
                raise UsageError("R549", rule, "Correct it.", text)
        yield column.input, texts


_EXPECTED = {
    "number": "a finite number",
    "vector": "finite numbers separated by blanks",
    "time": "seconds since 1970 (UTC), or ISO 8601 such as 2026-11-23T18:00:00Z",
}


def _can_be_parsed(text: str, type_: Type) -> bool:
    if type_ == "time":
        return re.fullmatch(rf"|-[0-9]{{1,18}}|{WHOLE}|{ISO}", text) is not None
    try:
        if type_ == "number":
            return math.isfinite(float(text or 0))
        return type_ == "text" or all(math.isfinite(float(number)) for number in text.split())
    except ValueError:
        return False
