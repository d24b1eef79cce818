"""`recsys publish-vectors`: exports item vectors for a vector database."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.serving import serving_folder
from recsys.cli.terminal import Console, progress_bar
from recsys.errors import UsageError
from recsys.formats import counted

if TYPE_CHECKING:
    from recsys.vectors.publication import VectorPublication


def publish_vectors(
    out: Annotated[Path, Option(help="Folder of the numbered publications.")],
    model: Annotated[
        Path | None,
        Argument(
            metavar="MODEL",
            help="Model folder, bundle, or root of a run. Default: the newest pushed bundle.",
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        Option("--format", help="parquet (the default), vertex, milvus; repeatable."),
    ] = None,
    columns: Annotated[
        str | None,
        Option(
            metavar="NAME[:TYPE],…",
            help="Columns besides the vectors; types: text, list, whole, number. Default: all.",
        ),
    ] = None,
    shard_rows: Annotated[int, Option(min=1, help="Highest number of items per file.")] = 500_000,
    changed_only: Annotated[
        bool, Option("--changed-only", help="Only write items changed since the last publication.")
    ] = False,
    keep: Annotated[int, Option(min=1, help="Number of newest publications to keep.")] = 2,
    config: ConfigOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Export item vectors for a vector database: Parquet, Vertex AI Vector Search, Milvus.

    Lists the items that were removed since the last publication in the same folder.
    """
    from recsys.bundles.publishing import latest
    from recsys.vectors.publication import publish_vectors

    if model is not None and (config is not None or root is not None):
        rule = "MODEL can't be combined with --config or --root."
        raise UsageError("R590", rule, "Give only one of them.", str(model))
    source = model or latest(serving_folder(config, root))
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("publishing", total=None, text="")

        def report(done: int, total: int) -> None:
            text = f"{done:,} of {total:,} rows"
            progress.update(task, completed=done, total=total, text=text)

        published = publish_vectors(
            source,
            out,
            formats=formats or ["parquet"],
            columns=None if columns is None else [name for name in columns.split(",") if name],
            shard_rows=shard_rows,
            changed_only=changed_only,
            keep=keep,
            report=report,
        )
    if as_json:
        fields = {**dataclasses.asdict(published), "folder": str(published.folder)}
        print(json.dumps({"model": str(source), **fields}))
        return
    for line in _sentences(published):
        Console().write_line(line)


def _sentences(published: VectorPublication) -> list[str]:
    n_items = counted(published.written, "vector", "vectors")
    lines = [f"{n_items} of {published.dim} numbers: {published.folder}"]
    if published.unchanged:
        lines.append(f"{counted(published.unchanged, 'item is', 'items are')} unchanged.")
    if published.deleted:
        removed = counted(published.deleted, "item was", "items were")
        lines.append(f"{removed} removed since the last publication and must be deleted.")
    return lines
