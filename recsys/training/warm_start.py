"""Warm starts: the saved training state, whether it can be used, and the training settings.

`training_state/` of a model folder holds the slots of the tables, the moments of the towers'
optimizer and the random state of dropout, in the format of `weights/` (see
`recsys.embedding.saved_arrays`). `state.json` lists them and holds the progress of the training.
`manifest.json` holds the size and the CRC-32 of all files that a later training reads (see
`recsys.system.manifest`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from recsys import registry
from recsys.data.dataset import PARTS
from recsys.data.hold_out import KeptEvents
from recsys.data.store import InteractionStore
from recsys.distributed.coordination import agreed, jointly, note_on_primary
from recsys.embedding.layout import tables_of
from recsys.embedding.saved_arrays import (
    SavedRows,
    SavedVariable,
    files_of,
    open_variable,
    path_of,
    write_variables,
)
from recsys.errors import RecsysError, UsageError
from recsys.models import LookupModel, ModelInputs, ModelSpec
from recsys.models.summary import read_summary
from recsys.registry.file_option import read_in_folder
from recsys.system import manifest as manifests
from recsys.system.files import DAMAGE, read_json
from recsys.tasks.config import TrainConfig, TrainStage, WarmStartConfig
from recsys.tasks.training_side import TrainingSide
from recsys.training.optimization import moments_of, seeds_of
from recsys.training.row_sources import kind_of

FOLDER = "training_state"
CHANGED = "R390"
"""Error code if the config describes another model than the earlier one."""
_STATE, _MANIFEST = f"{FOLDER}/state.json", f"{FOLDER}/manifest.json"
_READ = ("model.json", "weights", *PARTS, FOLDER)
_SEEDS = 2**31


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """The progress of a training.

    Attributes:
        cut: Time at which its data were split [seconds since 1970, UTC].
        trained_until: Upper bound of the times of all events that it, or the models that it
            continued, was trained on [seconds since 1970, UTC].
        updates: Updates of the weights, also in the models that it continued.
        steps: Steps, also in the models that it continued.
        warm_starts: Number of models that it continued.
    """

    cut: int
    trained_until: int
    updates: int
    steps: int
    warm_starts: int = 0


class UnusableModelError(Exception):
    """A model can't be continued; the text is the reason, as a part of a sentence."""


@dataclasses.dataclass(frozen=True, eq=False)
class EarlierModel:
    """A model folder to start from.

    Attributes:
        folder: The folder.
        spec: Spec of the model.
        stage: Config of its training.
        state: Progress of its training.
        fingerprint: sha256 of all files that are read of it, in hex.
        weights: File of each weight, or the folder of its parts, by the variable's path.
        kept: File or folder of each slot, moment and random state.
    """

    folder: Path
    spec: ModelSpec
    stage: TrainStage
    state: TrainingState
    fingerprint: str
    weights: dict[str, Path]
    kept: dict[str, Path]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens a model folder. Doesn't verify its files; see `damage_in_share`.

        Args:
            folder: Model folder that `recsys.stages.train` wrote.

        Raises:
            UnusableModelError: The folder holds no model, is damaged, or has no training state.
        """
        if not (folder / "model.json").exists():
            raise UnusableModelError("it is not a model folder")
        if not (folder / FOLDER).exists():
            raise UnusableModelError(f"it has no {FOLDER}/, which was removed or never kept")
        if not (folder / _MANIFEST).exists():
            raise UnusableModelError(
                f"its {FOLDER}/ has no manifest.json: another version wrote it, or it is damaged"
            )
        try:
            manifests.read_manifest(folder / _MANIFEST)
            summary, kept = read_summary(folder), read_json(folder / _STATE)
            return cls(
                folder=folder,
                # First, since it loads plugins that may register the model.
                stage=read_in_folder(TrainStage, summary["stage"], folder),
                spec=read_in_folder(ModelSpec, summary["spec"], folder),
                state=TrainingState(**kept["state"]),
                fingerprint=manifests.manifest_digest(folder / _MANIFEST) or "",
                weights=_files_by_path(folder / "weights", summary),
                kept=_files_by_path(folder / FOLDER, kept),
            )
        except manifests.ManifestError as damage:
            raise UnusableModelError(f"it is damaged: {damage}") from None
        except (RecsysError, *DAMAGE) as error:
            raise UnusableModelError(f"it can't be read: {error}") from None

    def array(self, path: str) -> np.ndarray | SavedRows | None:
        """Returns a variable's values, memory-mapped, or None if it doesn't exist.

        A table's values are in the order of its rows.
        """
        file = self.weights.get(path) or self.kept.get(path)
        return None if file is None else open_variable(file)


def stage_of_model(folder: Path) -> TrainStage | None:
    """Returns the config of the model in a folder; None if it cannot be continued."""
    try:
        return EarlierModel.open(folder).stage
    except UnusableModelError:
        return None


def _files_by_path(folder: Path, summary: dict[str, Any]) -> dict[str, Path]:
    entries = enumerate(summary["variables"])
    return {entry["path"]: path_of(folder, number, entry) for number, entry in entries}


def drop_state(folder: Path) -> None:
    """Removes the state of an earlier training from a model folder before it is rewritten."""
    agreed(lambda: shutil.rmtree(folder / FOLDER, ignore_errors=True))


def save_state(folder: Path, model: LookupModel, state: TrainingState) -> None:
    """Writes `training_state/` into an existing model folder; its manifest comes last.

    Every process calls it.

    If validation chose the weights of an earlier step, the slots and moments are still from the
    last step, because the best model is kept without them. They only affect step sizes, which
    are smaller with the state of the last step.

    Args:
        folder: The model folder that `save_model` wrote.
        model: The model, compiled, after its training.
        state: Progress of the training.

    Raises:
        OSError: The disk is full.
    """
    kept = [SavedVariable(slot, table) for table in tables_of(model) for slot in table.slots]
    for variable in [*moments_of(model).values(), *seeds_of(model).values()]:
        dtype = np.dtype(variable.dtype).newbyteorder("<").str
        kept.append(SavedVariable(variable, None, dtype))
    described = write_variables(folder / FOLDER, kept)
    content = {"state": dataclasses.asdict(state), "variables": described}
    agreed(lambda: _seal_state(folder, content))


def _seal_state(folder: Path, content: dict[str, Any]) -> None:
    """Writes `state.json`, and the manifest of all files that a later training reads.

    The files of variables aren't read again: their writers provide the checksums.
    """
    (folder / _STATE).write_text(json.dumps(content) + "\n")
    summaries = {"weights": read_summary(folder), FOLDER: content}
    written = {
        f"{part}/{name}": file
        for part, summary in summaries.items()
        for entry in summary["variables"]
        for name, file in files_of(entry).items()
    }
    names = {name for name in manifests.file_names(folder) if name.split("/")[0] in _READ}
    files = manifests.checksums(folder, names - written.keys(), "crc32")
    manifests.write_manifest(folder / _MANIFEST, {}, {**files, **written})


def updates_of(model: LookupModel) -> int:
    """Returns the number of updates of a model's tables."""
    return max(int(np.asarray(table.steps.value)) for table in tables_of(model))


