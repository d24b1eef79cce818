"""Raw items or users → examples of one split and dead letters; and a data folder's catalogue.

The catalogue and the users' features hold titles and token rows in the order of the
vocabularies.
"""

from __future__ import annotations

import functools
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from recsys.data.catalogue import FeatureSize, write_features, write_titles
from recsys.data.config import ItemsConfig, UsersConfig
from recsys.data.dead_letters import Tally, refuse_empty, write_summary
from recsys.data.entities import EntityConfig, id_column, keep_latest, parse_entities, raw_columns
from recsys.data.example_files import read_split, write_examples
from recsys.data.forgotten import Forgotten
from recsys.data.ingest.read_rows import ReadPlan, count_buckets, cut_files, read_sources
from recsys.data.sources.pieces import remark_on_skipped
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import match_files
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.system.events import emit

if TYPE_CHECKING:
    import apache_beam as beam

SPLIT = "all"
STEPS = {"items": "ItemGen", "users": "UserGen"}
"""Name of the pipeline step that reads each side."""


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
    n_conflicts = sum(bucket.get("conflicts", 0) for bucket in read["buckets"])
    found = (remark_on_skipped(config), _remark_on_conflicts(what, config, n_conflicts))
    remarks = [remark for remark in found if remark]
    for remark in remarks:
        emit("note", step=STEPS[what], text=remark)
    remarked = {"remarks": remarks} if remarks else {}
    summary = write_summary([read["tally"], *read["buckets"], remarked], letters, files)
    refuse_empty(summary, what)
    return summary


def _remark_on_conflicts(what: str, config: EntityConfig, n_conflicts: int) -> str | None:
    if not n_conflicts or config.latest is not None:
        return None
    return (
        f"{n_conflicts:,} rows of {what} have other values than an earlier row with their id, of"
        f" which the first is used. Set data.{what}.latest to the column that says which is newest."
    )


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
    known = {
        what: Vocabulary.load(folder / "vocabulary" / f"{what}.parquet")
        for what in ("items", *(["users"] if "users" in tokens else []))
    }
    titles: Iterable[pa.Table] = ()
    if catalogue is not None and items is not None and items.columns.title is not None:
        titles = read_split(catalogue / f"Split-{SPLIT}", ["item_id", "title"])
    write_titles(folder / "catalogue", known["items"], titles)
    _write_features(folder / "catalogue", known["items"], items, tokens.get("items"))
    if "users" in known:
        _write_features(folder / "user_features", known["users"], users, tokens["users"])


def _write_features(
    folder: Path, vocabulary: Vocabulary, source: EntityConfig | None, tokens: Transformed | None
) -> None:
    if source is None or tokens is None:
        write_features(folder, vocabulary, {}, ())
        return
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
    write_features(folder, vocabulary, sizes, batches, names)
