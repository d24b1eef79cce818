"""From a model folder to a serving bundle.

Runs with `KERAS_BACKEND=tensorflow`, so that the SavedModel consists of TensorFlow operations. A
JAX export would need JAX's runtime inside TensorFlow, and fails on empty batches.

The task's serving side makes the SavedModel and its files. This module writes them, has them
checked in a process with only TensorFlow, and adds model card and manifest.
"""

from __future__ import annotations

import functools
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from recsys.bundles.bundle import MANIFEST, write_manifest
from recsys.bundles.config import ExportStage
from recsys.bundles.description import describe_origin, model_card
from recsys.bundles.parity_process import ParityProcess
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import code_fingerprint
from recsys.models.summary import damaged, read_summary
from recsys.pair.folder import ranker_of
from recsys.registry.file_option import IN_FOLDER, read_in_folder
from recsys.savedmodel import variables
from recsys.savedmodel.signatures import (
    DEFAULT_SIGNATURE,
    RANK,
    SCORE,
    input_names,
    warmup_messages,
    write_warmup,
)
from recsys.system.events import emit
from recsys.system.files import commit_folder, free_there, read_result, undamaged
from recsys.system.process import release_freed
from recsys.tasks import side_of
from recsys.tasks.config import TrainStage
from recsys.tasks.serving_side import Answers, ServingSide, Sources, tell

__all__ = ["Sources", "export"]

_VERSIONS = ("tensorflow", "keras", "numpy", "pyarrow")


def export(stage: ExportStage, sources: Sources, out: Path) -> dict[str, Any]:
    """Writes the bundle `out` atomically.

    Args:
        stage: Config of the export.
        sources: Folders from which the bundle is made.
        out: The bundle: absent, an empty folder, or an older bundle to replace.

    Returns:
        `bundle`, `max_difference` and `checked_queries`.

    Raises:
        RecsysError: An input is damaged, or the SavedModel's results differ from the trainer's.
    """
    _check(out)
    temporary = out.parent / f".{out.name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        checked = _write(temporary, stage, sources)
        _replace(temporary, out)
    except OSError as error:
        rule = (
            f"The export must be able to read or write {Path(error.filename or out).name!r} in"
            f" {str(out.parent)!r}{free_there(out)}."
        )
        cure = "Free disk space, correct the permissions, or run again: recsys run."
        raise RecsysError("R525", rule, cure, str(error)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"bundle": str(out), **checked}


def _check(out: Path) -> None:
    """Checks the backend, and that only a bundle is overwritten."""
    backend = keras.config.backend()
    if backend != "tensorflow":
        rule = "The export must run with Keras on TensorFlow."
        cure = "Set KERAS_BACKEND=tensorflow; `recsys export` does."
        raise RecsysError("R520", rule, cure, backend)
    is_taken = out.is_file() or (out.is_dir() and any(out.iterdir()))
    if is_taken and not (out / MANIFEST).exists():
        rule = "The export writes to a new or empty folder, or over an older bundle."
        raise UsageError("R521", rule, "Name another folder with --out.", str(out))


def _write(folder: Path, stage: ExportStage, sources: Sources) -> dict[str, Any]:
    """Writes a checked bundle into `folder`; the manifest comes last."""
    warmup_messages()  # First, since the rest takes minutes.
    with ParityProcess() as parity:
        training = read_result(sources.model / "training.json")
        evaluated = sources.evaluation
        evaluation = read_result(evaluated / "evaluation.json") if evaluated else None
        trained = _trained_stage(sources.model)
        trained_with = trained.model_dump(mode="json", context=IN_FOLDER)
        side: ServingSide = _side_class(trained.model, sources.model, evaluation)(stage, sources)
        _save_module(folder, stage.name, side)
        fields = {
            **side.write_files(folder),
            "name": stage.name,
            "answers": side.answers,
            "repeats": stage.repeats,
            "metrics": evaluation["metrics"] if evaluation else None,
            "lineage": describe_origin(sources.model, evaluation, sources.data_origin),
            "config": {**stage.model_dump(mode="json"), **trained_with},
        }
        reference, template = side.reference(), side.card
        shown = {**fields, **side.card_fields(), "config": trained_with}
        del side
        release_freed()  # The checking process needs it.
        checked = parity.check(folder, reference, stage.export.latency_ms)
    fields |= {
        "code": code_fingerprint(trained),
        "versions": {name: metadata.version(name) for name in _VERSIONS},
        **checked,
    }
    shown["summary"] = getattr(trained.model, "summary", "")
    card = model_card(stage.name, template, shown, training, evaluation)
    (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    write_manifest(folder, fields)
    return {**checked, "checked_queries": len(reference)}


def _side_class(model: Any, folder: Path, evaluation: dict[str, Any] | None) -> Any:
    """Returns the class of the serving side: a pair's, unless its second stage is left out."""
    if ranker_of(folder) is None:
        return side_of(model, "serving")
    judged = (evaluation or {}).get("pair") or {}
    if judged.get("second_stage") == "left_out":
        text = "the bundle has no ranker: it ordered the candidates worse than the retriever"
        emit("note", text=text)
        return side_of(model, "serving")
    from recsys.pair.serving import PairServing

    return PairServing


def _trained_stage(model: Path) -> TrainStage:
    """Returns the config that a model was trained with."""
    with undamaged(functools.partial(damaged, model)):
        return read_in_folder(TrainStage, read_summary(model)["stage"], model)


def _save_module(folder: Path, name: str, side: ServingSide) -> None:
    """Writes the SavedModel, its tables slice by slice, and its warm-up requests."""
    module = side.module()
    with variables.written_whole(folder):
        # TensorFlow never frees a loaded model with gradients.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        signatures = _signatures(module, side.answers)
        tf.saved_model.save(module, str(folder), signatures=signatures, options=options)
        variables.fill(folder, module.variables, _tell_written)
        variables.make_canonical(folder)
        write_warmup(folder, name, side.warm_up(input_names(folder)))


def _signatures(module: Any, answers: Answers) -> dict[str, Any]:
    """Returns the signatures to save; `score` is also the default one."""
    signatures = dict(module.signatures())
    if answers == "scores" and RANK not in signatures:
        outputs = signatures[SCORE].structured_outputs if SCORE in signatures else {}
        if {*outputs} != {SCORE}:
            rule = "A module that answers scores must have the signature 'score' with one output,"
            cure = "Correct the method signatures of the module that the task's serving side makes."
            raise UsageError("R535", f"{rule} 'score'.", cure, [*outputs] or [*signatures])
        signatures.setdefault(DEFAULT_SIGNATURE, signatures[SCORE])
    return signatures


def _tell_written(done: int, total: int) -> None:
    tell(f"{done / 2**30:.2f} of {total / 2**30:.2f} GiB of variables written", done, total)


def _replace(temporary: Path, out: Path) -> None:
    """Renames `temporary` to `out`, replacing an older bundle."""
    old = out.parent / f".{out.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    commit_folder(temporary, out)
    shutil.rmtree(old, ignore_errors=True)
