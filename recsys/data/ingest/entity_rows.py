"""Raw items or users → examples of one split and dead letters; and a data folder's catalogue.

The catalogue and the users' features hold titles and token rows in the order of the
vocabularies.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recsys.data.catalogue import FeatureSize, write_features, write_titles
from recsys.data.config import ItemsConfig, UsersConfig
from recsys.data.dead_letters import Tally, refuse_empty, write_summary
from recsys.data.entities import (
    EntityConfig,
    id_column,
    keep_latest,
    parse_entities,
    raw_columns,
    remark_on_conflicts,
)
from recsys.data.example_files import read_split, write_examples
from recsys.data.forgotten import Forgotten
from recsys.data.ingest.buckets import Buckets, regroup
from recsys.data.ingest.id_places import IdRows
from recsys.data.ingest.read_rows import ReadPlan, count_buckets, cut_files, read_sources
from recsys.data.sources.pieces import remark_on_skipped
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import match_files
from recsys.data.sources.tables import snapshot_of
from recsys.data.vocabulary import GROUP_ROWS, open_vocabulary
from recsys.errors import RecsysError
from recsys.system.events import emit

if TYPE_CHECKING:
    import apache_beam as beam

SPLIT = "all"
STEPS = {"items": "ItemGen", "users": "UserGen"}
"""Name of the pipeline step that reads each side."""
_JOINED_ROWS = 1 << 16


def ingest_entities(
    what: str,
    config: EntityConfig,
    examples: str | Path,
    letters: str | Path,
    beam_pipeline: beam.Pipeline | None = None,
    forget: str | None = None,
) -> Tally:
    """Writes the examples and the dead letters of items or users.

    Args:
        what: `items` or `users`.
        config: Files and columns to read.
        examples: Folder of the examples.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work, with its runner and options; None: threads do.
        forget: File of the users to leave out, see `recsys.data.forgotten`; None: no file.

    Returns:
        The summary of the dead letters.

    Raises:
        RecsysError: A file can't be read, no row is good, or a column doesn't fit its feature.
    """
    examples, letters = Path(examples), Path(letters)
    work = letters / "work"
    work.mkdir(parents=True, exist_ok=True)
    try:
        plan = plan_entities(what, config, examples, letters, forget)
        (read,) = read_sources(beam_pipeline, [plan], work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return summarize_entities(what, config, letters, read)


def plan_entities(
    what: str, config: EntityConfig, examples: Path, letters: Path, forget: str | None
) -> ReadPlan:
    """Returns the plan for reading items or users; see `ingest_entities`."""
    folder = examples / f"Split-{SPLIT}"
    folder.mkdir(parents=True, exist_ok=True)
    pieces = cut_files(config, what, raw_columns(config))
    leave_out = None
    if forget is not None and isinstance(config, UsersConfig):
        leave_out = functools.partial(Forgotten.load(forget).leave_out, config.columns.user)
    return ReadPlan(
        step=STEPS[what],
        folder=folder,
        letters=letters / "dead_letters",
        pieces=pieces,
        n_buckets=count_buckets(pieces),
        parse=functools.partial(_parse, config),
        key=id_column(config),
        write=functools.partial(_write_bucket, id_column(config)),
        leave_out=leave_out,
    )


def summarize_entities(
    what: str, config: EntityConfig, letters: Path, read: Mapping[str, Any]
) -> Tally:
    """Writes the summary of the dead letters of items or users, and returns it.

    Args:
        what: `items` or `users`.
        config: Files and columns that were read.
        letters: Folder of the dead letters.
        read: The result of `read_sources`.

    Raises:
        RecsysError: A file couldn't be read, or no row is good.
    """
    if "failure" in read:
        raise RecsysError.from_json(read["failure"]["error"])
    files = [file.path for file in match_files(config, what)]
    remarks = [remark for remark in [remark_on_skipped(config)] if remark]
    n_conflicts = sum(bucket.get("conflicts", 0) for bucket in read["buckets"])
    if n_conflicts and config.latest is None:
        remarks.append(f"{remark_on_conflicts(what, n_conflicts)}.")
    for remark in remarks:
        emit("note", step=STEPS[what], text=remark)
    remarked = {"remarks": remarks} if remarks else {}
    remarked |= snapshot_of(config, files[-1])
    summary = write_summary([read["tally"], *read["buckets"], remarked], letters, files)
    refuse_empty(summary, what)
    return summary


def _parse(
    config: EntityConfig, batch: RawBatch, file_index: int
) -> tuple[pa.RecordBatch, pa.RecordBatch, None]:
    return *parse_entities(batch, config, file_index), None


def _write_bucket(key: str, folder: Path, bucket: int, rows: pa.Table) -> dict[str, Any]:
    """Writes the rows of a bucket as an example file with one row per id."""
    kept, n_dropped, n_conflicts = keep_latest(rows, key)
    file = folder / f"data-{bucket:05d}.parquet"
    temporary = file.with_name(f".{file.name}-{uuid.uuid4().hex}")  # Beam may run a task twice.
    with temporary.open("wb") as sink:
        write_examples(kept, sink)
    temporary.replace(file)
    conflicts = {"conflicts": n_conflicts} if n_conflicts else {}
    return {"good": kept.num_rows, "duplicates": n_dropped, **conflicts}


# --- the data folder


class Transformed(NamedTuple):
    """Output of Transform for one side: folders of its examples and of its graph."""

    examples: Path
    graph: Path


def write_entities(
    folder: Path,
    items: ItemsConfig | None,
    users: UsersConfig | None,
    catalogue: Path | None = None,
    tokens: Mapping[str, Transformed] = MappingProxyType({}),
) -> None:
    """Writes `catalogue/` and `user_features/` of a data folder that has its `vocabulary/`.

    Args:
        folder: The data folder.
        items: Config of the catalogue; None if it consists of the items of the interactions.
        users: Config of the users, if any.
        catalogue: Examples of the catalogue.
        tokens: Output of Transform for `items` and `users`, if they have features.
    """
    vocabularies = folder / "vocabulary"
    with tempfile.TemporaryDirectory(prefix=".join-", dir=folder) as name_of_work:
        work = Path(name_of_work)
        ids = {
            what: IdRows(vocabularies / f"{what}.parquet", work / what)
            for what in ("users", "items")
            if what in tokens or (what == "items" and catalogue is not None)
        }
        titles: Iterable[pa.Table | None] = ()
        if catalogue is not None and items is not None and items.columns.title is not None:
            tables = read_split(catalogue / f"Split-{SPLIT}", ["item_id", "title"])
            known = (
                one.filter(one["title"].is_valid()).rename_columns(["id", "title"])
                for one in tables
            )
            titles = _by_row(known, ids["items"], work / "titles")
        write_titles(folder / "catalogue", open_vocabulary(vocabularies / "items.parquet"), titles)
        if items is None or "items" not in tokens:
            write_features(folder / "catalogue", 0, {}, ())
        else:
            _write_features(folder / "catalogue", ids["items"], items, tokens["items"], work)
        if users is not None and "users" in tokens:
            _write_features(folder / "user_features", ids["users"], users, tokens["users"], work)


def _by_row(tables: Iterable[pa.Table], ids: IdRows, work: Path) -> Iterator[pa.Table | None]:
    """Yields tables of ids by `GROUP_ROWS` rows, with `row` instead of `id`.

    Ids without a row of their own are left out.
    """
    work.mkdir()
    groups = Buckets(work, -(-ids.n_rows // GROUP_ROWS))
    for table in regroup(tables, _JOINED_ROWS):
        rows = ids.rows(table["id"])
        found = table.drop_columns("id").append_column("row", pa.array(rows))
        found = found.filter(pa.array(rows >= ids.first_own_row))
        groups.add(found["row"].to_numpy() // GROUP_ROWS, found)
    for group in range(groups.n):
        read = groups.read(group)
        yield pa.concat_tables(read) if read else None


def _write_features(
    folder: Path, ids: IdRows, source: EntityConfig, tokens: Transformed, work: Path
) -> None:
    # Imported late: TensorFlow takes seconds to start, and isn't needed without features.
    from recsys.data.ingest.transform import read_token_rows, read_vocabularies

    known = read_vocabularies(tokens.graph, source.features)
    sizes = {
        f.name: FeatureSize(f.table_rows(len(known[f.name])), f.width, f.floats)
        for f in source.features
    }
    names = {f.name: f.token_names(known[f.name]) for f in source.features}
    folder_of_tokens = tokens.examples / f"Split-{SPLIT}"
    batches = read_token_rows(folder_of_tokens, id_column(source), source.features)
    tables = (
        pa.table({"id": of_ids, **{name: _lists(values) for name, values in columns.items()}})
        for of_ids, columns in batches
    )
    groups = _by_row(tables, ids, work / folder.name)
    write_features(folder, ids.n_rows, sizes, groups, names)


def _lists(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
