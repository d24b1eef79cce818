"""How much a step will write, reckoned from the sizes of what it reads.

Each formula counts what the step puts there, generously, and is taken times `SAFETY`;
docs/runs.md lists them. They were tried on small data alone. They err on the side of too
much: a step that is refused costs a look at the disk, one that fails for want of space
costs the night. Of a window of spans, what is kept of earlier nights costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.runs.cleaning_plan import tree_size

SAFETY = 1.25
_MB = 10**6
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4", ".snappy")
_SMALL = 32 * _MB
_FLOAT = 4
_SLOTS = 2
_SLOTS_OF_MODEL = "training_state"


@dataclasses.dataclass(frozen=True)
class Reads:
    """What a step reads.

    Attributes:
        folders: Folders of its input artifacts by key.
        files: Raw files and their sizes [bytes], of a step that reads such.
        config: Its part of the config; empty where it has none.
    """

    folders: Mapping[str, Sequence[Path]] = dataclasses.field(default_factory=dict)
    files: Sequence[tuple[str, int]] = ()
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def size(self, *keys: str) -> int:
        """Returns what the inputs take, of these keys or of all [bytes]."""
        chosen = keys or tuple(self.folders)
        return sum(tree_size(path) for key in chosen for path in self.folders.get(key, ()))


def bytes_of(step: str, reads: Reads) -> int:
    """Returns what a step writes at the most [bytes], temporary files included.

    Args:
        step: Its name; what follows a dot, as in `StatisticsGen.Items`, counts nothing.
        reads: What it reads.
    """
    formula = _FORMULAS.get(step.partition(".")[0])
    return _SMALL if formula is None else round(SAFETY * formula(reads)) + _SMALL


def _read_raw(reads: Reads) -> float:
    """Raw rows, shuffled and without duplicates, then events: four times the text, or 16."""
    return sum(size * (16 if _is_packed(path) else 4) for path, size in reads.files)


def _is_packed(path: str) -> bool:
    return path.lower().endswith((*_PACKED, ".parquet"))


def _vocabularies(reads: Reads) -> float:
    """Ids and counts: what the examples take at the most."""
    return reads.size("interactions", "items", "users", "previous")


def _transform(reads: Reads) -> float:
    """Token rows beside a graph: twice the examples."""
    return 2 * reads.size("examples")


def _encode(reads: Reads) -> float:
    """A store without compression: twice the interactions; and the rest."""
    return 2 * reads.size("interactions") + 3 * (reads.size() - reads.size("interactions"))


def _train(reads: Reads) -> float:
    """Checkpoints with slots, one more while it is written, and the model folder.

    That has the tables and their slots, the candidates' embeddings, and what it copies of
    the data.
    """
    model, train = (reads.config.get(name) or {} for name in ("model", "train"))
    checkpoints = int((train.get("checkpoint") or {}).get("keep", 2)) + 1
    rows = sum(_n_rows(path) for folder in reads.folders.get("data", ()) for path in _ids(folder))
    tables = rows * int(model.get("dim", 64)) * _FLOAT
    copied = reads.size("data")
    return tables * (1 + _SLOTS) * checkpoints + (3 + _SLOTS) * tables + copied


def _export(reads: Reads) -> float:
    """Variables, embeddings, an index: thrice the model without its slots; and histories."""
    slots = sum(tree_size(model / _SLOTS_OF_MODEL) for model in reads.folders.get("model", ()))
    return 3 * (reads.size("model") - slots) + reads.size("data")


def _push(reads: Reads) -> float:
    """A copy of the bundle."""
    return reads.size("bundle")


def _ids(data: Path) -> list[Path]:
    return sorted((data / "vocabulary").glob("*.parquet"))


def _n_rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return 0


_FORMULAS = {
    "InteractionGen": _read_raw,
    "ItemGen": _read_raw,
    "UserGen": _read_raw,
    "VocabularyGen": _vocabularies,
    "Transform": _transform,
    "InteractionEncoder": _encode,
    "Trainer": _train,
    "Exporter": _export,
    "Pusher": _push,
}
