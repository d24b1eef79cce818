"""`recsys forget`: removes users from everything that the runs under a root have written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from recsys.cli.options import ConfigOption, Json, Sets
from recsys.cli.stages import call_pipeline
from recsys.cli.terminal import fitted_console
from recsys.errors import UsageError
from recsys.formats import counted

_WIDTH = 130  # Without a terminal.


def forget(
    users: Annotated[list[str] | None, Argument(metavar="USER…", help="User ids.")] = None,
    file: Annotated[
        Path | None, Option("--file", help="Text file with more user ids, one per line.")
    ] = None,
    config: ConfigOption = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Remove users from data, models, served versions, reports and logs; publish without them.

    Later runs leave them out: `data.forget` in the config names the file of their hashes. What
    items have learned from them stays until the next training.
    """
    from recsys.config.load import load_config

    ids, loaded = _ids(users or [], file), load_config(config, sets or [])
    with tempfile.TemporaryDirectory(prefix="recsys-forget-") as scratch:
        path = Path(scratch) / "users.json"
        path.write_text(json.dumps(ids), encoding="utf-8")
        done = call_pipeline("forget", ["--users", str(path)], loaded)
    if as_json:
        print(json.dumps({"root": loaded.root, **done}))
    else:
        _show(done, len(ids))
    raise Exit(1 if done["failed"] else 0)


def _ids(users: Sequence[str], file: Path | None) -> list[str]:
    """Returns the ids as the ingestion writes them, each once.

    Raises:
        UsageError: There is none, or the file can't be read (R934).
    """
    import pyarrow as pa

    from recsys.data.sources.values import to_ids

    lines: list[str] = []
    try:
        lines = [] if file is None else file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise _refused(f"{str(file)!r}: {getattr(error, 'strerror', None) or error}") from None
    ids = to_ids(pa.array([*users, *lines], pa.string())).drop_null().unique().to_pylist()
    if not ids:
        raise _refused("none")
    return [str(id_) for id_ in ids]


def _refused(received: str) -> UsageError:
    rule = "recsys forget needs at least one user id."
    return UsageError("R934", rule, "Name users, or a UTF-8 file of one id per line.", received)


def _show(done: Mapping[str, Any], n: int) -> None:
    console = fitted_console(_WIDTH)
    console.write_line(f"Later runs leave out {counted(n, 'user', 'users')}.")
    if not done["found"]:
        console.write_line("No trace of them was found in this root.", "bold")
        return
    for name, singular, plural in (
        ("events", "event", "events"),
        ("versions", "served or earlier version", "served or earlier versions"),
        ("models", "model folder", "model folders"),
        ("vocabularies", "folder of vocabularies", "folders of vocabularies"),
        ("statistics", "folder of statistics", "folders of statistics"),
        ("texts", "report, record or log", "reports, records and logs"),
        ("removed", "folder that the next run makes anew", "folders that the next run makes anew"),
    ):
        if done[name]:
            console.write_line(f"  {counted(done[name], singular, plural)}")
    if done["version"]:
        console.write_line(f"Published without them: {done['version']}", "bold")
    for path, why in done["failed"]:
        console.write_line(f"{path} could not be removed: {why}", "red")
