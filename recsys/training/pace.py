"""How fast the steps of a training are, and so how long the rest will take."""

from __future__ import annotations

import dataclasses

_LEAST_S = 3.0
_LEAST_STEPS = 10


@dataclasses.dataclass
class Pace:
    """The mean speed of the steps, without the first of them, which wait for a compiler.

    Attributes:
        steps: Steps that count.
        seconds: The time that they took [s].
    """

    steps: int = 0
    seconds: float = 0.0
    _is_warm: bool = False

    def add(self, steps: int, seconds: float) -> None:
        """Takes the time of some steps [s]; the first call's are left out."""
        if self._is_warm:
            self.steps += steps
            self.seconds += seconds
        self._is_warm = True

    def seconds_of(self, steps: int) -> float | None:
        """Returns what so many steps will take [s]; None while too little is known."""
        if self.steps < _LEAST_STEPS or self.seconds < _LEAST_S:
            return None
        return steps * self.seconds / self.steps
