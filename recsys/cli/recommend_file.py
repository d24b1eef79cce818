"""`recsys recommend --users`: items for each user of a file, from the latest pushed bundle."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from recsys.bundles.versions import latest
from recsys.cli.recommend import serving_folder
from recsys.cli.terminal import Console
from recsys.formats import counted, duration
from recsys.serving.batch_file import Answered, batch_answer
from recsys.serving.batch_file import recommend_file as answer_file
from recsys.serving.retriever import Retriever
from recsys.serving.users_file import UsersFile


def recommend_file(
    users: Path,
    out: Path,
    column: str | None,
    k: int,
    batch: int,
    config: Path | None,
    root: Path | None,
    *,
    as_json: bool,
) -> None:
    """Writes the best `k` new items of each user of a file.

    Args:
        users: The file.
        out: Parquet file to write.
        column: Column of the ids; the first one by default.
        k: How many.
        batch: Users that are answered at a time.
        config: Config of the run; the one of the shipped data by default.
        root: Folder of the run, instead of the config's.
        as_json: Print one line of JSON.
    """
    bundle = latest(serving_folder(config, root))
    file = UsersFile.open(users, column)  # What is wrong with it is said at once.
    with _progress() as progress:
        task = progress.add_task("loading the bundle", total=None, users=0)
        retriever = Retriever.open(bundle)
        progress.reset(task, description="recommending", total=file.n_bytes)
        done = 0

        def tell(n_users: int, n_bytes: int) -> None:
            nonlocal done
            done += n_users
            progress.update(task, advance=n_bytes, users=done)

        answer = functools.partial(batch_answer, retriever)
        answered = answer_file(answer, file, out, k, batch, tell)
    if as_json:
        print(json.dumps({"bundle": str(bundle), **dataclasses.asdict(answered)}))
        return
    console = Console()
    for line in _sentences(answered, file.column):
        console.print(Text(line), soft_wrap=True)


def _sentences(answered: Answered, column: str) -> list[str]:
    rate = answered.users / max(answered.seconds, 1e-9)
    lines = [
        f"{counted(answered.users, 'user', 'users')} of the column {column!r} answered in"
        f" {duration(answered.seconds)}, {rate:,.0f} a second: {answered.out}"
    ]
    if answered.unknown:
        lines.append(
            f"{counted(answered.unknown, 'of them is', 'of them are')} not in the data of the"
            " bundle, and marked in the column 'known'."
        )
    if answered.sources:
        parts = ", ".join(f"{name} {n:,}" for name, n in answered.sources.items())
        lines.append(f"What the answers rest on is in the column 'source': {parts}.")
    if answered.rejected_file is not None:
        lines.append(
            f"{counted(answered.rejected, 'row is', 'rows are')} no user id, and kept with the"
            f" reason: {answered.rejected_file}"
        )
    return lines


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[users]:,} users"),
    )
    console = Console(stderr=True)
    return Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
