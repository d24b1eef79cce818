"""`recsys lineage`: which data, code, config, vocabulary and earlier models made a bundle."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from recsys.bundles.bundle import manifest_digest, read_manifest
from recsys.cli.stages import stage_log
from recsys.cli.terminal import Console
from recsys.formats import count, moment
from recsys.source_version import version_text
from recsys.system.process import run_stage, stage_environment

_MODULE = "pipelines.lineage"
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
    told = {
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
        print(json.dumps(told))
        return
    console = Console()
    for name, text in _lines(told):
        console.print(Text.assemble((f"{name:<11} ", "bold"), text), soft_wrap=True)


def _metadata(
    bundle: Path, config: Path | None, root: Path | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Returns what ML Metadata knows, or why nothing is known."""
    where = root or next(
        (one for one in bundle.resolve().parents if (one / _DATABASE).is_file()), None
    )
    if config is None and where is None:
        return None, "the bundle lies outside of its run's folder; --root DIR names that"
    if importlib.util.find_spec("tfx") is None:
        return None, "the extra `pipeline` isn't installed"
    words = ["--bundle", str(bundle.resolve())]
    words += ["--config", str(config)] if config else ["--root", str(where)]
    with stage_log(_MODULE) as log:
        found = run_stage(_MODULE, words, stage_environment("jax"), log)["found"]
    return (found, None) if found else (None, f"{config or where} knows no such bundle")


def _lines(told: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    known = told["lineage"] or {}
    yield "bundle", f"{told['bundle']}, digest {_short(told['digest'])}"
    yield "name", str(told["name"])
    yield from _data(known.get("data"))
    yield "code", _short(told["code"])
    yield from _commits(known.get("source"))
    yield "versions", ", ".join(f"{n} {v}" for n, v in (told["versions"] or {}).items())
    for name, print_ in (known.get("vocabulary") or {}).items():
        yield "vocabulary", f"{name}: {count((told['counts'] or {}).get(name))}, {_short(print_)}"
    if not known:
        yield "lineage", "the manifest is of an earlier version and tells no more"
    if known:
        yield "model", _short(known.get("model"))
        yield "warm start", _base(known.get("base"))
    if known.get("evaluation"):
        yield "evaluation", str(known["evaluation"].get("sentence"))
    yield from _known_steps(told)


def _commits(source: Mapping[str, Any] | None) -> Iterable[tuple[str, str]]:
    training, export = (version_text((source or {}).get(n)) for n in ("training", "export"))
    yield "commit", training if training == export else f"training: {training}"
    if training != export:
        yield "", f"export: {export}"


def _data(data: Mapping[str, Any] | None) -> Iterable[tuple[str, str]]:
    for what, one in (data or {}).items():
        files, counts = one.get("files") or [], one.get("counts") or {}
        more = f" and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
        rows = f"{count(counts.get('read'))} rows, {count(counts.get('rejected'))} rejected"
        names = ", ".join(files[-_SHOWN_FILES:])
        yield "data", f"{what}: {names}{more}; {rows}; digest {_short(one.get('digest'))}"
        if counts.get("split", "time") != "time":
            yield "", f"split: {counts['split']}"
        elif counts.get("cut") is not None:
            yield "", f"split at {moment(counts['cut'])}"
        if one.get("spans"):
            yield "spans", _spans(one["spans"])


def _spans(spans: list[dict[str, Any]]) -> str:
    read = [one["name"] for one in spans if one.get("state") in ("read", "reused")]
    ends = f"{read[0]} … {read[-1]}" if read else "none"
    others = [f"{one['name']} {one['state']}" for one in spans if one["name"] not in read]
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


def _known_steps(told: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if told["metadata"] is None:
        yield "steps", f"not known: {told['no_metadata']}"
        return
    for one in told["metadata"]["steps"]:
        gone = [Path(o["path"]).parent.name for o in one["outputs"] if not o["is_there"]]
        missing = f"; {', '.join(gone)}: {_GONE}" if gone else ""
        digest = f"; files {_short(one['files_digest'])}" if one["files_digest"] else ""
        yield one["step"], f"run {one['run']}; code {_short(one['code'])}{digest}{missing}"
    for place, one in enumerate(told["metadata"]["models"]):
        what = "its model" if not place else "started from"
        there = "" if one["is_there"] else f" ({_GONE})"
        yield "models", f"{what}: {one['path']}{there}, of run {one['run']}"


def _short(digest: Any) -> str:
    return str(digest)[:16] if digest else "–"
