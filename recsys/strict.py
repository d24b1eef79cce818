"""The base class of all configs: frozen, strict, without unknown keys and non-finite numbers.

It imports no other module of recsys, so that a registered class in any package can be a config.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Repeats = Literal["exclude", "include"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]


NOT_SHOWN = "not_shown"
"""Type of pydantic's errors for values that messages must not show."""


class Strict(pydantic.BaseModel):
    """Base of all configs: frozen, strict, without unknown keys, NaN or infinite numbers."""

    model_config = pydantic.ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def parts_in(*values: Any) -> Iterator[Any]:
    """Yields the values and all values nested in them, such as parts of configs."""
    for value in values:
        yield value
        if isinstance(value, pydantic.BaseModel):
            yield from parts_in(*(getattr(value, name) for name in type(value).model_fields))
        elif isinstance(value, dict):
            yield from parts_in(*value.values())
        elif isinstance(value, list | tuple):
            yield from parts_in(*value)


def canonical_json(part: pydantic.BaseModel) -> str:
    """Returns a canonical JSON text, suitable as a cache key."""
    return json.dumps(part.model_dump(mode="json"), sort_keys=True)
