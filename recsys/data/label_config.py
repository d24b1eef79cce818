"""Configs of labels, which say what an event led to: a click, a purchase, seconds watched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from recsys.strict import Name, Strict

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Duration = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}[smhd]$")]
"""A number of seconds, minutes, hours or days, such as `90s`, `15m`, `6h`, `1d`."""


class LabelConfig(Strict):
    """A label of events: yes or no with `at_least` or `values`, else an amount."""

    column: str
    """Column of a label, in `labels: {NAME: {column: …}}`. An empty value is unknown."""
    at_least: float | None = None
    """Lowest number that means yes; `null`: not used. A label with neither `at_least` nor `values`
    is an amount."""
    values: tuple[str, ...] = ()
    """Values that mean yes; empty: not used."""
    given: Name | None = None
    """Label without which this one is unknown, such as `click` for `buy`; `null`: none."""

    @model_validator(mode="after")
    def _has_one_rule(self) -> Self:
        if self.at_least is not None and self.values:
            raise ValueError("a label has at_least or values, not both: remove one of them")
        return self

    @property
    def is_amount(self) -> bool:
        """Whether it is an amount."""
        return self.at_least is None and not self.values


class SampledConfig(Strict):
    """Rows that the source has thinned, such as rows without a click."""

    column: str
    """Column of the value that decides which share of rows the source kept, such as `clicked`."""
    rates: Annotated[dict[str, Annotated[float, Field(gt=0.0, le=1.0)]], Field(min_length=1)]
    """Share of the rows with a value that the source kept, by value; 1 for other values (0..1]."""


def to_seconds(duration: str) -> int:
    """Returns a `Duration` in seconds."""
    return int(duration[:-1]) * _UNITS[duration[-1]]


def dependencies_first(labels: Mapping[str, LabelConfig]) -> list[str]:
    """Returns the names of labels, each after its `given`, otherwise in alphabetical order.

    Raises:
        ValueError: `given` is no label of the config, is an amount, or depends on the label.
    """
    for name, label in labels.items():
        if label.given is None:
            continue
        if label.given not in labels:
            known = ", ".join(sorted(labels))
            raise ValueError(
                f"labels.{name}.given must be another label ({known}); received {label.given!r}"
            )
        if labels[label.given].is_amount:
            raise ValueError(
                f"labels.{name}.given must be a label with at_least or values;"
                f" {label.given!r} is an amount"
            )
    ordered: list[str] = []
    while len(ordered) < len(labels):
        ready = [
            n for n in sorted(labels) if n not in ordered and labels[n].given in (*ordered, None)
        ]
        if not ready:
            cycle = ", ".join(sorted(labels.keys() - ordered))
            raise ValueError(f"given must not lead from a label back to itself; these do: {cycle}")
        ordered += ready
    return ordered
