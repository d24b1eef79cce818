"""`recsys recommend`: items for a user, from the latest pushed bundle."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from recsys.bundles.signatures import FEATURES, HISTORY, POPULARITY, USER
from recsys.bundles.versions import latest
from recsys.cli.terminal import Console, titled_table
from recsys.config.load import load_config
from recsys.errors import UsageError, visible
from recsys.formats import counted, duration
from recsys.serving.recommendations import Recommendations, load_bundle

if TYPE_CHECKING:
    from recsys.serving.batch_file import Answered

_SHOWN_HISTORY = 10
_RESTS_ON = {
    USER: "source: user, from what training learnt of this user",
    HISTORY: "source: history, from the items that this user took",
    FEATURES: "source: features, from what the users' file tells of this user",
    POPULARITY: "source: popularity, as nothing is known of this user;"
    " the score is the item's share of all positive interactions",
}


def recommend(user: str, k: int, config: Path | None, root: Path | None, *, as_json: bool) -> None:
    """Prints the best `k` items of a user that are new to it.

    To a user that the data don't hold it says so on stderr, with ids that they do hold;
    what is recommended then is what is popular.

    Args:
        user: Id of the user.
        k: How many.
        config: Config of the run; the one of the shipped data by default.
        root: Folder of the run, instead of the config's.
        as_json: Print one line of JSON.
    """
    bundle = latest(serving_folder(config, root))
    loaded = load_bundle(bundle)
    answer = loaded.recommend(user, k=k)
    if not answer.known:
        Console(stderr=True).write_line(_stranger(answer.user_id, loaded.example_users))
    if as_json:
        print(json.dumps({"bundle": str(bundle), **dataclasses.asdict(answer)}))
        return
    console = Console()
    console.print(_table(answer))
    console.write_line(_RESTS_ON[answer.source], "dim")
    if answer.history:
        console.write_line(f"did before, newest first: {_history(answer)}", "dim")


def check_options(
    user: str | None, users: Path | None, out: Path | None, column: str | None
) -> None:
    """Raises an error unless either a user or a file of users is asked for (R548)."""
    is_one = user is not None and users is None and out is None and column is None
    if is_one or (user is None and users is not None and out is not None):
        return
    options = {"--user": user, "--users": users, "--out": out, "--column": column}
    rule = "Items are recommended to one user, or to the users of a file."
    cure = "Give --user ID, or --users FILE --out FILE.parquet."
    raise UsageError(
        "R548", rule, cure, [name for name, value in options.items() if value is not None]
    )


def serving_folder(config_path: Path | None, root: Path | None) -> Path:
    """Returns the folder of the versions that a run pushes.

    Args:
        config_path: Config of the run. With `root` alone, the one model of that
            folder is meant.
        root: Folder of the run, instead of the config's.

    Raises:
        UsageError: `root` has no model, or several.
    """
    if root is None or config_path is not None:
        config = load_config(config_path)
        return (root or Path(config.root)) / "serving" / config.name
    names = [path for path in sorted(root.glob("serving/*")) if not path.name.startswith(".")]
    if len(names) != 1:
        rule = f"The folder {str(root)!r} must have exactly one model under serving/."
        cure = "Name the config of the run too: --config FILE."
        raise UsageError("R904", rule, cure, [path.name for path in names])
    return names[0]


def _stranger(user: str, examples: list[str]) -> str:
    known = ", ".join(repr(id_) for id_ in examples)
    return (
        f"The data of the bundle don't hold the user {user!r}. Ids that they hold: {known};"
        " after new data came in, run again: recsys run."
    )


def _history(answer: Recommendations) -> str:
    shown = ", ".join(visible(item.title) for item in answer.history[:_SHOWN_HISTORY])
    n_more = len(answer.history) - _SHOWN_HISTORY
    return f"{shown} and {n_more} more" if n_more > 0 else shown


def _table(answer: Recommendations) -> Table:
    title = f"For user {visible(answer.user_id)}"
    table = titled_table(title, "score", "id", "title", numbers=["score"])
    for item in answer.items:
        # Shares of a large catalogue are small.
        is_share = answer.source == POPULARITY
        score = f"{item.score:.3%}" if is_share else f"{item.score:.4f}"
        table.add_row(score, Text(visible(item.id)), Text(visible(item.title)))
    return table


# --- `recsys recommend --users`: items for each user of a file, from the latest pushed bundle.


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
    from recsys.serving import batch_file
    from recsys.serving.batch_file import UsersFile
    from recsys.serving.retriever import Retriever

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

        answer = functools.partial(batch_file.batch_answer, retriever)
        answered = batch_file.recommend_file(answer, file, out, k, batch, tell)
    if as_json:
        print(json.dumps({"bundle": str(bundle), **dataclasses.asdict(answered)}))
        return
    console = Console()
    for line in _sentences(answered, file.column):
        console.write_line(line)


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
