"""Signatures without TensorFlow, and values of JSON as arrays of their types."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from recsys.bundles.signatures import Input
from recsys.serving.server.http_errors import BAD_REQUEST, HttpError, too_large
from recsys.serving.server.limits import Limits


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A type of TensorFlow.

    Attributes:
        expected: What JSON must hold, in words.
        dtype: NumPy's type; objects for text, which hold bytes.
        read: Turns one value into one that NumPy takes; None where it must not.
    """

    expected: str
    dtype: Any
    read: Callable[[Any], Any]

    def array(self, name: str, values: list[Any]) -> np.ndarray:
        """Returns values `[n]` of the input `name`.

        Raises:
            HttpError: One of them has another type, or is too large.
        """
        read = [self.read(value) for value in values]
        if None in read:
            self._refuse(name, values[read.index(None)])
        # Not by np.array(bytes), whose own type would drop NULs at the end.
        out = np.empty(len(read), self.dtype)
        out[:] = read
        return out

    def _refuse(self, name: str, value: Any) -> NoReturn:
        raise HttpError(
            BAD_REQUEST,
            "R555",
            f"Every value of the input {name!r} must be {self.expected}.",
            'Ids are text: write 42 as "42".' if self.dtype is object else "Correct it.",
            value,
        )


def _bytes(value: Any) -> bytes | None:
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
            text = value["b64"]
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError):  # Half a surrogate pair, no base64.
        pass
    return None


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(dtype: Any) -> Callable[[Any], int | None]:
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def read(value: Any) -> int | None:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return value if is_integer and least <= value <= most else None

    return read


def _number(dtype: Any) -> Callable[[Any], float | None]:
    largest = float(np.finfo(dtype).max)
    largest_integer = 2 ** (np.finfo(dtype).nmant + 1) - 1

    def read(value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if isinstance(value, int):  # As TensorFlow Serving: exactly, or not at all.
            return float(value) if abs(value) <= largest_integer else None
        return value if not np.isfinite(value) or abs(value) <= largest else None

    return read


_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

SCALARS = {
    "DT_STRING": Scalar('a text, or bytes as {"b64": "…"}', object, _bytes),
    "DT_BOOL": Scalar("true or false", np.bool_, _bool),
    "DT_FLOAT": Scalar("a number that fits into float32", np.float32, _number(np.float32)),
    "DT_DOUBLE": Scalar("a number", np.float64, _number(np.float64)),
    **{
        f"DT_{name.upper()}": Scalar(
            f"a whole number that fits into {name}", np.dtype(name), _integer(np.dtype(name))
        )
        for name in _INTEGERS
    },
}
"""By TensorFlow's name of the type."""


def read_tensor(name: str, value: Any, spec: Input, limits: Limits) -> np.ndarray:
    """Returns a JSON value as an array of the type and shape that an input takes.

    Raises:
        HttpError: It has another type or shape, or is ragged (400); or too much (413).
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


def _wrong_shape(name: str, spec: Input, received: list[int]) -> HttpError:
    expected = ", ".join("any" if size < 0 else str(size) for size in spec.shape or ())
    return HttpError(
        BAD_REQUEST,
        "R556",
        f"The input {name!r} must have the shape [{expected}], rows first.",
        "Nest its lists so.",
        received,
    )


def _ragged(name: str, size: int, received: Any) -> HttpError:
    return HttpError(
        BAD_REQUEST,
        "R556",
        f"All lists of the input {name!r} must be of one length, {size} as the first.",
        "Pad the shorter ones; the empty string is padding in 'history'.",
        received,
    )


def blank(spec: Input) -> np.ndarray:
    """Returns one row of an input, empty."""
    shape = [max(size, 1) for size in spec.shape or ()]
    if spec.dtype == "DT_STRING":
        return np.full(shape, b"", object)
    return np.zeros(shape, SCALARS[spec.dtype].dtype)
