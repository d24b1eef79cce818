"""`recsys plan`: what each device will hold and send, without these devices."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text
from typer import Exit, Option

from recsys.cli.failure import print_error
from recsys.cli.options import ConfigArgument, Json, Mesh, Sets
from recsys.cli.terminal import fitted_console, plain_size, titled_table
from recsys.errors import RecsysError, UsageError
from recsys.formats import ABSENT, counted

if TYPE_CHECKING:
    from recsys.config import Config
    from recsys.plan import Change, HostsPlan, Plan

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_WIDTH = 100  # Where no terminal says its own.


def plan(
    config: ConfigArgument = None,
    devices: Annotated[
        int | None, Option(min=1, max=256, help="Number of devices. Default: the mesh's, or 1.")
    ] = None,
    mesh: Mesh = None,
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="Memory of each device, such as 80GB.")
    ] = None,
    sets: Sets = None,
    rows: Annotated[
        list[str] | None,
        Option(metavar="NAME=N", help="Rows of a table, such as users=1e8; repeatable."),
    ] = None,
    data: Annotated[Path | None, Option(help="Data folder to take the table sizes from.")] = None,
    hosts: Annotated[
        int | None, Option(min=1, help="Number of hosts; says what each holds and sends.")
    ] = None,
    devices_per_host: Annotated[int | None, Option(min=1, help="Devices of each host.")] = None,
    link: Annotated[
        str | None,
        Option(metavar="SIZE", help="Bytes/s of a device within its host. Default: 450GB."),
    ] = None,
    fabric: Annotated[
        str | None,
        Option(metavar="SIZE", help="Bytes/s of a device to other hosts. Default: 50GB."),
    ] = None,
    disk: Annotated[
        str | None, Option(metavar="SIZE", help="Bytes/s that a host writes. Default: 2GB.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what each device would hold and send in training; needs no devices.

    Exits with 1 if the training could not run like that.
    """
    from recsys.config import with_mesh
    from recsys.config.load import load_config
    from recsys.data.table_rows import find_rows, parse_rows

    limit = None if memory is None else parse_bytes(memory)
    speeds = {"link": link, "fabric": fabric, "disk": disk}
    rates = {
        name: parse_bytes(text, f"--{name}") for name, text in speeds.items() if text is not None
    }
    named_rows = parse_rows(rows or [])
    run = with_mesh(load_config(config, sets or []), mesh)
    devices = devices or (run.mesh.n_devices if run.mesh else None)
    devices, devices_per_host = _of_hosts(devices, hosts, devices_per_host)
    table_rows = find_rows(run, named_rows, data)
    _simulate(devices)
    from recsys.plan import Hosts, HostsPlan, changes, make_plan, with_model

    run = with_model(run, table_rows)
    if hosts is not None:
        run = _with_nodes(run, devices_per_host)
    planned = make_plan(run, table_rows, devices)
    on_hosts = None
    if hosts is not None:
        on_hosts = HostsPlan.of(planned, Hosts(hosts, devices_per_host, **rates))
    advice: list[Change] = []
    errors: list[RecsysError] = []
    if limit is not None and planned.bytes_per_device > limit:
        advice = changes(run, table_rows, planned, limit)
        errors = [_too_large(planned, limit, advice)]
    if as_json:
        summary = {
            "devices": devices,
            "mesh": {"batch_parts": planned.n_batch, "table_shards": planned.n_shards},
            "rows_from": table_rows.source,
            "bytes_per_device": planned.bytes_per_device,
            "memory_bytes": limit,
            "fits": None if limit is None else not errors,
            "tables": [dataclasses.asdict(table) for table in planned.tables],
            "other_bytes_per_device": planned.other_bytes,
            "step": dataclasses.asdict(planned.step),
            "traffic": [dataclasses.asdict(feature) for feature in planned.traffic],
            "sent": [collective._asdict() for collective in planned.sent],
            "checkpoint_bytes": planned.checkpoint_bytes,
            "hosts": None if on_hosts is None else _as_json(on_hosts),
            "errors": [error.to_json() for error in errors],
            "changes": [dataclasses.asdict(change) for change in advice],
        }
        print(json.dumps(summary))
    else:
        _show(planned, on_hosts, table_rows.source, limit, advice)
    for error in errors:
        print_error(str(error))
    raise Exit(1 if errors else 0)


