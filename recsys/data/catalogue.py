"""What is known of items and users, by row: titles, and features as padded bags.

Layout of a catalogue, and of the folder of the users' features, which has no titles:

    features.json       features: name, rows, width, in the order of the config
    titles.parquet      id and title of each item row from 1 on; no id, no item
    <feature>.npy       token rows `[rows, width]` int32, 0 is padding
    <feature>.tokens.parquet    what they stand for, see `recsys.data.token_names`
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.system.files import DAMAGE, read_json
from recsys.data.token_names import open_token_names, write_token_names
from recsys.errors import RecsysError

SUMMARY, TITLES = "features.json", "titles.parquet"


@dataclasses.dataclass(frozen=True)
class FeatureBags:
    """One feature of every item, or of every user.

    Attributes:
        name: Name of the feature.
        rows: Rows of its table, row 0 (padding) included.
        bags: Token rows of each item row or user row `[rows, width]` int32.
        tokens: Name of each token row `[rows]`, empty for row 0; None where there are
            none, as where tokens are hashed. Those of a folder are read when one is
            asked for.
    """

    name: str
    rows: int
    bags: np.ndarray
    tokens: Sequence[str] | None = None


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """What is known of the items, by item row.

    Attributes:
        ids: Id of each item row `[item rows]`; empty for row 0, and for every other
            row that is no item of its own.
        titles: Title of each item row `[item rows]`; the id where there is none.
        features: The features, in the order of the config.
    """

    ids: list[str]
    titles: list[str]
    features: tuple[FeatureBags, ...]

    @property
    def n_rows(self) -> int:
        """Item rows, row 0 included."""
        return len(self.ids)

    @functools.cached_property
    def is_item(self) -> np.ndarray:
        """Which item rows are items `[item rows]` bool: those that can be recommended."""
        return np.fromiter((id_ != "" for id_ in self.ids), bool, len(self.ids))

    def save(self, folder: Path) -> None:
        """Writes the catalogue into `folder`; `features.json` comes last."""
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": self.ids[1:], "title": self.titles[1:]}), folder / TITLES)
        save_features(self.features, folder)

    @classmethod
    def open(cls, folder: Path) -> Catalogue:
        """Reads the catalogue in `folder`; the bags are memory-mapped.

        Raises:
            RecsysError: The folder holds no catalogue, or a damaged one.
        """
        try:
            names = pq.read_table(folder / TITLES)
            ids, titles = names["id"].to_pylist(), names["title"].to_pylist()
        except (OSError, ValueError, KeyError) as error:
            raise _damaged(folder, str(error)) from None
        features = _open_features(folder, n_rows=len(ids) + 1)
        return cls(ids=["", *ids], titles=["", *titles], features=features)


def save_features(features: Iterable[FeatureBags], folder: Path) -> None:
    """Writes features into `folder`; `features.json` comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = []
    for feature in features:
        np.save(folder / f"{feature.name}.npy", feature.bags.astype(np.int32, copy=False))
        if feature.tokens is not None:
            write_token_names(folder, feature.name, list(feature.tokens))
        width = int(feature.bags.shape[1])
        summary.append({"name": feature.name, "rows": feature.rows, "width": width})
    write_summary(folder, summary)


def write_summary(folder: Path, features: list[dict[str, Any]]) -> None:
    """Writes the `features.json` of a folder whose bags are there."""
    (folder / SUMMARY).write_text(json.dumps({"features": features}, indent=1) + "\n")


def open_user_features(folder: Path, n_rows: int) -> tuple[FeatureBags, ...]:
    """Reads the users' features in `folder`, memory-mapped; none where there is no folder.

    Args:
        folder: What `save_features` wrote.
        n_rows: User rows, row 0 included.

    Raises:
        RecsysError: The folder is damaged, or is of other users.
    """
    return _open_features(folder, n_rows) if folder.exists() else ()


def _open_features(folder: Path, n_rows: int) -> tuple[FeatureBags, ...]:
    try:
        described = read_json(folder / SUMMARY)["features"]
        features = tuple(
            FeatureBags(
                name=one["name"],
                rows=one["rows"],
                bags=np.load(folder / f"{one['name']}.npy", mmap_mode="r", allow_pickle=False),
                tokens=open_token_names(folder, one["name"], one["rows"]),
            )
            for one in described
        )
    except (*DAMAGE, EOFError) as error:
        raise _damaged(folder, str(error)) from None
    for feature, one in zip(features, described, strict=True):
        if feature.bags.shape != (n_rows, one["width"]):
            found = f"{feature.name}: shape {feature.bags.shape} for {n_rows} rows"
            raise _damaged(folder, f"{found} of {one['width']} tokens")
    return features


def _damaged(folder: Path, found: str) -> RecsysError:
    return RecsysError(
        "R230",
        f"{str(folder)!r} must hold a catalogue, or the features of the users.",
        "Name the folder that the InteractionEncoder wrote, or run again.",
        found,
    )
