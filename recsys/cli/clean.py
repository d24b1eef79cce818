"""`recsys clean`: what of earlier runs can go, and its removal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from recsys.cli.run import require_pipeline
from recsys.cli.stages import stage_log
from recsys.cli.wide import wide_console
from recsys.config import canonical_json
from recsys.config_file import default_config_path, load_config
from recsys.formats import counted, size
from recsys.system.process import run_stage, stage_environment

_MODULE = "pipelines.clean"


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
    require_pipeline()
    with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
        # JSON is YAML: the process reads the config with its overrides applied.
        resolved = Path(scratch) / "config.yaml"
        resolved.write_text(canonical_json(config), encoding="utf-8")
        words = ["--config", str(resolved), *(["--apply"] if apply else [])]
        with stage_log(_MODULE) as log:
            done = run_stage(_MODULE, words, stage_environment("jax"), log)
    if as_json:
        print(json.dumps({"root": config.root, **done}))
    else:
        _show(Path(config.root), done, is_set=config.keep.is_set)
    return 1 if done["failed"] else 0


def _show(root: Path, done: dict[str, Any], *, is_set: bool) -> None:
    console = wide_console()
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
        return f"Nothing is to be removed; {_plain_size(done['kept'])} stay.{hint}"
    things = f"{counted(len(done['goes']), 'thing', 'things')}, {_plain_size(done['freed'])}"
    if done["applied"]:
        return f"Removed: {things}; {_plain_size(done['kept'])} stay."
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
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("why")
    for thing in things:
        where, n = _below(Path(thing["path"]), root), thing.get("n", 1)
        table.add_row(
            Text(thing["name"]),
            _plain_size(thing["size"]),
            Text(where if n == 1 else f"{where} and {n - 1:,} more"),
            Text(thing["why"]),
        )
    return table


def _below(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if root in path.parents else str(path)


def _plain_size(n_bytes: Any) -> str:
    # Plain spaces, so that what is printed can be searched.
    return size(n_bytes).replace("\N{NO-BREAK SPACE}", " ")
