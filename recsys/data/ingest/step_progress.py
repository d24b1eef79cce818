"""Progress of a step whose tasks run in several processes: a mark on disk for each."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from recsys.system.events import emit


@dataclasses.dataclass(frozen=True)
class StepProgress:
    """Emits how many tasks of a step are done.

    Attributes:
        folder: Folder of the marks, in reach of all workers.
        step: Name of the step.
        total: Tasks of the step.
    """

    folder: Path
    step: str
    total: int

    def advance(self, task: str, text: str) -> None:
        """Marks `task` as done; a task that Beam runs again counts once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / task).touch()
        done = sum(1 for _ in self.folder.iterdir())
        emit("progress", step=self.step, done=done, total=max(self.total, done), text=text)
