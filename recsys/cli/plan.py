"""`recsys plan`: memory and communication of each device, computed without these devices."""

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
_WIDTH = 100  # Without a terminal.


def plan(
    config: ConfigArgument = None,
    devices: Annotated[
        int | None, Option(min=1, max=256, help="Number of devices. Default: from the mesh, or 1.")
    ] = None,
    mesh: Mesh = None,
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="Memory of each device, such as 80GB.")
    ] = None,
    sets: Sets = None,
    rows: Annotated[
        list[str] | None,
        Option(metavar="NAME=N", help="Number of rows of a table, such as users=1e8; repeatable."),
    ] = None,
    data: Annotated[Path | None, Option(help="Data folder to take the table sizes from.")] = None,
    hosts: Annotated[
        int | None, Option(min=1, help="Number of hosts; also shows figures per host.")
    ] = None,
    devices_per_host: Annotated[
        int | None, Option(min=1, help="Number of devices per host.")
    ] = None,
    link: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help="Bandwidth of a device within its host, per second. Default: 450GB.",
        ),
    ] = None,
    fabric: Annotated[
        str | None,
        Option(
            metavar="SIZE", help="Bandwidth of a device to other hosts, per second. Default: 50GB."
        ),
    ] = None,
    disk: Annotated[
        str | None,
        Option(metavar="SIZE", help="Write speed of a host, per second. Default: 2GB."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the memory and communication of each device in training; needs no devices.

    Exits with 1 if the training does not fit.
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
    """Returns the number of devices in total and per host.

    Raises:
        UsageError: The numbers are inconsistent (R395).
    """
    if hosts is None and devices_per_host is None:
        return devices or 1, devices or 1
    n_hosts = hosts or 1
    each = devices_per_host or (devices or n_hosts) // n_hosts
    if hosts is None or not each or (devices or n_hosts * each) != n_hosts * each:
        rule = "The number of devices must be --hosts times --devices-per-host."
        cure = "Give these two, without --devices; --mesh must have as many devices."
        received = {"devices": devices, "hosts": hosts, "devices_per_host": devices_per_host}
        raise UsageError("R395", rule, cure, received)
    return n_hosts * each, each


def _with_nodes(config: Config, devices_per_host: int) -> Config:
    """Returns the config with its exchanges planned for nodes of `devices_per_host` devices.

    Raises:
        UsageError: The config sets another number (R395).
    """
    stated = config.train.node_devices
    if stated not in (None, devices_per_host):
        rule = "--devices-per-host must equal train.node_devices."
        cure = "Give only one of them, or change train.node_devices with --set."
        raise UsageError("R395", rule, cure, {"host": devices_per_host, "node": stated})
    train = config.train.model_copy(update={"node_devices": devices_per_host})
    return config.model_copy(update={"train": train})


def _simulate(devices: int) -> None:
    """Configures JAX to simulate devices on the CPU, unless it is already imported."""
    if "jax" not in sys.modules:
        flag = f"--xla_force_host_platform_device_count={devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["KERAS_BACKEND"] = "jax"


def parse_bytes(text: str, option: str = "--memory") -> int:
    """Returns the number of bytes in a text such as `80GB`, `80GiB` or `8e10`.

    Args:
        text: A number with an optional unit.
        option: Name of the option, for the error message.

    Raises:
        UsageError: The text is not a valid size (R370).
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
            "Write, for example, 80GB, 80GiB, 512MB, or a number of bytes.",
            text,
        )
    return n_bytes


def _too_large(planned: Plan, limit: int, advice: Sequence[Change]) -> RecsysError:
    needs = f"A device needs {plain_size(planned.bytes_per_device)} for this training"
    fitting = [change.words for change in advice if change.fits]
    return RecsysError(
        "R373",
        f"{needs}; it has {plain_size(limit)}.",
        f"Changes that fit: {'; or '.join(fitting)}."
        if fitting
        else "Reduce train.batch_size or model.dim.",
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
    step = titled_table("Memory of each device", "", "bytes", numbers=["bytes"])
    tables_bytes = planned.step.state_bytes - planned.other_bytes
    step.add_row("tables and optimizer slots", plain_size(tables_bytes))
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
        headings = ("per device", "saves", "fits")
        changes = titled_table("Possible changes", "", *headings, numbers=headings)
        for change in advice:
            sizes = (plain_size(change.bytes_per_device), plain_size(change.saved_bytes))
            changes.add_row(Text(change.words), *sizes, "yes" if change.fits else "no")
        console.print(changes)


def _collectives_table(planned: Plan, *, has_hosts: bool) -> Table:
    """Returns a table of the bytes that a device sends in a step, by collective."""
    columns = ("bytes", "of these, to other hosts") if has_hosts else ("bytes",)
    table = titled_table("Sent by each device, per step", "", *columns, numbers=columns)
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
    columns = ("bytes", "bytes per second", "time")
    table = titled_table(title, "", *columns, numbers=columns)
    table.add_row("memory of the devices of a host", plain_size(plan.bytes_per_host), "", "")
    written = plan.checkpoint_bytes // hosts.hosts
    for words, n_bytes, rate, seconds in (
        ("sent by a device within its host", plan.within_bytes, hosts.link, plan.within_s),
        ("sent by a device to other hosts", plan.leaving_bytes, hosts.fabric, plan.leaving_s),
        ("written by a host per checkpoint", written, hosts.disk, plan.checkpoint_s),
    ):
        table.add_row(words, plain_size(n_bytes), plain_size(rate), _time(seconds))
    return table


def _floor(plan: HostsPlan) -> str:
    return (
        f"Communication takes at least {_time(plan.floor_s)} per step; a checkpoint has"
        f" {plain_size(plan.checkpoint_bytes)}. Speeds are assumptions: --link, --fabric, --disk."
    )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _traffic_table(planned: Plan, *, has_hosts: bool) -> Table:
    columns = ["exchange", "ids", "distinct", "to read", "to update"]
    columns += ["to other hosts"] if has_hosts else []
    table = titled_table("Sent by each device for tables", "", *columns, numbers=columns[1:])
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
    needed = f"A device needs {plain_size(planned.bytes_per_device)}"
    if limit is None:
        return Text(f"{needed}.")
    fits = planned.bytes_per_device <= limit
    verdict = f"which {'fits' if fits else 'does not fit'} in {plain_size(limit)}"
    return Text.assemble(f"{needed}, ", (verdict, "bold green" if fits else "bold red"), ".")
