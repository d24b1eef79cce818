"""`recsys lineage`: which data, code, config, vocabulary and earlier models made a bundle."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from recsys.bundles.bundle import manifest_digest, read_manifest
from recsys.cli.pipeline import call_pipeline
from recsys.cli.terminal import Console
from recsys.formats import count, moment
from recsys.source_version import version_text

_DATABASE = "metadata.sqlite"
_SHOWN_FILES = 10
_GONE = "no longer there"


def lineage(bundle: Path, config: Path | None, root: Path | None, *, as_json: bool) -> None:
    """Prints where a bundle comes from: what its manifest tells, and what ML Metadata adds.

    Args:
        bundle: A bundle, wherever it lies.
        config: Config of the run that made it.
        root: Its folder; by default the one that the bundle lies in, if it does.
        as_json: Print one line of JSON.

    Raises:
        RecsysError: There is no bundle.
    """
    manifest = read_manifest(bundle)
    metadata, why = _metadata(bundle, config, root)
    origin = {
        "bundle": str(bundle),
        "digest": manifest_digest(bundle),
        "name": manifest.get("name"),
        "code": manifest.get("code"),
        "versions": manifest.get("versions"),
        "config": manifest.get("config"),
        "counts": manifest.get("counts"),
        "metrics": manifest.get("metrics"),
        "lineage": manifest.get("lineage"),
        "metadata": metadata,
        "no_metadata": why,
    }
    if as_json:
        print(json.dumps(origin))
        return
    console = Console()
    for name, text in _lines(origin):
        console.print(Text.assemble((f"{name:<11} ", "bold"), text), soft_wrap=True)


def _metadata(
    bundle: Path, config: Path | None, root: Path | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Returns what ML Metadata knows, or why nothing is known."""
    where = root or next(
        (folder for folder in bundle.resolve().parents if (folder / _DATABASE).is_file()), None
    )
    if config is None and where is None:
        return None, "the bundle lies outside of its run's folder; --root DIR names that"
    if importlib.util.find_spec("tfx") is None:
        return None, "the extra `pipeline` isn't installed"
    words = ["--bundle", str(bundle.resolve())]
    words += ["--config", str(config)] if config else ["--root", str(where)]
    known = call_pipeline("lineage", words)["found"]
    return (known, None) if known else (None, f"{config or where} knows no such bundle")


def _lines(origin: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    known = origin["lineage"] or {}
    yield "bundle", f"{origin['bundle']}, digest {_short(origin['digest'])}"
    yield "name", str(origin["name"])
    yield from _data(known.get("data"))
    yield "code", _short(origin["code"])
    yield from _commits(known.get("source"))
    yield "versions", ", ".join(f"{n} {v}" for n, v in (origin["versions"] or {}).items())
    for name, print_ in (known.get("vocabulary") or {}).items():
        yield "vocabulary", f"{name}: {count((origin['counts'] or {}).get(name))}, {_short(print_)}"
    if not known:
        yield "lineage", "the manifest is of an earlier version and tells no more"
    if known:
        yield "model", _short(known.get("model"))
        yield "warm start", _base(known.get("base"))
    if known.get("evaluation"):
        yield "evaluation", str(known["evaluation"].get("sentence"))
    yield from _known_steps(origin)


def _commits(source: Mapping[str, Any] | None) -> Iterable[tuple[str, str]]:
    training, export = (version_text((source or {}).get(n)) for n in ("training", "export"))
    yield "commit", training if training == export else f"training: {training}"
    if training != export:
        yield "", f"export: {export}"


def _data(data: Mapping[str, Any] | None) -> Iterable[tuple[str, str]]:
    for what, source in (data or {}).items():
        files, counts = source.get("files") or [], source.get("counts") or {}
        more = f" and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
        rows = f"{count(counts.get('read'))} rows, {count(counts.get('rejected'))} rejected"
        names = ", ".join(files[-_SHOWN_FILES:])
        yield "data", f"{what}: {names}{more}; {rows}; digest {_short(source.get('digest'))}"
        if counts.get("split", "time") != "time":
            yield "", f"split: {counts['split']}"
        elif counts.get("cut") is not None:
            yield "", f"split at {moment(counts['cut'])}"
        if source.get("spans"):
            yield "spans", _spans(source["spans"])


def _spans(spans: list[dict[str, Any]]) -> str:
    read = [span["name"] for span in spans if span.get("state") in ("read", "reused")]
    ends = f"{read[0]} … {read[-1]}" if read else "none"
    others = [f"{span['name']} {span['state']}" for span in spans if span["name"] not in read]
    return f"{len(read)} read ({ends}){'; ' if others else ''}{', '.join(others)}"


def _base(base: Mapping[str, Any] | None) -> str:
    if base is None:
        return "none: trained from the beginning"
    known = moment(base.get("trained_until"))
    n_before = count(base.get("warm_starts"))
    return (
        f"from the model {_short(base.get('fingerprint'))}, trained on events until {known};"
        f" {n_before} such starts since it was trained from the beginning"
    )


def _known_steps(origin: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if origin["metadata"] is None:
        yield "steps", f"not known: {origin['no_metadata']}"
        return
    for step in origin["metadata"]["steps"]:
        gone = [Path(o["path"]).parent.name for o in step["outputs"] if not o["is_there"]]
        missing = f"; {', '.join(gone)}: {_GONE}" if gone else ""
        digest = f"; files {_short(step['files_digest'])}" if step["files_digest"] else ""
        yield step["step"], f"run {step['run']}; code {_short(step['code'])}{digest}{missing}"
    for place, model in enumerate(origin["metadata"]["models"]):
        what = "its model" if not place else "started from"
        there = "" if model["is_there"] else f" ({_GONE})"
        yield "models", f"{what}: {model['path']}{there}, of run {model['run']}"


def _short(digest: Any) -> str:
    return str(digest)[:16] if digest else "–"
