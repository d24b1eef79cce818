"""The serving side of a task: what its bundles consist of."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from recsys.system.events import emit

if TYPE_CHECKING:  # TensorFlow is loaded by the exporter alone; the config is a room above.
    from recsys.bundles.config import ExportStage
    from recsys.savedmodel.parity import Reference
    from recsys.savedmodel.signatures import Arrays

STEP = "Exporter"
Answers = Literal["lists", "scores"]
"""What the signatures of a bundle answer: lists of the best items, or a score of each row."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """The folders that a bundle is made from.

    Attributes:
        model: A model folder.
        data: The data folder that the model was trained on.
        transform: Output of the Transform of the items; None: the one in the data folder.
            Without either, `embed_candidate` takes ids alone.
        user_transform: Output of the Transform of the users; None: the one in the data
            folder. Without either, queries are made of ids and histories alone.
        evaluation: The model's evaluation folder, for card and manifest.
        data_origin: Origin of the raw data, for the manifest (`recsys.bundles.lineage`).
    """

    model: Path
    data: Path
    transform: Path | None = None
    user_transform: Path | None = None
    evaluation: Path | None = None
    data_origin: dict[str, Any] | None = None


class ServingSide(abc.ABC):
    """Makes the contents of a bundle, in a process of Keras on TensorFlow.

    The export writes the SavedModel, checks it in a process with TensorFlow alone, and adds the
    model card and the manifest.

    Args:
        stage: Config of the export.
        sources: What the bundle is made from.

    Attributes:
        stage: Config of the export.
        sources: What the bundle is made from.
    """

    answers: ClassVar[Answers]
    """What the signatures answer."""
    card: ClassVar[str | None] = None
    """Template of the model card, as `package:file`, which extends `bundle`; None: no more than
    that."""

    def __init__(self, stage: ExportStage, sources: Sources) -> None:
        self.stage, self.sources = stage, sources

    @abc.abstractmethod
    def module(self) -> Any:
        """Returns a `tf.Module` to save.

        Its method `signatures` returns concrete functions by name; with `answers = "scores"` the
        one of `score` has the output `score` `[n]` float32. Variables of
        `recsys.savedmodel.variables.filled_later` get their rows after the SavedModel is written.
        """

    @abc.abstractmethod
    def reference(self) -> Reference:
        """Returns the trainer's results that the SavedModel must reproduce."""

    def write_files(self, folder: Path) -> dict[str, Any]:
        """Writes the other files of a bundle, such as vocabularies and titles.

        Returns:
            Fields of the manifest, such as `counts`.
        """
        return {}

    def warm_up(self, names: Mapping[str, Sequence[str]]) -> Mapping[str, Arrays]:
        """Returns inputs of signatures for warm-up requests, by default those of `Expected`.

        Args:
            names: Names of the inputs by signature.
        """
        inputs: Mapping[str, Arrays] = getattr(self.reference(), "inputs", {})
        return inputs

    def card_fields(self) -> dict[str, Any]:
        """Returns what the template of the card shows beside the manifest's fields.

        `tags` and `hub_task` (of Hugging Face) go into its header.
        """
        return {}


def tell(text: str, done: int, total: int) -> None:
    """Reports the progress of an export."""
    emit("progress", step=STEP, done=done, total=total, text=text)
