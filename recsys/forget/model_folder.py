"""Frees the rows of users in vocabularies and model folders, and overwrites their content."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.dataset import seal_inputs
from recsys.data.statistics import FOLDER as STATISTICS
from recsys.data.statistics import MOMENTS, StatisticsState
from recsys.data.vocabulary import Vocabulary, as_texts
from recsys.forget.files import Names, fresh, replacing
from recsys.models.summary import SUMMARY, read_summary, summary_text
from recsys.pair.folder import ranker_of
from recsys.system import manifest as manifests
from recsys.system.files import read_json

USERS = "users.parquet"
_PROBES = ("probe.npz", "rank_probe.npz")
_DIFF = "diff.json"
_STATE = "training_state"
_OF_ITEMS = ("items", "item_bias")


def rows_of(vocabulary: Vocabulary, ids: Iterable[str]) -> np.ndarray:
    """Returns the own rows of `ids` `[n]`, ascending."""
    places = vocabulary.index.find(as_texts(sorted(ids)))
    return np.sort(places[places >= 0]) + vocabulary.first_own_row


def free_rows(folder: Path, names: Names) -> np.ndarray:
    """Frees the rows of users in a folder of vocabularies, a copy from `replacing`.

    No other row moves. The next vocabulary gives the free rows to new users, and a training
    then starts these rows anew.

    Returns:
        The rows `[n]`, ascending.
    """
    vocabulary = Vocabulary.load(folder / USERS)
    rows = rows_of(vocabulary, names.ids)
    if len(rows):
        places = rows - vocabulary.first_own_row
        own = np.arange(len(vocabulary.own_ids))
        vocabulary.own_ids = vocabulary.own_ids.take(pa.array(own, mask=np.isin(own, places)))
        vocabulary.row_counts[rows], vocabulary.last_seen[places] = 0, 0
        vocabulary.save(fresh(folder / USERS))
    if (folder / _DIFF).is_file():
        text = json.dumps(names.without_json(read_json(folder / _DIFF)), indent=1)
        fresh(folder / _DIFF).write_text(text + "\n")
    return rows


def forget_in_vocabularies(folder: Path, names: Names) -> int:
    """Frees the rows of users in the folder of vocabularies; returns how many had one."""
    if not (folder / USERS).is_file() or not _has_trace(folder, names):
        return 0
    with replacing(folder) as copy:
        return len(free_rows(copy, names))


def _has_trace(folder: Path, names: Names) -> bool:
    if len(rows_of(Vocabulary.load(folder / USERS), names.ids)):
        return True
    differences = read_json(folder / _DIFF) if (folder / _DIFF).is_file() else {}
    return bool(names.without_json(differences) != differences)


def forget_in_model(folder: Path, names: Names) -> int:
    """Overwrites the rows of users in a model folder with zeros; returns how many had one.

    Removes their features, weights and slots, and the probes, which contain histories, of these and
    of unknown users, in the folder of a pair from both models. Updates the checksums.

    Args:
        folder: The model folder.
        names: The users.
    """
    if not (folder / SUMMARY).is_file():
        return 0
    ranker = ranker_of(folder)
    parts = [part for part in (folder, ranker) if part is not None]
    is_clean = all(_read_probes(part, name)[1].all() for part in parts for name in _PROBES)
    if is_clean and not _has_trace(folder / "vocabulary", names):
        return 0
    with replacing(folder) as copy:
        rows = free_rows(copy / "vocabulary", names)
        for bags in sorted((copy / "user_features").glob("*.npy")):
            _overwrite(bags, rows)
        _drop_states(copy, rows)
        summary, state = read_summary(copy), copy / _STATE / "state.json"
        tables = user_tables(summary)
        _overwrite_variables(copy / "weights", summary, tables, rows)
        fresh(copy / SUMMARY).write_text(summary_text(summary))
        if state.is_file():
            described = read_json(state)
            _overwrite_variables(copy / _STATE, described, tables, rows)
            fresh(state).write_text(json.dumps(described) + "\n")
        for name in _PROBES:
            _drop_probes(copy, name)
        _seal(copy)
        if ranker is not None:
            forget_in_model(copy / ranker.name, names)
    return len(rows)


def _drop_states(folder: Path, rows: np.ndarray) -> None:
    """Rewrites the statistics of earlier events without the states of user rows."""
    for which in MOMENTS if (folder / STATISTICS).exists() else ():
        changed = StatisticsState.open(folder, which).without_users(rows)
        for name, states in changed.items():
            for file in (f"{name}.npy", f"{name}.key.npy"):
                fresh(folder / STATISTICS / which / file)
            states.save(folder / STATISTICS / which, name)


def _overwrite(path: Path, rows: np.ndarray) -> None:
    """Rewrites a `.npy` with zeros in some of its rows."""
    new = path.with_name(f".{path.name}")
    shutil.copyfile(path, new)
    array = np.load(new, mmap_mode="r+", allow_pickle=False)
    array[rows] = 0
    array.flush()
    new.replace(path)


def user_tables(summary: dict[str, Any]) -> set[str]:
    """Returns the paths of the tables that have a row for each user."""
    spec = summary["spec"]
    others = {*_OF_ITEMS, *(feature["name"] for feature in spec["features"])}
    found = set()
    for entry in summary["variables"]:
        table, _, variable = entry["path"].rpartition("/")
        is_of_users = table.rpartition("/")[2] not in others
        # A dense weight may have as many rows.
        if variable == "embeddings" and is_of_users and entry["shape"][:1] == [spec["user_rows"]]:
            found.add(table)
    return found


def _overwrite_variables(
    folder: Path, described: dict[str, Any], tables: set[str], rows: np.ndarray
) -> None:
    """Overwrites rows of tables, or of their slots, and updates the file list."""
    for number, entry in enumerate(described["variables"]):
        if entry["path"].rpartition("/")[0] in tables and entry["shape"]:
            _overwrite_variable(folder, number, entry, rows)


def _overwrite_variable(folder: Path, number: int, entry: dict[str, Any], rows: np.ndarray) -> None:
    """Overwrites rows of a variable, in one file or in parts, and updates the file list."""
    first = 0
    for kind in ("whole", "parts"):
        for name in sorted(entry.get(kind, {}), key=_part):
            length = len(np.load(folder / name, mmap_mode="r", allow_pickle=False))
            inside = rows[(rows >= first) & (rows < first + length)] - first
            if len(inside):
                _overwrite(folder / name, inside)
                entry[kind] |= manifests.checksums(folder, [name], "crc32")
            first += length


def _part(name: str) -> int:
    """Returns the part number of a file such as `3/shard-0-of-8.npy`."""
    return int(name.rpartition("shard-")[2].partition("-")[0]) if "shard-" in name else 0


def _read_probes(folder: Path, name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the arrays of a file of probes, and a mask of those of known users `[n]` bool.

    The folder doesn't name the users of the other histories.
    """
    if not (folder / name).is_file():
        return {}, np.zeros(0, bool)
    users = Vocabulary.load(folder / "vocabulary" / USERS)
    with np.load(folder / name, allow_pickle=False) as probe:
        arrays = {name: probe[name] for name in probe.files}
    row = arrays["user_row"]
    return arrays, (row >= users.first_own_row) & (users.row_counts[row] > 0)


def _drop_probes(folder: Path, name: str) -> None:
    """Keeps the probes of known users, without freed rows."""
    arrays, is_known = _read_probes(folder, name)
    if not is_known.all():
        with fresh(folder / name).open("wb") as file:
            kept: dict[str, Any] = {name: values[is_known] for name, values in arrays.items()}
            np.savez(file, **kept)


def _seal(folder: Path) -> None:
    """Rewrites the checksums of a model folder."""
    if (folder / "inputs.json").is_file():
        seal_inputs(folder)
    path = folder / _STATE / "manifest.json"
    if path.is_file():
        files = manifests.read_manifest(path)["files"]
        manifests.write_manifest(path, {}, manifests.checksums(folder, files, "crc32"))
