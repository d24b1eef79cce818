"""`recsys check`: looks at somebody's files and writes the config that reads them."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from recsys.cli.check_view import show_report
from recsys.cli.terminal import Console
from recsys.config import write_feature
from recsys.config_file import load_config
from recsys.data.inspect.config_text import config_text
from recsys.data.inspect.findings import Findings
from recsys.data.inspect.proposal import Report, look
from recsys.errors import ConfigError, UsageError


def check(
    files: Sequence[str],
    maps: Sequence[str],
    items: str | None,
    users: str | None,
    out: Path | None,
    sample: int | None,
    *,
    force: bool,
    as_json: bool,
) -> int:
    """Prints what files hold, and writes a config.

    Args:
        files: Files of interactions, or globs.
        maps: `ROLE=COLUMN` each, also several with commas between.
        items: File of the items, or glob.
        users: File of the users, or glob.
        out: The config; by default the first file's name in the current folder.
        sample: Rows to read of each source; None for all.
        force: Overwrite the config.
        as_json: Print one object of JSON.

    Returns:
        The exit code: 1 if something couldn't be decided, and no config was written.

    Raises:
        UsageError: The config is there already, or a map names what isn't.
        RecsysError: Files can't be read or understood.
    """
    name = _name(files[0])
    path = out or Path(f"{name}.yaml")
    if path.exists() and not force:
        raise UsageError(
            "R259",
            f"{str(path)!r} must not be overwritten unasked.",
            "Add --force, or name another file with --out.",
        )
    sides = {what: file for what, file in (("items", items), ("users", users)) if file}
    with _progress() as progress:
        task = progress.add_task("read", total=None)
        report = look(
            files,
            sides,
            maps,
            int(time.time()),
            sample,
            lambda n_bytes: progress.advance(task, n_bytes),
        )
    written = None
    if not report.undecided:
        written = _write(path, config_text(report, name, path.resolve().parent))
    command = _again(files, report, items, users)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(report, written, command)) + "\n")
    else:
        show_report(report, written, command, is_sample=sample is not None)
    return 1 if report.undecided else 0


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    return Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip


def _name(file: str) -> str:
    """Returns a name for a pipeline that reads a file."""
    stem = Path(file).name.split(".")[0].lower()
    name = re.sub(r"[^a-z0-9_-]+", "-", stem).strip("-_")[:60]
    return name if re.match(r"[a-z]", name) else f"data-{name}".strip("-")


def _write(path: Path, text: str) -> Path:
    """Writes a config that `recsys run` takes; nothing if it doesn't."""
    temporary = path.with_name(f".{path.name}.writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    try:
        load_config(temporary)
    except ConfigError:
        temporary.unlink()
        raise
    temporary.replace(path)
    return path


def _again(files: Sequence[str], report: Report, items: str | None, users: str | None) -> str:
    """Returns the command that decides what is open."""
    maps = [f"{role}={decided.column}" for role, decided in report.roles.decided.items()
            if decided.reason == "as said by --map"]  # fmt: skip
    words = ["recsys check", *files]
    words += [f"--items {items}"] if items else []
    words += [f"--users {users}"] if users else []
    return " ".join([*words, f"--map {','.join([*maps, *report.options])}"])


def _as_json(report: Report, written: Path | None, command: str) -> dict[str, Any]:
    understood, findings = report.understood, report.findings
    return {
        "files": [file.path for file in understood.files],
        "format": understood.format,
        "compression": understood.compression or None,
        "csv": understood.source.csv.model_dump(mode="json")
        if understood.format == "csv"
        else None,
        "evidence": understood.evidence,
        "columns": _columns_json(report),
        "roles": {
            role: {"column": decided.column, "reason": decided.reason}
            for role, decided in report.roles.decided.items()
        },
        "explode": understood.source.explode.model_dump() if understood.source.explode else None,
        "timestamp_unit": report.config.timestamp_unit if report.config else None,
        "timestamp_format": report.config.timestamp_format if report.config else None,
        "split": report.split.split if report.split else None,
        "split_reason": report.split.reason if report.split else None,
        "order": report.config.ordered_by if report.config else None,
        **_findings_json(findings),
        "first": findings.first if findings else None,
        "last": findings.last if findings else None,
        **{
            what: {
                "id": side.id.column if side.id else None,
                "title": side.title.column if side.title else None,
                "features": [write_feature(feature) for feature in side.features],
                "left_out": side.left_out,
                **_findings_json(side.findings),
                "interactions_known": findings.n_known.get(what) if findings else None,
            }
            for what, side in report.sides.items()
        },
        "undecided": report.undecided,
        "try": command if report.undecided else None,
        "config": str(written) if written else None,
    }


def _findings_json(findings: Findings | None) -> dict[str, Any]:
    if findings is None:
        names = ("rows", "good", "positives", "rejected", "rejected_examples", "duplicates")
        return dict.fromkeys((*names, "duplicates_are_exact", "duplicate_share", "empty_lists"))
    return {
        "rows": findings.n_read,
        "good": findings.n_good,
        "positives": findings.n_positive,
        "rejected": findings.rejected,
        "rejected_examples": findings.examples,
        "duplicates": findings.n_duplicates,
        "duplicates_are_exact": findings.keys.is_exact,
        "duplicate_share": findings.duplicate_share,
        "empty_lists": findings.n_empty,
    }


def _columns_json(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "name": profile.name,
            "type": profile.kind,
            "rows": profile.n_rows,
            "nulls": profile.n_null,
            "distinct": len(profile.distinct),
            "distinct_is_exact": profile.distinct.is_exact,
            "lowest": profile.lowest,
            "highest": profile.highest,
            "examples": profile.examples,
        }
        for profile in report.profiles.values()
    ]
