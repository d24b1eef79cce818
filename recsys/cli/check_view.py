"""The tables of `recsys check`. All that comes from the files is written without controls."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from recsys.cli.terminal import Console
from recsys.config import GateConfig
from recsys.data.inspect.findings import Findings
from recsys.data.inspect.names import shown
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.proposal import Report
from recsys.data.inspect.sides import Side

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
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
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
    table = Table(title=Text(title), title_justify="left", title_style="bold")
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
    table = Table(title=Text("Rejected"), title_justify="left", title_style="bold")
    table.add_column("reason")
    table.add_column("rows", justify="right")
    table.add_column("for example", overflow="fold")
    for reason, n_rows in sorted(findings.rejected.items(), key=lambda entry: -entry[1]):
        file, line, row = findings.examples[reason]
        where = f"{shown(Path(file).name, 30)}:{line}"
        table.add_row(Text(shown(reason, 60)), Text(f"{n_rows:,}"), Text(f"{where}  {shown(row)}"))
    console.print(table)
