"""`recsys rollback`: serves an earlier version again."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.recommend import serving_folder
from recsys.cli.terminal import Console, titled_table

if TYPE_CHECKING:
    from recsys.bundles.publishing import Rollback


def rollback(
    config: ConfigOption = None,
    root: Root = None,
    to: Annotated[int | None, Option(metavar="VERSION", help="Serve this version again.")] = None,
    list_only: Annotated[bool, Option("--list", help="List the versions and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Withdraw the newest version, so that the one before it is served again."""
    from recsys.bundles.publishing import rollback as roll_back

    serving = serving_folder(config, root)
    if list_only:
        _list(serving, as_json=as_json)
        return
    done = roll_back(serving, to)
    number = int(done.served.name)
    if as_json:
        bundle = str(done.served)
        print(json.dumps({"served": number, "bundle": bundle, "withdrawn": done.withdrawn}))
        return
    console = Console()
    console.write_line(f"Now serving version {number}: {done.served}")
    if done.withdrawn:
        console.write_line(_undo(done, config, root))


def _undo(done: Rollback, config: Path | None, root: Path | None) -> str:
    options = {"--config": config, "--root": root, "--to": done.withdrawn[-1]}
    words = [word for name, value in options.items() if value is not None for word in (name, value)]
    command = shlex.join(["recsys", "rollback", *map(str, words)])
    gone = ", ".join(map(str, done.withdrawn))
    return f"Withdrawn, and not published again: {gone}. To restore: {command}"


def _list(serving: Path, *, as_json: bool) -> None:
    rows = _rows(serving)
    if as_json:
        print(json.dumps({"serving": str(serving), "versions": rows}))
        return
    table = titled_table(f"Versions in {serving}", "version", "state", "since")
    for row in rows:
        table.add_row(str(row["version"]), row["state"], row["since"])
    Console().print(table)


def _rows(serving: Path) -> list[dict[str, Any]]:
    """Returns the state of each version, newest first."""
    from recsys.bundles.versions import versions, withdrawn_folders

    published = {int(path.name): path for path in versions(serving)}
    folders = {**withdrawn_folders(serving), **published}
    states = dict.fromkeys(folders, "rolled back") | dict.fromkeys(published, "earlier")
    states |= dict.fromkeys([*published][-1:], "served")
    return [
        {"version": number, "state": states[number], "since": _changed(folders[number])}
        for number in sorted(folders, reverse=True)
    ]


def _changed(folder: Path) -> str:
    """Returns the time when the folder was last renamed [UTC]."""
    moment = dt.datetime.fromtimestamp(folder.stat().st_ctime, dt.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
