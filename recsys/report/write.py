"""Puts the parts of the report into its page."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
from markupsafe import Markup

from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.features import read_features
from recsys.report.ingested import read_sources, read_split
from recsys.report.metrics import read_metrics, read_other_protocol, read_slices, read_tiles
from recsys.report.people import read_neighbours, read_people, read_unknown_people
from recsys.report.provenance import config_text, read_bundle, read_fingerprints, read_versions
from recsys.report.training import read_sharding, read_training
from recsys.report.validation import copy_pages, read_validations
from recsys.report.verdict import read_verdict
from recsys.report.vocabularies import read_growths

_FOLDER = Path(__file__).resolve().parent

_PARTS: dict[str, Callable[[Artifacts], Any]] = {
    "tiles": read_tiles,
    "metrics": read_metrics,
    "slices": read_slices,
    "other": read_other_protocol,
    "people": read_people,
    "unknown_people": read_unknown_people,
    "neighbours": read_neighbours,
    "training": read_training,
    "sharding": read_sharding,
    "sources": read_sources,
    "split": read_split,
    "growths": read_growths,
    "features": read_features,
    "validations": read_validations,
    "bundle": read_bundle,
    "versions": read_versions,
    "fingerprints": read_fingerprints,
}


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the page: its content, or why it has none."""

    content: Any
    missing: str


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
    validation: Path | None = None,
    vocabularies: Path | None = None,
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
        validation: Folder of the gate's `verdict.json`; None where nothing was validated.
        vocabularies: Folder of the vocabularies' `diff.json`; None where there is none.

    Returns:
        The path of the page.
    """
    artifacts = Artifacts(
        config, dead_letters, data, model, evaluation, bundle, pushed, validation, vocabularies
    )
    page = _render(artifacts)
    out.mkdir(parents=True, exist_ok=True)
    copy_pages(artifacts, out)
    path = out / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def _render(artifacts: Artifacts) -> str:
    template = _environment().get_template("report.html.jinja")
    return template.render(
        name=str(artifacts.config.get("name") or "unnamed run"),
        verdict=read_verdict(artifacts),
        config_text=config_text(artifacts),
        # Our own file, not data.
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),  # noqa: S704
        written=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **{name: _read_part(read, artifacts) for name, read in _PARTS.items()},
    )


def _read_part(read: Callable[[Artifacts], Any], artifacts: Artifacts) -> Part:
    try:
        return Part(read(artifacts), "")
    except MissingError as missing:
        return Part(None, str(missing))
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OSError,
        pa.ArrowException,
    ) as error:
        # Files of another shape than docs/architecture.md gives them.
        return Part(None, f"This part can't be shown ({type(error).__name__}: {error}).")


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
