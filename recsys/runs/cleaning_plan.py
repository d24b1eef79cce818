"""The plan of a cleaning: what is removed and what is kept, with sizes and reasons."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from recsys.system.held_folder import link_on_the_way
from recsys.runs.retention_facts import Artifact, Known
from recsys.runs.retention import ALWAYS, REPORT
import re
from collections.abc import Iterable, Iterator, Sequence
from recsys.bundles.versions import versions, withdrawn_folders
from recsys.config.operation import KeepConfig
from recsys.runs.retention_facts import PastRun, Version
from collections.abc import Sequence
from recsys.data.ingest.cache import sweep
from recsys.data.ingest.segment_files import segments_in_use

Kind = Literal[
    "artifact", "checkpoints", "tensorboard", "record", "log", "version", "segments", "rest", "link"
]


EXAMPLES = "Examples"
"""Kind of artifact that segments are linked into."""


@dataclasses.dataclass(frozen=True)
class Thing:
    """A file or a folder to remove or to keep.

    Attributes:
        kind: What it is.
        path: Where it lies.
        why: Why it is removed, or kept; a phrase.
        size: What its removal frees [bytes].
        artifact: Its id in ML Metadata; None where it has none there.
        name: Type of the artifact, or what people call the thing.
    """

    kind: Kind
    path: Path
    why: str
    size: int = 0
    artifact: int | None = None
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain JSON."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a cleaning removes and keeps.

    Attributes:
        goes: Removed things.
        stays: Kept things.
    """

    goes: list[Thing]
    stays: list[Thing]

    @property
    def freed(self) -> int:
        """What is freed [bytes]."""
        return sum(thing.size for thing in self.goes)

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain JSON."""
        sides = {"goes": self.goes, "stays": self.stays}
        listed = {name: [thing.to_json() for thing in side] for name, side in sides.items()}
        return {**listed, "freed": self.freed, "kept": sum(thing.size for thing in self.stays)}


def with_sizes(things: Iterable[Thing]) -> list[Thing]:
    """Returns the things with the bytes that their removal frees, the largest first."""
    measured = [dataclasses.replace(thing, size=own_size(thing.path)) for thing in things]
    return sorted(measured, key=lambda thing: (-thing.size, str(thing.path)))


def tree_size(path: Path) -> int:
    """Returns what a file, or all files below a folder, take [bytes]; links are not followed."""
    return sum(status.st_size for status, _ in _inodes(path))


def own_size(path: Path) -> int:
    """Returns `tree_size` without files that have a hard link elsewhere."""
    return sum(status.st_size for status, n_names in _inodes(path) if n_names >= status.st_nlink)


def _inodes(path: Path) -> list[tuple[os.stat_result, int]]:
    """Returns each file once, with how many names it has there."""
    names: Counter[tuple[int, int]] = Counter()
    statuses: dict[tuple[int, int], os.stat_result] = {}
    for file in _files(path):
        try:
            status = os.lstat(file)
        except OSError:
            continue
        key = (status.st_dev, status.st_ino)
        names[key] += 1
        statuses[key] = status
    return [(status, names[key]) for key, status in statuses.items()]


def _files(path: Path) -> Iterator[str]:
    if not path.is_dir() or path.is_symlink():
        yield str(path)
        return
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)


def plan_artifacts(
    known: Known, reasons: Mapping[int, str], folder: Path, *, reports_stay: Collection[int]
) -> tuple[list[Thing], list[Thing]]:
    """Returns the artifacts to remove and those to keep.

    Args:
        known: All that is known of the pipeline.
        reasons: Ids of those that are needed, with why.
        folder: Folder of all artifacts, right below the root; what lies outside is left
            alone, for a root that was copied still names the original, and so is what
            lies behind a link.
        reports_stay: Ids of the reports that stay: people read them, no step does.
    """
    goes: list[Thing] = []
    stays: list[Thing] = []
    for artifact in sorted(known.artifacts.values(), key=lambda artifact: artifact.id):
        if not artifact.path.is_dir():
            continue
        why_not = _why_not(artifact, reasons, folder, reports_stay)
        why = why_not or _why(artifact)
        thing = Thing("artifact", artifact.path, why, artifact=artifact.id, name=artifact.kind)
        (stays if why_not else goes).append(thing)
    shared = _sharing(goes, stays)
    stays += [dataclasses.replace(thing, why="what stays shares its folder") for thing in shared]
    return [thing for thing in goes if thing not in shared], stays


def _why_not(
    artifact: Artifact, reasons: Mapping[int, str], folder: Path, reports_stay: Collection[int]
) -> str:
    """Returns why an artifact stays; empty for one that goes."""
    link = link_on_the_way(folder.parent, artifact.path)
    if link is not None:
        return f"{link.name!r} is a link, and what it leads to is left alone"
    if not is_below(artifact.path, folder):
        return "it lies outside of this root"
    if artifact.state == "deleted":
        return ""
    if artifact.state == "other":
        return "its step has not ended well"
    if artifact.kind == REPORT and artifact.id in reports_stay:
        return "its run's record stays"
    if artifact.kind == REPORT or (artifact.kind not in ALWAYS and artifact.id not in reasons):
        return ""
    return reasons.get(artifact.id, "it is of a kind that always stays")


def _why(artifact: Artifact) -> str:
    if artifact.state == "deleted":
        return "it was marked as removed, and its removal was cut short"
    return "no run that stays made it or took it, and nothing else needs it"


def is_below(path: Path, folder: Path) -> bool:
    """Returns whether a path lies below a folder, wherever links may lead."""
    real, above = path.resolve(), folder.resolve()
    return above in real.parents


def _sharing(goes: Iterable[Thing], stays: Iterable[Thing]) -> set[Thing]:
    """Returns those of `goes` whose path contains, or is in, a path that is kept."""
    kept = {thing.path for thing in stays}
    above = {folder for path in kept for folder in path.parents}
    return {
        thing
        for thing in goes
        if thing.path in kept
        or thing.path in above
        or any(folder in kept for folder in thing.path.parents)
    }



# --- files that ML Metadata doesn't know: checkpoints, records, logs, versions

GONE = ".gone"
"""Folder under a root for what is being removed; whatever is in it is debris."""
_FOLDERS = (GONE, "artifacts", "checkpoints", "logs", "runs", "segments", "serving", "tensorboard")
_TRAINING = re.compile("[0-9a-f]{16}")


def plan_files(
    root: Path, name: str, runs: Sequence[PastRun], keep: KeepConfig, since: float | None
) -> tuple[list[Thing], list[Thing]]:
    """Returns what goes and what stays of the files that ML Metadata doesn't know.

    Args:
        root: Folder of everything that the runs write.
        name: Name of the pipeline.
        runs: Its runs, the oldest first.
        keep: The limits.
        since: When the oldest run started whose record stays [seconds since 1970]; None
            where all of them stay.
    """
    goes: list[Thing] = []
    stays: list[Thing] = []
    for goes_too, thing in [
        *_checkpoints(root, keep),
        *_dated(root, since),
        *_records(root, runs, keep),
    ]:
        (goes if goes_too else stays).append(thing)
    why = "a removal was cut short"
    goes += [Thing("rest", path, why, name="rest") for path in _children(root / GONE)]
    stays += [_version_thing(root, version) for version in served_versions(root / "serving" / name)]
    stays += _links(root, name)
    return goes, stays


def served_versions(serving: Path) -> list[Version]:
    """Returns the versions in service, and those that were rolled back and are still there."""
    if not serving.is_dir():
        return []
    published = [Version(int(path.name), path, is_served=True) for path in versions(serving)]
    hidden = [
        Version(number, serving / str(number), is_served=False)
        for number in withdrawn_folders(serving)
    ]
    return [*published, *hidden]


def _links(root: Path, name: str) -> list[Thing]:
    """Returns what is a link where the runs have a folder: nothing behind it is removed."""
    records = _children(root / "runs")
    trainings = _children(root / "checkpoints")
    fixed = [*(root / folder for folder in _FOLDERS), root / "serving" / name]
    places = [*fixed, *records, *trainings]
    why = "it is a link, and what it leads to is left alone"
    return [Thing("link", path, why, name="link") for path in places if path.is_symlink()]


def _version_thing(root: Path, version: Version) -> Thing:
    path, why = version.path, "push.keep decides on it"
    if not version.is_served:
        path = withdrawn_folders(version.path.parent).get(version.number, path)
        why = "it was rolled back, and can be brought back; push.keep decides on it"
    return Thing("version", path, why, name=f"version {version.number}")


def _checkpoints(root: Path, keep: KeepConfig) -> Iterator[tuple[bool, Thing]]:
    folders = [path for path in _children(root / "checkpoints") if _is_training(path)]
    newest_first = sorted(folders, key=_written, reverse=True)
    for place, path in enumerate(newest_first):
        goes = keep.checkpoints is not None and place >= keep.checkpoints
        why = "the training that was written last may go on from it"
        if place:
            why = "newer trainings have theirs" if goes else "keep.checkpoints keeps it"
        yield goes, Thing("checkpoints", path, why, name="checkpoints")


def _dated(root: Path, since: float | None) -> Iterator[tuple[bool, Thing]]:
    """Yields logs and what TensorBoard shows, by when they were written last."""
    logs = [path for path in _children(root / "logs") if path.suffix == ".log"]
    boards = [path for path in _children(root / "tensorboard") if _is_training(path)]
    kinds: tuple[tuple[Kind, Iterable[Path]], ...] = (("log", logs), ("tensorboard", boards))
    for kind, paths in kinds:
        for path in paths:
            goes = since is not None and _written(path) < since
            why = (
                "it is older than every run whose record stays" if goes else "keep.records keeps it"
            )
            yield goes, Thing(kind, path, why, name=kind)


def _records(root: Path, runs: Sequence[PastRun], keep: KeepConfig) -> Iterator[tuple[bool, Thing]]:
    """Yields the records of this pipeline's runs; those of others under the root are theirs."""
    kept = len(runs) if keep.records is None else keep.records
    for place, run in enumerate(reversed(runs)):
        path = root / "runs" / run.id
        is_ours = path.parent == root / "runs" and link_on_the_way(root, path) is None
        if not is_ours or not path.is_dir():
            continue
        goes = place >= kept
        why = f"{kept} newer runs have theirs" if goes else "keep.records keeps it"
        yield goes, Thing("record", path, why, name="record")


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []


