"""Labels of training rows that were not known at the cut, in a folder beside the store's shards.

The store holds them as unknown. Statistics of held-out rows, which are newer, may see them. The
folder is removed when the statistics are computed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from recsys.data.store import map_array

_FOLDER = ".late_labels"


def save_late_labels(store: Path, shard: int, labels: Mapping[str, np.ndarray]) -> None:
    """Writes the labels `[rows]` by name of a training shard, all of them known."""
    (store / _FOLDER).mkdir(parents=True, exist_ok=True)
    for name, values in labels.items():
        np.save(store / _FOLDER / f"{shard:05d}.{name}.npy", values)


def read_late_labels(store: Path, name: str) -> list[np.ndarray]:
    """Returns a label of each training shard `[rows]`; none if all were known at the cut."""
    return [map_array(path) for path in sorted((store / _FOLDER).glob(f"*.{name}.npy"))]


def remove_late_labels(store: Path) -> None:
    """Removes the folder, if there is one."""
    shutil.rmtree(store / _FOLDER, ignore_errors=True)
