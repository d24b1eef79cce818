"""Auxiliary losses: named, weighted terms that a model adds to its loss."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from recsys.errors import UsageError

REGULARIZATION, OF_LAYERS = "regularization", "added_losses"
"""Names of the weights' regularizers and of the losses that layers add by `add_loss`."""
_RESERVED = (
    "loss", "temperature", "unknown_ids", "exchange_overflows", "step", "epoch",
    REGULARIZATION, OF_LAYERS,
)  # fmt: skip
_NAME = re.compile(r"(?!val_)[A-Za-z][A-Za-z0-9_]*")


class Added(NamedTuple):
    """The sum of the auxiliary losses of one name.

    Attributes:
        value: Sum of the values, a scalar.
        weighted: Weighted sum of the values, which is added to the loss.
    """

    value: Any
    weighted: Any


class AuxiliaryLosses:
    """Collects the auxiliary losses of one call of a model.

    Attributes:
        names: Names that may be added; each has a metric. None until the model is built.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None
        self._added: dict[str, Added] | None = None

    @contextmanager
    def collecting(self) -> Iterator[dict[str, Added]]:
        """Yields the losses that the block adds, by name; outside of it `add` does nothing."""
        self._added = {}
        try:
            yield self._added
        finally:
            self._added = None

    def add(self, name: str, value: Any, weight: float = 1.0) -> None:
        """Adds a scalar `value` to the loss, times `weight`.

        Raises:
            UsageError: The name is invalid, the weight is not a number, or the name was not added
                when the model was built (R347).
        """
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise UsageError(
                "R347",
                "The name of an auxiliary loss must be letters, digits and _, and not val_… or one"
                f" of {', '.join(_RESERVED)}.",
                "Choose another name.",
                name,
            )
        number: Any = weight
        if not isinstance(number, int | float) or not math.isfinite(number):
            raise UsageError(
                "R347",
                f"The weight of the auxiliary loss {name!r} must be a finite number.",
                "Pass a Python float; multiply the value by what changes from step to step.",
                weight,
            )
        if self.names is not None and name not in self.names:
            raise UsageError(
                "R347",
                "An auxiliary loss must be added whether the model trains or not, as its metric is"
                " made when the model is built.",
                "Call add_auxiliary outside of `if training:`; it does nothing unless a step is"
                " computed.",
                f"{name!r}; when it was built: {', '.join(sorted(self.names)) or 'none'}",
            )
        if self._added is None:
            return
        before = self._added.get(name)
        weighted = weight * value
        self._added[name] = (
            Added(value, weighted)
            if before is None
            else Added(before.value + value, before.weighted + weighted)
        )
