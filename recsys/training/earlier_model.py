"""The earlier model that a training goes on from: opened, and whole."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from recsys.config import TrainStage
from recsys.data.training_events import KeptEvents, KeptShard
from recsys.embedding.layout import tables_of
from recsys.embedding.table import Table
from recsys.errors import RecsysError
from recsys.models import ModelInputs, ModelSpec, RetrievalModel
from recsys.models.saved import write_variable
from recsys.system.commit import commit_text
from recsys.system.files import DAMAGE, read_json
from recsys.training import checksums
from recsys.training.run_state import moments_of, seeds_of


class UnusableModelError(Exception):
    """No training can go on from a model; the text says why, as a part of a sentence."""


@dataclasses.dataclass(frozen=True, eq=False)
class EarlierModel:
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
    state: TrainingState
    fingerprint: str

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> Self:
        """Opens a model folder.

        Args:
            folder: What `recsys.train` wrote.
            verify: Whether every byte is read and compared with its checksum.

        Raises:
            UnusableModelError: The folder holds no model, is damaged, or has no training state.
        """
        if not (folder / "model.json").exists():
            raise UnusableModelError("it is no model folder")
        if not (folder / FOLDER).exists():
            raise UnusableModelError(
                f"it has no {FOLDER}/: it was trained by a version that kept none, or that was"
                " removed"
            )
        try:
            manifest = read_manifest(folder)
            if manifest["format"] != FORMAT:
                raise UnusableModelError(f"its {FOLDER}/ is of another version")
            if verify:
                checksums.check_files(folder, manifest["files"])
            summary = read_json(folder / "model.json")
            base = cls(
                folder=folder,
                # First, since it loads the plugins that may have registered the model.
                stage=TrainStage.model_validate_json(json.dumps(summary["stage"])),
                spec=ModelSpec.model_validate_json(json.dumps(summary["spec"])),
                state=TrainingState.from_json(manifest),
                fingerprint=fingerprint(folder) or "",
            )
            base.read_inputs()
        except checksums.DamageError as damage:
            raise UnusableModelError(f"it is damaged: {damage}") from None
        except (RecsysError, *DAMAGE) as error:
            raise UnusableModelError(f"it can't be read: {error}") from None
        return base

    def read_inputs(self) -> ModelInputs:
        """Reads what was known of users and items; nobody keeps it while the run trains."""
        return ModelInputs.open(self.folder)

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
    return {variable["path"]: number for number, variable in enumerate(summary["variables"])}


FOLDER = "training_state"
FORMAT = 1
_MANIFEST = "state.json"
_READ = ("model.json", "weights", "vocabulary", "catalogue", "user_features", FOLDER)


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """How far a training was.

    Attributes:
        cut: The moment that its data were split at [seconds since 1970, UTC].
        trained_until: All events that it was trained on are older, those of the models
            that it went on from too [seconds since 1970, UTC].
        updates: Updates of the weights, those of these models too.
        steps: Steps, those of these models too.
        warm_starts: How many such models there are.
    """

    cut: int
    trained_until: int
    updates: int
    steps: int
    warm_starts: int = 0

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the state that JSON describes; a `KeyError` where it lacks something."""
        return cls(**{field.name: int(fields[field.name]) for field in dataclasses.fields(cls)})


def drop_state(folder: Path) -> None:
    """Removes the state of another training from a model folder, before it is rewritten."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def save_state(folder: Path, model: RetrievalModel, state: TrainingState) -> None:
    """Writes `training_state/` into a model folder that is there; `state.json` comes last.

    Where validation chose an earlier step's weights, the slots and the moments are those
    of the last step: the best model is kept without any. They only set how far a step
    goes, and those of the last step go less far.

    Args:
        folder: The model folder, as `save_model` left it.
        model: The model, compiled, after its training.
        state: How far the training was.

    Raises:
        OSError: The disk is full.
    """
    (folder / FOLDER).mkdir(parents=True)
    described = []
    for number, (variable, table) in enumerate(_kept(model)):
        shape, dtype = tuple(variable.shape), np.dtype(variable.dtype).newbyteorder("<").str
        if table is not None:
            shape, dtype = (table.rows, shape[1]), "<f4"
        write_variable(folder / FOLDER / f"{number}.npy", variable, table, shape, dtype)
        described.append({"path": variable.path, "shape": list(shape)})
    files = [name for name in checksums.names_in(folder) if name.split("/")[0] in _READ]
    manifest = {
        "format": FORMAT,
        **dataclasses.asdict(state),
        "variables": described,
        "files": checksums.sums(folder, files),
    }
    commit_text(checksums.encoded(manifest), folder / FOLDER / _MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns what `state.json` of a model folder says.

    Raises:
        DamageError: There is none, or it isn't as it was written.
    """
    return checksums.read_manifest(folder / FOLDER / _MANIFEST)


def fingerprint(folder: Path) -> str | None:
    """Returns the sha256, in hex, of what a model folder holds; None where it has no state.

    `state.json` names the checksum of all that a later training reads.
    """
    try:
        text = checksums.encoded(read_manifest(folder))
    except checksums.DamageError:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def updates_of(model: RetrievalModel) -> int:
    """Returns how many updates the tables of a model have seen."""
    return max(int(np.asarray(table.steps.value)) for table in tables_of(model))


def trained_until(events: KeptEvents) -> int:
    """Returns the second after the newest event that training sees [seconds since 1970]."""
    return 1 + max(_newest(part) for part in events.shards if len(part))


def _newest(part: KeptShard) -> int:
    kept = np.delete(part.shard.timestamp, part.held) if len(part.held) else part.shard.timestamp
    return int(kept.max())


def _kept(model: RetrievalModel) -> list[tuple[Any, Table | None]]:
    """Returns what is kept beside the weights, and the table that each belongs to."""
    slots = [(slot, table) for table in tables_of(model) for slot in table.slots]
    whole = [*moments_of(model).values(), *seeds_of(model).values()]
    return [*slots, *((variable, None) for variable in whole)]
