"""What happens between two epochs: a look at the validation, and new hard negatives."""

from __future__ import annotations

from pathlib import Path

import jax
from jax.experimental import multihost_utils

from recsys.config import TrainStage
from recsys.data.batches import BatchSource
from recsys.data.hard_negatives import HardNegatives
from recsys.model import TowerInputs, TwoTower
from recsys.model.inference import Inference
from recsys.training.checkpoint_files import steps_in
from recsys.training.feed import Feed
from recsys.training.folders import Folders
from recsys.training.hard_negatives import mine
from recsys.training.processes import is_primary
from recsys.training.validation import Validation


class Border:
    """Looks at the model between two epochs, and feeds it what follows from that.

    The lists of hard negatives are written to a file, for a run that goes on in the
    middle of an epoch reads with those of its beginning.

    Args:
        model: The model.
        inputs: What is known of users and items, as `trained_inputs` returns it.
        source: The batches.
        stage: The model and the training loop.
        folders: Where the lists are kept.
        since: See `Validation`.
    """

    def __init__(
        self,
        model: TwoTower,
        inputs: TowerInputs,
        source: BatchSource,
        stage: TrainStage,
        folders: Folders,
        since: int | None = None,
    ) -> None:
        self.source, self._towers, self._folders = source, Inference(model), folders
        self._inputs = inputs
        self._hard = stage.train.hard_negatives
        self._validation = None
        if stage.train.validation is not None:
            self._validation = Validation(
                source.events, inputs, stage.model, stage.train.validation, since, stage.repeats
            )

    def look(self) -> dict[str, float]:
        """Returns the validation's metrics of the model as it is; none without one."""
        return {} if self._validation is None else self._validation.metrics(self._towers)

    def begin(self, step: int, feed: Feed) -> None:
        """Feeds the hard negatives of the epoch that `step` is in, if it has any.

        A model that went on from an earlier one has some before its first step.
        """
        epochs = step // self.source.steps_per_epoch
        if step:
            self.resume(epochs, feed)
        else:
            self.refresh(epochs, feed)

    def refresh(self, epochs: int, feed: Feed) -> None:
        """Looks for hard negatives after `epochs` epochs, and feeds them from now on."""
        if not self._has_lists(epochs):
            return
        vectors = self._towers.catalogue(self._inputs)
        if is_primary():
            # Others might round otherwise, and make other lists.
            lists = mine(vectors, self._inputs.catalogue.is_item, self._hard)
            self._folders.negatives.mkdir(parents=True, exist_ok=True)
            lists.save(self._file(epochs))
            self._remove_old()
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"hard negatives after {epochs} epochs")
        self.resume(epochs, feed)

    def resume(self, epochs: int, feed: Feed) -> None:
        """Feeds the hard negatives that were found after `epochs` epochs, if any were.

        Raises:
            RecsysError: Their file is missing or damaged.
        """
        if self._has_lists(epochs):
            lists = HardNegatives.load(self._file(epochs), self._inputs.catalogue.n_rows)
            self.source = self.source.with_hard_negatives(lists)
            feed.go_on(self.source)

    def _has_lists(self, epochs: int) -> bool:
        return self._hard.count > 0 and epochs >= self._hard.after_epochs

    def _remove_old(self) -> None:
        """Removes the lists of epochs before that of the oldest checkpoint."""
        oldest = min(steps_in(self._folders.last), default=0) // self.source.steps_per_epoch
        for path in self._folders.negatives.glob("*.npz"):
            if path.stem.isdecimal() and int(path.stem) < oldest:
                path.unlink()

    def _file(self, epochs: int) -> Path:
        return self._folders.negatives / f"{epochs}.npz"
