"""`recsys plan`: memory and communication of each device, computed without these devices."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from recsys.cli.options import ConfigArgument, Json, MaybeCount, Mesh, Sets
from recsys.cli.show import emit, fields_of
from recsys.cli.terminal import print_error
from recsys.errors import RecsysError, UsageError
from recsys.formats import size

if TYPE_CHECKING:
    from recsys.config import Config
    from recsys.plan.plan import Change, Plan


def parse_bytes(text: str | int) -> int:
    """Returns the number of bytes in a text such as `80GB` or `80GiB`.

    Raises:
        UsageError: The text is not a valid size (R370).
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    n_bytes = 0
    with contextlib.suppress(ValidationError):
        n_bytes = int(TypeAdapter(ByteSize).validate_python(text))
    if n_bytes < 1:
        rule = "--memory, --link, --fabric and --disk must be sizes."
        cure = "Write, for example, 80GB, 80GiB, 512MB, or a number of bytes."
        raise UsageError("R370", rule, cure, text)
    return n_bytes


Size = Annotated[int | None, Option(metavar="SIZE", parser=parse_bytes)]
Speed = Annotated[int, Option(metavar="SIZE", parser=parse_bytes)]


def plan(
    config: ConfigArgument = None,
    devices: Annotated[int | None, Option(min=1, max=256)] = None,
    mesh: Mesh = None,
    memory: Size = None,
    sets: Sets = None,
    rows: list[str] | None = None,
    data: Path | None = None,
    hosts: MaybeCount = None,
    devices_per_host: MaybeCount = None,
    link: Speed = 450 * 10**9,
    fabric: Speed = 50 * 10**9,
    disk: Speed = 2 * 10**9,
    as_json: Json = False,
) -> None:
    """Show the memory and communication of each device in training; needs no devices.

    With `ranker` in the config it shows both trainings, which run one after the other. Exits with 1
    if one does not fit.

    Args:
        devices: Number of devices. Default: from the mesh, or 1.
        memory: Memory of each device, such as 80GB.
        rows: Number of rows of a table, NAME=N, such as users=1e8; repeatable.
        data: Data folder to take the table sizes from.
        hosts: Number of hosts; also shows figures per host.
        devices_per_host: Number of devices per host.
        link: Bandwidth of a device within its host, per second.
        fabric: Bandwidth of a device to other hosts, per second.
        disk: Write speed of a host, per second.
    """
    from recsys.config import with_mesh
    from recsys.config.load import load_config
    from recsys.plan.table_rows import find_rows, parse_rows

    named_rows = parse_rows(rows or [])
    run = with_mesh(load_config(config, sets or []), mesh)
    devices = devices or (run.mesh.n_devices if run.mesh else None)
    devices, devices_per_host = _of_hosts(devices, hosts, devices_per_host)
    table_rows = find_rows(run, named_rows, data)
    _simulate(devices)
    from recsys.plan.plan import changes, make_plan, ranker_run, with_model

    runs = {"": with_model(run, table_rows)}
    if run.ranker is not None:
        runs["ranker"] = ranker_run(runs[""], run.ranker)
    summary: dict[str, Any] = {}
    people: dict[str, Any] = {}
    errors: list[RecsysError] = []
    for name, one in runs.items():
        if hosts is not None:
            one = _with_nodes(one, devices_per_host)
        planned = make_plan(one, table_rows, devices)
        on_hosts = None
        if hosts is not None:
            speeds = {"link": link, "fabric": fabric, "disk": disk}
            on_hosts = planned.on_hosts(hosts, devices_per_host, **speeds)
        advice: list[Change] = []
        fits = None if memory is None else planned.bytes_per_device <= memory
        if memory is not None and not fits:
            advice = changes(one, table_rows, planned, memory)
            if name:
                own = (each.words.replace("--set ", f"--set {name}.") for each in advice)
                advice = [replace(each, words=text) for each, text in zip(advice, own, strict=True)]
            errors.append(_too_large(planned, memory, advice))
        part = {
            "devices": devices,
            "mesh": {"batch_parts": planned.n_batch, "table_shards": planned.n_shards},
            "rows_from": table_rows.source,
            "bytes_per_device": planned.bytes_per_device,
            "memory_bytes": memory,
            "fits": fits,
            "tables": planned.tables,
            "other_bytes_per_device": planned.other_bytes,
            "step": planned.step,
            "traffic": planned.traffic,
            "sent": [collective._asdict() for collective in planned.sent],
            "checkpoint_bytes": planned.checkpoint_bytes,
            "hosts": on_hosts,
            "changes": advice,
        }
        summary |= {name: part} if name else part
        shown = _for_people(part, planned)
        people |= {f"{name}: {key}" if name else key: value for key, value in shown.items()}
    summary["errors"] = [error.to_json() for error in errors]
    emit(summary, as_json=as_json, people=people)
    for error in errors:
        print_error(str(error))
    raise Exit(1 if errors else 0)


def _for_people(summary: dict[str, Any], planned: Plan) -> dict[str, Any]:
    """Returns a plan with sums in place of each collective, and the verdict last."""
    sent: dict[str, dict[str, int]] = {}
    for op, n_sent, n_leaving in planned.sent:
        totals = sent.setdefault(op, {"bytes": 0, "leaving_bytes": 0})
        totals["bytes"] += n_sent
        totals["leaving_bytes"] += n_leaving
    traffic = [{**fields_of(feature), "table": None} for feature in planned.traffic]
    hosts = summary["hosts"] or {"devices": planned.devices}
    return {
        "rows": summary["rows_from"],
        "tables": planned.tables,
        "sent for tables, in a step": traffic if planned.devices > 1 else None,
        "sent, in a step": sent,
        **{name: hosts[name] for name in hosts if name not in ("link", "fabric", "disk")},
        "mesh": summary["mesh"],
        "checkpoint_bytes": planned.checkpoint_bytes,
        "tables_and_slots_bytes": planned.step.state_bytes - planned.other_bytes,
        "other_bytes": planned.other_bytes,
        "temporary_bytes": planned.step.temporary_bytes,
        "received_bytes": planned.step.collectives,
        "possible changes": summary["changes"],
        **{name: summary[name] for name in ("bytes_per_device", "memory_bytes", "fits")},
    }


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


def _too_large(planned: Plan, memory: int, advice: Sequence[Change]) -> RecsysError:
    needed, fitting = size(planned.bytes_per_device), [c.words for c in advice if c.fits]
    rule = f"A device needs {needed} for this training; it has {size(memory)}."
    cure = "Reduce train.batch_size or model.dim."
    if fitting:
        cure = f"Changes that fit: {'; or '.join(fitting)}."
    return RecsysError("R373", rule, cure)
