"""The tables of `recsys plan`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from recsys.cli.terminal import Console
from recsys.formats import ABSENT, size

if TYPE_CHECKING:
    from recsys.plan import Part, Plan
    from recsys.plan_advice import Change

_WIDTH = 100  # Where no terminal says its own.
_COLLECTIVES = ("all-to-all", "all-gather", "reduce-scatter", "all-reduce")
_NOTE = (
    "Buffers are an upper bound, as if none took the place of another; of towers and loss, an"
    " estimate."
)


def show_plan(plan: Plan, rows_from: str, limit: int | None, advice: Sequence[Change]) -> None:
    """Prints a plan.

    Args:
        plan: The plan.
        rows_from: Where the numbers of rows come from.
        limit: What a device has [bytes], if that is known.
        advice: What would make the plan smaller.
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(Text(f"Rows: {rows_from}."), soft_wrap=True)
    console.print(_state_table(plan))
    console.print(_step_table(plan, is_narrow=console.width < _WIDTH))
    console.print(Text(_NOTE, "dim"))
    console.print(_sum(plan, limit))
    if advice:
        console.print(_advice_table(advice))


def plain_size(n_bytes: int) -> str:
    """Returns `3.4 MB` with a plain space, so that what is printed can be searched."""
    return size(n_bytes).replace("\N{NO-BREAK SPACE}", " ")


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    table.add_column(first, no_wrap=True)
    for heading in others:
        # A number goes on in the next line rather than lose digits.
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _state_table(plan: Plan) -> Table:
    devices = "1 device" if plan.devices == 1 else f"each of {plan.devices:,} devices"
    if plan.n_batch * plan.n_shards == plan.devices > 1:
        devices += f", {plan.n_batch} × {plan.n_shards}"
    columns = ("rows", "padded", "placement", "shards", "weights", "slots")
    table = _table(f"Tables and towers, on {devices}", "", *columns)
    for part in plan.parts:
        if part.placement is not None:
            placed = part.placement
            where = (f"{placed.rows:,}", f"{placed.padded_rows:,}", placed.placement)
            table.add_row(Text(part.name), *where, f"{placed.shards:,}", *_state(part))
        elif part.weights:
            table.add_row(part.name, ABSENT, ABSENT, "replicated", "1", *_state(part))
    return table


def _state(part: Part) -> tuple[str, str]:
    return _or_absent(part.weights), _or_absent(part.slots)


def _step_table(plan: Plan, *, is_narrow: bool) -> Table:
    used = [c for c in _COLLECTIVES if any(c in p.step.by_collective() for p in plan.parts)]
    headings = [name.replace("-", "-\n", 1) if is_narrow else name for name in used]
    table = _table("A step, on each device", "", "buffers", *headings, "sent")
    for part in plan.parts:
        sent = part.step.by_collective()
        table.add_row(
            Text(part.name),
            _or_absent(part.step.held_bytes),
            *(_or_absent(sent.get(collective, 0)) for collective in used),
            _or_absent(part.step.sent_bytes),
        )
    return table


def _sum(plan: Plan, limit: int | None) -> Text:
    state = sum(part.weights + part.slots for part in plan.parts)
    buffers = plan.bytes_per_device - state
    needed = f"A device holds {plain_size(plan.bytes_per_device)}"
    made_of = f"{plain_size(state)} of weights and slots, {plain_size(buffers)} of buffers"
    sends = f"It sends {_or_absent(plan.sent_bytes)} in a step." if plan.sent_bytes else ""
    if limit is None:
        return Text(f"{needed}: {made_of}. {sends}")
    fits = plan.bytes_per_device <= limit
    verdict = f"{'which fits' if fits else 'which does not fit'} in {plain_size(limit)}"
    return Text.assemble(
        f"{needed}, ", (verdict, "bold green" if fits else "bold red"), f": {made_of}. {sends}"
    )


def _advice_table(advice: Sequence[Change]) -> Table:
    table = _table("What to change", "", "a device", "saves", "fits")
    table.columns[0].no_wrap = False
    for column in table.columns[1:]:
        column.no_wrap = True
    for change in advice:
        fits = "yes" if change.fits else "no"
        sizes = (plain_size(change.bytes_per_device), plain_size(change.saved_bytes))
        table.add_row(Text(change.words), *sizes, fits)
    return table


def _or_absent(n_bytes: int) -> str:
    return plain_size(n_bytes) if n_bytes else ABSENT
