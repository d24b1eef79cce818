"""`recsys check`: inspects data files and writes a config for them."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import DownloadColumn
from rich.table import Table
from rich.text import Text
from typer import Argument, Exit, Option

from recsys.cli.options import Force, Json
from recsys.cli.terminal import Console, fitted_console, plain_size, progress_bar, titled_table
from recsys.data.inspect.names import shown
from recsys.errors import RecsysError, UsageError
from recsys.formats import counted
from recsys.system.commit import replacing

if TYPE_CHECKING:
    from recsys.data.inspect.findings import Findings
    from recsys.data.inspect.profile import Profile
    from recsys.data.inspect.proposal import Inspection
    from recsys.data.inspect.sides import Side

_WIDTH = 110  # Without a terminal.
_NEARLY_ALL = 0.9


def check(
    files: Annotated[list[str], Argument(metavar="FILE…", help="Interaction files, or globs.")],
    maps: Annotated[
        list[str] | None,
        Option(
            "--map",
            metavar="ROLE=COLUMN,…",
            help="Role of a column, such as user=uid; repeatable. Names may contain commas.",
        ),
    ] = None,
    items: Annotated[str | None, Option(help="File of the items.")] = None,
    users: Annotated[str | None, Option(help="File of the users.")] = None,
    out: Annotated[Path | None, Option(help="Config to write. Default: ./NAME.yaml.")] = None,
    sample: Annotated[int | None, Option(min=1, help="Number of rows to sample.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Inspect data files, report their contents, and write a config for them.

    Exits with 1 if a role can't be determined, and prints how to specify it.
    """
    from recsys.data.inspect.config_text import config_text
    from recsys.data.inspect.proposal import inspect_files

    name = _name(files[0])
    path = out or Path(f"{name}.yaml")
    if path.exists() and not force:
        raise UsageError(
            "R259",
            f"{str(path)!r} already exists and is only overwritten with --force.",
            "Add --force, or name another file with --out.",
        )
    sides = {what: file for what, file in (("items", items), ("users", users)) if file}
    with progress_bar(Console(stderr=True), DownloadColumn()) as progress:
        task = progress.add_task("read", total=None, text="")
        report = inspect_files(
            files, sides, maps or [], int(time.time()), sample, partial(progress.advance, task)
        )
    written = None
    if not report.undecided:
        written = _write(path, config_text(report, name, path.resolve().parent))
    options = [word for what, file in sides.items() for word in (f"--{what}", file)]
    mapping = ["--map", ",".join([*(maps or []), *report.options])]
    command = shlex.join(["recsys", "check", *files, *options, *mapping])
    if as_json:
        print(json.dumps(_as_json(report, written, command)))
    else:
        _show(report, written, command, is_sample=sample is not None)
    raise Exit(1 if report.undecided else 0)


def _name(file: str) -> str:
    """Returns a pipeline name derived from the name of a file, or of the folder of a pattern."""
    stems = [re.sub(r"\{[^}]*\}|[*?]", "-", part).split(".")[0] for part in Path(file).parts]
    names = [re.sub(r"[^a-z0-9_]+", "-", stem.lower()).strip("-_")[:60] for stem in stems]
    name = next((name for name in reversed(names) if name), "")
    return name if re.match(r"[a-z]", name) else f"data-{name}".strip("-")


def _write(path: Path, text: str) -> Path:
    """Writes a config after validating it; nothing is written if it is invalid."""
    from recsys.config.load import load_config

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        try:
            load_config(temporary)
        except RecsysError as error:
            rule = error.rule.replace(temporary.name, path.name)
            cure = "Map other columns, or write the config by hand: docs/config.md."
            told = {**error.to_json(), "rule": rule, "cure": cure}
            raise RecsysError.from_json(told) from None
    return path


# --- as JSON


