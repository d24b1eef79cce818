"""What a function of a SavedModel takes and gives, without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

DEFAULT_SIGNATURE = "serving_default"

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a signature.

    Attributes:
        dtype: Its type as TensorFlow writes it, `DT_STRING`.
        shape: Its sizes, -1 for any; None where even their number is open.
    """

    dtype: str
    shape: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a SavedModel.

    Attributes:
        inputs: What it takes, by name.
    """

    inputs: Mapping[str, Input]


class Model(Protocol):
    """A loaded version of a model, whatever computes it."""

    @property
    def version(self) -> int:
        """Number of the version."""
        ...

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Its functions by name."""
        ...

    @property
    def metadata(self) -> dict[str, Any]:
        """All functions, as TensorFlow Serving tells them in JSON."""
        ...

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns what a function gives.

        Args:
            signature: Name of the function.
            inputs: All of its inputs, of the types and shapes that it takes; text as
                bytes in arrays of objects.

        Raises:
            Refusal: The function can't take their content.
        """
        ...
