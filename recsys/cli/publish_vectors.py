"""`recsys publish-vectors`: exports item vectors for a vector database."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from recsys.cli.options import ConfigOption, Count, Json, Root
from recsys.cli.serving import serving_folder
from recsys.cli.show import emit
from recsys.errors import UsageError


def publish_vectors(
    model: Path | None = None,
    /,
    *,
    out: Path,
    columns: str | None = None,
    shard_rows: Count = 100_000,
    keep: Count = 2,
    config: ConfigOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Export item vectors for a vector database, as Parquet.

    Lists the items that were removed since the last publication in the same folder.

    Args:
        model: Model folder, bundle, or root of a run. Default: the newest pushed bundle.
        out: Folder of the numbered publications.
        columns: Columns besides the vectors, NAME,…. Default: title and all named features.
        shard_rows: Highest number of items per file.
        keep: Number of newest publications to keep.
    """
    from recsys.bundles.publishing import latest
    from recsys.vectors import publish_vectors

    if model is not None and (config is not None or root is not None):
        rule = "MODEL can't be combined with --config or --root."
        raise UsageError("R590", rule, "Give only one of them.", str(model))
    source = model or latest(serving_folder(config, root))
    names = None if columns is None else [name for name in columns.split(",") if name]
    published = publish_vectors(source, out, columns=names, shard_rows=shard_rows, keep=keep)
    fields = {**dataclasses.asdict(published), "folder": str(published.folder)}
    emit({"model": str(source), **fields}, as_json=as_json)
