"""What all rounds found, as lines of figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.measure import print_line
from benchmarks.two_tower_step.case import Measured

BENCH = "embedding_step"
_OURS = "ours"
_KIB = 1024
_MIB = 1024 * 1024


class Key(NamedTuple):
    """What tells the cases of a run apart.

    Attributes:
        who: `ours` or a peer.
        rows: Rows of each table.
        devices: Simulated devices.
    """

    who: str
    rows: int
    devices: int = 1

    def __str__(self) -> str:
        """Returns the name of the case."""
        return f"{self.name} rows={self.rows}"

    @property
    def name(self) -> str:
        """The competitor, with its devices if there are several."""
        return self.who if self.devices == 1 else f"{self.who} devices={self.devices}"


class Figures:
    """The measurements of all cases, a list of rounds for each."""

    def __init__(self) -> None:
        self.rounds: dict[Key, list[Measured]] = {}
        self.failed: list[Key] = []

    def add(self, key: Key, measured: Measured) -> None:
        """Adds a round."""
        self.rounds.setdefault(key, []).append(measured)

    def print_all(self, batch: int) -> None:
        """Prints every line; the times come first, ours before all, in the order of rows."""
        keys = sorted(self.rounds, key=lambda key: (key.who != _OURS, self._names.index(key.name)))
        for key in keys:
            self._line(str(key), self._times(key), "ms", [key])
        for key in keys:
            rates = [batch / ms * 1000 for ms in self._times(key)]
            self._line(str(key), rates, "examples/s", [key])
        for key in keys:
            self._print_ratio(key)
        for key in keys:
            self._print_traffic(key)
        for name in self._names:
            self._print_growth([key for key in self.rounds if key.name == name])
        versions = {name: self.rounds[key][0].versions for key in keys for name in [key.name]}
        print(versions, file=sys.stderr)

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(key.name for key in self.rounds))

    def _times(self, key: Key) -> list[float]:
        return [measured.median_ms for measured in self.rounds[key]]

    def _print_ratio(self, key: Key) -> None:
        """Prints `key` against ours on one device, where that is another case."""
        ours = Key(_OURS, key.rows)
        if key == ours or ours not in self.rounds:
            return
        who = f"{_OURS} devices={key.devices}/1" if key.who == _OURS else f"{key.who}/{_OURS}"
        self._line(f"{who} rows={key.rows}", self._ratios(key, ours), "ratio", [key, ours])

    def _print_traffic(self, key: Key) -> None:
        """Prints what a device sends in a step, and how often the least that would do."""
        sending = [m for m in self.rounds[key] if m.sent_bytes]
        sent = [m.sent_bytes / _KIB for m in sending]
        shares = [m.sent_bytes / m.least_bytes for m in sending]
        self._line(f"{key.name} sent rows={key.rows}", sent, "KiB", [key])
        self._line(f"{key.name} sent/least rows={key.rows}", shares, "ratio", [key])

    def _print_growth(self, keys: Sequence[Key]) -> None:
        """Prints how time and memory of one competitor grow from the fewest to the most rows."""
        less, more = min(keys), max(keys)
        shares = [m.peak_rss_mib * _MIB / m.state_bytes for m in self.rounds[more]]
        self._line(f"{more.name} peak/state rows={more.rows}", shares, "ratio", [more])
        if less == more:
            return
        name, rows = more.name, f"rows={more.rows}/{less.rows}"
        self._line(f"{name} {rows}", self._ratios(more, less), "ratio", [more, less])
        growth, rows = list(self._growth(less, more)), f"rows={more.rows}-{less.rows}"
        self._line(f"{name} peak/state {rows}", growth, "ratio", [more])

    def _ratios(self, above: Key, below: Key) -> list[float]:
        pairs = zip(self._times(above), self._times(below), strict=False)
        return [a / b for a, b in pairs]

    def _growth(self, less: Key, more: Key) -> Iterator[float]:
        for a, b in zip(self.rounds[less], self.rounds[more], strict=False):
            yield (b.peak_rss_mib - a.peak_rss_mib) * _MIB / (b.state_bytes - a.state_bytes)

    def _line(self, case: str, values: Sequence[float], unit: str, keys: Sequence[Key]) -> None:
        if values:
            peak = max(m.peak_rss_mib for key in keys for m in self.rounds[key])
            print_line(BENCH, case, values, unit, peak)
