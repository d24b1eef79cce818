"""Tables of other systems: pinned for a run, and without forgotten users where rows are copied."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data import entities, interactions
from recsys.data.config import DataConfig, InteractionsConfig, SourceConfig
from recsys.data.forgotten import Forgotten
from recsys.data.sources.pieces import EMPTY, WHOLE_FILES, plan_pieces, read_piece
from recsys.data.sources.tables import LANDED, ConfigT, Landing, RemoveRows, pinned
from recsys.errors import RecsysError
from recsys.system.files import commit_text, read_json, remove, replacing

LANDED_FOLDER = "landed"
"""Folder of the copied rows of tables, beside the content cache."""
_LINES, _ROWS = ".jsonl", ".parquet"
_GROUP_ROWS = 1 << 17


def pin_sources(data: DataConfig, landed: Path) -> DataConfig:
    """Returns a config whose tables are pinned; see `pin_source`."""
    sources = {"interactions": data.interactions, **data.sides}
    return data.model_copy(
        update={
            what: pin_source(what, source, landed, data.forget) for what, source in sources.items()
        }
    )


def pin_source(what: str, source: ConfigT, landed: Path, forget: str | None) -> ConfigT:
    """Returns interactions, items or users; a table is pinned, see `pinned`.

    Args:
        what: `interactions`, `items` or `users`.
        source: The source.
        landed: Folder for copies of the rows of all sources, kept from run to run.
        forget: File of the users to leave out, see `recsys.data.forgotten`; None: no file.
    """
    spans, remove_rows = getattr(source, "spans", None), _removal(what, source, forget)
    landing = Landing(what, landed / what, spans, remove_rows)
    return pinned(source, source_columns(source), landing)


def source_columns(source: SourceConfig) -> list[str]:
    """Returns the columns that a run reads of interactions, items or users."""
    if isinstance(source, InteractionsConfig):
        return interactions.interaction_columns(source)
    return entities.raw_columns(cast(entities.EntityConfig, source))


def forget_in_landed(folder: Path, data: DataConfig) -> tuple[int, list[tuple[str, str]]]:
    """Removes the rows of the users in `data.forget` from all copies.

    Each file is replaced atomically, so the same call completes a killed one.

    Args:
        folder: Folder of the copied rows of all sources.
        data: The sources, and the file of the users.

    Returns:
        The number of changed files; and the files that can't be read, with the reasons.
    """
    n_changed, failed = 0, list[tuple[str, str]]()
    for unfinished in sorted(folder.rglob(".*")):  # Of a killed run.
        remove(unfinished)
    for what, source in {"interactions": data.interactions, **data.sides}.items():
        remove_rows = _removal(what, source, data.forget)
        files = (folder / what).rglob("*") if remove_rows else ()
        for file in sorted(file for file in files if file.suffix in (_LINES, _ROWS)):
            try:
                n_changed += remove_rows(file)  # type: ignore[misc] # mypy: it isn't None
                _count_rows(file)
            except RecsysError as error:
                failed.append((str(file), str(error)))
    return n_changed, failed


def _removal(what: str, source: SourceConfig, forget: str | None) -> RemoveRows | None:
    user = getattr(getattr(source, "columns", None), "user", None)
    if forget is None or user is None:
        return None
    return functools.partial(_remove_rows, what, source, user, Forgotten.load(forget))


def _remove_rows(
    what: str, source: SourceConfig, user: str, forgotten: Forgotten, file: Path
) -> bool:
    """Removes the rows of forgotten users from a file; returns whether there were any."""
    is_text = file.suffix == _LINES
    update = {"files": str(file), "format": "jsonl" if is_text else "parquet", "spans": None}
    gone = set[int]()
    try:
        pieces = plan_pieces(
            source.model_copy(update=update), what, source_columns(source), WHOLE_FILES
        )
    except RecsysError as error:
        if error.code != EMPTY:
            raise
        return False
    for batch in (batch for piece in pieces for batch in read_piece(piece)):
        rows, rejected = forgotten.find(user, batch)
        gone.update(batch.line(np.flatnonzero(rows)).tolist())
        gone.update(batch.rejected.column("line").filter(pa.array(rejected)).to_pylist())
    if gone:
        (_without_lines if is_text else _without_rows)(file, gone)
    return bool(gone)


def _without_lines(file: Path, lines: set[int]) -> None:
    """Empties lines, which stay since they number the messages; removes a file of blank lines."""
    has_rows = False
    with replacing(file) as temporary, file.open("rb") as old, temporary.open("xb") as new:
        for number, line in enumerate(old, 1):
            new.write(b"\n" if number in lines else line)
            has_rows |= number not in lines and not line.isspace()
    if not has_rows:
        file.unlink()


def _without_rows(file: Path, rows: set[int]) -> None:
    with pq.ParquetFile(file) as old, replacing(file) as temporary:
        # A dictionary would keep the values of removed rows.
        kinds = [_plain(field.type) for field in old.schema_arrow]
        schema, first = pa.schema(zip(old.schema_arrow.names, kinds, strict=True)), 1
        with pq.ParquetWriter(temporary, schema) as new:
            for batch in old.iter_batches(_GROUP_ROWS):
                numbers = np.arange(first, first + batch.num_rows)
                kept = pa.array(~np.isin(numbers, list(rows)))
                new.write_batch(batch.cast(schema).filter(kept))
                first += batch.num_rows


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _count_rows(file: Path) -> None:
    """Corrects the number of rows in the manifest of a query."""
    manifest = file.with_name(LANDED)
    if file.suffix == _ROWS and manifest.is_file():
        fields, n_rows = read_json(manifest), pq.read_metadata(file).num_rows
        if fields["rows"] != n_rows:
            commit_text(json.dumps(fields | {"rows": n_rows}, indent=1) + "\n", manifest)
