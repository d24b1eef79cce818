"""The earlier model that a training goes on from: opened, and whole."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, Self

import numpy as np

from recsys.config import TrainStage
from recsys.errors import RecsysError
from recsys.model import ModelSpec, TowerInputs
from recsys.plain_files import DAMAGE, read_json
from recsys.training import sealed
from recsys.warm_start.state import FOLDER, FORMAT, State, fingerprint, read_manifest


class UnusableBaseError(Exception):
    """No training can go on from a model; the text says why, as a part of a sentence."""


@dataclasses.dataclass(frozen=True, eq=False)
class Base:
    """A model folder to go on from.

    Attributes:
        folder: The folder.
        spec: What the model is.
        stage: The config that it was trained with.
        state: How far its training was.
        fingerprint: sha256 of all that is read of it, in hex.
    """

    folder: Path
    spec: ModelSpec
    stage: TrainStage
    state: State
    fingerprint: str

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> Self:
        """Opens a model folder.

        Args:
            folder: What `recsys.train` wrote.
            verify: Whether every byte is read and compared with its checksum.

        Raises:
            UnusableBaseError: It is none, is damaged, or kept nothing to go on from.
        """
        if not (folder / "model.json").exists():
            raise UnusableBaseError("it is no model folder")
        if not (folder / FOLDER).exists():
            raise UnusableBaseError(
                f"it has no {FOLDER}/: it was trained by a version that kept none, or that was"
                " removed"
            )
        try:
            manifest = read_manifest(folder)
            if manifest["format"] != FORMAT:
                raise UnusableBaseError(f"its {FOLDER}/ is of another version")
            if verify:
                sealed.check_files(folder, manifest["files"])
            summary = read_json(folder / "model.json")
            base = cls(
                folder=folder,
                spec=ModelSpec.model_validate_json(json.dumps(summary["spec"])),
                stage=TrainStage.model_validate_json(json.dumps(summary["stage"])),
                state=State.from_json(manifest),
                fingerprint=fingerprint(folder) or "",
            )
            base.read_inputs()
        except sealed.DamageError as damage:
            raise UnusableBaseError(f"it is damaged: {damage}") from None
        except (RecsysError, *DAMAGE) as error:
            raise UnusableBaseError(f"it can't be read: {error}") from None
        return base

    def read_inputs(self) -> TowerInputs:
        """Reads what was known of users and items; nobody keeps it while the run trains."""
        return TowerInputs.open(self.folder)

    def weights(self, path: str) -> np.ndarray | None:
        """Returns the weights of a variable, memory-mapped; a table's in the order of its rows.

        None where the model has no such variable.
        """
        return self._mapped(self._weights, path, "weights")

    def kept(self, path: str) -> np.ndarray | None:
        """Returns a slot, a moment or a random state, as `weights` does."""
        return self._mapped(self._kept, path, FOLDER)

    @property
    def paths(self) -> list[str]:
        """The paths of the variables that the model computes with."""
        return list(self._weights)

    def _mapped(self, numbers: dict[str, int], path: str, part: str) -> np.ndarray | None:
        if path not in numbers:
            return None
        file = self.folder / part / f"{numbers[path]}.npy"
        mapped: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
        return mapped

    @functools.cached_property
    def _weights(self) -> dict[str, int]:
        summary = read_json(self.folder / "model.json")
        return _numbers(summary)

    @functools.cached_property
    def _kept(self) -> dict[str, int]:
        return _numbers(read_manifest(self.folder))


def _numbers(summary: dict[str, Any]) -> dict[str, int]:
    return {one["path"]: number for number, one in enumerate(summary["variables"])}
