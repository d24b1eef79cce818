"""`python -m recsys.export`: from a model folder to a serving bundle.

Runs with `KERAS_BACKEND=tensorflow`, so that the SavedModel holds TensorFlow's own
operations: what JAX exports needs its runtime inside TensorFlow, and fails on
empty batches.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from recsys.bundle import MANIFEST, write_manifest
from recsys.commit import commit_folder
from recsys.config import ExportStage
from recsys.config_file import load_stage
from recsys.data.histories import ServingHistories, serving_histories
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import code_fingerprint
from recsys.model.saved import SavedModel, load_model
from recsys.model.spec import Side
from recsys.process import stage_main
from recsys.serving import gates
from recsys.serving.graph import Retrieval
from recsys.serving.model_card import model_card
from recsys.serving.raw_features import RawFeatures

_VERSIONS = ("tensorflow", "keras", "numpy", "pyarrow")


@dataclasses.dataclass(frozen=True)
class Sources:
    """The folders that a bundle is made of.

    Attributes:
        model: A model folder.
        data: The data folder that the model was trained on.
        transform: Output of the Transform of the items; without it `embed_candidate`
            takes ids alone.
        user_transform: Output of the Transform of the users; without it queries are
            made of ids and histories alone.
        evaluation: The model's evaluation folder, for card and manifest.
    """

    model: Path
    data: Path
    transform: Path | None = None
    user_transform: Path | None = None
    evaluation: Path | None = None


def export(stage: ExportStage, sources: Sources, out: Path) -> dict[str, Any]:
    """Writes the bundle `out`, whole or not at all.

    Args:
        stage: Name of the served model, and how many candidates it returns.
        sources: What it is made of.
        out: The bundle: absent, an empty folder, or an older bundle to replace.

    Returns:
        `bundle`, `max_difference` and `checked_queries`.

    Raises:
        RecsysError: An input is damaged, or the SavedModel differs from the trainer.
    """
    if keras.config.backend() != "tensorflow":
        raise RecsysError(
            "R520",
            "The export must run with Keras on TensorFlow.",
            "Set KERAS_BACKEND=tensorflow; `recsys export` does.",
            keras.config.backend(),
        )
    _check_replaceable(out)
    temporary = out.parent / f".{out.name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        checked = _write(temporary, stage, sources)
        _replace(temporary, out)
    except OSError as error:
        raise RecsysError(
            "R525",
            f"The export must be able to read or write {Path(error.filename or out).name!r}.",
            "Free some space, correct the permissions, or run again: recsys run.",
            str(error),
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"bundle": str(out), **checked}


def _write(folder: Path, stage: ExportStage, sources: Sources) -> dict[str, Any]:
    """Writes a checked bundle into `folder`; the manifest comes last."""
    saved = load_model(sources.model)
    reference = _reference(sources.model, saved)
    histories = _histories(sources.data, saved)
    raw_items, raw_users = _raw_features(sources, saved)
    n_items = int(saved.catalogue.is_item.sum())
    k = min(stage.export.k, n_items)
    retrieval = Retrieval(saved, reference.candidates, histories, raw_items, raw_users, k)
    tf.saved_model.save(retrieval, str(folder), signatures=retrieval.signatures())
    difference = gates.check(tf.saved_model.load(str(folder)), reference)

    np.save(folder / "item_embeddings.npy", reference.candidates)
    shutil.copytree(sources.model / "vocabulary", folder / "vocabulary")
    shutil.copyfile(sources.model / "catalogue" / "titles.parquet", folder / "titles.parquet")
    trained_with = saved.stage.model_dump(mode="json")
    evaluation = _json(sources.evaluation / "evaluation.json") if sources.evaluation else None
    counts = {"users": len(histories.ids), "items": n_items}
    training = _json(sources.model / "training.json")
    card = model_card(stage.name, counts, training, evaluation, trained_with)
    (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    fields = {
        "name": stage.name,
        "k": k,
        "item_columns": raw_items.columns if raw_items else (),
        "user_columns": raw_users.columns if raw_users else (),
        "counts": counts,
        "metrics": evaluation["metrics"] if evaluation else None,
        "config": {**stage.model_dump(mode="json"), **trained_with},
        "code": code_fingerprint("recsys.export", "recsys.train"),
        "versions": {name: metadata.version(name) for name in _VERSIONS},
        "max_difference": difference,
    }
    write_manifest(folder, fields)
    return {"max_difference": difference, "checked_queries": len(reference.query)}


def _raw_features(
    sources: Sources, saved: SavedModel
) -> tuple[RawFeatures | None, RawFeatures | None]:
    """Returns what turns raw columns of items, and of users, into token rows."""
    folders = (sources.transform, sources.user_transform)
    sides: tuple[tuple[Side, str], ...] = (("item", "item_id"), ("user", "user_id"))
    items, users = (
        RawFeatures(folder, id_, {f.name: f.width for f in saved.model.spec.of_side(side)})
        if folder
        else None
        for folder, (side, id_) in zip(folders, sides, strict=True)
    )
    return items, users


def _reference(model: Path, saved: SavedModel) -> gates.Reference:
    probe = np.load(model / "probe.npz")
    return gates.Reference(
        users=saved.users,
        items=saved.items,
        user_row=probe["user_row"],
        history=probe["history"],
        query=probe["query"],
        candidates=np.load(model / "candidates.npy"),
    )


def _histories(data: Path, saved: SavedModel) -> ServingHistories:
    """Returns the histories of `data`, whose rows must mean what they do in the model."""
    for name, of_model in (("users", saved.users), ("items", saved.items)):
        of_data = Vocabulary.load(data / "vocabulary" / f"{name}.parquet")
        if of_model.fingerprint() != of_data.fingerprint():
            raise RecsysError(
                "R524",
                f"The {name} of the model must be those of the data folder {str(data)!r}.",
                "Export with the data folder that the model was trained on.",
                {"model": of_model.n_rows, "data": of_data.n_rows},
            )
    return serving_histories(InteractionStore.open(data / "store"))


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _check_replaceable(out: Path) -> None:
    is_taken = out.is_file() or (out.is_dir() and any(out.iterdir()))
    if is_taken and not (out / MANIFEST).exists():
        raise UsageError(
            "R521",
            "The export writes to a new or empty folder, or over an older bundle.",
            "Name another folder with --out.",
            str(out),
        )


def _replace(temporary: Path, out: Path) -> None:
    """Renames `temporary` to `out`; an older bundle there goes."""
    old = out.parent / f".{out.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    commit_folder(temporary, out)
    shutil.rmtree(old, ignore_errors=True)


def _main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m recsys.export", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--transform", type=Path, help="Transform's output for the items")
    parser.add_argument("--user-transform", type=Path, help="Transform's output for the users")
    parser.add_argument("--evaluation", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    sources = Sources(
        given.model, given.data, given.transform, given.user_transform, given.evaluation
    )
    return export(load_stage(given.config, ExportStage), sources, given.out.absolute())


if __name__ == "__main__":
    stage_main(_main)
