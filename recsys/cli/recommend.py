"""`recsys recommend`: items for a user or a file of users, from the newest pushed bundle."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.serving import serving_folder
from recsys.cli.show import emit
from recsys.cli.terminal import Console, progress_bar
from recsys.errors import UsageError

if TYPE_CHECKING:
    from recsys.serving.batch_file import Answered
    from recsys.serving.recommendations import Recommendations

_SHOWN_HISTORY = 10
_RESTS_ON = {
    "user": "user, the trained embedding of this user",
    "history": "history, the earlier items of this user",
    "features": "features, the features of this user",
    "popularity": "popularity, because this user is unknown;"
    " the score is the item's share of all positive interactions",
}


def recommend(
    user: str | None = None,
    users: Path | None = None,
    k: Annotated[int, Option("-k", min=1)] = 10,
    config: ConfigOption = None,
    root: Root = None,
    out: Path | None = None,
    column: str | None = None,
    batch: Annotated[int, Option(min=1, max=1 << 20)] = 8192,
    at: str = "",
    as_json: Json = False,
) -> None:
    """Recommend items to a user, or to a file of users, with the newest pushed bundle.

    Args:
        user: User id; any text.
        users: File of user ids.
        k: Number of items per user.
        out: Parquet file to write, with --users.
        column: Id column of the file of users. Default: the first.
        batch: Users of the file per batch.
        at: Query time, for models that use times: seconds since 1970 or ISO 8601.
    """
    from recsys.bundles.publishing import latest

    options = {"--user": user, "--users": users, "--out": out, "--column": column}
    named = [name for name, value in options.items() if value is not None]
    answer: Recommendations | Answered
    if user is not None and named == ["--user"]:
        bundle = latest(serving_folder(config, root))
        answer = _recommend_user(bundle, user, k, at)
        people = _for_people(answer)
    elif user is None and users is not None and out is not None:
        bundle = latest(serving_folder(config, root))
        answer = _recommend_file(bundle, users, out, column, k, batch, at)
        people = dataclasses.asdict(answer)
    else:
        rule = "Items are recommended either to one user or to the users of a file."
        cure = "Give --user ID, or --users FILE --out FILE.parquet."
        raise UsageError("R548", rule, cure, named)
    result = {"bundle": str(bundle), **dataclasses.asdict(answer)}
    emit(result, as_json=as_json, people=people)


# --- one user


def _recommend_user(bundle: Path, user: str, k: int, at: str) -> Recommendations:
    """Returns the best `k` items that are new to a user.

    For an unknown user it prints a note with known ids on stderr, and returns popular items.
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


def _for_people(answer: Recommendations) -> dict[str, Any]:
    """Returns the items, their source, and the newest items of the history."""
    history = [item.title for item in answer.history]
    more = [f"and {len(history) - _SHOWN_HISTORY:,} more"] if len(history) > _SHOWN_HISTORY else []
    # The score of a popular item is its share of the interactions, which is small.
    score = "share" if answer.source == "popularity" else "score"
    items = [{score: item.score, "id": item.id, "title": item.title} for item in answer.items]
    return {
        f"For user {answer.user_id}": items,
        "source": _RESTS_ON[answer.source],
        # Titles have commas: "Fugitive, The".
        "history, newest first": "; ".join([*history[:_SHOWN_HISTORY], *more]),
    }


# --- a file of users


def _recommend_file(
    bundle: Path, users: Path, out: Path, column: str | None, k: int, batch: int, at: str
) -> Answered:
    """Writes the top `k` new items of each user in a file."""
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
        return recommend_file(answer, file, out, k, batch, report)
