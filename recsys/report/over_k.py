"""The metrics over the length of the list: pictures for the report and for notebooks."""

from __future__ import annotations

import functools
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recsys.formats import figure, is_number
from recsys.report.charts import Series, Size, draw_lines, key, picture
from recsys.report.evaluated import MODEL, Evaluated, cut_offs
from recsys.report.page import style_sheet, templates
from recsys.report.run_artifacts import Artifacts, MissingError

_DRAWN = ("recall", "ndcg")
_OVER_K: tuple[Size, Size] = (480, 260), (330, 230)


def read_over_k(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the pictures of the metrics over their cut-off."""
    return draw_over_k(Evaluated.of(artifacts))


def draw_over_k(evaluated: Evaluated) -> dict[str, Any]:
    """Returns the pictures of the metrics over their cut-off, and the legend.

    Raises:
        MissingError: The metrics have a single cut-off.
    """
    ks = cut_offs(evaluated.metrics)
    values = {name: [evaluated.metrics.get(f"{name}@{k}") for k in ks] for name in _DRAWN}
    drawn = [name for name in _DRAWN if sum(map(is_number, values[name])) > 1]
    if not drawn:
        raise MissingError("The metrics have a single cut-off, so there is no plot over k.")
    legend = [(evaluated.name(name), key(evaluated.style(name))) for name in evaluated.systems]
    return {"legend": legend, "pictures": [_over_k(evaluated, family, ks) for family in drawn]}


def _over_k(evaluated: Evaluated, family: str, ks: Sequence[int]) -> dict[str, Any]:
    series = [_series(evaluated, system, family, ks) for system in evaluated.systems]
    title, last = f"{evaluated.title(family)}@k", ks[-1]
    figures = [
        f"{evaluated.name(name)} {figure(evaluated.figure(name, f'{family}@{last}'))}"
        for name in evaluated.systems
    ]
    beside = f"; {', '.join(figures[1:])}" if figures[1:] else ""
    caption = f"{title} for k from {ks[0]} to {last}. At {last}: {figures[0]}{beside}."
    if series[0].intervals:
        caption += f" Whiskers: {evaluated.interval_name()} of the model."
    x_ticks = [(float(k), str(k)) for k in ks]
    draw = functools.partial(draw_lines, series, x_ticks, caption, x_name="k", log_x=True)
    return picture(title, caption, draw, *_OVER_K)


def _series(evaluated: Evaluated, system: str, family: str, ks: Sequence[int]) -> Series:
    figures = [(float(k), evaluated.figure(system, f"{family}@{k}")) for k in ks]
    points = [(k, value if is_number(value) else None) for k, value in figures]
    ends = [(float(k), evaluated.interval(f"{family}@{k}")) for k in ks if system == MODEL]
    intervals = [(k, *both) for k, both in ends if both is not None]
    return Series(evaluated.style(system), points, intervals)


def plot_metrics(evaluation: Mapping[str, Any]) -> Plot:
    """Returns recall and NDCG over their cut-off, of the model and of all it is compared with.

    Args:
        evaluation: What `evaluation.json` holds.

    Raises:
        MissingError: The metrics have a single cut-off.
    """
    drawn = draw_over_k(Evaluated(evaluation, evaluation["verdict"]["metric"]))
    return Plot(templates().get_template("plot.jinja").render(over_k=drawn))


class Plot(NamedTuple):
    """Pictures as HTML that needs no script and no network.

    Attributes:
        html: The pictures with their keys and captions.
    """

    html: str

    def _repr_html_(self) -> str:
        """Returns the pictures in a frame of their own, whose style leaves the notebook alone."""
        page = html.escape(self.page(), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="380" frameborder="0"></iframe>'

    def page(self) -> str:
        """Returns a page of the pictures."""
        head = f'<!doctype html><meta charset="utf-8"><style>{style_sheet()}</style>'
        return f"{head}<body><main>{self.html}</main></body>"

    def save(self, path: str | Path) -> Path:
        """Writes the page; returns its path."""
        path = Path(path)
        path.write_text(self.page(), encoding="utf-8")
        return path
