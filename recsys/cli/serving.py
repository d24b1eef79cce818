"""`recsys serve`, `rollback`, `recommend`, `rank` and `publish-vectors`: pushed versions in use."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recsys.cli.options import ConfigOption, Count, Json, Root
from recsys.cli.show import emit
from recsys.cli.terminal import Console, progress_bar
from recsys.errors import UsageError, visible
from recsys.system.installation import extra_needed

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from recsys.serving.batch_file import Answered
    from recsys.serving.pool import ServerMetrics
    from recsys.serving.recommendations import Recommendations
    from recsys.serving.served_log import ServedLog


def serving_folder(config_path: Path | None, root: Path | None, n_versions: int = 1) -> Path:
    """Returns the folder of the pushed versions.

    Args:
        config_path: Config of the run. If only `root` is given, the folder must have exactly one
            model.
        root: Folder of the run; None: `root` in the config.
        n_versions: Number of newest versions to fetch if the root is in a bucket.

    Raises:
        UsageError: `root` has no model, or several (R904).
    """
    from recsys.config.load import load_config
    from recsys.storage.working_folder import fetch_served

    if root is None or config_path is not None:
        config = load_config(config_path)
        fetch_served(folder := root or config.root_folder, n_versions)
        return folder / "serving" / config.name
    fetch_served(root, n_versions)
    names = [path for path in sorted(root.glob("serving/*")) if not path.name.startswith(".")]
    if len(names) != 1:
        rule = f"The folder {str(root)!r} must have exactly one model under serving/."
        cure = "Also name the config of the run: --config FILE."
        raise UsageError("R904", rule, cure, [path.name for path in names])
    return names[0]


def serve(
    config: ConfigOption = None,
    root: Root = None,
    model_dir: Path | None = None,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535)] = 8501,
    grpc_port: Annotated[int | None, Option(min=0, max=65535)] = None,
    versions: Annotated[int, Option(min=1, max=8)] = 1,
    hosts: Annotated[list[str] | None, Option("--allow-host")] = None,
    as_json: Json = False,
) -> None:
    """Serve the pushed model over HTTP and gRPC, with a web page.

    The protocols are TensorFlow Serving's. Prints the URL once the server is ready. New versions
    are loaded when they are pushed. Rankings and lists of `:recommend` are logged if `serving.log`
    in the config says so.

    Args:
        model_dir: Folder of the versions. Default: the run's.
        name: Model name. Default: the name of the folder.
        host: Address to listen on.
        port: Port; 0: any free one.
        grpc_port: Port of gRPC; 0: any free one. Default: no gRPC.
        versions: Number of newest versions to load.
        hosts: Host name to accept; repeatable.
    """
    folder = _folder(config, root, model_dir, name, versions)
    with extra_needed("serve", "R550", "Serving requires the extra 'serve'.", UsageError):
        from recsys.serving.service import Service
        from recsys.serving.service import serve as serve_until_stopped

    def ready(url: str, grpc_address: str | None) -> None:
        fields = {"url": url, "name": served, "grpc": grpc_address}
        print(json.dumps(fields) if as_json else url, flush=True)
        if grpc_address is not None:
            sys.stderr.write(f"gRPC: {grpc_address}\n")
        sys.stderr.write(f"Serving {served} from {visible(str(folder))}; stop with Ctrl+C.\n")

    from recsys.storage.working_folder import following

    served = name or folder.name
    log = None if model_dir is not None else _served_log(config, root, served)
    service = Service(
        served, folder, host, port, grpc_port, versions, hosts=tuple(hosts or ()), log=log
    )
    with following(folder.parent.parent, versions):
        serve_until_stopped(service, ready)


def _served_log(
    config: Path | None, root: Path | None, name: str
) -> Callable[[ServerMetrics], ServedLog] | None:
    """Returns a function that opens the log of the config; None if there is no config or no log."""
    from recsys.config.load import load_config
    from recsys.data.served_log import log_folder
    from recsys.serving.served_log import ServedLog
    from recsys.storage.working_folder import home_of

    if root is not None and config is None:
        return None
    loaded = load_config(config)
    if loaded.serving.log is None:
        return None
    base = root or loaded.root_folder
    folder, url = log_folder(base) / name, home_of(base)
    forget = None if loaded.data.forget is None else Path(loaded.data.forget)
    log, interactions = loaded.serving.log, loaded.data.interactions
    return lambda metrics: ServedLog(folder, interactions, log.days, log.mib, metrics, forget, url)


def _folder(
    config: Path | None,
    root: Path | None,
    model_dir: Path | None,
    name: str | None,
    n_versions: int,
) -> Path:
    """Returns the folder of the versions.

    Raises:
        UsageError: The options are inconsistent, or --model-dir is a bundle (R565).
    """
    from recsys.bundles.bundle import MANIFEST
    from recsys.config.load import load_config
    from recsys.storage.working_folder import fetch_served

    if model_dir is None:
        if name is not None:
            base = fetch_served(root or load_config(config).root_folder, n_versions)
            if Path(name).name != name:
                raise UsageError("R565", "--name must not contain '/'.", "Remove it.", name)
            return base / "serving" / name
        return serving_folder(config, root, n_versions)
    if config is not None or root is not None:
        rule = "--model-dir can't be combined with --config or --root."
        cure = "Give only one of them."
        raise UsageError("R565", rule, cure, str(model_dir))
    if (model_dir / MANIFEST).exists():
        rule = "--model-dir must contain versions, not be a version."
        cure = f"Name the parent folder: --model-dir {model_dir.absolute().parent}."
        raise UsageError("R565", rule, cure, str(model_dir))
    return model_dir.absolute()


def rollback(
    config: ConfigOption = None,
    root: Root = None,
    to: int | None = None,
    list_only: Annotated[bool, Option("--list")] = False,
    as_json: Json = False,
) -> None:
    """Withdraw the newest version, so that the one before it is served again.

    Args:
        to: Version to serve again.
        list_only: List the versions and exit.
    """
    from recsys.bundles.publishing import listed
    from recsys.bundles.publishing import rollback as roll_back
    from recsys.storage.working_folder import fetched, home_of, written

    serving = serving_folder(config, root)
    if list_only:
        fetched(serving.parent.parent, "serving/")
        emit({"serving": str(serving), "versions": listed(serving)}, as_json=as_json)
        return
    with written(serving.parent.parent, "serving/"):
        done = roll_back(serving, to)
    result = {"served": int(done.served.name), "bundle": str(done.served)}
    withdrawn: dict[str, Any] = {"withdrawn, and not published again": done.withdrawn}
    if done.withdrawn:
        home = root and (home_of(root) or root)
        options = {"--config": config, "--root": home, "--to": done.withdrawn[-1]}
        words = [str(w) for option in options.items() if option[1] is not None for w in option]
        withdrawn["to restore"] = shlex.join(["recsys", "rollback", *words])
    people = {**result, **withdrawn}
    emit({**result, "withdrawn": done.withdrawn}, as_json=as_json, people=people)


# --- recommendations

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
    context: Annotated[list[str] | None, Option("--context")] = None,
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
        context: Context of the query as COLUMN=VALUE, with a raw column of the events, such as
            device=phone; repeatable. The column of times is the query time. The file of users may
            have it by user, in columns named context_COLUMN.
    """
    from recsys.bundles.publishing import latest

    of_query = _context_of(context or [])
    options = {"--user": user, "--users": users, "--out": out, "--column": column}
    named = [name for name, value in options.items() if value is not None]
    answer: Recommendations | Answered
    if user is not None and named == ["--user"]:
        bundle = latest(serving_folder(config, root))
        answer = _recommend_user(bundle, user, k, of_query)
        people = _for_people(answer)
    elif user is None and users is not None and out is not None:
        bundle = latest(serving_folder(config, root))
        answer = _recommend_file(bundle, users, out, column, k, batch, of_query)
        people = dataclasses.asdict(answer)
    else:
        rule = "Items are recommended either to one user or to the users of a file."
        cure = "Give --user ID, or --users FILE --out FILE.parquet."
        raise UsageError("R548", rule, cure, named)
    result = {"bundle": str(bundle), **dataclasses.asdict(answer)}
    emit(result, as_json=as_json, people=people)


