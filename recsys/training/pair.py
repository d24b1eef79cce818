"""Training of a pair: a retriever, and a ranker that learns from its lists without a leak.

    <checkpoints>/<fingerprint of the inner retriever>/
        training/inner/       checkpoints of the inner retriever
        training/ranker/      checkpoints of the ranker
        training/final/       checkpoints of a final retriever that continues the inner one
        inner/, final/        model folders of these retrievers
        candidates-<digest>/  what was drawn from its lists, see `recsys.pair.draw`

The lists of the final retriever would hold answers, since it learned from all training events. So
an inner retriever learns from the older ones, and its lists for the newer ones are what the ranker
learns from. Each part is committed whole, and a killed training goes on from it.

With `ranker.share_tables` the inner retriever comes first, the ranker reads its tables, and the
final retriever continues it on all events, so that its tables still fit the ranker. The served
ranker reads those.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from recsys.data.candidates import INNER
from recsys.data.config import ValidationConfig
from recsys.data.dataset import Data, seal_inputs
from recsys.distributed.coordination import (
    agreed,
    failing_at_once,
    in_shares,
    is_primary,
    note_on_primary,
)
from recsys.distributed.join import facts_of, join
from recsys.embedding import device_mesh
from recsys.errors import UsageError
from recsys.models.summary import SUMMARY, damaged, read_summary
from recsys.pair.config import PairStage, ranker_stage, retriever_stage
from recsys.pair.draw import draw
from recsys.pair.folder import PAIR, RANKER, ranker_of, write_pair
from recsys.registry.file_option import read_in_folder
from recsys.system.files import commit_folder, read_json, remove, undamaged
from recsys.system.manifest import manifest_digest
from recsys.tasks import side_of
from recsys.tasks.config import TrainStage
from recsys.tasks.model_folder import load_model
from recsys.training.run_folders import RunFolders
from recsys.training.stage import train
from recsys.training.trainer import check_backend
from recsys.training.training_result import report_progress
from recsys.training.warm_start import FOLDER, cold_start, drop_state

_FINAL = "final"


def train_pair(
    stage: PairStage,
    data: Path,
    out: Path,
    checkpoints: Path | None = None,
    base: Path | None = None,
    retriever: Path | None = None,
) -> dict[str, Any]:
    """Trains a pair and writes its folder; called in each process of a run.

    Args:
        stage: The retriever, the ranker, and their training loops.
        data: Data folder of the InteractionEncoder.
        out: Folder of the pair to write; see `recsys.pair.folder`.
        checkpoints: Folder of the checkpoints of all runs; `checkpoints` beside `out` by default.
        base: Folder of a pair, or of a retriever, to start from; None: a cold start.
        retriever: Model folder of a retriever that was trained on the same data; None: it is
            trained.

    Returns:
        The content of the retriever's `training.json`, and of the ranker's as `ranker`.

    Raises:
        RecsysError: As `recsys.training.stage.train`.
        UsageError: As `recsys.training.stage.train`.
    """
    checkpoints = checkpoints or RunFolders.root_beside(out)
    trained = out.with_name(f".{out.name}.retriever")
    shares, ranker = stage.ranker.share_tables, out / RANKER
    if shares and base is not None:
        cold_start(base, "with ranker.share_tables no table may have seen the newest events")
        base = None
    if retriever is None:
        agreed(lambda: remove(trained))  # Its files may be linked in a pair.
        train(retriever_stage(stage), data, trained, checkpoints, base)
    source = retriever or trained
    agreed(lambda: _withdraw(out, source))
    inner, tensorboard = inner_stage(stage, source), checkpoints.parent / "tensorboard"
    with ExitStack() as stack:
        candidates, work = _candidates(stage, inner, data, source, checkpoints, stack)
        note_on_primary("Trains the ranker.")
        second = train(
            ranker_stage(stage.model_copy(update={"model": inner.model})),
            data,
            ranker,
            work / "training" / "ranker",
            None if base is None else ranker_of(base),
            candidates=candidates,
            tensorboard=tensorboard,
        )
        if shares:
            source = _continued(stage, inner, data, work, tensorboard)
            _read_tables(ranker, source, Data(data))
        first = agreed(lambda: _link(source, out))
        agreed(lambda: write_pair(ranker, stage.ranker))
        agreed(lambda: _copy(source / SUMMARY, out / SUMMARY))
        agreed(lambda: _remove_all([trained, work / _FINAL]))
    return {**first, "ranker": second}


def _candidates(
    stage: PairStage,
    inner: TrainStage,
    data: Path,
    retriever: Path,
    checkpoints: Path,
    stack: ExitStack,
) -> tuple[Path, Path]:
    """Returns the folder of what is drawn for the ranker, and the one of the pair's work.

    Args:
        stage: Config of the pair.
        inner: Config of the inner retriever.
        data: Data folder.
        retriever: Model folder of the final retriever; with `ranker.share_tables`, of the inner.
        checkpoints: Folder of the checkpoints of all runs.
        stack: Holds the lock of the work.
    """
    dataset, shares = Data(data), stage.ranker.share_tables
    in_shares(dataset.verify)
    # Not the folders of the inner retriever's own run.
    sealed = retriever / FOLDER / "manifest.json"
    base = agreed(lambda: manifest_digest(sealed)) if shares else None
    folders = RunFolders.of_run(checkpoints, inner, data, base)
    work = folders.checkpoints
    if is_primary():
        stack.enter_context(folders.locked())
    share = f"the newest {stage.ranker.held_back:.0%} of the training events"
    model, drawn = work / INNER, work / f"candidates-{_digest(stage)}"
    if not agreed(drawn.exists):
        if shares and not agreed(model.exists):
            _committed(model, lambda out: agreed(lambda: _copy_tree(retriever, out)))
        if not agreed(model.exists):
            note_on_primary(f"Trains a retriever without {share}, whose lists the ranker reads.")
            _committed(model, lambda out: train(inner, data, out, work / "training" / "inner"))
        agreed(lambda: _remove_all(work.glob("candidates-*")))
        note_on_primary(f"Draws from its lists for {share}.")
        draw(stage, dataset, model, drawn, _report)
    return drawn, work


def inner_stage(stage: PairStage, retriever: Path) -> TrainStage:
    """Returns the config of the retriever that the ranker learns from.

    It is the final retriever's, with as many epochs as that one needed, without the newest events.
    With `ranker.share_tables` it is that of `retriever` itself.

    Args:
        stage: Config of the pair.
        retriever: Model folder of a retriever.

    Raises:
        RecsysError: The folder is damaged (R310).
        UsageError: With `ranker.share_tables`, the retriever has seen the newest events (R391).
    """
    with undamaged(functools.partial(damaged, retriever)):
        final = read_in_folder(TrainStage, read_summary(retriever)["stage"], retriever)
        training = read_json(retriever / "training.json")
        train, epochs = final.train, _epochs(final, training)
    if stage.ranker.share_tables:
        _check_inner(train.validation, stage.ranker.held_back, retriever)
        return final.model_copy(update={"mesh": stage.mesh, "warm_start": None})
    held = ValidationConfig(
        like="newest",
        share=stage.ranker.held_back,
        every_epochs=epochs,
        patience=None,
        refit=False,
    )
    train = train.model_copy(update={"epochs": epochs, "validation": held})
    return final.model_copy(update={"train": train, "mesh": stage.mesh, "warm_start": None})


def _check_inner(held: ValidationConfig | None, share: float, retriever: Path) -> None:
    """Raises `UsageError` unless a retriever was trained without the newest share of events."""
    if held is None or (held.like, held.share, held.refit) != ("newest", share, False):
        raise UsageError(
            "R391",
            "With ranker.share_tables, --retriever must name a retriever that was trained without"
            f" the newest {share:.0%} of the events.",
            "Leave --retriever out; or train it with train.validation={like: newest, share:"
            f" {share}, refit: false}}.",
            str(retriever),
        )


def _continued(
    stage: PairStage, inner: TrainStage, data: Path, work: Path, tensorboard: Path
) -> Path:
    """Trains the final retriever, which continues the inner one on all events.

    Returns:
        Its model folder.
    """
    note_on_primary("Continues the retriever on all events.")
    options = inner.train.model_copy(update={"validation": None})
    final = inner.model_copy(update={"train": options, "warm_start": stage.warm_start})
    begun, out, checkpoints = work / INNER, work / _FINAL, work / "training" / _FINAL
    agreed(lambda: remove(out))  # Its files may be linked in a pair.
    trained = train(final, data, out, checkpoints, begun, tensorboard=tensorboard)
    if trained["warm_start"] is None:  # Other tables wouldn't fit the ranker.
        raise damaged(begun, str(trained["cold"]))
    return out


def _read_tables(ranker: Path, retriever: Path, data: Data) -> None:
    """Makes a ranker's folder that of the model with the tables of a retriever.

    Their rows without training are as the retriever has them, and its probe has the scores that
    follow. Every process calls it.
    """
    drop_state(ranker)  # A ranker can't continue with other tables.
    agreed(lambda: _take_vocabulary(ranker, retriever))
    mesh = device_mesh() if jax.process_count() > 1 else None
    trained = load_model(ranker, mesh=mesh, tables=retriever)
    side = side_of(trained.stage.model, "training")(trained.stage, data.store, trained.inputs)
    side.write(ranker, trained.model)


def _take_vocabulary(ranker: Path, retriever: Path) -> None:
    shutil.copytree(retriever / "vocabulary", ranker / "vocabulary", dirs_exist_ok=True)
    seal_inputs(ranker)


def _epochs(final: TrainStage, training: dict[str, Any]) -> int:
    """Returns the number of epochs after which a retriever was best."""
    train, validated = final.train, training["validation"]
    if training["warm_start"] or training["best_step"] is None or train.validation is None:
        return train.epochs
    per_epoch = validated[0]["step"] / train.validation.every_epochs
    return max(round(training["best_step"] / per_epoch), 1)


def _digest(stage: PairStage) -> str:
    """Returns a fingerprint of the parts of a config that the draw depends on."""
    ranker = stage.ranker
    parts = [
        ranker.candidates,
        ranker.negatives,
        [*ranker.labels],
        ranker.train.seed,
        stage.repeats,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _report(done: int, total: int) -> None:
    if is_primary():
        report_progress(done, total, "candidates")


def _committed(folder: Path, make: Callable[[Path], Any]) -> None:
    """Makes a folder that exists only if it is whole; every process calls it."""
    unfinished = folder.with_name(f".{folder.name}")
    agreed(lambda: remove(unfinished))
    make(unfinished)
    agreed(lambda: commit_folder(unfinished, folder))


def _remove_all(paths: Iterable[Path]) -> None:
    for path in paths:
        remove(path)


def _withdraw(out: Path, retriever: Path) -> None:
    """Makes a pair's folder an invalid one, in which the ranker can be trained."""
    out.mkdir(parents=True, exist_ok=True)
    (out / RANKER / PAIR).unlink(missing_ok=True)
    if not out.samefile(retriever):
        (out / SUMMARY).unlink(missing_ok=True)