def _as_json(report: Inspection, written: Path | None, command: str) -> dict[str, Any]:
    from recsys.config import write_feature

    understood, config, split = report.understood, report.config, report.split
    csv, explode = understood.source.csv, understood.source.explode
    sides = {
        what: {
            "id": side.id.column if side.id else None,
            "title": side.title.column if side.title else None,
            "features": [write_feature(feature) for feature in side.features],
            "left_out": side.left_out,
            "conflicts": side.findings and side.findings.n_conflicts,
            **_findings_json(side.findings),
            "interactions_known": report.findings and report.findings.n_known.get(what),
        }
        for what, side in report.sides.items()
    }
    return {
        "files": [file.path for file in understood.files],
        "format": understood.format,
        "compression": understood.compression or None,
        "csv": csv.model_dump(mode="json") if understood.format == "csv" else None,
        "evidence": understood.evidence,
        "columns": [profile.to_json() for profile in report.profiles.values()],
        "roles": {role: vars(decided) for role, decided in report.roles.decided.items()},
        "explode": explode and explode.model_dump(),
        "timestamp_unit": config and config.timestamp_unit,
        "timestamp_format": config and config.timestamp_format,
        "split": split and split.split,
        "split_reason": split and split.reason,
        "order": config and config.ordered_by,
        **_findings_json(report.findings),
        **sides,
        "remarks": report.remarks,
        "undecided": report.undecided,
        "try": command if report.options else None,
        "config": str(written) if written else None,
    }


def _findings_json(findings: Findings | None) -> dict[str, Any]:
    from recsys.data.inspect.findings import Findings

    known = findings or Findings()
    fields = {
        "rows": known.n_read,
        "good": known.n_good,
        "positives": known.n_positive,
        "rejected": known.rejected,
        "rejected_examples": known.examples,
        "duplicates": known.n_duplicates,
        "duplicates_are_exact": known.keys.is_exact,
        "duplicate_share": known.n_duplicates / max(1, known.keys.n_added),
        "empty_lists": known.n_empty,
        "first": known.first,
        "last": known.last,
    }
    return fields if findings else dict.fromkeys(fields)


# --- as tables; control characters in the data are removed


def _show(report: Inspection, written: Path | None, command: str, *, is_sample: bool) -> None:
    console = fitted_console(_WIDTH)

    understood, findings = report.understood, report.findings
    n_bytes = sum(file.size for file in understood.files)
    packed = f", {understood.compression}" if understood.compression else ""
    n_files = f"{counted(len(understood.files), 'file', 'files')}, {plain_size(n_bytes)}"
    console.write_line(f"Interactions: {n_files}, {understood.format}{packed}", "bold")
    for sentence in understood.evidence:
        console.write_line(f"  {shown(sentence, 200)}")
    if is_sample:
        console.write_line("Only a sample was read: all counts are of that sample.", "yellow")
    roles = {role.column: f"{name}: {role.reason}" for name, role in report.roles.decided.items()}
    console.print(_columns_table("Columns", report.profiles, roles))
    for what, side in report.sides.items():
        title = shown(f"{what.capitalize()}: {side.understood.files[0].path}", 100)
        console.print(_columns_table(title, side.profiles, side.notes()))
    if findings is not None:
        span = ""
        if findings.first is not None and findings.last is not None:
            span = f", from {_day(findings.first)} to {_day(findings.last)}"
        empty = f" {findings.n_empty:,} lists are empty." if findings.n_empty else ""
        console.write_line(
            f"A run would read {findings.n_read:,} rows{span}: {findings.n_good:,} good, of which "
            f"{findings.n_positive:,} positives; {_left_out(findings)}.{empty}"
        )
        if not findings.keys.is_exact:
            console.write_line(
                "The number of duplicates is an estimate for this many rows.", "yellow"
            )
        _show_rejected(console, findings)
        for what, side in report.sides.items():
            if side.findings is None:
                continue
            n_good, n_read = side.findings.n_good, side.findings.n_read
            share = findings.n_known.get(what, 0) / max(1, findings.keys.n_added)
            console.write_line(
                f"{what.capitalize()}: {n_good:,} of {n_read:,} rows good;"
                f" {_left_out(side.findings)}. They cover {share:.2%} of the interactions' {what}.",
                "yellow" if share < _NEARLY_ALL else "",
            )
            if side.findings.n_conflicts:
                console.write_line(_conflicts(what, side), "yellow")
            _show_rejected(console, side.findings)
    if report.split is not None and report.split.split != "time":
        console.write_line(f"Split: {report.split.split} ({report.split.reason}).", "yellow")
    for sentence in report.remarks:
        console.write_line(sentence, "yellow")
    if written is not None:
        console.write_line(f"Wrote {written}. Review it, then: recsys run {written}", "bold")
        return
    console.write_line("No config was written. Undecided:", "bold red")
    for sentence in report.undecided:
        console.write_line(f"  {sentence}")
    if report.options:
        console.write_line(f"Specify them, for example: {shown(command, 500)}")


