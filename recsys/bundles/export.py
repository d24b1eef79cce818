"""From a model folder to a serving bundle.

Runs with `KERAS_BACKEND=tensorflow`, so that the SavedModel consists of TensorFlow operations. A
JAX export would need JAX's runtime inside TensorFlow, and fails on empty batches.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from recsys.bundles import variables, warmup
from recsys.bundles.bundle import MANIFEST, write_manifest
from recsys.bundles.config import ExportConfig, ExportStage
from recsys.bundles.graph import Retrieval
from recsys.bundles.item_table import write_catalogue
from recsys.bundles.model_card import model_card
from recsys.bundles.parity_process import ParityProcess
from recsys.bundles.raw_features import RawFeatures
from recsys.bundles.reference import Reference, raw_facts, raw_probes
from recsys.bundles.signatures import (
    FEATURES,
    HISTORY,
    POPULARITY,
    USER,
    popularity_shares,
)
from recsys.bundles.variables import filled_later, make_canonical
from recsys.data.dataset import GRAPHS
from recsys.data.history_facts import KINDS
from recsys.data.input_files import CANDIDATES, verify_candidates
from recsys.data.store import InteractionStore, ServingHistories, serving_histories
from recsys.data.vocabulary import Vocabulary, load_kinds
from recsys.embedding.table import Table
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import code_fingerprint
from recsys.models.inputs import Side, trained_rows
from recsys.models.saved_arrays import SavedRows
from recsys.registry.file_option import IN_FOLDER, read_in_folder
from recsys.runs.lineage import describe_origin
from recsys.serving.index_build import build
from recsys.system.commit import commit_folder
from recsys.system.disk import free_there
from recsys.system.events import emit
from recsys.system.files import read_result
from recsys.system.process import release_freed
from recsys.tasks.config import TrainStage
from recsys.tasks.model_folder import Probe, TrainedModel, load_model, read_probe


@dataclasses.dataclass(frozen=True)
class Sources:
    """The folders that a bundle is made from.

    Attributes:
        model: A model folder.
        data: The data folder that the model was trained on.
        transform: Output of the Transform of the items; None: the one in the data folder.
            Without either, `embed_candidate` takes ids alone.
        user_transform: Output of the Transform of the users; None: the one in the data
            folder. Without either, queries are made of ids and histories alone.
        evaluation: The model's evaluation folder, for card and manifest.
        data_origin: Origin of the raw data, for the manifest (`recsys.runs.lineage`).
    """

    model: Path
    data: Path
    transform: Path | None = None
    user_transform: Path | None = None
    evaluation: Path | None = None
    data_origin: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Opened:
    """The sources of a bundle, open; no table of the model is in memory.

    Attributes:
        saved: The model, whose tables have no rows before they are in the SavedModel.
        histories: What every user did.
        probe: What the trainer's towers gave; the candidates are memory-mapped.
        items: From raw columns of items to token rows; None where there are none.
        users: The same for users.
    """

    saved: TrainedModel
    histories: ServingHistories
    probe: Probe
    items: RawFeatures | None
    users: RawFeatures | None

    @classmethod
    def open(cls, sources: Sources) -> Opened:
        """Reads all but the tables.

        Raises:
            RecsysError: An input is damaged, or doesn't fit the others.
        """
        saved = load_model(sources.model, _without_rows)
        histories = _histories(sources.data, saved)
        items = _raw_features(sources.transform, sources.data, "item", saved)
        users = _raw_features(sources.user_transform, sources.data, "user", saved)
        return cls(saved, histories, read_probe(sources.model), items, users)

    @property
    def n_items(self) -> int:
        """Items that can be recommended."""
        return int(self.saved.catalogue.is_item.sum())

    def reference(self, config: ExportConfig) -> Reference:
        """Returns what the bundle must reproduce."""
        probe, saved = self.probe, self.saved
        user_id, history = raw_probes(saved.users, saved.items, probe.user_row, probe.history)
        return Reference(
            user_id=user_id,
            history=history,
            query=probe.query,
            source=_sources(saved, probe.user_row, probe.history),
            popularity=popularity_shares(self.histories, saved.catalogue.is_item),
            kind=config.item_embeddings,
            min_parity=config.min_parity,
            latency_ms=config.latency_ms,
            vectors=config.vectors,
            facts=raw_facts(probe.facts, saved.inputs.kinds),
        )


def _sources(saved: TrainedModel, user_row: np.ndarray, history: np.ndarray) -> np.ndarray:
    """Returns what an answer must rest on `[n]`, of user rows `[n]` and item rows `[n, length]`."""
    spec = saved.model.spec
    own = trained_rows(user_row, saved.users) >= saved.users.first_own_row
    names = {feature.name for feature in spec.of_side("user")}
    bags = [bag.bags[user_row] for bag in saved.inputs.user_features if bag.name in names]
    has_features = [(bag > 0).any(axis=1) for bag in bags]
    has = [
        own & spec.config.user_id,
        (trained_rows(history, saved.items) > 0).any(axis=1) & spec.config.reads_history,
        np.logical_or.reduce([np.zeros_like(own), *has_features]),
    ]
    return np.select(has, [USER, HISTORY, FEATURES], POPULARITY).astype(object)


def _without_rows(table: Table, weights: np.ndarray | SavedRows) -> None:
    variable = filled_later(weights, tf.as_dtype(table.spec.dtype))
    # Read, not gathered from: a variable that is gathered from is copied at every read.
    table.read_from(variable, lambda: tf.convert_to_tensor(variable))


def _raw_features(
    folder: Path | None, data: Path, side: Side, saved: TrainedModel
) -> RawFeatures | None:
    """Returns what turns raw columns of items, or of users, into token rows.

    Args:
        folder: Output of Transform; None: the one that `ingest` stored in `data`, if the
            model reads features of this side.
        data: The data folder.
        side: Whose columns.
        saved: The model.
    """
    widths = {feature.name: feature.width for feature in saved.model.spec.of_side(side)}
    if folder is None and widths:
        folder = data / GRAPHS / f"{side}s"
        if not folder.is_dir():
            text = (
                f"the bundle takes no raw columns of {side}s, as {str(data)!r} has no transform"
                " graph of theirs; `transforms` of recsys.export names one"
            )
            emit("note", step=_STEP, text=text)
            return None
    return None if folder is None else RawFeatures(folder, f"{side}_id", widths)


def _histories(data: Path, saved: TrainedModel) -> ServingHistories:
    """Returns the histories of `data`, whose rows must be those of the model."""
    for name, of_model in (("users", saved.users), ("items", saved.items)):
        of_data = Vocabulary.load(data / "vocabulary" / f"{name}.parquet")
        if of_model.fingerprint() != of_data.fingerprint():
            rule = f"The {name} of the model must match those of the data folder {str(data)!r}."
            cure = "Export with the data folder that the model was trained on."
            received = {"model": of_model.n_rows, "data": of_data.n_rows}
            raise RecsysError("R524", rule, cure, received)
    facts = saved.model.spec.config.history_facts
    kinds = load_kinds(data / "vocabulary")
    if KINDS in facts and saved.inputs.kinds != kinds:
        rule = f"The kinds of event of the model must match those of the data folder {str(data)!r}."
        cure = "Export with the data folder that the model was trained on."
        raise RecsysError("R524", rule, cure, {"model": saved.inputs.kinds, "data": kinds})
    return serving_histories(InteractionStore.open(data / "store"), facts)


__all__ = ["Sources", "export"]

_STEP = "Exporter"
_VERSIONS = ("tensorflow", "keras", "numpy", "pyarrow")


def export(stage: ExportStage, sources: Sources, out: Path) -> dict[str, Any]:
    """Writes the bundle `out` atomically.

    Args:
        stage: Name of the served model, and how many candidates it returns.
        sources: What it is made of.
        out: The bundle: absent, an empty folder, or an older bundle to replace.

    Returns:
        `bundle`, `max_difference` and `checked_queries`.

    Raises:
        RecsysError: An input is damaged, or the SavedModel differs from the trainer.
    """
    backend = keras.config.backend()
    if backend != "tensorflow":
        rule = "The export must run with Keras on TensorFlow."
        cure = "Set KERAS_BACKEND=tensorflow; `recsys export` does."
        raise RecsysError("R520", rule, cure, backend)
    is_taken = out.is_file() or (out.is_dir() and any(out.iterdir()))
    if is_taken and not (out / MANIFEST).exists():
        rule = "The export writes to a new or empty folder, or over an older bundle."
        raise UsageError("R521", rule, "Name another folder with --out.", str(out))
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


def _write(folder: Path, stage: ExportStage, sources: Sources) -> dict[str, Any]:
    """Writes a checked bundle into `folder`; the manifest comes last."""
    warmup.messages()  # Before the work of minutes.
    with ParityProcess() as parity, tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
        training = read_result(sources.model / "training.json")
        evaluated = sources.evaluation
        evaluation = read_result(evaluated / "evaluation.json") if evaluated else None
        fields, reference = _write_contents(folder, stage, sources)
        release_freed()  # The process of the checks needs it.
        reference.save(Path(scratch))
        checked = parity.check(folder, Path(scratch))
    trained_with = fields["config"]
    trained = read_in_folder(TrainStage, trained_with, sources.model)
    card = model_card(stage, fields, training, evaluation)
    (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    fields |= {
        "name": stage.name,
        "repeats": stage.repeats,
        "metrics": evaluation["metrics"] if evaluation else None,
        "lineage": describe_origin(sources.model, evaluation, sources.data_origin),
        "config": {**stage.model_dump(mode="json"), **trained_with},
        "code": code_fingerprint(trained),
        "versions": {name: metadata.version(name) for name in _VERSIONS},
        **checked,
    }
    write_manifest(folder, fields)
    return {**checked, "checked_queries": len(reference.query)}


def _write_contents(
    folder: Path, stage: ExportStage, sources: Sources
) -> tuple[dict[str, Any], Reference]:
    """Writes all that the parity checks read; returns fields of the manifest, and the reference."""
    opened = Opened.open(sources)
    saved, config = opened.saved, stage.export
    reference = opened.reference(config)
    k = min(config.k, opened.n_items)
    _save_model(folder, stage, opened, reference, k)
    verify_candidates(sources.model)
    shutil.copyfile(sources.model / CANDIDATES, folder / "item_embeddings.npy")
    shutil.copytree(sources.model / "vocabulary", folder / "vocabulary")
    shutil.copyfile(sources.model / "catalogue" / "titles.parquet", folder / "titles.parquet")
    write_catalogue(folder, saved.catalogue)
    is_item, candidates = saved.catalogue.is_item, opened.probe.candidates

    def report(done: int, total: int) -> None:
        _tell(f"{done:,} of {total:,} items indexed", done, total)

    index = build(folder, candidates, is_item, reference.query, k, config.index, report)
    fields = {
        "k": k,
        "index": index,
        "item_columns": opened.items.columns if opened.items else (),
        "user_columns": opened.users.columns if opened.users else (),
        "history_facts": saved.model.spec.config.query_facts,
        "kinds": saved.inputs.kinds if KINDS in saved.model.spec.config.history_facts else (),
        "counts": {"users": len(opened.histories.ids), "items": opened.n_items},
        "config": saved.stage.model_dump(mode="json", context=IN_FOLDER),
    }
    return fields, reference


def _save_model(
    folder: Path, stage: ExportStage, opened: Opened, reference: Reference, k: int
) -> None:
    """Writes the SavedModel, its tables slice by slice, and its warm-up requests."""
    raw, kind = (opened.items, opened.users), stage.export.item_embeddings
    candidates = None if stage.export.vectors == "apart" else opened.probe.candidates
    excludes_seen = stage.repeats == "exclude"
    retrieval = Retrieval(
        opened.saved, candidates, opened.histories, *raw, k, kind, excludes_seen=excludes_seen
    )
    with variables.written_whole(folder):
        # With gradients in it, TensorFlow never lets a loaded model go.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        signatures = retrieval.signatures()
        tf.saved_model.save(retrieval, str(folder), signatures=signatures, options=options)
        variables.fill(folder, retrieval.variables, _tell_written)
        make_canonical(folder)
        warmup.write_warmup(folder, stage.name, reference.probes)


def _tell_written(done: int, total: int) -> None:
    text = f"{done / 2**30:.2f} of {total / 2**30:.2f} GiB of variables written"
    _tell(text, done, total)


def _tell(text: str, done: int, total: int) -> None:
    emit("progress", step=_STEP, done=done, total=total, text=text)


def _replace(temporary: Path, out: Path) -> None:
    """Renames `temporary` to `out`; an older bundle there goes."""
    old = out.parent / f".{out.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    commit_folder(temporary, out)
    shutil.rmtree(old, ignore_errors=True)
