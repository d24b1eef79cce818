"""What came of each night: a line of JSON each, so that a killed simulation goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.commit import commit_text
from recsys.errors import RecsysError

_PLAN, _NIGHTS = "plan.json", "nights.jsonl"


class Journal:
    """The nights of one simulation.

    Args:
        out: Folder of the simulation; made where there is none.
        plan: What it simulates. Another one can't go on in the same folder.

    Raises:
        RecsysError: The folder holds another simulation, or something else.
    """

    def __init__(self, out: Path, plan: Mapping[str, Any]) -> None:
        self.file = out / _NIGHTS
        """Its file."""
        out.mkdir(parents=True, exist_ok=True)
        written = out / _PLAN
        text = json.dumps(plan, indent=1, sort_keys=True) + "\n"
        if written.exists():
            _refuse_other(out, json.loads(written.read_text("utf-8")), json.loads(text))
        elif any(out.iterdir()):
            raise RecsysError(
                "R910",
                f"The folder {str(out)!r} must be empty, or hold a simulation to go on with.",
                "Name another folder with --out.",
                ", ".join(sorted(path.name for path in out.iterdir())[:5]),
            )
        commit_text(text, written)
        self.nights = self._read()
        """The nights that ended, in order."""

    def add(self, night: Mapping[str, Any]) -> None:
        """Writes down a night; it is on the disk on return."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(night) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.nights.append(dict(night))

    def _read(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        text = self.file.read_text("utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # Killed while it wrote: that night is replayed.
            commit_text(whole, self.file)
        return [json.loads(line) for line in whole.splitlines()]


def _refuse_other(out: Path, there: dict[str, Any], asked: dict[str, Any]) -> None:
    different = sorted(key for key in {*there, *asked} if there.get(key) != asked.get(key))
    if different:
        raise RecsysError(
            "R911",
            f"The folder {str(out)!r} holds a simulation with another {', '.join(different)}.",
            "Ask for the same to go on with it, or name another folder with --out.",
            {key: asked.get(key) for key in different},
        )
