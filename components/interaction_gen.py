"""InteractionGen: raw interactions → examples, split into two parts, and dead letters."""

from pathlib import Path

import apache_beam as beam
from tfx.dsl.component.experimental.annotations import (
    BeamComponentParameter,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples

from components.artifacts import DeadLetters, set_parquet_splits
from recsys.data.ingest.bigquery import stage_query
from recsys.data.ingest.ingestion import SPLITS, InteractionSource, ingest_interactions
from recsys.data.split import BY_TIME, SplitRule

CUT_PROPERTY = "cut"
"""Custom property of the examples: the moment that the training data end [seconds since 1970,
UTC]; 0 where there are no times."""
SPLIT_PROPERTY = "split"
"""Custom property of the examples: how they were split; none by time."""


@component(use_beam=True)
def InteractionGen(
    examples: OutputArtifact[Examples],
    dead_letters: OutputArtifact[DeadLetters],
    config: Parameter[str],
    files_digest: Parameter[str],
    segments: Parameter[str],
    code: Parameter[str],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Reads interactions, drops bad rows and duplicates, and splits them.

    Args:
        examples: Parquet examples, the splits `train` and `eval`.
        dead_letters: The bad rows, and the counts of all.
        config: `InteractionSource` as canonical JSON.
        files_digest: Digest of the files' contents.
        segments: Folder of what is kept of spans from run to run.
        code: Fingerprint of the code.
        beam_pipeline: Runs the work.
    """
    del files_digest
    source = InteractionSource.model_validate_json(config)
    if source.interactions.query is not None:
        # Beside the dead letters, which name the rows of these files.
        folder = Path(dead_letters.uri) / "query"
        files = stage_query(source.interactions.query, folder, beam_pipeline.options)
        source = source.with_files(files)
    summary = ingest_interactions(
        source, examples.uri, dead_letters.uri, beam_pipeline, Path(segments), code
    )
    set_parquet_splits(examples, SPLITS)
    examples.set_int_custom_property(CUT_PROPERTY, summary["cut"])
    if source.rule != BY_TIME:
        examples.set_string_custom_property(SPLIT_PROPERTY, source.rule.text)


def split_of(interactions: Examples) -> SplitRule:
    """Returns how the examples that InteractionGen made were split."""
    return SplitRule.from_text(interactions.get_string_custom_property(SPLIT_PROPERTY))
