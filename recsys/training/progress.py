"""How far a training run is: all that a checkpoint says beside the arrays."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

CURVE_POINTS = 200


@dataclasses.dataclass
class Progress:
    """The state of a run that is no array.

    Attributes:
        step: Steps done.
        seconds: Time spent in training, over all attempts.
        waited_s: Of it, the time that the loop waited for its input.
        curve: The mean loss of every few steps, `{"step", "loss", …}`.
        looks: What validation found, `{"step", metric: value, …}` each.
        best_step: Step of the look that was best; None before the first.
        resumed_at: Steps that attempts went on from.
        machine: Where it ran, and what the compiled step was found to hold.
        warm_start: What was taken over from an earlier model; None: it began anew.
    """

    step: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    curve: list[dict[str, float]] = dataclasses.field(default_factory=list)
    looks: list[dict[str, float]] = dataclasses.field(default_factory=list)
    best_step: int | None = None
    resumed_at: list[int] = dataclasses.field(default_factory=list)
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm_start: dict[str, Any] | None = None

    @property
    def wait_share(self) -> float:
        """Share of the training time that went into waiting for input [0..1]."""
        return self.waited_s / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """Returns the state that `to_json` gave."""
        return cls(**state)
