"""From numbers to places of a picture, and the round numbers that an axis names."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Scale:
    """Turns numbers into places along one side of a picture.

    Attributes:
        low: The number at `start`.
        high: The number at `end`, another one than `low`.
        start: First place [pixels].
        end: Last place [pixels]; before `start` for an axis that points up.
        is_log: Whether equal ratios are equally far apart; the numbers are positive then.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Returns the place of `value` [pixels], to a tenth."""
        low, high, value = (math.log(x) if self.is_log else x for x in self._with(value))
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 1)

    def held(self, value: float) -> float:
        """Returns the place of `value` [pixels], or of the end that it lies beyond."""
        return self.at(min(max(value, self.low), self.high))

    def _with(self, value: float) -> tuple[float, float, float]:
        return self.low, self.high, value


def ticks(low: float, high: float, about: int) -> list[float]:
    """Returns round numbers in equal steps that enclose `low` … `high`; two at least."""
    if high <= low:
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def decades(high: float) -> list[float]:
    """Returns 1, 10, 100, … up to the first that reaches `high`; two at least."""
    n = max(1, math.ceil(math.log10(max(high, 1.0)) - 1e-9))
    return [10.0**i for i in range(n + 1)]
