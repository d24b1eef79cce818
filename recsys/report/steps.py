"""What the run did: its steps, how long each took, and why it ran or was cached."""

from __future__ import annotations

import dataclasses

from recsys.formats import counted, duration, is_number
from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.evaluated import subject_name
from recsys.report.runs import Started, Step, read_steps

_MARKS = {"ran": "✓", "cached": "↺", "failed": "✗"}


@dataclasses.dataclass(frozen=True)
class ShownStep:
    """One step.

    Attributes:
        name: Its name.
        mark: What became of it, as a sign.
        state: The same as a word.
        reason: Why.
        seconds: How long it took.
        bar: The same beside the longest step, for a bar [%].
    """

    name: str
    mark: str
    state: str
    reason: str
    seconds: str
    bar: float


@dataclasses.dataclass(frozen=True)
class Steps:
    """All steps before the report.

    Attributes:
        summary: How many ran and how many were cached, and how long that took.
        rows: The steps, in order.
        evaluation: What the evaluation spent on each subject.
        damaged: That lines of the record are damaged; empty where none is.
    """

    summary: str
    rows: list[ShownStep]
    evaluation: list[tuple[str, str]]
    damaged: str


def read_run_steps(artifacts: Artifacts) -> Steps:
    """Returns the steps of the run that the report is of."""
    if artifacts.record is None:
        raise MissingError("The run named no record of its steps.")
    started = read_steps(artifacts.record)
    longest = max((step.seconds for step in started.steps), default=0.0)
    damaged = counted(started.n_damaged, "line", "lines") if started.n_damaged else ""
    return Steps(
        summary=_summary(started),
        rows=[_shown(step, longest) for step in started.steps],
        evaluation=_evaluation(artifacts),
        damaged=f"{damaged} of the record can't be read." if damaged else "",
    )


def _summary(started: Started) -> str:
    n_cached = sum(step.state == "cached" for step in started.steps)
    n_ran = len(started.steps) - n_cached
    ran, cached = counted(n_ran, "step ran", "steps ran"), f"{n_cached} cached"
    return f"{ran}, {cached}, in {duration(started.seconds)}"


def _shown(step: Step, longest: float) -> ShownStep:
    return ShownStep(
        name=step.name,
        mark=_MARKS.get(step.state, "?"),
        state=step.state,
        reason=step.reason.removeprefix("cached: "),
        seconds=duration(step.seconds),
        bar=round(100 * step.seconds / longest, 1) if longest > 0 else 0.0,
    )


def _evaluation(artifacts: Artifacts) -> list[tuple[str, str]]:
    try:
        seconds = artifacts.evaluated().get("seconds")
    except MissingError:
        return []
    spent = seconds.items() if isinstance(seconds, dict) else ()
    return [(subject_name(str(key)), duration(value)) for key, value in spent if is_number(value)]
