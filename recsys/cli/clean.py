"""`recsys clean`: what of earlier runs can go, and its removal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from recsys.cli.pipeline import call_pipeline
from recsys.cli.terminal import fitted_console, plain_size, titled_table
from recsys.config_file import default_config_path, load_config
from recsys.formats import counted

_WIDTH = 130  # Where there is no terminal.


def clean(path: Path | None, overrides: Sequence[str], *, apply: bool, as_json: bool) -> int:
    """Shows what goes and what stays, and removes what goes where `apply` is set.

    Args:
        path: Config file; the one of the shipped data by default.
        overrides: `a.b=value` each.
        apply: Remove it.
        as_json: Print one line of JSON.

    Returns:
        The exit code: 1 where something could not be removed.

    Raises:
        RecsysError: A run holds the root, or it can't be read.
    """
    config = load_config(path or default_config_path(), overrides)
    done = call_pipeline("clean", ["--apply"] if apply else [], config)
    if as_json:
        print(json.dumps({"root": config.root, **done}))
    else:
        _show(Path(config.root), done, is_set=config.keep.is_set)
    return 1 if done["failed"] else 0


def _show(root: Path, done: dict[str, Any], *, is_set: bool) -> None:
    console = fitted_console(_WIDTH)
    if done["stays"]:
        console.print(_table(f"Stays in {root}", root, _grouped(done["stays"])))
    if done["goes"]:
        title = "Removed" if done["applied"] else "Would go"
        console.print(_table(f"{title} from {root}", root, done["goes"]))
    for path, why in done["failed"]:
        console.print(Text(f"{path} could not be removed: {why}", "red"), soft_wrap=True)
    console.print(Text(_sentence(done, is_set=is_set), "bold"), soft_wrap=True)


def _sentence(done: dict[str, Any], *, is_set: bool) -> str:
    if not done["goes"]:
        hint = "" if is_set else " `keep` in the config says what may: nothing, as it is."
        return f"Nothing is to be removed; {plain_size(done['kept'])} stay.{hint}"
    things = f"{counted(len(done['goes']), 'thing', 'things')}, {plain_size(done['freed'])}"
    if done["applied"]:
        return f"Removed: {things}; {plain_size(done['kept'])} stay."
    return f"A dry run: {things} would go. To remove them: the same command with --apply."


def _grouped(things: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what stays, things of one name and reason on one line."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for thing in things:
        key = (thing["name"], thing["why"])
        group = groups.setdefault(key, {**thing, "size": 0, "n": 0})
        group["size"] += thing["size"]
        group["n"] += 1
    return sorted(groups.values(), key=lambda group: -group["size"])


def _table(title: str, root: Path, things: Iterable[dict[str, Any]]) -> Table:
    table = titled_table(title)
    table.add_column("what")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("why")
    for thing in things:
        where, n = _below(Path(thing["path"]), root), thing.get("n", 1)
        table.add_row(
            Text(thing["name"]),
            plain_size(thing["size"]),
            Text(where if n == 1 else f"{where} and {n - 1:,} more"),
            Text(thing["why"]),
        )
    return table


def _below(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if root in path.parents else str(path)
