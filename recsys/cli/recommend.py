"""`recsys recommend`: items for a user or a file of users, from the newest pushed bundle."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
from typer import Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.serving import serving_folder
from recsys.cli.terminal import Console, progress_bar, titled_table
from recsys.errors import UsageError, visible
from recsys.formats import counted, duration

if TYPE_CHECKING:
    from recsys.serving.batch_file import Answered
    from recsys.serving.recommendations import Recommendations

_SHOWN_HISTORY = 10
_RESTS_ON = {
    "user": "source: user, the trained embedding of this user",
    "history": "source: history, the earlier items of this user",
    "features": "source: features, the features of this user",
    "popularity": "source: popularity, because this user is unknown;"
    " the score is the item's share of all positive interactions",
}


def recommend(
    user: Annotated[str | None, Option(help="User id; any text.")] = None,
    users: Annotated[Path | None, Option(metavar="FILE", help="File of user ids.")] = None,
    k: Annotated[int, Option("-k", min=1, help="Number of items per user.")] = 10,
    config: ConfigOption = None,
    root: Root = None,
    out: Annotated[Path | None, Option(help="Parquet file to write, with --users.")] = None,
    column: Annotated[str | None, Option(help="Id column of FILE. Default: the first.")] = None,
    batch: Annotated[int, Option(min=1, max=1 << 20, help="Users of FILE per batch.")] = 8192,
    at: Annotated[
        str,
        Option(
            metavar="TIME",
            help="Query time, for models that use times: seconds since 1970 or ISO 8601.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Recommend items to a user, or to a file of users, with the newest pushed bundle."""
    from recsys.bundles.publishing import latest

    options = {"--user": user, "--users": users, "--out": out, "--column": column}
    named = [name for name, value in options.items() if value is not None]
    answer: Recommendations | Answered
    if user is not None and named == ["--user"]:
        bundle = latest(serving_folder(config, root))
        answer = _recommend_user(bundle, user, k, at)
        show = functools.partial(_show_user, answer)
    elif user is None and users is not None and out is not None:
        bundle = latest(serving_folder(config, root))
        answer, name = _recommend_file(bundle, users, out, column, k, batch, at)
        show = functools.partial(_show_file, answer, name)
    else:
        rule = "Items are recommended either to one user or to the users of a file."
        cure = "Give --user ID, or --users FILE --out FILE.parquet."
        raise UsageError("R548", rule, cure, named)
    if as_json:
        print(json.dumps({"bundle": str(bundle), **dataclasses.asdict(answer)}))
    else:
        show(Console())


# --- one user


def _recommend_user(bundle: Path, user: str, k: int, at: str) -> Recommendations:
    """Returns the best `k` items of a user that are new to it.

    Of a user that the data don't hold it says so on stderr, with ids that they do hold; what is
    recommended then is what is popular.
    """
    from recsys.serving.recommendations import load_bundle

    loaded = load_bundle(bundle)
    answer = loaded.recommend(user, k=k, query_time=at)
    if not answer.known:
        known = ", ".join(repr(id_) for id_ in loaded.example_users)
        Console(stderr=True).write_line(
            f"The user {answer.user_id!r} is not in the data of the bundle. Examples of known ids:"
            f" {known}. For new data, run again: recsys run."
        )
    return answer


def _show_user(answer: Recommendations, console: Console) -> None:
    title = f"For user {visible(answer.user_id)}"
    table = titled_table(title, "score", "id", "title", numbers=["score"])
    for item in answer.items:
        # Shares of a large catalogue are small.
        score = f"{item.score:.3%}" if answer.source == "popularity" else f"{item.score:.4f}"
        table.add_row(score, Text(visible(item.id)), Text(visible(item.title)))
    console.print(table)
    console.write_line(_RESTS_ON[answer.source], "dim")
    if answer.history:
        # Titles have commas: "Fugitive, The".
        shown = "; ".join(visible(item.title) for item in answer.history[:_SHOWN_HISTORY])
        n_more = len(answer.history) - _SHOWN_HISTORY
        more = f"; and {n_more:,} more" if n_more > 0 else ""
        console.write_line(f"history, newest first: {shown}{more}", "dim")


# --- a file of users


def _recommend_file(
    bundle: Path, users: Path, out: Path, column: str | None, k: int, batch: int, at: str
) -> tuple[Answered, str]:
    """Writes the top `k` new items of each user in a file; also returns the id column."""
    from recsys.serving.batch_file import UsersFile, batch_answer, recommend_file
    from recsys.serving.retriever import Retriever

    file = UsersFile.open(users, column)  # Fails before the bundle is loaded.
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("loading the bundle", total=None, text="")
        retriever = Retriever.open(bundle)
        progress.reset(task, description="recommending", total=file.n_bytes)
        done = 0

        def report(n_users: int, n_bytes: int) -> None:
            nonlocal done
            done += n_users
            progress.update(task, advance=n_bytes, text=f"{done:,} users")

        answer = functools.partial(batch_answer, retriever, query_time=at)
        return recommend_file(answer, file, out, k, batch, report), file.column


def _show_file(answered: Answered, column: str, console: Console) -> None:
    rate = answered.users / max(answered.seconds, 1e-9)
    console.write_line(
        f"Recommended to {counted(answered.users, 'user', 'users')} of the column {column!r} in"
        f" {duration(answered.seconds)}, {rate:,.0f} per second: {answered.out}"
    )
    if answered.unknown:
        console.write_line(
            f"{counted(answered.unknown, 'of them is', 'of them are')} not in the data of the"
            " bundle (column 'known')."
        )
    if answered.sources:
        parts = ", ".join(f"{name} {n:,}" for name, n in answered.sources.items())
        console.write_line(f"Sources of the recommendations (column 'source'): {parts}.")
    if answered.rejected_file is not None:
        console.write_line(
            f"{counted(answered.rejected, 'row has', 'rows have')} no valid user id, and"
            f" {'was' if answered.rejected == 1 else 'were'} written with the reason to"
            f" {answered.rejected_file}"
        )
