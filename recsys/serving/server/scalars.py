"""Single values of JSON as values of TensorFlow's types."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from recsys.serving.server.refusals import BAD_REQUEST, Refusal


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
            Refusal: One of them has another type, or is too large.
        """
        read = [self.read(value) for value in values]
        if None in read:
            self._refuse(name, values[read.index(None)])
        # Not by np.array(bytes), whose own type would drop NULs at the end.
        out = np.empty(len(read), self.dtype)
        out[:] = read
        return out

    def _refuse(self, name: str, value: Any) -> NoReturn:
        raise Refusal(
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
