"""`recsys plan`: what each device will hold and send, without devices."""

from __future__ import annotations

import dataclasses
import importlib.abc
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from recsys.cli.failure import print_error
from recsys.cli.terminal import fitted_console, plain_size, titled_table
from recsys.config import with_mesh
from recsys.config.load import default_config_path, load_config
from recsys.data.table_rows import TableRows, find_rows, parse_rows
from recsys.errors import RecsysError, UsageError
from recsys.formats import ABSENT

if TYPE_CHECKING:
    from recsys.plan import Part, Plan
    from recsys.plan_advice import Change

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def plan(
    path: Path | None,
    overrides: Sequence[str],
    devices: int | None,
    mesh: str | None,
    memory: str | None,
    rows: Sequence[str],
    data: Path | None,
    *,
    as_json: bool,
) -> int:
    """Prints the plan of a training.

    Args:
        path: Config file; the one of the shipped data by default.
        overrides: `a.b=value` each.
        devices: How many; None for those of the mesh, or one.
        mesh: The devices as a grid, as `data=4,model=2`; that of the config by default.
        memory: What each has, as `80GB`; None for whatever it takes.
        rows: `NAME=N` each, rows of tables.
        data: Data folder to take the other rows from.
        as_json: Print one object of JSON.

    Returns:
        The exit code: 1 if the training would not run so, else 0.
    """
    limit = None if memory is None else parse_bytes(memory)
    named_rows = parse_rows(rows)
    config = with_mesh(load_config(path or default_config_path(), overrides), mesh)
    devices = devices or (config.mesh.n_devices if config.mesh else 1)
    with _quick_imports():
        table_rows = find_rows(config, named_rows, data)
        from recsys.plan import make_plan
        from recsys.plan_advice import changes, obstacles

    planned = make_plan(config, table_rows, devices)
    errors = obstacles(config, table_rows, planned)
    advice: list[Change] = []
    if limit is not None and planned.bytes_per_device > limit:
        advice = changes(config, table_rows, planned, limit)
        errors.append(_too_large(planned, limit, advice))
    if as_json:
        print(json.dumps(_as_json(planned, table_rows, limit, errors, advice)))
    else:
        show_plan(planned, table_rows.source, limit, advice)
    for error in errors:
        print_error(str(error))
    return 1 if errors else 0


class _Hider(importlib.abc.MetaPathFinder):
    """Hides packages that Keras and Arrow import where they find them.

    Nothing here needs these, and they take longer than all the rest.
    """

    def find_spec(self, name: str, *_: Any) -> None:
        """Raises what a package raises that isn't installed."""
        if name in ("pandas", "sklearn", "IPython"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Lets Keras be imported on JAX, and without what is of no use here."""
    os.environ["KERAS_BACKEND"] = "jax"
    hider = _Hider()
    sys.meta_path.insert(0, hider)
    try:
        yield
    finally:
        sys.meta_path.remove(hider)


def parse_bytes(text: str) -> int:
    """Returns the bytes that `80GB`, `80GiB` or `8e10` mean.

    Raises:
        UsageError: The text is no size.
    """
    match = re.fullmatch(r"(\d+\.?\d*(?:e\d{1,2})?) *([KMGTP]?)(I?)B?", text.strip(), re.IGNORECASE)
    n_bytes = 0
    if match is not None and not (match[3] and not match[2]):
        base = 1024 if match[3] else 1000
        n_bytes = int(float(match[1]) * base ** _POWERS[match[2].upper()])
    if n_bytes < 1:
        raise UsageError(
            "R370",
            "--memory must be a size.",
            "Write for example 80GB, 80GiB, 512MB, or a number of bytes.",
            text,
        )
    return n_bytes


def _too_large(planned: Plan, limit: int, advice: Sequence[Change]) -> RecsysError:
    needs = f"A device needs {plain_size(planned.bytes_per_device)} for this training"
    largest = max(planned.parts, key=lambda part: part.bytes_per_device)
    of_it = f"{plain_size(largest.bytes_per_device)} of it for {largest.name!r}"
    fitting = [change.words for change in advice if change.fits]
    return RecsysError(
        "R373",
        f"{needs}, {of_it}; it has {plain_size(limit)}.",
        f"What fits: {'; or '.join(fitting)}." if fitting else "Make train.batch_size smaller.",
    )


# --- as JSON


def _as_json(
    planned: Plan,
    rows: TableRows,
    limit: int | None,
    errors: Sequence[RecsysError],
    advice: Sequence[Change],
) -> dict[str, Any]:
    return {
        "devices": planned.devices,
        "mesh": {"batch_parts": planned.n_batch, "table_shards": planned.n_shards},
        "rows_from": rows.source,
        "bytes_per_device": planned.bytes_per_device,
        "sent_bytes_per_step": planned.sent_bytes,
        "memory_bytes": limit,
        "fits": None if limit is None else planned.bytes_per_device <= limit,
        "tables": [
            {**dataclasses.asdict(part.placement), **_step_json(part)}
            for part in planned.parts
            if part.placement is not None
        ],
        **{
            part.name: {
                "bytes_per_device": part.weights,
                "slot_bytes_per_device": part.slots,
                **_step_json(part),
            }
            for part in planned.parts
            if part.placement is None
        },
        "errors": [error.to_json() for error in errors],
        "changes": [dataclasses.asdict(change) for change in advice],
    }


def _step_json(part: Part) -> dict[str, Any]:
    step = part.step
    return {
        "buffer_bytes_per_device": step.held_bytes,
        "buffers": step.by_buffer(),
        "sent_bytes_per_step": step.sent_bytes,
        "sent": step.by_collective(),
    }


# --- The tables of `recsys plan`.

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
    console = fitted_console(_WIDTH)
    console.print(Text(f"Rows: {rows_from}."), soft_wrap=True)
    console.print(_state_table(plan))
    console.print(_step_table(plan, is_narrow=console.width < _WIDTH))
    console.print(Text(_NOTE, "dim"))
    console.print(_sum(plan, limit))
    if advice:
        console.print(_advice_table(advice))


def _table(title: str, first: str, *others: str) -> Table:
    table = titled_table(title)
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