def _context_of(pairs: Sequence[str]) -> dict[str, str]:
    """Returns the values of options `COLUMN=VALUE` by column.

    Raises:
        UsageError: An option has no `=` (R548).
    """
    split = [pair.partition("=") for pair in pairs]
    for pair, (name, sign, _) in zip(pairs, split, strict=True):
        if not (name and sign):
            rule = "--context must be COLUMN=VALUE."
            raise UsageError("R548", rule, "Write it as --context device=phone.", pair)
    return {name: value for name, _, value in split}


# --- one user


def _recommend_user(bundle: Path, user: str, k: int, context: dict[str, str]) -> Recommendations:
    """Returns the best `k` items that are new to a user.

    For an unknown user it prints a note with known ids on stderr, and returns popular items.
    """
    from recsys.serving.recommendations import load_bundle

    loaded = load_bundle(bundle)
    answer = loaded.recommend(user, k=k, context=context)
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
    items = [
        {score: item.score, **item.scores, "id": item.id, "title": item.title}
        for item in answer.items
    ]
    stage = {"order": "the ranker's"} if answer.stage == "ranker" else {}
    return {
        f"For user {answer.user_id}": items,
        **stage,
        "source": _RESTS_ON[answer.source],
        # Titles have commas: "Fugitive, The".
        "history, newest first": "; ".join([*history[:_SHOWN_HISTORY], *more]),
    }


