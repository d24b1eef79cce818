"""The catalogue by row: each item's title and its features as padded bags.

Layout of a catalogue:

    catalogue.json      features: name, rows, width, in the order of the config
    titles.parquet      id and title of each item row from 1 on
    <feature>.npy       token rows `[item rows, width]` int32, 0 is padding
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.errors import RecsysError


@dataclasses.dataclass(frozen=True)
class FeatureBags:
    """One feature of every item.

    Attributes:
        name: Name of the feature.
        rows: Rows of its table, row 0 (padding) included.
        bags: Token rows of each item row `[item rows, width]` int32.
    """

    name: str
    rows: int
    bags: np.ndarray


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """What is known of the items, by item row.

    Attributes:
        ids: Id of each item row `[item rows]`; the one of row 0 is empty.
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

    def save(self, folder: Path) -> None:
        """Writes the catalogue into `folder`; `catalogue.json` comes last."""
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.table({"id": self.ids[1:], "title": self.titles[1:]}), folder / "titles.parquet"
        )
        for feature in self.features:
            np.save(folder / f"{feature.name}.npy", feature.bags.astype(np.int32, copy=False))
        summary = [
            {"name": f.name, "rows": f.rows, "width": int(f.bags.shape[1])} for f in self.features
        ]
        (folder / "catalogue.json").write_text(json.dumps({"features": summary}, indent=1) + "\n")

    @classmethod
    def open(cls, folder: Path) -> Catalogue:
        """Reads the catalogue in `folder`; the bags are memory-mapped.

        Raises:
            RecsysError: The folder holds no catalogue, or a damaged one.
        """
        try:
            summary = json.loads((folder / "catalogue.json").read_text())
            names = pq.read_table(folder / "titles.parquet")
            features = tuple(
                FeatureBags(
                    name=feature["name"],
                    rows=feature["rows"],
                    bags=np.load(folder / f"{feature['name']}.npy", mmap_mode="r"),
                )
                for feature in summary["features"]
            )
        except (OSError, ValueError, EOFError) as error:
            raise RecsysError(
                "R230",
                f"{str(folder)!r} must hold a catalogue.",
                "Name the folder that the InteractionEncoder wrote, or run again.",
                str(error),
            ) from None
        ids, titles = names["id"].to_pylist(), names["title"].to_pylist()
        return cls(ids=["", *ids], titles=["", *titles], features=features)
