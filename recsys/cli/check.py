"""`recsys check`: looks at somebody's files and writes the config that reads them."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from recsys.cli.terminal import Console, fitted_console, titled_table
from recsys.config import GateConfig, write_feature
from recsys.config.load import load_config
from recsys.data.inspect.config_text import config_text
from recsys.data.inspect.findings import Findings
from recsys.data.inspect.names import shown
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.proposal import Report, inspect_files
from recsys.data.inspect.sides import Side
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
        report = inspect_files(
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


# --- The tables of `recsys check`. All that comes from the files is written without controls.

_WIDTH = 110  # Where no terminal says its own.
_NAME = 28
_NEARLY_ALL = 0.9
_MOST_REJECTED = GateConfig().max_rejected_share


def show_report(report: Report, written: Path | None, command: str, *, is_sample: bool) -> None:
    """Prints a report.

    Args:
        report: What the look gave.
        written: The config that was written, if one was.
        command: The command that decides what is open.
        is_sample: Whether only some rows were read.
    """
    console = fitted_console(_WIDTH)
    _say_format(console, "Interactions", report)
    if is_sample:
        console.print(Text("Only a sample was read: counts are of that.", "yellow"))
    notes = {
        decided.column: f"{role}: {decided.reason}"
        for role, decided in report.roles.decided.items()
    }
    console.print(_columns_table("Columns", report.profiles, notes))
    for what, side in report.sides.items():
        _show_side(console, what, side)
    if report.findings is not None:
        _show_findings(console, report.findings)
        for what, side in report.sides.items():
            _show_side_findings(console, what, side, report.findings)
    if report.split is not None and report.split.split != "time":
        text = f"Split: {report.split.split}, because: {report.split.reason}."
        console.print(Text(text, "yellow"), soft_wrap=True)
    if written is not None:
        console.print(Text(f"Wrote {written}. Look it over, then: recsys run {written}", "bold"))
        return
    console.print(Text("Not decided, so no config was written:", "bold red"))
    for sentence in report.undecided:
        console.print(Text(f"  {sentence}"), soft_wrap=True)
    if report.options:
        console.print(Text(f"Say which, for example: {shown(command, 500)}"), soft_wrap=True)


def _say_format(console: Console, title: str, report: Report) -> None:
    understood = report.understood
    n_bytes = sum(file.size for file in understood.files)
    packed = f", {understood.compression}" if understood.compression else ""
    line = f"{title}: {len(understood.files):,} file(s), {n_bytes:,} bytes, {understood.format}"
    console.print(Text(f"{line}{packed}", "bold"))
    for sentence in understood.evidence:
        console.print(Text(f"  {shown(sentence, 200)}"), soft_wrap=True)


def _columns_table(title: str, profiles: Mapping[str, Profile], notes: Mapping[str, str]) -> Table:
    table = titled_table(title)
    table.add_column("column", overflow="fold")
    table.add_column("type")
    for heading in ("nulls", "different"):
        table.add_column(heading, justify="right")
    for heading in ("range", "examples", "role, and why"):
        table.add_column(heading, overflow="fold")
    for profile in profiles.values():
        table.add_row(
            Text(shown(profile.name, _NAME)),
            Text(_type(profile)),
            Text(f"{profile.n_null / max(1, profile.n_rows):.1%}"),
            Text(f"{'' if profile.distinct.is_exact else '≈ '}{len(profile.distinct):,}"),
            Text(_range(profile)),
            Text(", ".join(shown(example, 16) for example in profile.examples)),
            Text(shown(notes.get(profile.name, ""), 120), "green"),
        )
    return table


def _type(profile: Profile) -> str:
    return (
        f"{profile.kind}, {profile.unit}"
        if profile.unit and profile.kind != "time"
        else profile.kind
    )


def _range(profile: Profile) -> str:
    if profile.lowest is None or profile.highest is None:
        return ""
    if profile.unit is not None:
        return f"{_day(profile.lowest)} … {_day(profile.highest)}"
    return f"{profile.lowest:,.10g} … {profile.highest:,.10g}"


def _day(seconds: float) -> str:
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.10g}"


def _show_side(console: Console, what: str, side: Side) -> None:
    notes = {column: f"left out: {why}" for column, why in side.left_out.items()}
    notes |= {feature.column: f"feature: {feature.kind}" for feature in side.features}
    for name, role in (("title", side.title), ("id", side.id)):
        if role is not None:
            also = f"; {notes[role.column]}" if role.column in notes else ""
            notes[role.column] = f"{name}: {role.reason}{also}"
    title = f"{what.capitalize()}: {side.understood.files[0].path}"
    console.print(_columns_table(shown(title, 100), side.profiles, notes))


def _show_findings(console: Console, findings: Findings) -> None:
    span = ""
    if findings.first is not None and findings.last is not None:
        span = f", from {_day(findings.first)} to {_day(findings.last)}"
    empty = f" {findings.n_empty:,} lists are empty." if findings.n_empty else ""
    text = (
        f"A run would read {findings.n_read:,} rows{span}: {findings.n_good:,} good, of which "
        f"{findings.n_positive:,} positives; {_left_out(findings)}.{empty}"
    )
    console.print(Text(text), soft_wrap=True)
    if not findings.keys.is_exact:
        console.print(Text("Duplicates are counted in a sample, and nearly right.", "yellow"))
    _show_rejected(console, findings)


def _left_out(findings: Findings) -> str:
    share = findings.n_rejected / max(1, findings.n_read)
    return (
        f"{findings.n_duplicates:,} duplicates and {findings.n_rejected:,} rejected ({share:.2%})"
    )


def _show_side_findings(console: Console, what: str, side: Side, events: Findings) -> None:
    findings = side.findings
    if findings is None:
        return
    n_known, n_events = events.n_known.get(what, 0), events.keys.n_rows
    line = f"{what.capitalize()}: {findings.n_good:,} of {findings.n_read:,} rows good;"
    line += f" {_left_out(findings)}."
    known = f" They have {n_known / max(1, n_events):.2%} of the interactions' {what}."
    is_odd = n_known < _NEARLY_ALL * n_events
    console.print(Text(line + known, "yellow" if is_odd else ""), soft_wrap=True)
    _show_rejected(console, findings)


def _show_rejected(console: Console, findings: Findings) -> None:
    if findings.n_rejected > _MOST_REJECTED * findings.n_read:
        text = (
            "That is more than data.gate.max_rejected_share: a run would stop. Mend the data, or"
            " raise it."
        )
        console.print(Text(text, "bold red"), soft_wrap=True)
    if not findings.rejected:
        return
    table = titled_table("Rejected")
    table.add_column("reason")
    table.add_column("rows", justify="right")
    table.add_column("for example", overflow="fold")
    for reason, n_rows in sorted(findings.rejected.items(), key=lambda entry: -entry[1]):
        file, line, row = findings.examples[reason]
        where = f"{shown(Path(file).name, 30)}:{line}"
        table.add_row(Text(shown(reason, 60)), Text(f"{n_rows:,}"), Text(f"{where}  {shown(row)}"))
    console.print(table)
