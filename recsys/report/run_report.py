"""Puts the parts of the report into its page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from recsys.formats import is_number
from recsys.report import figures, run_figures
from recsys.report.index import INDEX
from recsys.report.over_k import read_over_k
from recsys.report.page import Part, read_part, render, templates
from recsys.report.run_artifacts import Artifacts
from recsys.report.span_words import read_spans

_PARTS: dict[str, Callable[[Artifacts], Any]] = {
    "verdict": figures.read_verdict,
    "tiles": figures.read_tiles,
    "metrics": figures.read_metrics,
    "against": figures.read_against,
    "over_k": read_over_k,
    "beyond": figures.read_beyond,
    "other": figures.read_other_protocol,
    "slices": figures.read_slices,
    "exposure": figures.read_exposure,
    "people": figures.read_people,
    "unknown_people": figures.read_unknown_people,
    "evaluation_seconds": figures.read_evaluation_seconds,
    "neighbours": run_figures.read_neighbours,
    "training": run_figures.read_training,
    "carried": run_figures.read_carried,
    "sharding": run_figures.read_sharding,
    "sources": run_figures.read_sources,
    "spans": read_spans,
    "split": run_figures.read_split,
    "growths": run_figures.read_growths,
    "features": run_figures.read_features,
    "validations": run_figures.read_validations,
    "steps": run_figures.read_run_steps,
    "bundle": run_figures.read_bundle,
    "versions": run_figures.read_versions,
    "fingerprints": run_figures.read_fingerprints,
}
_SECTIONS = {
    "metrics.jinja": "Metrics",
    "slices.jinja": "Slices",
    "exposure.jinja": "Popularity",
    "users.jinja": "Users",
    "neighbours.jinja": "Neighbours",
    "data.jinja": "Data",
    "validation.jinja": "Validation",
    "training.jinja": "Training",
    "steps.jinja": "Run",
    "bundle.jinja": "Bundle",
    "origin.jinja": "Origin",
}

_OF_RUNS = {
    "neighbours.jinja": "neighbours",
    "validation.jinja": "validations",
    "training.jinja": "training",
    "steps.jinja": "steps",
    "bundle.jinja": "bundle",
}
"""The part that a section needs, of those that an evaluation alone may lack."""


def write_report(out: Path, **sources: Any) -> Path:
    """Writes `report.html` into the folder `out`.

    The page needs no network and no script. What is missing or damaged is said in
    words on the page; it never stops the report.

    Args:
        out: Folder of the report; created if missing.
        **sources: What it is made of, the fields of `Artifacts`.

    Returns:
        The path of the page.
    """
    artifacts = Artifacts(**sources)
    parts: dict[str, Any] = {name: read_part(read, artifacts) for name, read in _PARTS.items()}
    parts |= {
        "name": str(artifacts.config.get("name") or "unnamed run"),
        "config_text": run_figures.config_text(artifacts),
        "index": _index(artifacts.record, out),
        "rows": _rows(parts["sources"]),
        "is_of_run": artifacts.is_of_run,
        "titles": {
            name.removesuffix(".jinja"): title
            for name, title in _SECTIONS.items()
            if artifacts.is_of_run or not _is_missing(parts, name)
        },
    }
    sections = {name: read_part(_section, name, parts) for name in ("glance.jinja", *_SECTIONS)}
    page = render("report.html.jinja", sections=sections, **parts)
    out.mkdir(parents=True, exist_ok=True)
    run_figures.copy_pages(artifacts, out)
    path = out / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def _is_missing(parts: Mapping[str, Any], section: str) -> bool:
    """Returns whether a section has nothing to show, as it is about a whole run."""
    part = _OF_RUNS.get(section)
    return part is not None and bool(parts[part].missing)


def _section(template: str, parts: dict[str, Any]) -> Markup:
    return Markup(templates().get_template(template).render(parts))  # noqa: S704 - escaped


def _rows(sources: Part) -> dict[str, float]:
    """Returns the rows `read` and `rejected` of all kinds of data in the summaries."""
    known = [source for source in sources.content or [] if is_number(source.get("rejected"))]
    return {name: sum(source[name] for source in known) for name in ("read", "rejected")}


def _index(record: Path | None, out: Path) -> str:
    """Returns where the page of all runs will be, seen from the report; empty for none."""
    if record is None:
        return ""
    return quote(Path(os.path.relpath(record.parent.parent / INDEX, out)).as_posix())
