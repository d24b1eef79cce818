"""Pictures of an evaluation outside of the report, for a notebook or a file."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.report.comparisons import draw_over_k
from recsys.report.evaluated import Evaluated
from recsys.report.page import style_sheet


@dataclasses.dataclass(frozen=True)
class Plot:
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


def plot_metrics(evaluation: Mapping[str, Any]) -> Plot:
    """Returns recall and NDCG over their cut-off, of the model and of all it is compared with.

    Args:
        evaluation: What `evaluation.json` holds.

    Raises:
        ValueError: The metrics have a single cut-off.
    """
    drawn = draw_over_k(Evaluated(evaluation, evaluation["verdict"]["metric"]))
    if not drawn.pictures:
        raise ValueError("the metrics have a single cut-off, so nothing is drawn over k")
    keys = "".join(f"<li>{sample} {html.escape(name)}</li>" for name, sample in drawn.keys)
    figures = "".join(
        f'<figure><h4>{html.escape(picture.title)}</h4><div class="wide">{picture.wide}</div>'
        f'<div class="narrow">{picture.narrow}</div>'
        f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>"
        for picture in drawn.pictures
    )
    return Plot(f'<ul class="keys">{keys}</ul><div class="pair">{figures}</div>')