def _link(retriever: Path, out: Path) -> dict[str, Any]:
    """Links the files of a retriever into a pair's folder, and returns its `training.json`.

    `model.json` comes last, when the pair is whole.
    """
    if not out.samefile(retriever):
        _copy_tree(retriever, out, SUMMARY, RANKER)
    return read_json(retriever / "training.json")


def _copy_tree(source: Path, target: Path, *left_out: str) -> None:
    ignored = shutil.ignore_patterns(*left_out)
    shutil.copytree(source, target, ignore=ignored, copy_function=_copy, dirs_exist_ok=True)


def _copy(source: str | Path, target: str | Path) -> None:
    """Links a file, or copies it if the file system has no links."""
    target = Path(target)
    if target.exists() and target.samefile(source):
        return
    remove(target)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def run(
    stage: PairStage,
    data: Path,
    out: Path,
    checkpoints: Path | None,
    base: Path | None,
    retriever: Path | None,
) -> dict[str, Any]:
    """Joins the other processes of the run, if any, and trains; see `train_pair`."""
    check_backend()
    checkpoints = checkpoints or RunFolders.root_beside(out)
    read = {"the data folder": data, "the base model": base, "the retriever": retriever}
    with failing_at_once():
        join(lambda: facts_of(stage, read), [checkpoints, out.absolute().parent])
        return train_pair(stage, data, out, checkpoints, base, retriever)
