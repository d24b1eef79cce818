"""The runs under one root, read from their records."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.formats import count, is_number
from recsys.report.artifacts import MissingError
from recsys.report.evaluated import MODEL, Evaluated, includes_repeats
from recsys.report.page import read_part
from recsys.report.runs import RUNS, read_result, read_steps
from recsys.report.spans import spans_of

_MADE = ("Trainer", "RetrievalEvaluator")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, as it was read.

    Attributes:
        id: Name of its folder.
        name: Name of the pipeline.
        started: When [seconds since 1970]; None where that isn't known.
        seconds: How long it took; None where that isn't known.
        state: `blessed`, `refused`, `failed`, `interrupted` or `no verdict`.
        says: The verdict's sentence, or the error's.
        metric: The metric that decides; empty where nothing was measured.
        measured: What was measured; None where nothing was.
        query: The protocol.
        rejected: Rows rejected, and rows read; None where that isn't known.
        report: Path of its report from the root; empty where there is none.
        spans: Names of its spans that are `new`, `late` and the like; None without spans.
        start: `warm` or `cold`; empty where nothing was trained.
        version: Number of the version that was pushed; empty where none was.
        ran: Names of the steps that ran; those that were cached made nothing new.
    """

    id: str
    name: str
    started: float | None
    seconds: float | None
    state: str
    says: str
    metric: str
    measured: Evaluated | None
    query: str
    rejected: tuple[float, float] | None
    report: str
    spans: dict[str, list[str]] | None = None
    start: str = ""
    version: str = ""
    ran: frozenset[str] = frozenset(_MADE)

    @property
    def value(self) -> float | None:
        """The deciding figure; None where there is none."""
        value = self.measured.figure(MODEL, self.metric) if self.measured else None
        return value if is_number(value) else None

    def is_rerun(self, earlier: Sequence[Run]) -> bool:
        """Returns whether an earlier run measured the same model, so that nothing is new.

        Args:
            earlier: The runs before this one, the newest first.
        """
        if self.value is None or "Trainer" in self.ran:
            return False
        is_measured_now = "RetrievalEvaluator" in self.ran
        for other in earlier:
            if self.is_like(other) and other.value is not None:
                return True
            # It made the model and didn't come to measure it.
            if is_measured_now and other.name == self.name and "Trainer" in other.ran:
                return False
        return False

    def is_like(self, other: Run) -> bool:
        """Returns whether the figures of two runs can be set beside each other."""
        mine, theirs = ((one.name, one.metric, one.query) for one in (self, other))
        return mine == theirs


def read_runs(root: Path) -> tuple[list[Run], list[tuple[str, str]]]:
    """Returns the runs of `root`, the newest first, and the damaged records with what is wrong."""
    runs, damaged = [], []
    folders = (path for path in (root / RUNS).glob("*") if path.is_dir())
    for folder in sorted(folders, key=lambda path: path.name, reverse=True):
        part = read_part(functools.partial(_read, folder, root))
        if part.missing:
            damaged.append((f"{RUNS}/{folder.name}", part.missing))
        else:
            runs.append(part.content)
    return runs, damaged


def _read(folder: Path, root: Path) -> Run:
    result = read_result(folder)
    return _interrupted(folder) if result is None else _ended(folder, result, root)


def _interrupted(folder: Path) -> Run:
    """Returns a run that left its steps and no result."""
    told = read_steps(folder)
    n_done, n_all = len(told.steps), len(told.planned)
    where = f" in {told.planned[n_done]}" if n_done < n_all else ""
    says = f"It ended, or still is,{where} after {n_done} of {n_all} steps; no result was written."
    return Run(
        folder.name, told.name, told.started, told.seconds, "interrupted", says, "", None, "",
        None, "",
    )  # fmt: skip


def _ended(folder: Path, result: Mapping[str, Any], root: Path) -> Run:
    measured = Evaluated(result, result.get("deciding")) if result.get("metrics") else None
    report = str(result.get("report") or "")
    return Run(
        id=folder.name,
        name=str(result.get("name") or ""),
        started=_number(result.get("started")),
        seconds=_number(result.get("seconds")),
        state=_state(result),
        says=str(result.get("error") or result.get("sentence") or ""),
        metric=measured.deciding if measured else "",
        measured=measured,
        query=_protocol(result),
        rejected=_rejected(result.get("rejected")),
        report=report if report and (root / report).is_file() else "",
        spans=spans_of(result.get("spans")),
        start=_start(result),
        version=str(result.get("pushed") or "").rpartition("/")[2],
        ran=_ran(folder),
    )


def _ran(folder: Path) -> frozenset[str]:
    """Returns which of the steps that make something new were not cached."""
    try:
        steps = read_steps(folder).steps
    except MissingError:
        return frozenset(_MADE)
    cached = {step.name for step in steps if step.state == "cached"}
    return frozenset(_MADE) - cached


def _start(result: Mapping[str, Any]) -> str:
    """Returns whether the training went on from an earlier model; empty of earlier records."""
    if "carried" not in result:
        return ""
    return "warm" if result["carried"] else "cold"


def _state(result: Mapping[str, Any]) -> str:
    if result.get("state") in ("killed", "stopped"):
        return "interrupted"
    if result.get("error"):
        return "failed"
    blessed = result.get("blessed")
    if not isinstance(blessed, bool):
        return "no verdict"
    return "blessed" if blessed else "refused"


def _protocol(result: Mapping[str, Any]) -> str:
    """Returns how the model was asked; figures of other ways can't be set beside it."""
    parts = [str(result.get("query") or "")]
    split = (result.get("split") or {}).get("split", "time")
    parts += [] if split == "time" else [f"split: {split}"]
    if is_number(n_sampled := result.get("sampled_negatives")):
        parts.append(f"among {count(n_sampled)} random items")
    if includes_repeats(result):
        parts.append("what was seen may come again")
    return ", ".join(parts)


def _number(value: Any) -> float | None:
    return value if is_number(value) else None


def _rejected(sources: Any) -> tuple[float, float] | None:
    """Returns the rows rejected, and the rows read, of all sources."""
    if not isinstance(sources, dict) or not sources:
        return None
    rejected, read = (sum(one[key] for one in sources.values()) for key in ("rejected", "read"))
    return (rejected, read) if is_number(rejected) and is_number(read) else None
