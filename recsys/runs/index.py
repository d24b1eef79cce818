"""The page of all runs under one root, `<root>/index.html`, newest first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recsys.formats import count, counted, figure, is_number
from recsys.report.charts import Chart, Series, key, spread
from recsys.report.evaluated import Evaluated, metric_title, system_name
from recsys.report.page import read_part, render
from recsys.report.runs import (
    INDEX,
    RUNS,
    MissingError,
    read_result,
    read_steps,
    run_folders,
    spans_in_words,
)
from recsys.runs.summary import run_summary, unfinished_result
from recsys.system.files import commit_text
from recsys.tasks.judging_side import BLESSED, MODEL
from recsys.tuning import read_records

_MOST_OPEN = 60


class RecordedRun:
    """One run, as its record describes it.

    Args:
        folder: Folder of its record.
        root: Output folder of the runs.

    Attributes:
        summary: Its summary, as `run_summary` returns it.
        name: Name of the pipeline.
        started: Start [seconds since 1970]; None if unknown.
        measured: The figures; None if nothing was evaluated.
        metric: The deciding metric; empty if nothing was evaluated.
        value: The deciding figure; None if there is none.
        protocol: Protocol of the queries; figures of different protocols are not comparable.
        report: Path of its report from the root; empty if there is none.
        spans: Phrases on its spans that are new, late and so on.
        start: `warm` or `cold`; empty if nothing was trained.
        cached: Names of the steps that were cached, so that they made nothing new.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        result, self.cached = read_result(folder) or unfinished_result(folder), _cached(folder)
        self.summary = run_summary(folder.name, result, root)
        self.name, self.started = str(result.get("name") or ""), result.get("started")
        self.measured = Evaluated(result, result.get("deciding")) if result.get("metrics") else None
        self.metric = self.measured.deciding if self.measured else ""
        self.value = self.figure(MODEL, self.metric)
        self.protocol = _protocol(result)
        report = str(result.get("report") or "")
        self.report = report if report and (root / report).is_file() else ""
        self.spans = spans_in_words(self.summary["data"]["spans"])
        self.start = ""
        if self.metric and "carried" in result:
            self.start = "warm" if result["carried"] else "cold"

    def figure(self, system: str, metric: str) -> float | None:
        """Returns the figure of a system; None if there is none."""
        value = self.measured.figure(system, metric) if self.measured else None
        return value if is_number(value) else None

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Returns the interval of the model's figure; None if there is none."""
        return self.measured.interval(metric) if self.measured else None

    def is_like(self, other: RecordedRun) -> bool:
        """Returns whether the figures of two runs are comparable."""
        mine, theirs = ((run.name, run.metric, run.protocol) for run in (self, other))
        return mine == theirs

    def is_rerun(self, earlier: Sequence[RecordedRun]) -> bool:
        """Returns whether one of the `earlier` runs, newest first, evaluated the same model."""
        if self.value is None or "Trainer" not in self.cached:
            return False
        for other in earlier:
            if self.is_like(other) and other.value is not None:
                return True
            # It trained the model, and ended before it evaluated it.
            made_it = other.name == self.name and "Trainer" not in other.cached
            if made_it and "RetrievalEvaluator" not in self.cached:
                return False
        return False


def read_runs(root: Path) -> tuple[list[RecordedRun], list[tuple[str, str]]]:
    """Returns the runs of `root`, the newest first, and the damaged records with the fault."""
    runs, damaged = [], []
    for folder in run_folders(root):
        part = read_part(RecordedRun, folder, root)
        if part.missing:
            damaged.append((f"{RUNS}/{folder.name}", part.missing))
        else:
            runs.append(part.content)
    return runs, damaged


def write_index(root: Path) -> Path:
    """Writes `<root>/index.html` from the records of the runs, atomically.

    A damaged record is named on the page and left out.

    Args:
        root: Output folder of the runs.

    Returns:
        The path of the page.

    Raises:
        OSError: The page can't be written.
    """
    runs, damaged = read_runs(root)
    rows = [_row(run, runs[i + 1 :]) for i, run in enumerate(runs)]
    page = render(
        "index.html.jinja",
        names=list(dict.fromkeys(run.name for run in runs if run.name)),
        parts=[part for part in (rows[:_MOST_OPEN], rows[_MOST_OPEN:]) if part],
        has_starts=any(run.start == "warm" for run in runs),
        n_runs=len(runs),
        damaged=damaged,
        histories=read_part(draw_histories, runs),
        studies=[study for study in read_records(root) if study["best"] is not None],
    )
    path = root / INDEX
    commit_text(page.encode("utf-8", "replace").decode("utf-8"), path)
    return path


