"""Segments: what nights share of the events, linked into the examples that stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recsys.config.keep import KeepConfig
from recsys.data.ingest.cache import sweep
from recsys.data.ingest.segment_files import segments_in_use
from recsys.runs.cleaning_plan import Thing

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
    for path in sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink()):
        if path.name in gone:
            why = "no examples that stay use it, and no run has for a week"
            goes.append(Thing("segments", path, why, name="segment"))
        else:
            stays.append(Thing("segments", path, "runs may use it", name="segment"))
    return goes, stays
