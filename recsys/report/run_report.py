"""Puts the parts of the report into its page."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from recsys.fingerprint import version_text
from recsys.formats import is_number
from recsys.report import figures, label_figures, run_figures
from recsys.report.evaluated import Evaluated
from recsys.report.page import Part, read_part, render, templates
from recsys.report.runs import INDEX, Artifacts, read_json

_PARTS: dict[str, Callable[[Artifacts], Any]] = {
    "verdict": figures.read_verdict,
    "metrics": figures.read_metrics,
    "against": figures.read_against,
    "over_k": lambda artifacts: figures.read_over_k(Evaluated.of(artifacts)),
    "other": figures.read_other_protocol,
    "slices": figures.read_slices,
    "labels": label_figures.read_labels,
    "pair": label_figures.read_pair,
    "exposure": figures.read_exposure,
    "users": figures.read_users,
    "sources": run_figures.read_sources,
    "spans": run_figures.read_spans,
    "split": run_figures.read_split,
    "growths": run_figures.read_growths,
    "features": run_figures.read_features,
    "validations": run_figures.read_validations,
    "training": run_figures.read_training,
    "steps": run_figures.read_run_steps,
    "bundle": run_figures.read_bundle,
    "model": lambda artifacts: read_json(artifacts.model / "model.json", "The model"),
    "commit": lambda artifacts: version_text(artifacts.training.get("source")),
}
_SECTIONS = {
    "metrics": ("Metrics", ""),
    "pair": ("Second stage", ""),
    "slices": ("Slices", ""),
    "labels": ("Labels", ""),
    "exposure": ("Popularity", ""),
    "users": ("Users", ""),
    "data": ("Data", ""),
    "validation": ("Validation", "validations"),
    "training": ("Training", "training"),
    "steps": ("Run", "steps"),
    "bundle": ("Bundle", "bundle"),
    "origin": ("Origin", ""),
}
"""Title of each section, and the part that it needs outside of a pipeline run.

A section whose part of its own name is None is left out: the task makes none.
"""


def write_report(out: Path, **sources: Any) -> Path:
    """Writes `report.html` into the folder `out`.

    The page needs no network and no script. Missing or damaged parts are named on the page and
    never stop the report.

    Args:
        out: Folder of the report; created if missing.
        **sources: The fields of `Artifacts`.

    Returns:
        The path of the page.
    """
    artifacts = Artifacts(**sources)
    parts: dict[str, Any] = {name: read_part(read, artifacts) for name, read in _PARTS.items()}
    known = [one for one in parts["sources"].content or [] if is_number(one.get("rejected"))]
    parts |= {
        "name": str(artifacts.config.get("name") or "unnamed run"),
        "config_text": run_figures.config_text(artifacts),
        "index": _index(artifacts.record, out),
        "rows": {name: sum(source[name] for source in known) for name in ("read", "rejected")},
        "is_of_run": artifacts.is_of_run,
        "folder": artifacts.bundle,
        "pushed": artifacts.pushed,
        "not_pushed": artifacts.not_pushed,
        "titles": {
            name: title
            for name, (title, part) in _SECTIONS.items()
            if parts.get(name) != Part(None, "")
            and (artifacts.is_of_run or not part or not parts[part].missing)
        },
    }
    sections = {name: read_part(_section, name, parts) for name in ("tiles", "glance", *_SECTIONS)}
    page = render("report.html.jinja", sections=sections, **parts)
    out.mkdir(parents=True, exist_ok=True)
    run_figures.copy_pages(artifacts, out)
    path = out / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def _section(name: str, parts: dict[str, Any]) -> Markup:
    template = templates().get_template(f"{name}.jinja")
    return Markup(template.render(parts))  # noqa: S704 - escaped


def _index(record: Path | None, out: Path) -> str:
    """Returns the relative path of the page of all runs; empty if there is none."""
    if record is None:
        return ""
    return quote(Path(os.path.relpath(record.parent.parent / INDEX, out)).as_posix())