# --- files of users


def _recommend_file(
    bundle: Path,
    users: Path,
    out: Path,
    column: str | None,
    k: int,
    batch: int,
    context: dict[str, str],
) -> Answered:
    """Writes the top `k` new items of each user in a file."""
    from recsys.serving.batch_file import UsersFile, batch_answer, recommend_file
    from recsys.serving.recommendations import load_bundle

    file = UsersFile.open(users, column)  # Fails before the bundle is loaded.
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("loading the bundle", total=None, text="")
        retriever = load_bundle(bundle).retriever
        report = _reporting(progress, task, "recommending", file.n_bytes, "users")
        answer = functools.partial(batch_answer, retriever, context=context)
        return recommend_file(answer, file, out, k, batch, report)


def _reporting(
    progress: Progress, task: TaskID, verb: str, n_bytes: int, unit: str
) -> Callable[[int, int], None]:
    """Starts a bar over the bytes of a file; returns what moves it on by rows and bytes."""
    n_done = 0

    def report(n_rows: int, n_bytes: int) -> None:
        nonlocal n_done
        n_done += n_rows
        progress.update(task, advance=n_bytes, text=f"{n_done:,} {unit}")

    progress.reset(task, description=verb, total=n_bytes)
    return report


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
    from recsys.serving.rank_api import label_scorer
    from recsys.serving.rank_file import rank_file
    from recsys.serving.recommendations import load_bundle

    bundle, of_all = latest(serving_folder(config, root)), _context_of(context or [])
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("loading the bundle", total=None, text="")
        scorer = label_scorer(load_bundle(bundle).model)
        n_bytes = file.stat().st_size if file.exists() else 0
        report = _reporting(progress, task, "ranking", n_bytes, "rows")
        done = rank_file(scorer, file, out, column=column, k=k, context=of_all, report=report)
    emit({"bundle": str(bundle), **dataclasses.asdict(done)}, as_json=as_json)


# --- vectors


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
