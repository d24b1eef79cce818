"""The training: its figures, its curves, and the state taken from an earlier model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from recsys.formats import count, duration, figure, is_number, moment, share, size
from recsys.report.artifacts import Artifacts, MissingError, read_json
from recsys.report.charts import Picture, Point, draw_curve
from recsys.report.evaluated import metric_title

_WIDE, _HALF, _NARROW = (990, 260), (480, 240), (330, 210)


@dataclasses.dataclass(frozen=True)
class Training:
    """The training in figures and in pictures.

    Attributes:
        facts: Name and figure.
        pictures: The loss, and the validation's metric where there is a validation.
    """

    facts: list[tuple[str, str]]
    pictures: list[Picture]


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
    """Returns the training in figures, its loss curve, and that of the validation."""
    training = _read_training(artifacts)
    devices = training.get("devices")
    facts = [
        ("steps", count(training.get("steps"))),
        ("examples", count(training.get("examples"))),
        ("time", duration(training.get("seconds"))),
        ("examples a second", count(training.get("examples_per_s"))),
        ("devices", f"{_devices(devices)} {training.get('platform') or ''}".strip()),
    ]
    if is_number(training.get("resumed_at")):
        facts.append(("went on from step", count(training["resumed_at"])))
    looks = training.get("validation") or []
    metric = _watched(artifacts, looks)
    pictures = [_loss(training, is_alone=not metric)]
    if metric:
        pictures.append(_validation(looks, metric, training.get("best_step")))
    return Training(facts, pictures)


def _loss(training: dict[str, Any], *, is_alone: bool) -> Picture:
    recorded = training.get("curve") or []
    points = _points(recorded, "loss")
    caption = "The training left no loss curve."
    if points:
        caption = (
            f"Training loss from {figure(points[0][1])} to {figure(points[-1][1])}"
            f" over {count(points[-1][0])} steps."
        )
    lost = len(recorded) - len(points)
    if lost:
        caption += f" {count(lost)} of the recorded losses are no numbers and are not drawn."
    size = _WIDE if is_alone else _HALF
    wide, narrow = (draw_curve(points, *extent, caption) for extent in (size, _NARROW))
    return Picture("" if is_alone else "Loss", wide, narrow, caption)


def _validation(looks: list[dict[str, Any]], metric: str, best: Any) -> Picture:
    points = _points(looks, metric)
    caption = (
        f"{metric_title(metric)} of the positives that the training held back,"
        f" last {figure(points[-1][1])}."
    )
    marked = next((value for step, value in points if step == best), None)
    if marked is not None:
        caption += f" The ring marks the best, {figure(marked)} at step {count(best)}."
    wide, narrow = (draw_curve(points, *size, caption, best) for size in (_HALF, _NARROW))
    return Picture("Validation", wide, narrow, caption)


def _watched(artifacts: Artifacts, looks: list[dict[str, Any]]) -> str:
    """Returns the metric that decided on the best step; empty where nothing was validated."""
    train = artifacts.config.get("train")
    validation = train.get("validation") if isinstance(train, dict) else None
    wanted = validation.get("metric") if isinstance(validation, dict) else None
    named = [name for look in looks for name in look if name != "step" and _points(looks, name)]
    return wanted if wanted in named else next(iter(named), "")


def _points(recorded: list[dict[str, Any]], name: str) -> list[Point]:
    return [
        (float(point["step"]), float(point[name]))
        for point in recorded
        if is_number(point.get("step")) and is_number(point.get(name))
    ]


def read_sharding(artifacts: Artifacts) -> Sharding:
    """Returns where the tables lie."""
    training = _read_training(artifacts)
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


def _read_training(artifacts: Artifacts) -> dict[str, Any]:
    return read_json(artifacts.model / "training.json", "The record of the training")


@dataclasses.dataclass(frozen=True)
class CarriedTable:
    """One table.

    Attributes:
        name: Its name.
        kept: Rows that kept their vector and their slots.
        share: Their share of all rows.
        new: Rows that are new.
        reset: Rows that had another id before.
        neighbours: Of the new and the reset ones, those made of their features' neighbours.
        dropped: Ids or tokens of the earlier model that are no more.
    """

    name: str
    kept: str
    share: str
    new: str
    reset: str
    neighbours: str
    dropped: str


@dataclasses.dataclass(frozen=True)
class Carried:
    """What was taken over.

    Attributes:
        facts: Name and figure; empty for a training that began anew.
        tables: The tables.
        sentence: Why it began anew though it might not have; empty where nobody says.
    """

    facts: list[tuple[str, str]]
    tables: list[CarriedTable]
    sentence: str


def read_carried(artifacts: Artifacts) -> Carried:
    """Returns what the training took over."""
    training = read_json(artifacts.model / "training.json", "The record of the training")
    warm_start = training.get("warm_start")
    if not isinstance(warm_start, Mapping):
        return Carried([], [], str(training.get("cold") or ""))
    carried = warm_start.get("carried") or {}
    tables = [_table(str(name), counts) for name, counts in carried.items() if _is_table(counts)]
    facts = [
        ("went on from", str(warm_start.get("base"))),
        ("which was trained on events until", moment(warm_start.get("trained_until"))),
        ("steps before", count(warm_start.get("steps_before"))),
        ("warm starts since the last beginning", count(warm_start.get("warm_starts"))),
    ]
    return Carried([fact for fact in facts if fact[1] not in ("–", "None")], tables, "")


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and is_number(value.get("kept"))


def _table(name: str, counts: Mapping[str, Any]) -> CarriedTable:
    keys = ("kept", "new", "reset", "neighbours", "dropped")
    parts = {key: counts.get(key) or 0 for key in keys}
    total = parts["kept"] + parts["new"] + parts["reset"]
    kept = share(parts["kept"] / total) if total else ""
    return CarriedTable(name, share=kept, **{key: count(parts[key]) for key in keys})
