"""The page of all runs under one root, `<root>/index.html`, newest first."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from recsys.formats import change, count, counted, duration, figure, is_number, moment, span
from recsys.report.artifacts import MissingError
from recsys.report.charts import Lines, Picture, Series
from recsys.report.evaluated import (
    BLESSED,
    MODEL,
    Evaluated,
    includes_repeats,
    metric_title,
    style_of,
    system_name,
)
from recsys.report.page import read_part, render
from recsys.report.runs import RUNS, read_result, read_steps
from recsys.report.scales import key
from recsys.report.spans import spans_in_words, spans_of
from recsys.system.commit import commit_text

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
        mine, theirs = ((run.name, run.metric, run.query) for run in (self, other))
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
    recorded = read_steps(folder)
    n_done, n_all = len(recorded.steps), len(recorded.planned)
    where = f" in {recorded.planned[n_done]}" if n_done < n_all else ""
    says = f"It ended, or still is,{where} after {n_done} of {n_all} steps; no result was written."
    return Run(
        folder.name, recorded.name, recorded.started, recorded.seconds, "interrupted", says, "",
        None, "", None, "",
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
    rejected, read = (
        sum(source[key] for source in sources.values()) for key in ("rejected", "read")
    )
    return (rejected, read) if is_number(rejected) and is_number(read) else None


_WIDE, _NARROW = (480, 230), (330, 210)
_DRAWN = (MODEL, "popularity", BLESSED)
_MOST_RUNS = 60
_MOST_TICKS = 5
_DAY_S = 86_400


@dataclasses.dataclass(frozen=True)
class Histories:
    """The pictures of one pipeline.

    Attributes:
        name: Name of the pipeline.
        keys: Name and sample of each line.
        pictures: One for each metric.
    """

    name: str
    keys: list[tuple[str, Markup]]
    pictures: list[Picture]


def draw_histories(runs: Sequence[Run]) -> list[Histories]:
    """Returns the pictures of each pipeline that has measured two models.

    A run that made no new model, because its steps were cached, is no point of them.

    Args:
        runs: All runs, the newest first.

    Raises:
        MissingError: There is none.
    """
    runs = [run for i, run in enumerate(runs) if not run.is_rerun(runs[i + 1 :])]
    newest = {run.name: run for run in reversed(runs) if run.value is not None}
    drawn = [
        _history(run, [other for other in runs if other.name == name])
        for name, run in newest.items()
    ]
    histories = [history for history in drawn if history.pictures]
    if not histories:
        raise MissingError("With the second model that is measured, the metrics are drawn here.")
    return histories


def _history(newest: Run, runs: Sequence[Run]) -> Histories:
    # What other metrics and other questions gave isn't comparable; runs without a figure are.
    shown = [run for run in runs if run.value is None or run.is_like(newest)]
    shown = shown[:_MOST_RUNS][::-1]
    k = newest.metric.partition("@")[2] or "10"
    names = dict.fromkeys([newest.metric, f"ndcg@{k}", "mrr", f"coverage@{k}"])
    pictures = [_picture(name, shown) for name in names if len(_measured(name, shown)) > 1]
    drawn = [system for system in _DRAWN if _has(system, newest.metric, shown)]
    keys = [(system_name(system), key(style_of(system))) for system in drawn]
    return Histories(newest.name, keys, pictures)


def _picture(metric: str, runs: Sequence[Run]) -> Picture:
    series = [
        Series(
            style_of(system),
            [(float(x), _value(run, system, metric)) for x, run in enumerate(runs)],
            _intervals(metric, runs) if system == MODEL else [],
        )
        for system in _DRAWN
    ]
    values = _measured(metric, runs)
    title = metric_title(metric)
    caption = (
        f"{title} of the last {counted(len(runs), 'run', 'runs')}: first {figure(values[0])},"
        f" last {figure(values[-1])}, best {figure(max(values))}."
    )
    lines = Lines(series, _days(runs), "", caption, margin=0.5)
    words = [(float(x), word) for x, word in enumerate(_words(runs)) if word]
    return Picture(title, lines.draw(*_WIDE, words), lines.draw(*_NARROW, words), caption)


def _words(runs: Sequence[Run]) -> list[str]:
    """Returns what is marked under the axis of each run; empty for a blessed one like others."""
    some_are_warm = any(run.start == "warm" for run in runs)
    return [
        run.state
        if run.state != "blessed"
        else ("cold" if some_are_warm and run.start == "cold" else "")
        for run in runs
    ]


def _value(run: Run, system: str, metric: str) -> float | None:
    value = run.measured.figure(system, metric) if run.measured else None
    return value if is_number(value) else None


def _has(system: str, metric: str, runs: Sequence[Run]) -> bool:
    return any(_value(run, system, metric) is not None for run in runs)


def _measured(metric: str, runs: Sequence[Run]) -> list[float]:
    values = [_value(run, MODEL, metric) for run in runs]
    return [value for value in values if value is not None]


def _intervals(metric: str, runs: Sequence[Run]) -> list[tuple[float, float, float]]:
    ends = [(x, run.measured.interval(metric)) for x, run in enumerate(runs) if run.measured]
    return [(float(x), *both) for x, both in ends if both is not None]


def _days(runs: Sequence[Run]) -> list[tuple[float, str]]:
    """Returns a few runs with the day that they started on, the first and the last among them."""
    last = len(runs) - 1
    n = min(_MOST_TICKS, len(runs))
    places = sorted({round(i * last / max(1, n - 1)) for i in range(n)})
    days = [(float(x), _day(runs[x].started)) for x in places]
    return [(x, day) for i, (x, day) in enumerate(days) if i == 0 or day != days[i - 1][1]]


def _day(started: float | None) -> str:
    if started is None or not 0 <= started < 8e10:
        return ""
    return dt.datetime.fromtimestamp(started // _DAY_S * _DAY_S, dt.UTC).strftime("%m-%d")


INDEX = "index.html"
_MOST_OPEN = 60

_MARKS = {
    "blessed": "✓",
    "refused": "✗",
    "failed": "!",
    "interrupted": "…",
    "no verdict": "?",
}


@dataclasses.dataclass(frozen=True)
class ShownRun:
    """One run as it is shown, all text."""

    when: str
    name: str
    mark: str
    state: str
    says: str
    metric: str
    value: str
    interval: str
    change: str
    seconds: str
    rejected: str
    read: str
    report: str
    spans: list[str]
    start: str
    version: str
    is_rerun: bool


def write_index(root: Path) -> Path:
    """Writes `<root>/index.html` from the records of the runs, in one step.

    A damaged record is named on the page and left out.

    Args:
        root: Folder of everything that runs write.

    Returns:
        The path of the page.

    Raises:
        OSError: The page can't be written.
    """
    runs, damaged = read_runs(root)
    page = render(
        "index.html.jinja",
        names=list(dict.fromkeys(run.name for run in runs if run.name)),
        parts=_parts([_shown(run, runs[i + 1 :]) for i, run in enumerate(runs)]),
        has_starts=any(run.start == "warm" for run in runs),
        n_runs=count(len(runs)),
        damaged=damaged,
        histories=read_part(functools.partial(draw_histories, runs)),
    )
    path = root / INDEX
    commit_text(page.encode("utf-8", "replace").decode("utf-8"), path)
    return path


def _parts(shown: Sequence[ShownRun]) -> list[tuple[str, Sequence[ShownRun]]]:
    """Returns the runs that are seen at once, and the earlier ones, with what those are called."""
    n_earlier = len(shown) - _MOST_OPEN
    if n_earlier <= 0:
        return [("", shown)] if shown else []
    earlier = counted(n_earlier, "earlier run", "earlier runs")
    return [("", shown[:_MOST_OPEN]), (earlier, shown[_MOST_OPEN:])]


def _shown(run: Run, earlier: Sequence[Run]) -> ShownRun:
    value, is_rerun = run.value, run.is_rerun(earlier)
    before = None if is_rerun else next(_earlier_values(run, earlier), None)
    apart = value / before - 1.0 if value is not None and before else None
    ends = run.measured.interval(run.metric) if run.measured else None
    return ShownRun(
        when=moment(run.started) if run.started is not None else run.id,
        name=run.name,
        mark=_MARKS[run.state],
        state=run.state,
        says=run.says,
        metric=metric_title(run.metric),
        value=figure(value),
        interval="" if ends is None else span(ends),
        change="" if apart is None else change(apart),
        seconds=duration(run.seconds),
        rejected=count(run.rejected[0]) if run.rejected else "",
        read=f"of {counted(run.rejected[1], 'row', 'rows')}" if run.rejected else "",
        # A path is no address: it may hold what means something else there.
        report=quote(run.report),
        spans=spans_in_words(run.spans),
        start=run.start if run.metric else "",
        version=run.version,
        is_rerun=is_rerun,
    )


def _earlier_values(run: Run, earlier: Sequence[Run]) -> Iterator[float]:
    """Yields the deciding figure of earlier runs that can be compared, the last one first."""
    for other in earlier:
        if run.is_like(other) and other.value is not None:
            yield other.value
