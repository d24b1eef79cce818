"""`recsys publish-vectors`: exports item vectors for a vector database."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.serving import serving_folder
from recsys.cli.terminal import Console, progress_bar
from recsys.errors import UsageError
from recsys.formats import counted


def publish_vectors(
    out: Annotated[Path, Option(help="Folder of the numbered publications.")],
    model: Annotated[
        Path | None,
        Argument(
            metavar="MODEL",
            help="Model folder, bundle, or root of a run. Default: the newest pushed bundle.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        Option(
            metavar="NAME,…",
            help="Columns besides the vectors. Default: title and all named features.",
        ),
    ] = None,
    shard_rows: Annotated[int, Option(min=1, help="Highest number of items per file.")] = 500_000,
    keep: Annotated[int, Option(min=1, help="Number of newest publications to keep.")] = 2,
    config: ConfigOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Export item vectors for a vector database, as Parquet.

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
            columns=None if columns is None else [name for name in columns.split(",") if name],
            shard_rows=shard_rows,
            keep=keep,
            report=report,
        )
    if as_json:
        fields = {**dataclasses.asdict(published), "folder": str(published.folder)}
        print(json.dumps({"model": str(source), **fields}))
        return
    vectors = counted(published.items, "vector", "vectors")
    Console().write_line(f"{vectors} of {published.dim} numbers: {published.folder}")
    if published.deleted:
        removed = counted(published.deleted, "item was", "items were")
        Console().write_line(f"{removed} removed since the last publication and must be deleted.")