def _row(run: RecordedRun, earlier: Sequence[RecordedRun]) -> dict[str, Any]:
    is_rerun = run.is_rerun(earlier)
    values = (other.value for other in earlier if run.is_like(other) and other.value is not None)
    before = None if is_rerun else next(values, None)
    change = run.value / before - 1.0 if run.value is not None and before else None
    # Characters such as `#` have another meaning in a URL.
    return {"run": run, "is_rerun": is_rerun, "change": change, "report": quote(run.report)}


def _cached(folder: Path) -> set[str]:
    """Returns the cached steps; of a pair, `Trainer` only if `RankTrainer` was cached too."""
    try:
        steps = read_steps(folder).steps
    except MissingError:
        return set()
    made = {step.name for step in steps if step.state != "cached"}
    anew = {"Trainer"} if "RankTrainer" in made else set()
    return {step.name for step in steps} - made - anew


def _protocol(result: Mapping[str, Any]) -> str:
    parts = [str(result.get("query") or result.get("state") or "")]
    split = (result.get("split") or {}).get("split", "time")
    parts += [] if split == "time" else [f"split: {split}"]
    if is_number(n_sampled := result.get("sampled_negatives")):
        parts.append(f"among {count(n_sampled)} random items")
    if result.get("repeats") == "include":
        parts.append("repeats included")
    return ", ".join(parts)


# --- the metrics, run by run

_DRAWN = {MODEL: 0, "popularity": 1, BLESSED: 5}
"""Systems of the charts, with their styles."""
_MOST_RUNS = 60
_MOST_TICKS = 5


def draw_histories(runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
    """Returns the charts of each pipeline that has evaluated two models.

    A run that made no new model, because its steps were cached, is omitted.

    Args:
        runs: All runs, the newest first.

    Raises:
        MissingError: There is none.
    """
    runs = [run for i, run in enumerate(runs) if not run.is_rerun(runs[i + 1 :])]
    newest = {run.name: run for run in reversed(runs) if run.value is not None}
    histories = [_history(run, runs) for run in newest.values()]
    histories = [history for history in histories if history["charts"]]
    if not histories:
        raise MissingError("The metrics are plotted once two models have been evaluated.")
    return histories


def _history(newest: RecordedRun, runs: Sequence[RecordedRun]) -> dict[str, Any]:
    # Only comparable figures; and runs without a figure.
    alike = [r for r in runs if r.name == newest.name and (r.value is None or r.is_like(newest))]
    shown = alike[:_MOST_RUNS][::-1]
    k = newest.metric.partition("@")[2] or "10"
    usual = (f"ndcg@{k}", "mrr", f"coverage@{k}", "log_loss", "calibration_error")
    names = dict.fromkeys([newest.metric, *usual])
    drawn = [name for name in _DRAWN if _values(name, newest.metric, shown)]
    return {
        "name": newest.name,
        "legend": [(system_name(name), key(_DRAWN[name])) for name in drawn],
        "charts": [_chart(name, shown) for name in names if len(_values(MODEL, name, shown)) > 1],
    }


def _chart(metric: str, runs: Sequence[RecordedRun]) -> Chart:
    intervals = [(float(x), run.interval(metric)) for x, run in enumerate(runs)]
    whiskers = [(x, *ends) for x, ends in intervals if ends is not None]
    series = [
        Series(
            style,
            [(float(x), run.figure(system, metric)) for x, run in enumerate(runs)],
            whiskers if system == MODEL else [],
        )
        for system, style in _DRAWN.items()
    ]
    values, title = _values(MODEL, metric, runs), metric_title(metric)
    caption = (
        f"{title} of the last {counted(len(runs), 'run', 'runs')}: first {figure(values[0])},"
        f" last {figure(values[-1])}, best {figure(max(values))}."
    )
    return Chart(title, caption, series, _days(runs), events=_events(runs))


def _values(system: str, metric: str, runs: Sequence[RecordedRun]) -> list[float]:
    values = [run.figure(system, metric) for run in runs]
    return [value for value in values if value is not None]


def _events(runs: Sequence[RecordedRun]) -> list[tuple[float, str]]:
    """Returns the letters below the axis for runs that weren't blessed, or trained from scratch."""
    some_are_warm = any(run.start == "warm" for run in runs)
    states = [run.summary["state"] for run in runs]
    marked = [
        r.start if state == "blessed" else state for r, state in zip(runs, states, strict=True)
    ]
    hidden = {"warm", "", "" if some_are_warm else "cold"}
    return [(float(x), word) for x, word in enumerate(marked) if word not in hidden]


def _days(runs: Sequence[RecordedRun]) -> list[tuple[float, str]]:
    """Returns a few runs with the day that they started on, the first and the last among them."""
    days = [(float(x), _day(runs[x].started)) for x in spread(len(runs), _MOST_TICKS)]
    return [(x, day) for i, (x, day) in enumerate(days) if i == 0 or day != days[i - 1][1]]


def _day(started: float | None) -> str:
    if started is None or not 0 <= started < 8e10:
        return ""
    return dt.datetime.fromtimestamp(started, dt.UTC).strftime("%m-%d")
