"""The steps of the run, and the provenance of the model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from recsys.data.vocabulary import Vocabulary
from recsys.formats import count, counted, duration, is_number, size
from recsys.report.artifacts import Artifacts, MissingError, read_json
from recsys.report.evaluated import system_name
from recsys.report.runs import RecordedSteps, Step, read_steps
from recsys.system.source_version import version_text


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The serving bundle in figures.

    Attributes:
        facts: Name and figure.
        largest: Name and size of the largest files.
        folder: Where it was exported to.
        served: Where it is served from; empty where it was not pushed.
    """

    facts: list[tuple[str, str]]
    largest: list[tuple[str, str]]
    folder: str
    served: str


def read_bundle(artifacts: Artifacts) -> Bundle:
    """Returns the bundle in figures."""
    if artifacts.bundle is None:
        raise MissingError("The run exported no bundle.")
    manifest = read_json(artifacts.bundle / "manifest.json", "The bundle's manifest")
    files = manifest.get("files")
    files = files if isinstance(files, dict) else {}
    sizes = {str(name): _size_of(entry) for name, entry in files.items()}
    facts = [
        ("files", count(len(files))),
        ("size", size(sum(sizes.values()))),
    ]
    difference = manifest.get("max_difference")
    if is_number(difference):
        facts.append(("largest difference from the trainer", f"{difference:.1e}"))
    largest = sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))[:4]
    named = [(name, size(n_bytes)) for name, n_bytes in largest]
    return Bundle(facts, named, str(artifacts.bundle), artifacts.pushed or "")


def read_versions(artifacts: Artifacts) -> list[tuple[str, str]]:
    """Returns what the model was trained and exported with."""
    versions: dict[str, str] = {}
    for path, what in _sources(artifacts):
        try:
            recorded = read_json(path, what).get("versions")
        except MissingError:
            continue
        for name, version in (recorded if isinstance(recorded, dict) else {}).items():
            versions.setdefault(str(name), str(version))
            if str(version) not in versions[str(name)].split(", "):
                versions[str(name)] += f", {version}"
    if not versions:
        raise MissingError("Neither the model nor the bundle names its versions.")
    return sorted(versions.items())


def read_fingerprints(artifacts: Artifacts) -> list[tuple[str, str]]:
    """Returns the commit, and sha256 of config, vocabularies, evaluation and bundle."""
    canonical = json.dumps(artifacts.config, sort_keys=True, default=str)
    prints = [("commit of the training", _commit(artifacts.model / "training.json"))]
    prints += [("config", hashlib.sha256(canonical.encode()).hexdigest())]
    for name in ("users", "items"):
        path = artifacts.model / "vocabulary" / f"{name}.parquet"
        prints.append((f"vocabulary of {name}", _vocabulary_print(path)))
    prints.append(("evaluation", _file_print(artifacts.evaluation / "evaluation.json")))
    if artifacts.bundle is None:
        prints.append(("bundle", "none was exported"))
    else:
        prints.append(("bundle", _file_print(artifacts.bundle / "manifest.json")))
        prints.extend(_named_in_manifest(artifacts.bundle))
    return prints


def _commit(path: Path) -> str:
    try:
        source = read_json(path, "The record of the training").get("source")
    except MissingError:
        return version_text(None)
    return version_text(source if isinstance(source, dict) else None)


def config_text(artifacts: Artifacts) -> str:
    """Returns the config as YAML."""
    # Through JSON, so that tuples and paths become what YAML has.
    plain = json.loads(json.dumps(artifacts.config, default=str))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=88)


def _named_in_manifest(bundle: Path) -> list[tuple[str, str]]:
    try:
        manifest = read_json(bundle / "manifest.json", "The bundle's manifest")
    except MissingError:
        return []
    return [
        (name, value)
        for name, value in sorted(manifest.items())
        if isinstance(value, str)
        and any(word in name for word in ("code", "print", "sha", "digest"))
    ]


def _sources(artifacts: Artifacts) -> list[tuple[Path, str]]:
    sources = [(artifacts.model / "model.json", "The model")]
    if artifacts.bundle is not None:
        sources.append((artifacts.bundle / "manifest.json", "The bundle's manifest"))
    return sources


def _size_of(entry: Any) -> int:
    n_bytes = entry.get("size") if isinstance(entry, dict) else None
    return int(n_bytes) if is_number(n_bytes) else 0


def _vocabulary_print(path: Path) -> str:
    try:
        return Vocabulary.load(path).fingerprint()
    except (OSError, ValueError, KeyError):
        return "not there"


def _file_print(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "not there"


_MARKS = {"ran": "✓", "cached": "↺", "failed": "✗"}


@dataclasses.dataclass(frozen=True)
class ShownStep:
    """One step.

    Attributes:
        name: Its name.
        mark: What became of it, as a sign.
        state: The same as a word.
        reason: Why.
        seconds: How long it took.
        bar: The same beside the longest step, for a bar [%].
    """

    name: str
    mark: str
    state: str
    reason: str
    seconds: str
    bar: float


@dataclasses.dataclass(frozen=True)
class Steps:
    """All steps before the report.

    Attributes:
        summary: How many ran and how many were cached, and how long that took.
        rows: The steps, in order.
        evaluation: What the evaluation spent on each system.
        damaged: That lines of the record are damaged; empty where none is.
    """

    summary: str
    rows: list[ShownStep]
    evaluation: list[tuple[str, str]]
    damaged: str


def read_run_steps(artifacts: Artifacts) -> Steps:
    """Returns the steps of the run that the report is of."""
    if artifacts.record is None:
        raise MissingError("The run named no record of its steps.")
    started = read_steps(artifacts.record)
    longest = max((step.seconds for step in started.steps), default=0.0)
    damaged = counted(started.n_damaged, "line", "lines") if started.n_damaged else ""
    return Steps(
        summary=_summary(started),
        rows=[_shown(step, longest) for step in started.steps],
        evaluation=_evaluation(artifacts),
        damaged=f"{damaged} of the record can't be read." if damaged else "",
    )


def _summary(started: RecordedSteps) -> str:
    n_cached = sum(step.state == "cached" for step in started.steps)
    n_ran = len(started.steps) - n_cached
    ran, cached = counted(n_ran, "step ran", "steps ran"), f"{n_cached} cached"
    return f"{ran}, {cached}, in {duration(started.seconds)}"


def _shown(step: Step, longest: float) -> ShownStep:
    return ShownStep(
        name=step.name,
        mark=_MARKS.get(step.state, "?"),
        state=step.state,
        reason=step.reason.removeprefix("cached: "),
        seconds=duration(step.seconds),
        bar=round(100 * step.seconds / longest, 1) if longest > 0 else 0.0,
    )


def _evaluation(artifacts: Artifacts) -> list[tuple[str, str]]:
    try:
        seconds = artifacts.evaluated().get("seconds")
    except MissingError:
        return []
    spent = seconds.items() if isinstance(seconds, dict) else ()
    return [(system_name(str(key)), duration(value)) for key, value in spent if is_number(value)]
