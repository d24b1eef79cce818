"""`segments.json` of examples: which segments they are made of, and where these lie in them.

Split-train/data-00007-00000.parquet   rows of a bucket of a segment
segments/00007-00000/ …                its positives (`events.py`)
segments.json
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.id_counts import SCHEMA, merge_counts

FILE = "segments.json"
FOLDER = "segments"


@dataclasses.dataclass(frozen=True)
class LinkedShard:
    """The positives of a bucket of a segment, as they lie in the examples.

    Attributes:
        name: Name of their folder; older segments come first.
        split: The split that they are in.
        folder: Their folder.
        events: How many they are.
        files: `bytes` and `sha256` of each of their files.
    """

    name: str
    split: str
    folder: Path
    events: int
    files: dict[str, dict[str, Any]]


def has_segments(examples: Path) -> bool:
    """Returns whether examples are made of segments."""
    return (examples / FILE).is_file()


def read_linked(examples: Path) -> list[LinkedShard]:
    """Returns the positives of all segments of examples, the oldest first."""
    told = json.loads((examples / FILE).read_text(encoding="utf-8"))
    return [
        LinkedShard(
            one["name"], one["split"], examples / FOLDER / one["name"], one["events"], one["files"]
        )
        for one in told["shards"]
    ]


def write_linked(examples: Path, shards: Sequence[LinkedShard], kept: Sequence[str]) -> None:
    """Writes `segments.json`.

    Args:
        examples: Folder of the examples.
        shards: The positives that were linked into it, the oldest first.
        kept: Names of the kept folders that the examples were made of.
    """
    told = {
        "format": 1,
        "kept": sorted(kept),
        "shards": [
            {"name": one.name, "split": one.split, "events": one.events, "files": one.files}
            for one in shards
        ],
    }
    (examples / FILE).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def segments_in_use(examples: Sequence[Path]) -> set[str]:
    """Returns the names of the kept folders that examples were made of, for `sweep`.

    Args:
        examples: Folders of artifacts of examples; those without segments say nothing.
    """
    names: set[str] = set()
    for folder in examples:
        if has_segments(folder):
            told = json.loads((folder / FILE).read_text(encoding="utf-8"))
            names.update(told["kept"])
    return names


def counts_of(examples: Path, split: str, file: str) -> pa.Table:
    """Returns the counted ids of a split: what its segments counted, added up.

    Args:
        examples: Folder of the examples.
        split: The split.
        file: `users.parquet` or `items.parquet`.
    """
    shards = [shard for shard in read_linked(examples) if shard.split == split]
    return merge_counts([pq.read_table(one.folder / file, schema=SCHEMA) for one in shards])
