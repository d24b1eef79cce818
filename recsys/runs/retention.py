"""Retention: which files of earlier runs are removed, which stay, and the removal itself.

`pipelines.clean` plans artifacts, from ML Metadata. Everything is renamed into a hidden folder
before it is removed, so a kill leaves no partial folder; the next cleaning empties the hidden
folder.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recsys.bundles.publishing import all_folders
from recsys.config import KeepConfig
from recsys.data.ingest.cache import sweep
from recsys.data.ingest.segment_parts import segments_in_use
from recsys.errors import BusyError
from recsys.report.runs import RUNS
from recsys.system import files
from recsys.system.files import folders_in, last_change
from recsys.system.run_lock import run_lock

GONE = ".gone"
"""Folder under a root for files that are being removed."""
_TRAINING = re.compile("[0-9a-f]{16}")

Runs = Sequence[tuple[str, float]]
"""Id and start [seconds since 1970] of each run of a pipeline, the oldest first."""


@dataclasses.dataclass(frozen=True)
class Thing:
    """A file or folder to remove or to keep.

    Attributes:
        kind: Type of an artifact, or a name for other files.
        path: Its path.
        why: Why it is removed or kept, a phrase.
        goes: Whether it is removed.
        artifact: Its id in ML Metadata, if it is an artifact.
    """

    kind: str
    path: Path
    why: str
    goes: bool
    artifact: int | None = None


def plan_json(things: Iterable[Thing]) -> dict[str, Any]:
    """Returns `goes` and `stays`, the largest first, and the bytes `freed` and `kept`."""
    sides: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for thing in things:
        described = {"path": str(thing.path), "size": own_size(thing.path)}
        sides[thing.goes].append(dataclasses.asdict(thing) | described)
    for side in sides.values():
        side.sort(key=lambda thing: (-thing["size"], thing["path"]))
    freed, kept = (sum(thing["size"] for thing in side) for side in sides.values())
    return {"goes": sides[True], "stays": sides[False], "freed": freed, "kept": kept}


def own_size(path: Path) -> int:
    """Returns the bytes that a removal frees: none for a file with a hard link elsewhere."""
    walk = os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]
    statuses: dict[tuple[int, int], list[os.stat_result]] = {}
    for folder, _, names in walk:
        for name in names:
            with suppress(OSError):
                status = os.lstat(os.path.join(folder, name))
                statuses.setdefault((status.st_dev, status.st_ino), []).append(status)
    return sum(same[0].st_size for same in statuses.values() if len(same) >= same[0].st_nlink)


def plan_files(
    root: Path, name: str, runs: Runs, keep: KeepConfig, examples: Iterable[Path]
) -> Iterator[Thing]:
    """Yields the files and folders under a root that aren't artifacts.

    Args:
        root: Folder of everything that the runs write.
        name: Name of the pipeline.
        runs: Its runs.
        keep: The limits.
        examples: Folders of the examples that stay.
    """
    yield from _checkpoints(root, keep)
    yield from _records(root, runs, keep)
    yield from _segments(root, examples, keep)
    for path in sorted((root / GONE).glob("*")):
        yield Thing("rest", path, "a removal was cut short", goes=True)
    for number, path in all_folders(root / "serving" / name).items():
        yield Thing(f"version {number}", path, "push.keep decides on it", goes=False)


def oldest_record(runs: Runs, keep: KeepConfig) -> float:
    """Returns the start of the oldest run whose record is kept [seconds since 1970]."""
    n_kept = min(keep.records or len(runs), len(runs))
    return runs[-n_kept][1] if 0 < n_kept < len(runs) else 0.0


def _checkpoints(root: Path, keep: KeepConfig) -> Iterator[Thing]:
    trainings = _trainings(root / "checkpoints")
    for place, path in enumerate(sorted(trainings, key=last_change, reverse=True)):
        goes = keep.checkpoints is not None and place >= keep.checkpoints
        why = "newer trainings have theirs" if goes else "keep.checkpoints keeps it"
        yield Thing("checkpoints", path, why, goes)


def _records(root: Path, runs: Runs, keep: KeepConfig) -> Iterator[Thing]:
    """Yields the records of this pipeline's runs, and logs and TensorBoard events by age."""
    since = oldest_record(runs, keep)
    logs = sorted((root / "logs").glob("*.log"))
    boards = _trainings(root / "tensorboard")
    records = [(root / RUNS / run, started) for run, started in runs]
    dated = [
        *(("record", path, moment) for path, moment in records if path.is_dir()),
        *(("log", path, last_change(path)) for path in logs),
        *(("tensorboard", path, last_change(path)) for path in boards),
    ]
    for kind, path, moment in dated:
        goes = moment < since
        why = "it is older than every record that stays" if goes else "keep.records keeps it"
        yield Thing(kind, path, why, goes)


def _segments(root: Path, examples: Iterable[Path], keep: KeepConfig) -> Iterator[Thing]:
    """Yields the segments: events that runs share, linked into the examples."""
    folders = folders_in(root / "segments")
    unused: set[str] = set()
    if folders and (keep.runs is not None or keep.days is not None):
        in_use = segments_in_use([path for path in examples if path.is_dir()])
        unused = set(sweep(root / "segments", in_use, dry_run=True))
    for path in folders:
        goes = path.name in unused
        why = "no examples that stay use it, and no run has for a week" if goes else ""
        yield Thing("segment", path, why or "runs may use it", goes)


def _trainings(folder: Path) -> list[Path]:
    return [path for path in folders_in(folder) if _TRAINING.fullmatch(path.name)]


# --- removal


def remove(root: Path, things: Iterable[Thing], report: Callable[[Thing], None]) -> list[list[str]]:
    """Removes things; of a link only the link itself.

    Args:
        root: Folder of everything that the runs write.
        things: The things to remove.
        report: Called with each removed thing.

    Returns:
        Path and reason of everything that could not be removed.
    """
    failed = []
    for thing in things:
        try:
            _remove(root / GONE, thing)
        except OSError as error:
            failed.append([str(thing.path), error.strerror or str(error)])
        except BusyError:
            failed.append([str(thing.path), "a training is writing it"])
        else:
            report(thing)
    return failed


def _remove(gone: Path, thing: Thing) -> None:
    if thing.kind == "rest":
        files.remove(thing.path)
        return
    if thing.kind == "checkpoints":
        with run_lock(thing.path):
            pass  # No process writes it.
    gone.mkdir(exist_ok=True)
    hidden = gone / "--".join(thing.path.parts[-3:])
    files.remove(hidden)
    try:
        thing.path.rename(hidden)
    except OSError as error:
        if error.errno != errno.EXDEV:  # A folder of the root may be on another disk.
            raise
        hidden = thing.path
    files.remove(hidden)
