"""`python -m benchmarks.quality_case.shift`: is a split's held-out part drawn evenly by item?

Of each user some events were held out. Had they been drawn at random, each item would
have lost as many as its users' shares say, give or take; what it lost more or less is told
by how often it occurs.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np

from benchmarks.quality_case.data_sets import LOADERS, Csr

_BORDERS = (0, 15, 60, 200, 10**9)


def main() -> None:
    """Prints a line for each part of the split, and each range of popularity."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality_case.shift")
    parser.add_argument("--dataset", choices=sorted(LOADERS), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    options = parser.parse_args()
    for part in ("valid", "test"):
        split = LOADERS[options.dataset](options.data, part)
        for line in held_out_shares(split.train, split.relevant):
            print(json.dumps({"part": part, **line}))


def held_out_shares(train: Csr, held: Csr) -> list[dict[str, float]]:
    """Returns, for items that occur about as often, which share of their events is held out.

    Args:
        train: What one trains on.
        held: What was held out of the same users.

    Returns:
        For each range: `from` and `to`, events of an item; `items`; `held_out`, the share
        that is; `expected`, the share had each user's been drawn at random; and `z_variance`,
        the variance over the items of their distance from it in standard deviations, 1 for
        a random draw.
    """
    share = np.diff(held.offsets) / np.maximum(np.diff(held.offsets) + np.diff(train.offsets), 1)
    items = np.concatenate([train.items, held.items])
    p = np.concatenate([np.repeat(share, np.diff(one.offsets)) for one in (train, held)])
    n_train, n_held = (np.bincount(c.items, minlength=c.n_items) for c in (train, held))
    expected = np.bincount(items, p, train.n_items)
    variance = np.bincount(items, p * (1 - p), train.n_items)
    n = n_train + n_held
    lines = []
    for low, high in itertools.pairwise(_BORDERS):
        which = (n > 0) & (n >= low) & (n < high)
        if not which.any():
            continue
        z = (n_held - expected)[which] / np.sqrt(np.maximum(variance[which], 1e-12))
        lines.append(
            {
                "from": low,
                "to": high,
                "items": int(which.sum()),
                "held_out": round(float(n_held[which].sum() / n[which].sum()), 4),
                "expected": round(float(expected[which].sum() / n[which].sum()), 4),
                "z_variance": round(float(z.var()), 2),
            }
        )
    return lines


if __name__ == "__main__":
    main()
