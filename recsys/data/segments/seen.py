"""Which spans are new, and which are late: what earlier runs have read.

A run that is repeated, because it was killed or because nothing has changed, says of its
spans what it said the first time: each span is remembered with the run that read it first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from recsys.commit import commit_text

_FILE = "seen.json"


class Seen:
    """The spans that runs on a root have read.

    Args:
        root: Folder that remembers them.
        run: What tells this run from others: equal where it reads the same files.
    """

    def __init__(self, root: Path, run: str) -> None:
        self._file, self._run = root / _FILE, run
        self._first_read = _read(self._file)
        earlier = [span for span, by in self._first_read.items() if by != run]
        self._newest = max(earlier, default=None)

    def is_new(self, span: int) -> bool:
        """Returns whether no other run has read the span."""
        return self._first_read.get(span, self._run) == self._run

    def is_late(self, span: int) -> bool:
        """Returns whether the span is new, and older than one that was read before."""
        return self._newest is not None and span < self._newest and self.is_new(span)

    def remember(self, spans: Iterable[int]) -> None:
        """Remembers that this run has read `spans`."""
        for span in spans:
            self._first_read.setdefault(span, self._run)
        by_text = {str(span): by for span, by in sorted(self._first_read.items())}
        commit_text(json.dumps(by_text, indent=1) + "\n", self._file)


def _read(file: Path) -> dict[int, str]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {int(span): str(by) for span, by in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