def _as_json(plan: HostsPlan) -> dict[str, Any]:
    fields = dataclasses.asdict(plan)
    return {**fields.pop("hosts"), **fields, "floor_s": plan.floor_s}


def _of_hosts(
    devices: int | None, hosts: int | None, devices_per_host: int | None
) -> tuple[int, int]:
    """Returns all devices, and those of a host.

    Raises:
        UsageError: They don't fit each other (R395).
    """
    if hosts is None and devices_per_host is None:
        return devices or 1, devices or 1
    n_hosts = hosts or 1
    each = devices_per_host or (devices or n_hosts) // n_hosts
    if hosts is None or not each or (devices or n_hosts * each) != n_hosts * each:
        rule = "The devices must be those of --hosts hosts with --devices-per-host devices each."
        cure = "Give both, and leave --devices out; --mesh must have as many devices."
        received = {"devices": devices, "hosts": hosts, "devices_per_host": devices_per_host}
        raise UsageError("R395", rule, cure, received)
    return n_hosts * each, each


def _with_nodes(config: Config, devices_per_host: int) -> Config:
    """Returns a config whose exchanges are chosen for nodes of so many devices.

    Raises:
        UsageError: It says another number (R395).
    """
    stated = config.train.node_devices
    if stated not in (None, devices_per_host):
        rule = "The devices of a host must be those that train.node_devices says."
        cure = "Leave one out, or give --set train.node_devices too."
        raise UsageError("R395", rule, cure, {"host": devices_per_host, "node": stated})
    train = config.train.model_copy(update={"node_devices": devices_per_host})
    return config.model_copy(update={"train": train})


def _simulate(devices: int) -> None:
    """Has JAX simulate devices on the CPU, unless it was imported already."""
    if "jax" not in sys.modules:
        flag = f"--xla_force_host_platform_device_count={devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["KERAS_BACKEND"] = "jax"


