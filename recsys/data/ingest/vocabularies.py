"""Ids of the training positives and of the catalogue → vocabularies, whose rows stay."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from recsys.config import VocabulariesConfig
from recsys.data.examples import read_split
from recsys.data.ingest.segment_files import counts_of
from recsys.data.split_rule import BY_TIME, SplitRule
from recsys.data.vocabulary import Vocabulary
from recsys.data.vocabulary_growth import grow
from recsys.errors import RecsysError

_ID_COLUMNS = {"users": "user_id", "items": "item_id"}


def make_vocabularies(
    interactions: Path,
    cut: int,
    entities: dict[str, Path],
    previous: Path | None,
    out: Path,
    config: VocabulariesConfig,
    split: SplitRule = BY_TIME,
) -> None:
    """Grows both vocabularies by the ids counted in the segments.

    Args:
        interactions: What InteractionGen or `ingest` made of the interactions.
        cut: The moment that the training data end [seconds since 1970, UTC].
        entities: Folder of the examples of `users` or `items`, who all get a row.
        previous: Folder of the vocabularies to go on from.
        out: Folder to write.
        config: Which ids get a row.
        split: How the examples were split.

    Raises:
        RecsysError: No item gets a row, or the previous rows would move.
    """
    diffs = {}
    for name, column in _ID_COLUMNS.items():
        before = None if previous is None else Vocabulary.load(previous / f"{name}.parquet")
        rules = getattr(config, name)
        vocabulary, diff = grow(
            before,
            counts_of(interactions, "train", f"{name}.parquet"),
            rules,
            cut,
            keep=_entity_ids(entities.get(name), column),
            held_out=counts_of(interactions, "eval", f"{name}.parquet"),
        )
        if name == "items" and not vocabulary.has_id().any():
            raise _nothing_to_recommend(rules.min_count)
        vocabulary.split = split
        vocabulary.save(out / f"{name}.parquet")
        diffs[name] = diff.to_json()
    (out / "diff.json").write_text(json.dumps(diffs, indent=1) + "\n")


def _nothing_to_recommend(min_count: int) -> RecsysError:
    return RecsysError(
        "R215",
        "At least one item must have a row.",
        "Lower data.vocabulary.items.min_count, or name a catalogue in data.items.",
        {"data.vocabulary.items.min_count": min_count},
    )


def _entity_ids(split: Path | None, column: str) -> pa.Array | None:
    if split is None:
        return None
    ids = [table[column] for table in read_split(split, [column])]
    return pa.chunked_array([chunk for some in ids for chunk in some.chunks], pa.string()).unique()