def trained_until(events: KeptEvents) -> int:
    """Returns the time after the newest training event [seconds since 1970]."""
    parts = [(part.shard.timestamp, part.held) for part in events.shards if len(part)]
    return 1 + max(int(np.delete(timestamp, held).max()) for timestamp, held in parts)


# --- the choice of the model to start from


def choose(
    folder: Path | None, stage: TrainStage, store: InteractionStore, side: TrainingSide
) -> tuple[EarlierModel | None, str | None]:
    """Returns the model that a training starts from, or the reason for a cold start.

    The result is the same in every process.

    A model that was trained on events at or after the run's cut has seen held-out events, so it
    is not used, and neither is a damaged model or one without training state.

    Args:
        folder: Model folder to start from; None for a cold start.
        stage: The model and the training loop.
        store: The events.
        side: Training side of the model's task.

    Raises:
        UsageError: The folder doesn't exist, or the config describes another model and
            `warm_start.changed` is `refuse`.
    """
    if folder is None:
        return None, None
    damages = jointly(lambda: damage_in_share(folder))
    damage = next((damage for damage in damages if damage is not None), None)
    reason = agreed(lambda: _reason_against(folder, damage, stage, store, side))
    if reason is None:
        return EarlierModel.open(folder), None
    return None, cold_start(folder, reason)


def cold_start(folder: Path, reason: str) -> str:
    """Reports and returns the reason for a cold start although a model folder was given."""
    sentence = f"Trains from the beginning, not from the model in {folder}: {reason.rstrip('.')}."
    note_on_primary(sentence)
    return sentence


def damage_in_share(folder: Path) -> str | None:
    """Returns what is wrong with a file of a model that this process verifies; None if nothing is.

    The processes divide the files among them. A folder that is no model, or whose manifest
    can't be read, is reported by `EarlierModel.open`.
    """
    try:
        files = manifests.read_manifest(folder / _MANIFEST)["files"]
    except manifests.ManifestError:
        return None
    own = manifests.share_of(files, jax.process_index(), jax.process_count())
    return manifests.damage_in(folder, own)


def _reason_against(
    folder: Path, damage: str | None, stage: TrainStage, store: InteractionStore, side: TrainingSide
) -> str | None:
    """Returns why a training can't start from a folder; None if it can."""
    if not folder.is_dir():
        raise UsageError(
            "R391",
            "--base must name the folder of a trained model.",
            "Name a folder written by recsys train or the Trainer of the pipeline.",
            str(folder),
        )
    if damage is not None:
        return f"it is damaged: {damage}"
    try:
        base = EarlierModel.open(folder)
        before = ModelInputs.open(folder)
    except UnusableModelError as error:
        return str(error)
    except (RecsysError, *DAMAGE) as error:
        return f"it can't be read: {error}"
    if store.split.split != "time":
        return "the data are not split by time, and it may have seen the answers"
    until, cut = (
        dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        for seconds in (base.state.trained_until, store.cut)
    )
    if base.state.trained_until > store.cut:
        return (
            f"it was trained on events until {until}, and what is evaluated now begins"
            f" at {cut}; it has seen the answers"
        )
    changes = _differences(base, before, stage, side)
    if changes and warm_start_of(stage).changed == "refuse":
        raise refused(folder, changes)
    if changes:
        return f"{len(changes)} of its traits changed: {'; '.join(changes)}"
    return side.reason_against(base.state.trained_until)


