"""`recsys rank`: rankings by predicted labels for a file of users with items."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from typer import Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.serving import context_of, serving_folder
from recsys.cli.show import emit
from recsys.cli.terminal import Console, progress_bar


def rank(
    file: Path,
    /,
    *,
    out: Path,
    k: Annotated[int | None, Option("-k", min=1)] = None,
    column: str | None = None,
    context: Annotated[list[str] | None, Option("--context")] = None,
    config: ConfigOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Rank items for each user in a file by the predicted labels, with the newest pushed bundle.

    A row has a user and `items`, a list of ids; optionally `history`, a list of ids, and columns
    `context_COLUMN` with a value, or a list of one per item.

    Args:
        file: CSV, Parquet or JSON Lines.
        out: Parquet file to write.
        k: Number of items to return for each row. Default: all.
        column: Column of the users. Default: the first.
        context: Context of all rows as COLUMN=VALUE, with a raw column of the events; repeatable.
    """
    from recsys.bundles.publishing import latest
    from recsys.serving.label_scorer import LabelScorer
    from recsys.serving.opening import open_bundle
    from recsys.serving.rank_api import label_scorer
    from recsys.serving.rank_file import rank_file

    bundle, of_all = latest(serving_folder(config, root)), context_of(context or [])
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("loading the bundle", total=None, text="")
        scorer: LabelScorer = label_scorer(open_bundle(bundle))
        progress.reset(
            task, description="ranking", total=file.stat().st_size if file.exists() else 0
        )
        n_done = 0

        def report(n_rows: int, n_bytes: int) -> None:
            nonlocal n_done
            n_done += n_rows
            progress.update(task, advance=n_bytes, text=f"{n_done:,} rows")

        done = rank_file(scorer, file, out, column=column, k=k, context=of_all, report=report)
    emit({"bundle": str(bundle), **dataclasses.asdict(done)}, as_json=as_json)
