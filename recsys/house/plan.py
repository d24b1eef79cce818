"""The plan of a cleaning: what goes and what stays, each with its size and the reason."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from recsys.held_folder import link_on_the_way
from recsys.house.known import Artifact, Known
from recsys.house.needed import ALWAYS, REPORT

Kind = Literal[
    "artifact", "checkpoints", "tensorboard", "record", "log", "version", "segments", "rest", "link"
]


EXAMPLES = "Examples"
"""Kind of artifact that segments are linked into."""


@dataclasses.dataclass(frozen=True)
class Thing:
    """One thing on the disk.

    Attributes:
        kind: What it is.
        path: Where it lies.
        why: Why it goes, or stays; a phrase.
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
    """What a cleaning does.

    Attributes:
        goes: What is removed.
        stays: What isn't.
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


def sized(things: Iterable[Thing]) -> list[Thing]:
    """Returns the things with what their removal frees, the largest first."""
    found = [dataclasses.replace(thing, size=own_size(thing.path)) for thing in things]
    return sorted(found, key=lambda thing: (-thing.size, str(thing.path)))


def tree_size(path: Path) -> int:
    """Returns what a file, or all files below a folder, take [bytes]; links are not followed."""
    return sum(found.st_size for found, _ in _inodes(path))


def own_size(path: Path) -> int:
    """Returns the same without files that have a name elsewhere too: they would stay."""
    return sum(found.st_size for found, n_names in _inodes(path) if n_names >= found.st_nlink)


def _inodes(path: Path) -> list[tuple[os.stat_result, int]]:
    """Returns each file once, with how many names it has there."""
    names: Counter[tuple[int, int]] = Counter()
    found: dict[tuple[int, int], os.stat_result] = {}
    for file in _files(path):
        try:
            one = os.lstat(file)
        except OSError:
            continue
        key = (one.st_dev, one.st_ino)
        names[key] += 1
        found[key] = one
    return [(one, names[key]) for key, one in found.items()]


def _files(path: Path) -> Iterator[str]:
    if not path.is_dir() or path.is_symlink():
        yield str(path)
        return
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)


def plan_artifacts(
    known: Known, reasons: Mapping[int, str], folder: Path, *, reports_stay: Collection[int]
) -> tuple[list[Thing], list[Thing]]:
    """Returns the artifacts that go and those that stay.

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
    for one in sorted(known.artifacts.values(), key=lambda artifact: artifact.id):
        if not one.path.is_dir():
            continue
        why_not = _why_not(one, reasons, folder, reports_stay)
        thing = Thing("artifact", one.path, why_not or _why(one), artifact=one.id, name=one.kind)
        (stays if why_not else goes).append(thing)
    shared = _sharing(goes, stays)
    stays += [dataclasses.replace(one, why="what stays shares its folder") for one in shared]
    return [thing for thing in goes if thing not in shared], stays


def _why_not(
    one: Artifact, reasons: Mapping[int, str], folder: Path, reports_stay: Collection[int]
) -> str:
    """Returns why an artifact stays; empty for one that goes."""
    link = link_on_the_way(folder.parent, one.path)
    if link is not None:
        return f"{link.name!r} is a link, and what it leads to is left alone"
    if not is_below(one.path, folder):
        return "it lies outside of this root"
    if one.state == "deleted":
        return ""
    if one.state == "other":
        return "its step has not ended well"
    if one.kind == REPORT and one.id in reports_stay:
        return "its run's record stays"
    if one.kind == REPORT or (one.kind not in ALWAYS and one.id not in reasons):
        return ""
    return reasons.get(one.id, "it is of a kind that always stays")


def _why(one: Artifact) -> str:
    if one.state == "deleted":
        return "it was marked as removed, and its removal was cut short"
    return "no run that stays made it or took it, and nothing else needs it"


def is_below(path: Path, folder: Path) -> bool:
    """Returns whether a path lies below a folder, wherever links may lead."""
    real, above = path.resolve(), folder.resolve()
    return above in real.parents


def _sharing(goes: Iterable[Thing], stays: Iterable[Thing]) -> set[Thing]:
    """Returns those of `goes` that lie above, below or at something that stays."""
    kept = {thing.path for thing in stays}
    above = {folder for path in kept for folder in path.parents}
    return {
        thing
        for thing in goes
        if thing.path in kept
        or thing.path in above
        or any(folder in kept for folder in thing.path.parents)
    }
