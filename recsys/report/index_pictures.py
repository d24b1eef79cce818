"""The metrics of one pipeline's runs, one after the other, as pictures."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from markupsafe import Markup

from recsys.formats import counted, figure, is_number
from recsys.report.artifacts import MissingError
from recsys.report.evaluated import BLESSED, MODEL, metric_title, style_of, subject_name
from recsys.report.past_runs import Run
from recsys.report.pictures.keys import key
from recsys.report.pictures.lines import Lines, Series
from recsys.report.pictures.picture import Picture

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
        _history(run, [one for one in runs if one.name == name]) for name, run in newest.items()
    ]
    found = [one for one in drawn if one.pictures]
    if not found:
        raise MissingError("With the second model that is measured, the metrics are drawn here.")
    return found


def _history(newest: Run, runs: Sequence[Run]) -> Histories:
    # What other metrics and other questions gave isn't comparable; runs without a figure are.
    shown = [run for run in runs if run.value is None or run.is_like(newest)]
    shown = shown[:_MOST_RUNS][::-1]
    k = newest.metric.partition("@")[2] or "10"
    names = dict.fromkeys([newest.metric, f"ndcg@{k}", "mrr", f"coverage@{k}"])
    pictures = [_picture(name, shown) for name in names if len(_measured(name, shown)) > 1]
    drawn = [one for one in _DRAWN if _has(one, newest.metric, shown)]
    keys = [(subject_name(one), key(style_of(one))) for one in drawn]
    return Histories(newest.name, keys, pictures)


def _picture(metric: str, runs: Sequence[Run]) -> Picture:
    series = [
        Series(
            style_of(subject),
            [(float(x), _value(run, subject, metric)) for x, run in enumerate(runs)],
            _intervals(metric, runs) if subject == MODEL else [],
        )
        for subject in _DRAWN
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


def _value(run: Run, subject: str, metric: str) -> float | None:
    value = run.measured.figure(subject, metric) if run.measured else None
    return value if is_number(value) else None


def _has(subject: str, metric: str, runs: Sequence[Run]) -> bool:
    return any(_value(run, subject, metric) is not None for run in runs)


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
