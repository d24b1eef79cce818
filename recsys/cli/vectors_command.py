"""`recsys publish-vectors`: item vectors for a search engine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from recsys.bundles.versions import latest
from recsys.cli.recommend import serving_folder
from recsys.cli.terminal import Console, progress_bar
from recsys.errors import UsageError
from recsys.formats import counted
from recsys.vectors.publication import VectorPublication, publish_vectors


def publish(
    model: Path | None,
    out: Path,
    formats: Sequence[str],
    columns: Sequence[str] | None,
    shard_rows: int,
    keep: int,
    config: Path | None,
    root: Path | None,
    *,
    changed_only: bool,
    as_json: bool,
) -> None:
    """Publishes the vectors of a model; progress goes to stderr.

    Args:
        model: Model folder, bundle or root of a run; None: the newest pushed bundle.
        out: Folder of the publications.
        formats: As `recsys.publish_vectors` has them.
        columns: As there.
        shard_rows: Items of a file.
        keep: Publications that stay.
        config: Config of the run, where `model` is None.
        root: Folder of the run, instead of the config's.
        changed_only: Leave out what is as it was.
        as_json: Print one line of JSON.

    Raises:
        UsageError: A model is named, and a run too (R590).
    """
    if model is not None and (config is not None or root is not None):
        rule = "MODEL stands in place of --config and --root."
        raise UsageError("R590", rule, "Give one of them.", str(model))
    source = model or latest(serving_folder(config, root))
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("publishing", total=None, text="")

        def report(done: int, total: int) -> None:
            text = f"{done:,} of {total:,} rows"
            progress.update(task, completed=done, total=total, text=text)

        published = publish_vectors(
            source,
            out,
            formats=formats,
            columns=columns,
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
        lines.append(f"{counted(published.unchanged, 'item is', 'items are')} as before.")
    if published.deleted:
        gone = counted(published.deleted, "item is", "items are")
        lines.append(f"{gone} gone since the last publication, and to be deleted.")
    return lines
