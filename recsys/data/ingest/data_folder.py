"""Catalogue and users' features: titles and token rows in the order of the vocabularies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from recsys.config import ItemsConfig, UsersConfig
from recsys.data.catalogue import write_features, write_titles
from recsys.data.examples import read_split
from recsys.data.features import Feature
from recsys.data.ingest.entity_rows import SPLIT
from recsys.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Transformed:
    """The output of Transform for one side.

    Attributes:
        examples: Folder of its examples.
        graph: Folder of its graph.
    """

    examples: Path
    graph: Path


def write_catalogue(
    folder: Path, source: ItemsConfig | None, items: Path | None, tokens: Transformed | None
) -> None:
    """Writes `catalogue/` of a data folder that has its `vocabulary/`.

    Args:
        folder: The data folder.
        source: The catalogue's config; None where the items are those of the interactions.
        items: Examples of the catalogue.
        tokens: Their tokens; None where they have no features.
    """
    vocabulary = Vocabulary.load(folder / "vocabulary" / "items.parquet")
    titles: Iterable[pa.Table] = ()
    if items is not None and source is not None and source.columns.title is not None:
        titles = read_split(items / f"Split-{SPLIT}", ["item_id", "title"])
    write_titles(folder / "catalogue", vocabulary, titles)
    features = () if source is None or tokens is None else source.features
    _write(folder / "catalogue", vocabulary, "item_id", features, tokens)


def write_user_features(folder: Path, source: UsersConfig, tokens: Transformed) -> None:
    """Writes `user_features/` of a data folder that has its `vocabulary/`."""
    vocabulary = Vocabulary.load(folder / "vocabulary" / "users.parquet")
    _write(folder / "user_features", vocabulary, "user_id", source.features, tokens)


def _write(
    folder: Path,
    vocabulary: Vocabulary,
    id_column: str,
    features: Sequence[Feature],
    tokens: Transformed | None,
) -> None:
    if tokens is None:
        write_features(folder, vocabulary, {}, ())
        return
    # TensorFlow, which takes seconds to start and may be missing where there are no features.
    from recsys.data.ingest.feature_transform import (
        names_of_tables,
        read_token_rows,
        rows_of_tables,
    )

    rows = rows_of_tables(tokens.graph, features)
    tables = {feature.name: (rows[feature.name], feature.width) for feature in features}
    batches = read_token_rows(tokens.examples / f"Split-{SPLIT}", id_column, features)
    names = names_of_tables(tokens.graph, features)
    write_features(folder, vocabulary, tables, batches, names)
