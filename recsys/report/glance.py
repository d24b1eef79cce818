"""The run at a glance: a line for each part of it that a reader may want to look up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from recsys.formats import count, counted, duration, is_number
from recsys.report.artifacts import Artifacts, MissingError, read_json
from recsys.report.runs import read_steps


@dataclasses.dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        name: What it is about.
        text: The figures.
        links: Text and target of what tells more.
    """

    name: str
    text: str
    links: list[tuple[str, str]]


def read_glance(artifacts: Artifacts) -> list[Line]:
    """Returns the lines; what is missing has none, for its own part says so."""
    readers = (_data, _vocabularies, _training, _run)
    return [line for read in readers for line in _tried(read, artifacts)]


def _tried(read: Callable[[Artifacts], Iterator[Line]], artifacts: Artifacts) -> list[Line]:
    try:
        return list(read(artifacts))
    except (MissingError, LookupError, TypeError, ValueError, AttributeError):
        return []


def _data(artifacts: Artifacts) -> Iterator[Line]:
    summaries = [
        read_json(folder / "summary.json", "The summary")
        for folder in artifacts.dead_letters.values()
    ]
    if not summaries:
        return
    read, rejected = (sum(one[key] for one in summaries) for key in ("read", "rejected"))
    text = f"{counted(read, 'row', 'rows')} read, {count(rejected)} rejected"
    links = [("what and why", "#data"), ("statistics", "#validation")]
    yield Line("Data", text, links)


def _vocabularies(artifacts: Artifacts) -> Iterator[Line]:
    if artifacts.vocabularies is None:
        return
    diff = read_json(artifacts.vocabularies / "diff.json", "The diff of the vocabularies")
    changes = [
        f"{count(diff[name]['new'])} new {name}{_gone(diff[name]['evicted'])}"
        for name in ("users", "items")
        if name in diff
    ]
    yield Line("Vocabularies", ", ".join(changes), [("diff", "#vocabularies")])


def _gone(n: Any) -> str:
    return f" ({count(n)} evicted)" if is_number(n) and n > 0 else ""


def _training(artifacts: Artifacts) -> Iterator[Line]:
    training = read_json(artifacts.model / "training.json", "The record of the training")
    steps, devices = training["steps"], training["devices"]
    n_devices = len(devices) if isinstance(devices, list) else devices
    text = f"{counted(steps, 'step', 'steps')} on {counted(n_devices, 'device', 'devices')}"
    yield Line(
        "Training",
        f"{text} in {duration(training['seconds'])}",
        [("curve", "#training"), ("tables", "#tables")],
    )


def _run(artifacts: Artifacts) -> Iterator[Line]:
    if artifacts.record is None:
        return
    started = read_steps(artifacts.record)
    n_cached = sum(step.state == "cached" for step in started.steps)
    text = (
        f"{counted(len(started.steps), 'step', 'steps')} in {duration(started.seconds)},"
        f" {count(n_cached)} of them cached"
    )
    yield Line("Run", text, [("times and reasons", "#steps")])
