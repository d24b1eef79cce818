"""VocabularyGen: ids of the training positives and the catalogue → rows and counts."""

from pathlib import Path

import pyarrow.compute as pc
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples, String

from components.artifacts import Vocabularies
from components.item_gen import SPLIT
from recsys.data.encode import build_vocabulary, count_ids
from recsys.data.examples import read_split


@component
def VocabularyGen(
    interactions: InputArtifact[Examples],
    items: InputArtifact[Examples],
    verdict: InputArtifact[String],
    vocabularies: OutputArtifact[Vocabularies],
    code: Parameter[str],
) -> None:
    """Gives users and items their rows, the most frequent first.

    Args:
        interactions: Examples; the split `train` alone is read.
        items: Examples of the catalogue, whose items all get a row.
        verdict: The DataGate's; without it there is no training.
        vocabularies: `users.parquet` and `items.parquet`.
        code: Fingerprint of the code.
    """
    del verdict, code
    users, item_counts = count_positives(Path(interactions.uri) / "Split-train")
    for table in read_split(Path(items.uri) / f"Split-{SPLIT}", ["item_id"]):
        for item in table["item_id"].to_pylist():
            item_counts.setdefault(item, 0)
    folder = Path(vocabularies.uri)
    build_vocabulary(users).save(folder / "users.parquet")
    build_vocabulary(item_counts).save(folder / "items.parquet")


def count_positives(split: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the positives of each user that has any, and of each item, in a split."""
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    for table in read_split(split, ["user_id", "item_id", "label"]):
        positives = table.filter(pc.equal(table["label"], 1))
        count_ids(positives["user_id"], users)
        count_ids(positives["item_id"], items)
        for item in pc.unique(table["item_id"]).to_pylist():
            items.setdefault(item, 0)
    return users, items