def refused(folder: Path, changes: list[str]) -> UsageError:
    """Returns the error for an earlier model whose config differs by `changes`."""
    return UsageError(
        CHANGED,
        f"The model in {str(folder)!r} can only be continued by one like it;"
        f" {len(changes)} of its traits changed: {'; '.join(changes)}.",
        "Change that back; name weights that grow with the data in the model's weights_by_row;"
        " or train from the beginning, with warm_start.changed=cold, or once with warm_start=null.",
    )


def _differences(
    base: EarlierModel, before: ModelInputs, stage: TrainStage, side: TrainingSide
) -> list[str]:
    """Returns the differences that rule out a warm start, each as `what: then → now`.

    Args:
        base: The earlier model.
        before: Its features and histories of users and items.
        stage: The model and the training loop.
        side: Training side of the model's task.
    """
    inputs = side.inputs
    pairs: list[tuple[str, Any, Any]] = []
    if type(base.spec.config) is type(stage.model):
        then, now = base.spec.config.architecture(), stage.model.architecture()
        pairs += [(f"model.{name}", then.get(name), now[name]) for name in now]
    else:
        old, new = (registry.name_of("model", c) for c in (base.spec.config, stage.model))
        pairs.append(("model.type", old, new))
    earlier, train = base.stage.train, stage.train
    old, new = (registry.name_of("row_optimizer", t.table_optimizer) for t in (earlier, train))
    pairs.append(("train.table_optimizer", old, new))
    pairs.append(("train.tower_optimizer", earlier.tower_optimizer, train.tower_optimizer))
    for ids in ("users", "items"):
        buckets = (getattr(known, ids).config.hash_buckets for known in (before, inputs))
        pairs.append((f"data.vocabulary.{ids}.hash_buckets", *buckets))
    pairs += _feature_traits(before, inputs)
    return [f"{what}: {then} → {now}" for what, then, now in pairs if then != now]


def _feature_traits(before: ModelInputs, now: ModelInputs) -> Iterator[tuple[str, Any, Any]]:
    """Yields the traits of features that must not change: name, then, now."""
    for side in ("items", "users"):
        then, today = before.features(side), now.features(side)
        names = [", ".join(f.name for f in features) or "none" for features in (then, today)]
        yield f"features of {side}", names[0], names[1]
        if names[0] != names[1]:
            continue
        for old, new in zip(then, today, strict=True):
            yield f"tokens of {new.name}", kind_of(old), kind_of(new)
            if kind_of(old) == kind_of(new) == "hashed":
                yield f"hash rows of {new.name}", old.rows - 1, new.rows - 1
            yield f"numbers of {new.name}", old.floats, new.floats
    yield "features of events", _event_traits(before), _event_traits(now)


def _event_traits(inputs: ModelInputs) -> str:
    """Returns the features of events with all that must not change of them."""
    traits = []
    for one in inputs.event_features:
        feature = one.feature
        has_names = feature.token_names(one.learned) is not None
        size = "" if has_names else f" of {feature.floats or one.rows - 1}"
        uses = {"context": feature.is_context, "attribute": feature.is_attribute}
        used = " and ".join(use for use, is_used in uses.items() if is_used)
        traits.append(f"{one.name} ({feature.kind}{size}, {used})")
    return ", ".join(traits) or "none"


# --- how a warm start differs from a first training


def warm_start_of(stage: TrainStage) -> WarmStartConfig:
    """Returns the warm-start config of a stage, or the default."""
    return stage.warm_start or WarmStartConfig()


def continued_stage(stage: TrainStage, base: EarlierModel | None) -> TrainStage:
    """Returns the stage of a training that starts from `base`; unchanged without one.

    It runs `warm_start.epochs` epochs. The learning-rate schedule restarts and covers this run,
    because the decayed rate of the earlier run would learn nothing from the new data.
    """
    if base is None:
        return stage
    changes = {"epochs": warm_start_of(stage).epochs}
    return stage.model_copy(update={"train": stage.train.model_copy(update=changes)})


def batch_settings(train: TrainConfig, base: EarlierModel | None) -> TrainConfig:
    """Returns the settings for making batches.

    Each warm start uses another seed for shuffling and sampling: with the same negatives every
    day, some items would never be drawn.
    """
    if base is None:
        return train
    return train.model_copy(update={"seed": (train.seed + base.state.steps) % _SEEDS})
