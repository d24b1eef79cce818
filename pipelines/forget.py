"""`recsys forget`: removes users from everything under a root, and from ML Metadata.

Every step detects what is left to do, so the same call completes a killed one. The hashes are
written first, so that from then on no ingestion reads these users.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ml_metadata as mlmd

from components.metadata import DESTINATION
from pipelines.clean import remove_marked
from pipelines.metadata_store import DATABASE_NAME, open_store
from recsys.config import Config
from recsys.data.forgotten import Forgotten
from recsys.data.ingest.landed import LANDED_FOLDER, forget_in_landed
from recsys.errors import UsageError
from recsys.forget import files
from recsys.forget.files import (
    USER_COLUMN,
    Names,
    finish_record,
    forget_in_served_logs,
    fresh,
    is_distinctive,
    recover,
    replacing,
    start_record,
)
from recsys.forget.model_folder import forget_in_model, forget_in_vocabularies
from recsys.runs.index import write_index
from recsys.runs.retention import GONE, Thing
from recsys.system.events import emit
from recsys.system.run_lock import run_lock

_STATISTICS = "FeatureStats.pb"


def forget(config: Config, ids: Sequence[str]) -> dict[str, Any]:
    """Removes users, while no run holds the root.

    Args:
        config: The config of the runs.
        ids: The users, as in the vocabularies.

    Returns:
        Counts of removed things, and `failed`: path and reason of everything that could not be
        removed.

    Raises:
        UsageError: `data.forget` isn't set (R930).
        RecsysError: Its file is damaged (R931), or a run holds the root (R601).
    """
    if config.data.forget is None:
        rule = "data.forget must name the file of the users that every run leaves out."
        cure = "Add `forget: forgotten.txt` to `data` in the config; recsys forget writes the file."
        raise UsageError("R930", rule, cure)
    path, names = Path(config.data.forget), Names(ids)
    known = Forgotten.load(path) if path.exists() else Forgotten.new()
    known.with_users(names.ids).save(path)
    root = config.root_folder
    if not root.is_dir():
        return {"users": len(names.ids), "found": False, "version": None, "failed": []}
    with run_lock(root):
        start_record(root, len(names.ids))
        done = _forget(config, root, names)
        finish_record(root, {name: n for name, n in done.items() if type(n) is int})
    return done


def _forget(config: Config, root: Path, names: Names) -> dict[str, Any]:
    # TensorFlow, which takes seconds to start.
    from recsys.forget.served import forget_in_versions

    store = open_store(config, writes=True)
    move = functools.partial(_move_pushes, store)
    done: dict[str, Any] = {"users": len(names.ids), "versions": 0, "version": None}
    failed: list[Any] = []
    for serving in sorted((root / "serving").glob("*")):
        _tell(f"bundles in {serving}")
        changed = forget_in_versions(serving, names, config.push.keep, move)
        done["versions"] += changed.changed
        failed += changed.failed
        done["version"] = str(changed.published) if changed.published else done["version"]
    _tell("models and vocabularies")
    artifacts = root / "artifacts"
    for folder in filter(Path.is_dir, artifacts.glob("*/*")):
        recover(folder)
    trained = [*artifacts.glob("Trainer/model/*"), *artifacts.glob("RankTrainer/pair/*")]
    models = [forget_in_model(path, names) for path in trained]
    outputs = artifacts.glob("VocabularyGen/vocabularies/*")
    vocabularies = [forget_in_vocabularies(path, names) for path in outputs]
    done |= {"models": sum(map(bool, models)), "vocabularies": sum(map(bool, vocabularies))}
    things = list(files.rebuilt(root))
    done["statistics"] = sum(_forget_in_statistics(path, names) for path in _statistics(artifacts))
    rests = [Thing("rest", path, "", goes=True) for path in (root / GONE).glob("*")]
    kept = remove_marked(root, store, [*rests, *things])
    done["removed"] = len(things) - len(kept)
    done["landed"], unread = forget_in_landed(root / LANDED_FOLDER, config.data)
    failed += unread
    done["texts"] = files.forget_in_texts(root, names)
    done["logs"] = forget_in_served_logs(root, config.data.interactions, names)
    done["metadata"] = 0 if store is None else _forget_in_metadata(store, names)
    if (root / DATABASE_NAME).is_file():
        files.compact(root / DATABASE_NAME)
    if (root / "runs").is_dir():
        write_index(root)
    removed = ("versions", "models", "vocabularies", "statistics", "landed")
    found = bool(failed) or any(done[name] for name in (*removed, "texts", "logs", "metadata"))
    return {**done, "found": found, "failed": [*failed, *kept]}


def _tell(text: str) -> None:
    emit("note", step="forget", text=text)


# --- ML Metadata


def _move_pushes(store: mlmd.MetadataStore | None, old: Path, new: Path) -> None:
    """Updates the record of a push to the version that replaced the pushed one."""
    if store is None:
        return
    pushes = [
        push
        for push in store.get_artifacts_by_type("PushedModel")
        if push.custom_properties[DESTINATION].string_value == str(old)
    ]
    for push in pushes:
        push.custom_properties[DESTINATION].string_value = str(new)
    store.put_artifacts(pushes)


def _forget_in_metadata(store: mlmd.MetadataStore, names: Names) -> int:
    """Removes the ids from all texts in ML Metadata; returns the number of changed records."""
    artifacts = _changed(store.get_artifacts(), names)
    executions = _changed(store.get_executions(), names)
    contexts = _changed(store.get_contexts(), names)
    store.put_artifacts(artifacts)
    store.put_executions(executions)
    store.put_contexts(contexts)
    return len(artifacts) + len(executions) + len(contexts)


def _changed(records: Iterable[Any], names: Names) -> list[Any]:
    changed = []
    for record in records:
        before = record.SerializeToString(deterministic=True)
        for properties in (record.properties, record.custom_properties):
            for value in properties.values():
                if value.WhichOneof("value") == "string_value":
                    value.string_value = names.without_words(value.string_value)
        if record.SerializeToString(deterministic=True) != before:
            changed.append(record)
    return changed


# --- TFDV's statistics


def _statistics(artifacts: Path) -> list[Path]:
    folders = (artifacts / f"StatisticsGen.{what}" for what in ("Interactions", "Users"))
    return [path for folder in folders for path in sorted(folder.glob("statistics/*"))]


def _forget_in_statistics(folder: Path, names: Names) -> bool:
    """Removes ids from the frequent values of columns; returns whether there were any."""
    changed = {path: new for path in folder.rglob(_STATISTICS) if (new := _without(path, names))}
    if changed:
        with replacing(folder) as copy:
            for path, content in changed.items():
                fresh(copy / path.relative_to(folder)).write_bytes(content)
    return bool(changed)


def _without(path: Path, names: Names) -> bytes | None:
    from tensorflow_metadata.proto.v0 import statistics_pb2

    listed = statistics_pb2.DatasetFeatureStatisticsList.FromString(path.read_bytes())
    before = listed.SerializeToString(deterministic=True)
    for column in (column for dataset in listed.datasets for column in dataset.features):
        is_user = USER_COLUMN in (column.name, *column.path.step)
        gone = {id_ for id_ in names.ids if is_user or is_distinctive(id_)}
        strings = column.string_stats
        for values in (strings.top_values, strings.rank_histogram.buckets):
            kept = [
                v
                for v in values
                if (getattr(v, "value", None) or getattr(v, "label", "")) not in gone
            ]
            del values[:]
            values.extend(kept)
    after = listed.SerializeToString(deterministic=True)
    return None if after == before else after
