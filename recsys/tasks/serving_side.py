"""The serving side of a task: the contents of its bundles."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from recsys.system.events import emit

if TYPE_CHECKING:  # Only the exporter loads TensorFlow.
    from recsys.savedmodel.parity import Reference
    from recsys.savedmodel.signatures import Arrays

Answers = Literal["lists", "scores"]
"""Output of a bundle's signatures: lists of the best items, or a score for each row."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """The folders from which a bundle is made.

    Attributes:
        model: A model folder.
        data: The data folder on which the model was trained.
        transform: Output of Transform for the items; None: the one in the data folder.
            Without either, `embed_candidate` takes only ids.
        user_transform: Output of Transform for the users; None: the one in the data
            folder. Without either, queries consist of ids and histories only.
        evaluation: The model's evaluation folder, for card and manifest.
        data_origin: Origin of the raw data, for the manifest (`recsys.bundles.description`).
    """

    model: Path
    data: Path
    transform: Path | None = None
    user_transform: Path | None = None
    evaluation: Path | None = None
    data_origin: dict[str, Any] | None = None


class ServingSide(abc.ABC):
    """Makes the contents of a bundle, in a process of Keras on TensorFlow.

    The export writes the SavedModel, checks it in a process with only TensorFlow, and adds the
    model card and the manifest.

    Args:
        stage: Config of the export, an `ExportStage`.
        sources: Folders from which the bundle is made.

    Attributes:
        stage: Config of the export.
        sources: Folders from which the bundle is made.
    """

    answers: ClassVar[Answers]
    """Output of the signatures."""
    card: ClassVar[str | None] = None
    """Template of the model card, as `package:file`, which extends `bundle`; None: `bundle`."""

    def __init__(self, stage: Any, sources: Sources) -> None:
        self.stage, self.sources = stage, sources

    @abc.abstractmethod
    def module(self) -> Any:
        """Returns a `tf.Module` to save.

        Its method `signatures` returns concrete functions by name. With `answers = "scores"`, the
        function `score` has the output `score` `[n]` float32; or the function `rank` predicts
        labels of items, as `recsys.tasks.ranking.serving.graph` does. Variables of
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
        """Returns inputs of signatures for warm-up requests, by default from `Expected`.

        Args:
            names: Names of the inputs by signature.
        """
        inputs: Mapping[str, Arrays] = getattr(self.reference(), "inputs", {})
        return inputs

    def card_fields(self) -> dict[str, Any]:
        """Returns fields for the template of the card, besides the manifest's.

        `tags` and `hub_task` (of Hugging Face) go into its header.
        """
        return {}


def tell(text: str, done: int, total: int) -> None:
    """Reports the progress of an export."""
    emit("progress", done=done, total=total, text=text)
