"""Token rows and titles, as they come, into the order of the rows of a vocabulary."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.catalogue import TITLES, write_summary
from recsys.data.token_names import write_token_names
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError

TokenRows = tuple[pa.Array, Mapping[str, np.ndarray]]
"""Ids `[n]`, and the token rows `[n, width]` of each feature."""


def write_titles(folder: Path, items: Vocabulary, titles: Iterable[pa.Table]) -> None:
    """Writes the id and the title of each item row from 1 on; its id where it has no title.

    Args:
        folder: Folder of the catalogue; made if missing.
        items: Vocabulary of the items.
        titles: Columns `item_id` and `title`, in any order; null is no title.
    """
    ids = items.names_of_rows()
    names = np.array(ids, object)
    for table in titles:
        known = table.filter(table["title"].is_valid())
        rows = items.rows(known["item_id"])
        is_own = rows >= items.first_own_row
        names[rows[is_own]] = np.array(known["title"].to_pylist(), object)[is_own]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids[1:], "title": names[1:].tolist()}), folder / TITLES)


def write_features(
    folder: Path,
    vocabulary: Vocabulary,
    tables: Mapping[str, tuple[int, int]],
    batches: Iterable[TokenRows],
    names: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Writes the features of a vocabulary's rows; a row that has none is padding.

    No more than a batch is held in memory.

    Args:
        folder: Folder of the catalogue, or of the users' features; made if missing.
        vocabulary: Whose ids those of the batches are.
        tables: Rows and width of each feature.
        batches: The token rows, each id at most once.
        names: Name of each row of the tables that have names.

    Raises:
        RecsysError: A token row lies outside of its table, or a table hasn't as many
            names as rows.
        OSError: The disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in (names or {}).items():
        _check_names(name, len(texts), tables[name][0])
        write_token_names(folder, name, texts)
    bags = {
        name: _new_column(folder / f"{name}.npy", (vocabulary.n_rows, width))
        for name, (_, width) in tables.items()
    }
    for ids, tokens in batches:
        rows = vocabulary.rows(ids)
        is_own = rows >= vocabulary.first_own_row
        for name, bag in bags.items():
            _check_inside(name, tokens[name], tables[name][0])
            bag[rows[is_own]] = tokens[name][is_own]
    for bag in bags.values():
        bag.flush()
    summary = [{"name": name, "rows": rows, "width": w} for name, (rows, w) in tables.items()]
    write_summary(folder, summary)


def _new_column(path: Path, shape: tuple[int, int]) -> np.memmap:
    """Returns a new column of zeros, whose bytes on the disk are taken."""
    column = np.lib.format.open_memmap(path, "w+", np.int32, shape)
    with path.open("r+b") as file:
        # A disk that is full is an error here; in a memory map it ends the process.
        os.posix_fallocate(file.fileno(), 0, max(1, path.stat().st_size))
    return column


def _check_inside(name: str, tokens: np.ndarray, n_rows: int) -> None:
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < n_rows:
        raise RecsysError(
            "R261",
            f"The tokens of the feature {name!r} must be rows 0 … {n_rows - 1} of its table.",
            "Transform's output is damaged or of another run: run again: recsys run.",
            (int(tokens.min()), int(tokens.max())),
        )


def _check_names(name: str, n_names: int, n_rows: int) -> None:
    if n_names != n_rows:
        raise RecsysError(
            "R261",
            f"The feature {name!r} must have a token for each row of its table, {n_rows} of them.",
            "Transform's output is damaged or of another run: run again: recsys run.",
            n_names,
        )
