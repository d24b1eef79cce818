"""VocabularyGen: ids of the training positives and the catalogue → rows that stay."""

from pathlib import Path

from tfx.dsl.component.experimental.annotations import (
    InputArtifact,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples

from components.artifacts import Verdict, Vocabularies
from components.interaction_gen import CUT_PROPERTY, split_of
from recsys.config import VocabulariesConfig
from recsys.data.ingest.entity_rows import SPLIT
from recsys.data.ingest.store_writer import make_vocabularies


@component
def VocabularyGen(
    interactions: InputArtifact[Examples],
    verdict: InputArtifact[Verdict],
    vocabularies: OutputArtifact[Vocabularies],
    config: Parameter[str],
    code: Parameter[str],
    items: InputArtifact[Examples] = None,
    users: InputArtifact[Examples] = None,
    previous: InputArtifact[Vocabularies] = None,
) -> None:
    """Assigns rows to users, items and kinds of events; known ones keep theirs.

    Args:
        interactions: Examples; rows come from the split `train` alone.
        verdict: The DataGate's; without it there is no training.
        vocabularies: `users.parquet`, `items.parquet`, `kinds.parquet` of the events' kinds where
            they have some, and `diff.json`, what changed in each.
        config: `VocabulariesConfig` as canonical JSON.
        code: Fingerprint of the code.
        items: Examples of the catalogue, whose items all get a row.
        users: Examples of the users' data, who all get a row.
        previous: The vocabularies to go on from.
    """
    del verdict, code
    known = {"users": users, "items": items}
    make_vocabularies(
        interactions=Path(interactions.uri),
        cut=interactions.get_int_custom_property(CUT_PROPERTY),
        entities={
            name: Path(examples.uri) / f"Split-{SPLIT}"
            for name, examples in known.items()
            if examples is not None
        },
        previous=None if previous is None else Path(previous.uri),
        out=Path(vocabularies.uri),
        config=VocabulariesConfig.model_validate_json(config),
        split=split_of(interactions),
    )
