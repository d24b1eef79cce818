"""Artifact types that TFX doesn't have."""

from collections.abc import Sequence
from typing import Any

from tfx.components.util import examples_utils
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils
from tfx.types.artifact import Artifact
from tfx.types.standard_artifacts import Examples


class DeadLetters(Artifact):
    """Rejected rows in `dead_letters.parquet`, and counts in `summary.json`."""

    TYPE_NAME = "DeadLetters"


class Validation(Artifact):
    """TFDV's findings on one kind of data: `validation.json`, and pages `*.html`."""

    TYPE_NAME = "Validation"


class Verdict(Artifact):
    """Acceptance of the data: `verdict.json`, with the ids of its statistics as properties."""

    TYPE_NAME = "Verdict"


class Vocabularies(Artifact):
    """Files of `recsys.data.vocabulary.Vocabulary`: `users.parquet`, `items.parquet`.

    If events have features, `event_features/` too.
    """

    TYPE_NAME = "Vocabularies"


class InteractionData(Artifact):
    """A data folder: store, catalogue and vocabularies (docs/folders.md)."""

    TYPE_NAME = "InteractionData"


class ServingBundle(Artifact):
    """A SavedModel with the other files of a bundle."""

    TYPE_NAME = "ServingBundle"


class Report(Artifact):
    """`report.html`, the report of a run."""

    TYPE_NAME = "Report"


def existing(**artifacts: Any) -> dict[str, Any]:
    """Returns the existing artifacts by name."""
    return {name: artifact for name, artifact in artifacts.items() if artifact is not None}


def set_parquet_splits(examples: Examples, splits: Sequence[str]) -> None:
    """Declares that `examples` are Parquet files in `splits`."""
    examples.split_names = artifact_utils.encode_split_names(list(splits))
    examples_utils.set_payload_format(examples, example_gen_pb2.PayloadFormat.FORMAT_PARQUET)


def statistics_property(what: str) -> str:
    """Returns the custom property of a `Verdict` with the id of its statistics."""
    return f"{what}_statistics_id"
