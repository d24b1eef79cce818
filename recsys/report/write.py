"""Puts the parts of the report into its page."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recsys.report.artifacts import Artifacts
from recsys.report.comparisons import read_against, read_over_k, read_slices
from recsys.report.decision import Verdict, read_glance, read_tiles, read_verdict
from recsys.report.index import INDEX
from recsys.report.ingested import read_features, read_growths, read_sources, read_split
from recsys.report.metric_tables import read_beyond, read_metrics, read_other_protocol
from recsys.report.page import read_part, render
from recsys.report.provenance import (
    config_text,
    read_bundle,
    read_fingerprints,
    read_run_steps,
    read_versions,
)
from recsys.report.recommended import (
    read_exposure,
    read_neighbours,
    read_people,
    read_unknown_people,
)
from recsys.report.spans import read_spans
from recsys.report.trained import read_carried, read_sharding, read_training
from recsys.report.validated import copy_pages, read_validations

_PARTS: dict[str, Callable[[Artifacts], Any]] = {
    "tiles": read_tiles,
    "glance": read_glance,
    "metrics": read_metrics,
    "against": read_against,
    "over_k": read_over_k,
    "beyond": read_beyond,
    "other": read_other_protocol,
    "slices": read_slices,
    "exposure": read_exposure,
    "people": read_people,
    "unknown_people": read_unknown_people,
    "neighbours": read_neighbours,
    "training": read_training,
    "carried": read_carried,
    "sharding": read_sharding,
    "sources": read_sources,
    "spans": read_spans,
    "split": read_split,
    "growths": read_growths,
    "features": read_features,
    "validations": read_validations,
    "steps": read_run_steps,
    "bundle": read_bundle,
    "versions": read_versions,
    "fingerprints": read_fingerprints,
}


def write_report(
    out: Path,
    *,
    config: dict[str, Any],
    dead_letters: Mapping[str, Path],
    data: Path,
    model: Path,
    evaluation: Path,
    bundle: Path | None,
    pushed: str | None,
    not_pushed: str | None = None,
    validation: Path | None = None,
    vocabularies: Path | None = None,
    record: Path | None = None,
) -> Path:
    """Writes `report.html` into the folder `out`.

    The page needs no network and no script. What is missing or damaged is said in
    words on the page; it never stops the report.

    Args:
        out: Folder of the report; made where there is none.
        config: The run's config as JSON.
        dead_letters: Folder of the dead letters of `interactions` and of `items`.
        data: Data folder.
        model: Model folder.
        evaluation: Evaluation folder.
        bundle: Bundle folder; None where none was exported.
        pushed: Served folder; None where nothing was pushed.
        not_pushed: Why nothing was, if that is known.
        validation: Folder of the gate's `verdict.json`; None where nothing was validated.
        vocabularies: Folder of the vocabularies' `diff.json`; None where there is none.
        record: Folder of the run's record, `<root>/runs/<run id>`; None where none is kept.

    Returns:
        The path of the page.
    """
    artifacts = Artifacts(
        config,
        dead_letters,
        data,
        model,
        evaluation,
        bundle,
        pushed,
        not_pushed,
        validation,
        vocabularies,
        record,
    )
    page = render(
        "report.html.jinja",
        name=str(config.get("name") or "unnamed run"),
        verdict=_verdict(artifacts),
        config_text=config_text(artifacts),
        index=_index(record, out),
        **{name: read_part(functools.partial(read, artifacts)) for name, read in _PARTS.items()},
    )
    out.mkdir(parents=True, exist_ok=True)
    copy_pages(artifacts, out)
    path = out / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def _verdict(artifacts: Artifacts) -> Verdict:
    part = read_part(functools.partial(read_verdict, artifacts))
    return part.content or Verdict("unknown", "No verdict", "", part.missing, [], [])


def _index(record: Path | None, out: Path) -> str:
    """Returns where the page of all runs will be, seen from the report; empty for none."""
    if record is None:
        return ""
    return quote(Path(os.path.relpath(record.parent.parent / INDEX, out)).as_posix())
