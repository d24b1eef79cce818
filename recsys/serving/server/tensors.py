"""One value of JSON, lists nested to any depth, to an array."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from recsys.serving.server.limits import Limits
from recsys.serving.server.refusals import BAD_REQUEST, Refusal, too_large
from recsys.serving.server.scalars import SCALARS
from recsys.serving.server.signature import Input


def read_tensor(name: str, value: Any, spec: Input, limits: Limits) -> np.ndarray:
    """Returns a JSON value as an array of the type and shape that an input takes.

    Raises:
        Refusal: It has another type or shape, or is ragged (400); or too much (413).
    """
    shape = _shape(value)
    if not _fits(shape, spec.shape):
        raise _wrong_shape(name, spec, list(shape))
    if int(np.prod(shape, dtype=object)) > limits.values:
        raise too_large("values of one input", limits.values, list(shape))
    values = [value]
    for size in shape:
        for part in values:
            if not isinstance(part, list) or len(part) != size:
                received = len(part) if isinstance(part, list) else type(part).__name__
                raise _ragged(name, size, received)
        values = list(itertools.chain.from_iterable(values))
    return SCALARS[spec.dtype].array(name, values).reshape(shape)


def _shape(value: Any) -> tuple[int, ...]:
    """Returns the sizes of nested lists, as their first elements have them."""
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(sizes)


def _fits(shape: tuple[int, ...], expected: tuple[int, ...] | None) -> bool:
    if expected is None:
        return True
    return len(shape) == len(expected) and all(
        want in (-1, size) for size, want in zip(shape, expected, strict=True)
    )


def _wrong_shape(name: str, spec: Input, received: list[int]) -> Refusal:
    expected = ", ".join("any" if size < 0 else str(size) for size in spec.shape or ())
    return Refusal(
        BAD_REQUEST,
        "R556",
        f"The input {name!r} must have the shape [{expected}], rows first.",
        "Nest its lists so.",
        received,
    )


def _ragged(name: str, size: int, received: Any) -> Refusal:
    return Refusal(
        BAD_REQUEST,
        "R556",
        f"All lists of the input {name!r} must be of one length, {size} as the first.",
        "Pad the shorter ones; the empty string is padding in 'history'.",
        received,
    )