def _is_training(path: Path) -> bool:
    return bool(_TRAINING.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def _written(path: Path) -> float:
    """Returns when a file, or the newest thing at the top of a folder, changed last."""
    inside = [*path.glob("*"), *path.glob("*/*")] if path.is_dir() else []
    moments = []
    for entry in [path, *inside]:
        try:
            moments.append(entry.lstat().st_mtime)
        except OSError:
            continue
    return max(moments, default=0.0)



# --- segments: events that runs share, linked into the examples that stay

SEGMENTS = "segments"


def plan_segments(
    root: Path, examples: Sequence[Path], keep: KeepConfig
) -> tuple[list[Thing], list[Thing]]:
    """Returns the segments that go and those that stay.

    Args:
        root: Folder of everything that the runs write.
        examples: Folders of the examples that stay.
        keep: The limits; without one of artifacts all segments stay.
    """
    folder = root / SEGMENTS
    if not folder.is_dir() or folder.is_symlink():
        return [], []
    gone: set[str] = set()
    if keep.runs is not None or keep.days is not None:
        in_use = segments_in_use([path for path in examples if path.is_dir()])
        gone = set(sweep(folder, in_use, dry_run=True))
    goes, stays = [], []
    for path in sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()):
        if path.name in gone:
            why = "no examples that stay use it, and no run has for a week"
            goes.append(Thing("segments", path, why, name="segment"))
        else:
            stays.append(Thing("segments", path, "runs may use it", name="segment"))
    return goes, stays


