"""ItemGen and UserGen: raw items or users → examples of one split, and dead letters."""

import apache_beam as beam
from tfx.dsl.component.experimental.annotations import (
    BeamComponentParameter,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples

from components.artifacts import DeadLetters, set_parquet_splits
from recsys.config import ItemsConfig, Strict, UsersConfig
from recsys.data.ingest.entity_rows import SPLIT, ingest_entities


class EntitySource(Strict):
    """The part of the config on items, on users, or on both."""

    items: ItemsConfig | None = None
    """The catalogue."""
    users: UsersConfig | None = None
    """What is known of the users."""
    forget: str | None = None
    """File of the users to leave out, see `recsys.data.forgotten`."""


@component(use_beam=True)
def EntityGen(
    examples: OutputArtifact[Examples],
    dead_letters: OutputArtifact[DeadLetters],
    config: Parameter[str],
    files_digest: Parameter[str],
    code: Parameter[str],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Reads items or users, and drops bad rows and duplicates.

    Args:
        examples: Parquet examples of one split: the id, the title of items, and the
            columns of the features, see docs/features.md.
        dead_letters: The bad rows, and the counts of all.
        config: `EntitySource` as canonical JSON, one side of it.
        files_digest: Digest of the files' contents.
        code: Fingerprint of the code.
        beam_pipeline: Runs the work.
    """
    del files_digest, code
    source = EntitySource.model_validate_json(config)
    for what, entities in (("items", source.items), ("users", source.users)):
        if entities is not None:
            folders = examples.uri, dead_letters.uri
            ingest_entities(what, entities, *folders, beam_pipeline, source.forget)
    set_parquet_splits(examples, [SPLIT])
