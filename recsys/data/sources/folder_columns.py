"""Columns in the names of folders, as Hive and Spark write them: `dt=2024-01-01/part-0.parquet`."""

from __future__ import annotations

import dataclasses
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from recsys.data.sources.source import Piece, RawBatch

_NULL = "__HIVE_DEFAULT_PARTITION__"


def folder_columns(path: str) -> dict[str, str | None]:
    """Returns the columns that the folders of a path name, with their values.

    Of `year=2024/month=1/day=5` there is also `date`, 2024-01-05.
    """
    parts = (part.partition("=") for part in path.split("/")[:-1])
    columns = {
        unquote(name): None if value == _NULL else unquote(value)
        for name, sign, value in parts
        if name and sign
    }
    day = [columns.get(part) or "" for part in ("year", "month", "day")]
    if all(day):
        columns.setdefault("date", "-".join(part.zfill(2) for part in day))
    return columns


def take_folder_columns(file: Piece) -> Piece:
    """Returns a whole file whose columns that only its folders have are in `file.folder`.

    A column of the file itself comes before that of a folder.

    Raises:
        RecsysError: The file is damaged.
    """
    named = folder_columns(file.file)
    if named.keys().isdisjoint(file.columns):
        return file
    own = set(file.source.column_names(file))
    of_folder = {name: named[name] for name in file.columns if name in named and name not in own}
    columns = tuple(name for name in file.columns if name not in of_folder)
    if not columns:  # Without a column of its own a file has no rows.
        return file
    return dataclasses.replace(file, columns=columns, folder=tuple(of_folder.items()))


def add_folder_columns(batch: RawBatch, piece: Piece) -> RawBatch:
    """Returns the rows of a piece with the columns of its folders."""
    rows = batch.columns
    for name, value in piece.folder:
        indices = pa.array(np.zeros(rows.num_rows, np.int8))
        column = pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))
        rows = rows.append_column(name, column)
    return dataclasses.replace(batch, columns=rows)