def _columns_table(title: str, profiles: Mapping[str, Profile], notes: Mapping[str, str]) -> Table:
    headings = ("column", "type", "nulls", "distinct", "range", "examples", "role and reason")
    table = titled_table(title, *headings, numbers=["nulls", "distinct"])
    for profile in profiles.values():
        is_ticks = profile.unit and profile.kind != "time"
        cells = (
            shown(profile.name, 28),
            f"{profile.kind}, {profile.unit}" if is_ticks else profile.kind,
            f"{profile.n_null / max(1, profile.n_rows):.1%}",
            f"{'' if profile.distinct.is_exact else '≈ '}{len(profile.distinct):,}",
            _range(profile),
            ", ".join(shown(example, 16) for example in profile.examples),
        )
        note = Text(shown(notes.get(profile.name, ""), 120), "green")
        table.add_row(*map(Text, cells), note)
    return table


def _range(profile: Profile) -> str:
    if profile.lowest is None or profile.highest is None:
        return ""
    if profile.unit is not None or profile.kind == "time":
        return f"{_day(profile.lowest)} … {_day(profile.highest)}"
    if profile.kind == "whole number" and 1000 <= profile.lowest <= profile.highest < 10_000:
        return f"{profile.lowest:.0f} … {profile.highest:.0f}"  # Years perhaps.
    return f"{profile.lowest:,.10g} … {profile.highest:,.10g}"


def _day(seconds: float) -> str:
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.10g}"


def _left_out(findings: Findings) -> str:
    share = findings.n_rejected / max(1, findings.n_read)
    part = "< 0.01%" if 0 < share < 0.00005 else f"{share:.2%}"
    rejected = f"{findings.n_rejected:,} rejected ({part})"
    return f"{findings.n_duplicates:,} duplicates and {rejected}"


def _conflicts(what: str, side: Side) -> str:
    """Returns what is to be done about rows of one id with different values."""
    times = [p.name for p in side.profiles.values() if p.kind == "time" or p.unit is not None]
    such = f", such as {shown(times[0])}" if times else ""
    return (
        f"{side.findings.n_conflicts if side.findings else 0:,} rows of {what} have other values"
        f" than an earlier row with their id, of which the first is used. Set data.{what}.latest to"
        f" the column that says which is newest{such}."
    )


def _show_rejected(console: Console, findings: Findings) -> None:
    from recsys.config import GateConfig

    if findings.n_rejected > GateConfig().max_rejected_share * findings.n_read:
        text = "This exceeds data.gate.max_rejected_share: a run would stop. Repair the data, or"
        console.write_line(f"{text} raise the threshold.", "bold red")
    if not findings.rejected:
        return
    table = titled_table("Rejected", "reason", "rows", "example", numbers=["rows"])
    for reason, n_rows in sorted(findings.rejected.items(), key=lambda entry: -entry[1]):
        file, line, row = findings.examples[reason]
        example = f"{shown(Path(file).name, 30)}:{line}  {shown(row)}"
        table.add_row(Text(shown(reason, 60)), Text(f"{n_rows:,}"), Text(example))
    console.print(table)
