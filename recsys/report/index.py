"""The page of all runs under one root, `<root>/index.html`: what came of each, newest first."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from recsys.commit import commit_text
from recsys.formats import change, count, counted, duration, figure, moment, span
from recsys.report.evaluated import metric_title
from recsys.report.index_pictures import draw_histories
from recsys.report.page import read_part, render
from recsys.report.past_runs import Run, read_runs
from recsys.report.spans import spans_in_words

INDEX = "index.html"
_MOST_OPEN = 60

_STATES = {
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
    before = None if is_rerun else next(_values(run, earlier), None)
    apart = value / before - 1.0 if value is not None and before else None
    ends = run.measured.interval(run.metric) if run.measured else None
    return ShownRun(
        when=moment(run.started) if run.started is not None else run.id,
        name=run.name,
        mark=_STATES[run.state],
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


def _values(run: Run, earlier: Sequence[Run]) -> Iterator[float]:
    """Yields the deciding figure of earlier runs that can be compared, the last one first."""
    for other in earlier:
        if run.is_like(other) and other.value is not None:
            yield other.value
