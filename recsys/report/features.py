"""The features of items and users: how large their tables are, and how many have one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from recsys.formats import count, share
from recsys.report.artifacts import Artifacts, MissingError, read_json

_FOLDERS = {"items": "catalogue", "users": "user_features"}
_BLOCK_ROWS = 1 << 18


@dataclasses.dataclass(frozen=True)
class FeatureRow:
    """One feature.

    Attributes:
        side: `items` or `users`.
        name: Its name.
        tokens: Rows of its table, padding left out.
        known: Share of the side's rows that have a token.
        mean: Tokens of those that have any.
    """

    side: str
    name: str
    tokens: str
    known: str
    mean: str


def read_features(artifacts: Artifacts) -> list[FeatureRow]:
    """Returns the features of both sides; none where the config has none."""
    return [row for side in _FOLDERS for row in _of_side(artifacts.data, side)]


def _of_side(data: Path, side: str) -> Iterator[FeatureRow]:
    folder = data / _FOLDERS[side]
    if side == "users" and not folder.exists():
        return
    for feature in read_json(folder / "features.json", f"The list of the {side}' features")[
        "features"
    ]:
        name = feature["name"]
        try:
            bags = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise MissingError(f"The feature {name} can't be read: {error}.") from None
        n_known, n_tokens = _counts(bags[1:])
        yield FeatureRow(
            side=side,
            name=name,
            tokens=count(feature["rows"] - 1),
            known=share(n_known / max(1, len(bags) - 1)),
            mean=f"{n_tokens / max(1, n_known):.1f}",
        )


def _counts(bags: np.ndarray) -> tuple[int, int]:
    """Returns how many rows have a token, and how many tokens there are, block by block."""
    n_known = n_tokens = 0
    for start in range(0, len(bags), _BLOCK_ROWS):
        present = np.asarray(bags[start : start + _BLOCK_ROWS]) > 0
        n_known += int(present.any(axis=1).sum())
        n_tokens += int(present.sum())
    return n_known, n_tokens