def parse_bytes(text: str, option: str = "--memory") -> int:
    """Returns the bytes that `80GB`, `80GiB` or `8e10` mean.

    Args:
        text: The text.
        option: What it was given to.

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
            f"{option} must be a size.",
            "Write for example 80GB, 80GiB, 512MB, or a number of bytes.",
            text,
        )
    return n_bytes


def _too_large(planned: Plan, limit: int, advice: Sequence[Change]) -> RecsysError:
    needs = f"A device needs {plain_size(planned.bytes_per_device)} for this training"
    fitting = [change.words for change in advice if change.fits]
    return RecsysError(
        "R373",
        f"{needs}; it has {plain_size(limit)}.",
        f"What fits: {'; or '.join(fitting)}."
        if fitting
        else "Make train.batch_size or model.dim smaller.",
    )


def _show(
    planned: Plan,
    on_hosts: HostsPlan | None,
    rows_from: str,
    limit: int | None,
    advice: Sequence[Change],
) -> None:
    console = fitted_console(_WIDTH)
    console.write_line(f"Rows: {rows_from}.")
    devices = "1 device" if planned.devices == 1 else f"each of {planned.devices:,} devices"
    if planned.n_batch * planned.n_shards == planned.devices > 1:
        devices += f", {planned.n_batch} × {planned.n_shards}"
    columns = ("rows", "padded", "placement", "shards", "weights", "slots")
    tables = titled_table(f"Tables, on {devices}", "", *columns, numbers=columns)
    for table in planned.tables:
        tables.add_row(
            Text(table.table),
            f"{table.rows:,}",
            f"{table.padded_rows:,}",
            table.placement,
            f"{table.shards:,}",
            plain_size(table.bytes_per_device),
            plain_size(table.slot_bytes_per_device) if table.slot_bytes_per_device else ABSENT,
        )
    console.print(tables)
    step = titled_table("All of it, on each device", "", "bytes", numbers=["bytes"])
    tables_bytes = planned.step.state_bytes - planned.other_bytes
    step.add_row("tables and their slots", plain_size(tables_bytes))
    step.add_row("other weights and slots", plain_size(planned.other_bytes))
    step.add_row("temporary, in a step", plain_size(planned.step.temporary_bytes))
    for collective, n_bytes in sorted(planned.step.collectives.items()):
        step.add_row(f"received by {collective}, in a step", plain_size(n_bytes))
    console.print(step)
    if planned.devices > 1:
        console.print(_traffic_table(planned, has_hosts=on_hosts is not None))
        console.print(_collectives_table(planned, has_hosts=on_hosts is not None))
    if on_hosts is not None:
        console.print(_hosts_table(on_hosts))
        console.write_line(_floor(on_hosts))
    console.print(_verdict(planned, limit))
    if advice:
        headings = ("a device", "saves", "fits")
        changes = titled_table("What to change", "", *headings, numbers=headings)
        for change in advice:
            sizes = (plain_size(change.bytes_per_device), plain_size(change.saved_bytes))
            changes.add_row(Text(change.words), *sizes, "yes" if change.fits else "no")
        console.print(changes)


def _collectives_table(planned: Plan, *, has_hosts: bool) -> Table:
    """Returns what a device sends in the whole step, by the kind of collective."""
    columns = ("bytes", "of them to other hosts") if has_hosts else ("bytes",)
    table = titled_table("All that a device sends", "", *columns, numbers=columns)
    sums: dict[str, list[int]] = {}
    for op, sent, leaving in planned.sent:
        of_op, of_all = sums.setdefault(op, [0, 0]), sums.setdefault("~all", [0, 0])
        for sizes in (of_op, of_all):
            sizes[0] += sent
            sizes[1] += leaving
    for op, sizes in sorted(sums.items()):
        table.add_row(op.lstrip("~"), *map(plain_size, sizes[: len(columns)]))
    return table


def _hosts_table(plan: HostsPlan) -> Table:
    hosts = plan.hosts
    n_devices = counted(hosts.devices_per_host, "device", "devices")
    title = f"On {counted(hosts.hosts, 'host', 'hosts')} of {n_devices}"
    columns = ("bytes", "bytes a second", "time")
    table = titled_table(title, "", *columns, numbers=columns)
    table.add_row("held by the devices of a host", plain_size(plan.bytes_per_host), "", "")
    written = plan.checkpoint_bytes // hosts.hosts
    for words, n_bytes, rate, seconds in (
        ("sent by a device within its host", plan.within_bytes, hosts.link, plan.within_s),
        ("sent by a device to other hosts", plan.leaving_bytes, hosts.fabric, plan.leaving_s),
        ("written by a host of a checkpoint", written, hosts.disk, plan.checkpoint_s),
    ):
        table.add_row(words, plain_size(n_bytes), plain_size(rate), _time(seconds))
    return table


def _floor(plan: HostsPlan) -> str:
    return (
        f"What is sent takes {_time(plan.floor_s)} of a step at least; a checkpoint has"
        f" {plain_size(plan.checkpoint_bytes)}. The speeds are assumed: --link, --fabric, --disk."
    )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _traffic_table(planned: Plan, *, has_hosts: bool) -> Table:
    columns = ["exchange", "ids", "distinct", "to read", "to update"]
    columns += ["to other hosts"] if has_hosts else []
    table = titled_table("Sent by each device for the tables", "", *columns, numbers=columns[1:])
    for feature in planned.traffic:
        table.add_row(
            Text(feature.feature),
            feature.exchange,
            f"{feature.ids:,}",
            f"{feature.distinct_ids:,}",
            plain_size(feature.read_bytes),
            plain_size(feature.update_bytes),
            *([plain_size(feature.leaving_bytes)] if has_hosts else []),
        )
    sums = [
        sum(f.read_bytes for f in planned.traffic),
        sum(f.update_bytes for f in planned.traffic),
        *([sum(f.leaving_bytes for f in planned.traffic)] if has_hosts else []),
    ]
    table.add_row("all", "", "", "", *map(plain_size, sums))
    return table


def _verdict(planned: Plan, limit: int | None) -> Text:
    needed = f"A device holds {plain_size(planned.bytes_per_device)}"
    if limit is None:
        return Text(f"{needed}.")
    fits = planned.bytes_per_device <= limit
    verdict = f"which {'fits' if fits else 'does not fit'} in {plain_size(limit)}"
    return Text.assemble(f"{needed}, ", (verdict, "bold green" if fits else "bold red"), ".")
