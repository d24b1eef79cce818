"""The tables of `recsys check`. All that comes from the files is written without controls."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from recsys.check.findings import Findings
from recsys.check.profile import Profile
from recsys.check.report import Report
from recsys.check.shown import shown
from recsys.check.sides import Side
from recsys.cli.terminal import Console
from recsys.config import GateConfig

_WIDTH = 110  # Where no terminal says its own.
_NAME = 28
_NEARLY_ALL = 0.9
_MOST_REJECTED = GateConfig().max_rejected_share


def show_report(report: Report, written: Path | None, command: str, *, is_sample: bool) -> None:
    """Prints a report.

    Args:
        report: What was found.
        written: The config that was written, if one was.
        command: The command that decides what is open.
        is_sample: Whether only some rows were read.
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    _say_format(console, "Interactions", report)
    if is_sample:
        console.print(Text("Only a sample was read: counts are of that.", "yellow"))
    said = {one.column: f"{role}: {one.reason}" for role, one in report.roles.found.items()}
    console.print(_columns_table("Columns", report.profiles, said))
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


def _columns_table(title: str, profiles: Mapping[str, Profile], said: Mapping[str, str]) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    table.add_column("column", overflow="fold")
    table.add_column("type")
    for heading in ("nulls", "different"):
        table.add_column(heading, justify="right")
    for heading in ("range", "examples", "role, and why"):
        table.add_column(heading, overflow="fold")
    for one in profiles.values():
        table.add_row(
            Text(shown(one.name, _NAME)),
            Text(_type(one)),
            Text(f"{one.n_null / max(1, one.n_rows):.1%}"),
            Text(f"{'' if one.distinct.is_exact else '≈ '}{len(one.distinct):,}"),
            Text(_range(one)),
            Text(", ".join(shown(example, 16) for example in one.examples)),
            Text(shown(said.get(one.name, ""), 120), "green"),
        )
    return table


def _type(one: Profile) -> str:
    return f"{one.kind}, {one.unit}" if one.unit and one.kind != "time" else one.kind


def _range(one: Profile) -> str:
    if one.lowest is None or one.highest is None:
        return ""
    if one.unit is not None:
        return f"{_day(one.lowest)} … {_day(one.highest)}"
    return f"{one.lowest:,.10g} … {one.highest:,.10g}"


def _day(seconds: float) -> str:
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.10g}"


def _show_side(console: Console, what: str, side: Side) -> None:
    said = {column: f"left out: {why}" for column, why in side.left_out.items()}
    said |= {feature.column: f"feature: {feature.kind}" for feature in side.features}
    for name, role in (("title", side.title), ("id", side.id)):
        if role is not None:
            also = f"; {said[role.column]}" if role.column in said else ""
            said[role.column] = f"{name}: {role.reason}{also}"
    title = f"{what.capitalize()}: {side.understood.files[0].path}"
    console.print(_columns_table(shown(title, 100), side.profiles, said))


def _show_findings(console: Console, found: Findings) -> None:
    span = ""
    if found.first is not None and found.last is not None:
        span = f", from {_day(found.first)} to {_day(found.last)}"
    empty = f" {found.n_empty:,} lists are empty." if found.n_empty else ""
    text = (
        f"A run would read {found.n_read:,} rows{span}: {found.n_good:,} good, of which "
        f"{found.n_positive:,} positives; {_left_out(found)}.{empty}"
    )
    console.print(Text(text), soft_wrap=True)
    if not found.keys.is_exact:
        console.print(Text("Duplicates are counted in a sample, and nearly right.", "yellow"))
    _show_rejected(console, found)


def _left_out(found: Findings) -> str:
    share = found.n_rejected / max(1, found.n_read)
    return f"{found.n_duplicates:,} duplicates and {found.n_rejected:,} rejected ({share:.2%})"


def _show_side_findings(console: Console, what: str, side: Side, events: Findings) -> None:
    found = side.findings
    if found is None:
        return
    n_known, n_events = events.n_known.get(what, 0), events.keys.n_rows
    line = (
        f"{what.capitalize()}: {found.n_good:,} of {found.n_read:,} rows good; {_left_out(found)}."
    )
    known = f" They have {n_known / max(1, n_events):.2%} of the interactions' {what}."
    is_odd = n_known < _NEARLY_ALL * n_events
    console.print(Text(line + known, "yellow" if is_odd else ""), soft_wrap=True)
    _show_rejected(console, found)


def _show_rejected(console: Console, found: Findings) -> None:
    if found.n_rejected > _MOST_REJECTED * found.n_read:
        text = (
            "That is more than data.gate.max_rejected_share: a run would stop. Mend the data, or"
            " raise it."
        )
        console.print(Text(text, "bold red"), soft_wrap=True)
    if not found.rejected:
        return
    table = Table(title=Text("Rejected"), title_justify="left", title_style="bold")
    table.add_column("reason")
    table.add_column("rows", justify="right")
    table.add_column("for example", overflow="fold")
    for reason, n_rows in sorted(found.rejected.items(), key=lambda one: -one[1]):
        file, line, row = found.examples[reason]
        where = f"{shown(Path(file).name, 30)}:{line}"
        table.add_row(Text(shown(reason, 60)), Text(f"{n_rows:,}"), Text(f"{where}  {shown(row)}"))
    console.print(table)
