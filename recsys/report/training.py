"""How the training went: the loss, the machine, the tables and their shards."""

from __future__ import annotations

import dataclasses
from typing import Any

from markupsafe import Markup

from recsys.formats import count, duration, figure, is_number, size
from recsys.report.artifacts import Artifacts, MissingError, read_json
from recsys.report.curve import draw_curve


@dataclasses.dataclass(frozen=True)
class Training:
    """The training in figures and in one picture.

    Attributes:
        facts: Name and figure.
        wide: The loss curve for a desktop, as SVG.
        narrow: The same for a phone.
        caption: The picture in words.
    """

    facts: list[tuple[str, str]]
    wide: Markup
    narrow: Markup
    caption: str


@dataclasses.dataclass(frozen=True)
class Shard:
    """One embedding table."""

    table: str
    rows: str
    padded_rows: str
    dim: str
    placement: str
    shards: str
    bytes_per_device: str
    slot_bytes_per_device: str


@dataclasses.dataclass(frozen=True)
class Sharding:
    """All embedding tables, and what they take together on a device."""

    tables: list[Shard]
    total: str
    proof: str


def read_training(artifacts: Artifacts) -> Training:
    """Returns the training in figures and its loss curve."""
    training = _read(artifacts)
    devices = training.get("devices")
    facts = [
        ("steps", count(training.get("steps"))),
        ("examples", count(training.get("examples"))),
        ("time", duration(training.get("seconds"))),
        ("examples a second", count(training.get("examples_per_s"))),
        ("devices", f"{_devices(devices)} {training.get('platform') or ''}".strip()),
    ]
    points = [
        (float(point["step"]), float(point["loss"]))
        for point in training.get("curve") or []
        if is_number(point.get("step")) and is_number(point.get("loss"))
    ]
    lost = len(training.get("curve") or []) - len(points)
    caption = "The training left no loss curve."
    if points:
        caption = (
            f"Training loss from {figure(points[0][1])} to {figure(points[-1][1])}"
            f" over {count(points[-1][0])} steps."
        )
    if lost:
        caption += f" {count(lost)} of the recorded losses are no numbers and are not drawn."
    return Training(
        facts,
        Markup(draw_curve(points, width=930, height=260)),  # noqa: S704 - numbers only
        Markup(draw_curve(points, width=350, height=210)),  # noqa: S704
        caption,
    )


def read_sharding(artifacts: Artifacts) -> Sharding:
    """Returns where the tables lie."""
    training = _read(artifacts)
    parts = training.get("sharding")
    if not parts:
        raise MissingError("The training named no tables.")
    tables = [
        Shard(
            table=str(part["table"]),
            rows=count(part.get("rows")),
            padded_rows=count(part.get("padded_rows")),
            dim=count(part.get("dim")),
            placement=str(part.get("placement", "–")),
            shards=count(part.get("shards")),
            bytes_per_device=size(part.get("bytes_per_device")),
            slot_bytes_per_device=size(part.get("slot_bytes_per_device")),
        )
        for part in parts
    ]
    kinds = ("bytes_per_device", "slot_bytes_per_device")
    sizes = [part.get(kind) for part in parts for kind in kinds]
    total = size(sum(s for s in sizes if is_number(s)))
    return Sharding(tables, total, _proof(training.get("step")))


def _proof(step: dict[str, Any] | None) -> str:
    """Returns what the compiled training step was found to hold, in a sentence."""
    if not step:
        return ""
    sentence = (
        f"The compiled training step changes {size(step.get('state_bytes'))} in place and needs"
        f" {size(step.get('temporary_bytes'))} beside them."
    )
    if step.get("tables"):
        names = ", ".join(step["tables"])
        sentence += f" Checked: it copies, gathers and makes nothing of the size of {names}."
    return sentence


def _devices(devices: object) -> str:
    return str(len(devices)) if isinstance(devices, list) else count(devices)


def _read(artifacts: Artifacts) -> dict[str, Any]:
    return read_json(artifacts.model / "training.json", "The record of the training")
