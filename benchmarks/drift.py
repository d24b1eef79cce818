"""`python -m benchmarks.drift --data DIR --out FOLDER`: holds out events as a drift would.

A test part that holds each user's latest events asks for other items than a random draw of
the training part does, and where the data have no times nothing says for which. This makes a
part that is as unlike: each item has a level, smooth over what users take together, and each
user loses the events with the highest levels. FOLDER is a split as `benchmarks.quality` reads
it, whose parts `valid` and `test` are both the one that was held out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds
from typer import Option

from benchmarks.measure import run
from benchmarks.public_splits import Csr, read_split
from benchmarks.quality import held_out_shares

_RANK, _SEED = 128, 2
_SHARE = 0.2
"""Share of a user's events that are held out."""
_NOISE, _ITEM_NOISE, _POPULARITY = 1.5, 0.3, 0.05
"""Noise of an event and of an item, and weight of its popularity, in deviations of the levels."""


def main(
    data: Annotated[Path, Option(help="Folder with protocol.json, of the type fullrank.")],
    out: Annotated[Path, Option(help="Folder of the new split.")],
) -> None:
    """Writes the split, and prints what it held out, by items' popularity."""
    train = read_split(data, "test").train
    random = np.random.default_rng(_SEED)
    level = levels(train, random)
    key = level[train.items] + _NOISE * random.normal(size=len(train.items))
    held = highest(train, key, _SHARE)
    kept, lost = (
        Csr.of_pairs(train.users[which], train.items[which], len(train), train.n_items)
        for which in (~held, held)
    )
    out.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", kept), ("held_out", lost)):
        sparse.save_npz(out / f"{name}.npz", _matrix(part, np.ones(len(part.items))))
    files = {"train": "train.npz", "test": "held_out.npz"}
    protocol = {"name": out.name, "type": "fullrank", "k": [20], "test": files, "valid": files}
    (out / "protocol.json").write_text(json.dumps(protocol, indent=1) + "\n")
    for line in held_out_shares(kept, lost):
        print(json.dumps(line))


def levels(train: Csr, random: np.random.Generator) -> np.ndarray:
    """Returns the level of each item `[items]`, of deviation 1 before popularity and noise.

    It is the projection of the item's singular vector, of length 1, on a random direction;
    the matrix of events is normalised by the roots of its rows' and columns' sums.
    """
    counts = np.bincount(train.items, minlength=train.n_items).astype(np.float64)
    of_users = np.diff(train.offsets)
    weights = (of_users[train.users] * counts[train.items]) ** -0.5
    matrix = _matrix(train, weights)
    _, sizes, right = svds(matrix, min(_RANK, min(matrix.shape) - 1), rng=0)
    # Singular vectors have no sign of their own.
    right *= np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])[:, None]
    vectors = right.T * sizes
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-9
    level = _standard(vectors @ random.normal(size=vectors.shape[1]))
    own = _ITEM_NOISE * random.normal(size=len(level))
    return level + _POPULARITY * _standard(np.log(counts + 1)) + own


def highest(train: Csr, key: np.ndarray, share: float) -> np.ndarray:
    """Returns which events are the share of their user's with the highest keys `[events]`."""
    order = np.lexsort((-key, train.users))
    place = np.empty(len(key), np.int64)
    place[order] = np.arange(len(key)) - train.offsets[train.users]
    n = np.maximum(1, np.rint(share * np.diff(train.offsets) + 0.2))
    return place < n[train.users]


def _matrix(events: Csr, values: np.ndarray) -> sparse.csr_matrix:
    entries = (values.astype(np.float32), events.items, events.offsets)
    return sparse.csr_matrix(entries, (len(events), events.n_items))


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


if __name__ == "__main__":
    run(main)
