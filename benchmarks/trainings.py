"""A training on data in a folder, in processes of its own, whose events and files are looked at."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.measure import simulated, words_of
from recsys.system import manifest
from recsys.system.events import ENVIRONMENT_VARIABLE, EventReader

MODEL = {"dim": 16, "history": 5, "widths": [16], "table_placement": "row", "dropout": 0.1}
TRAIN = {"batch_size": 256, "uniform_negatives": 128, "table_learning_rate": 0.1}
POLL_S = 0.02
"""How often a training is looked at [s]."""


class Training:
    """A run of `recsys.stages.train` in a folder, which may be started again and again.

    Args:
        root: Folder with `data/` and `stage.json`.
        name: Name of the run, and of its folder there.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.folder = root, root / name
        self.folder.mkdir()
        self.model = self.folder / "model"
        self._events = self.folder / "events.jsonl"

    def begin(self, devices: int) -> dict[str, str]:
        """Returns the environment of a process that starts, and removes earlier events."""
        self._events.unlink(missing_ok=True)
        # Most of a start goes into compiling what the start before compiled.
        return {
            **os.environ,
            **simulated(devices),
            ENVIRONMENT_VARIABLE: str(self._events),
            "JAX_COMPILATION_CACHE_DIR": str(self.root / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }

    def words(self, **options: Any) -> list[str]:
        """Returns the command line of `recsys.stages.train`, with more options."""
        folders = {"config": self.root / "stage.json", "data": self.root / "data"}
        return words_of(**folders, out=self.model, **options)

    def events(self) -> list[dict[str, Any]]:
        """Returns the events of the newest start that name a step."""
        return [event for event in EventReader(self._events) if event.get("done")]

    def step(self) -> int:
        """Returns the newest step that they name."""
        return max((event["done"] for event in self.events()), default=0)

    @property
    def summary(self) -> dict[str, Any]:
        """The output of the run."""
        return dict(json.loads((self.model / "training.json").read_text()))

    def weights(self) -> manifest.Files:
        """Returns a digest of each file of the model's weights."""
        folder = self.model / "weights"
        return manifest.checksums(folder, manifest.file_names(folder))
