"""What lies under a root beside artifacts: checkpoints, records, logs, versions, and its plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from recsys.bundles.versions import versions, withdrawn_folders
from recsys.config.keep import KeepConfig
from recsys.held_folder import link_on_the_way
from recsys.house.known import PastRun, Version
from recsys.house.plan import Kind, Thing

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
    stays += [_version_thing(root, one) for one in served_versions(root / "serving" / name)]
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
    for one in [path, *inside]:
        try:
            moments.append(one.lstat().st_mtime)
        except OSError:
            continue
    return max(moments, default=0.0)
