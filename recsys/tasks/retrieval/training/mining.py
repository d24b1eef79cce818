"""The work between epochs: validation, and mining of hard negatives.

Hard negatives are the items whose embeddings are closest to a positive's. The lists are mined
from the current embeddings once per epoch, as in ANCE (Xiong et al., ICLR 2021). The closest
items are often positives too, so the first few are skipped, and so are items whose similarity
exceeds a share of the maximum, 1 (positive-aware mining: Moreira et al., "NV-Retriever", 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from recsys.distributed.host_collectives import agreed, stacked
from recsys.models import ModelInputs, RetrievalModel
from recsys.models.inference import Inference
from recsys.tasks.config import HardNegativesConfig, TrainStage
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.retrieval.training.sampling import HardNegatives
from recsys.tasks.retrieval.training.validation import Validator
from recsys.tasks.training_side import Batches, EpochWork

_BLOCK_SCORES = 1 << 24
"""Maximum number of similarities in memory; 64 MiB of float32."""


class RetrievalEpochWork(EpochWork):
    """Validates the model between two epochs, and mines hard negatives for the next one.

    The lists of hard negatives are written to a file, because a run that is resumed in the
    middle of an epoch needs the lists from its beginning.

    Args:
        model: The model.
        inputs: Inputs of users and items, as `trained_inputs` returns them.
        source: The batches.
        stage: The model and the training loop.
        folder: Folder of the lists.
        oldest_step: Returns the step of the oldest checkpoint.
        since: See `Validator`.
    """

    def __init__(
        self,
        model: RetrievalModel,
        inputs: ModelInputs,
        source: BatchSource,
        stage: TrainStage,
        folder: Path,
        oldest_step: Callable[[], int],
        since: int | None = None,
    ) -> None:
        super().__init__(source)
        self._inference, self._folder, self._oldest_step = Inference(model), folder, oldest_step
        self._model, self._inputs = model, inputs
        self._hard, self._dim = stage.train.hard_negatives, stage.model.dim
        self._validation = None
        if stage.train.validation is not None:
            self._validation = Validator(
                source.events, inputs, stage.model, stage.train.validation, since, stage.repeats
            )

    def validate(self) -> dict[str, float]:
        """Returns the validation's metrics of the current model; empty without validation."""
        if self._validation is None:
            return {}
        self.settle()
        return self._validation.metrics(self._inference)

    def settle(self) -> None:
        """Updates the parts of the model that are computed from its current item vectors."""
        catalogue = self._inputs.catalogue
        is_trained = (self._inputs.items.row_counts > 0) & catalogue.is_item

        def trained() -> Iterator[np.ndarray]:
            start = 0
            for block in self._inference.catalogue_blocks(self._inputs):
                yield block[is_trained[start : start + len(block)]]
                start += len(block)

        self._model.settle(trained())

    def begin(self, step: int, batches: Batches) -> None:
        """Uses the hard negatives of the epoch of `step`, if it has any.

        A warm-started model has some before its first step.
        """
        epochs = step // self.source.steps_per_epoch
        if step and self._has_lists(epochs):
            self._use_lists(epochs, batches)
        elif not step:
            self.refresh(epochs, batches)

    def refresh(self, epochs: int, batches: Batches) -> None:
        """Mines hard negatives after `epochs` epochs, and uses them from now on."""
        if not self._has_lists(epochs):
            return
        # Without biases: popularity doesn't make items similar.
        vectors = self._inference.catalogue(self._inputs)[:, : self._dim]
        lists = mine_hard_negatives(vectors, self._inputs.catalogue.is_item, self._hard)
        agreed(lambda: self._save_lists(lists, epochs))
        self._use_lists(epochs, batches)

    def _save_lists(self, lists: HardNegatives, epochs: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        lists.save(self._file(epochs))
        # Lists from before the epoch of the oldest checkpoint aren't needed again.
        oldest = self._oldest_step() // self.source.steps_per_epoch
        for path in self._folder.glob("*.npz"):
            if path.stem.isdecimal() and int(path.stem) < oldest:
                path.unlink()

    def _use_lists(self, epochs: int, batches: Batches) -> None:
        """Uses the lists that were mined after `epochs` epochs.

        Raises:
            RecsysError: Their file is missing or damaged.
        """
        lists = HardNegatives.load(self._file(epochs), self._inputs.catalogue.n_rows)
        self.source = self.source.with_hard_negatives(lists)
        batches.restart(self.source)

    def _has_lists(self, epochs: int) -> bool:
        return self._hard.count > 0 and epochs >= self._hard.after_epochs

    def _file(self, epochs: int) -> Path:
        return self._folder / f"{epochs}.npz"


def mine_hard_negatives(
    vectors: np.ndarray, is_item: np.ndarray, config: HardNegativesConfig
) -> HardNegatives:
    """Returns the items at the ranks `skip` + 1 to `skip` + `pool` by cosine, for each item.

    Exact and blockwise: memory is linear in the size of the catalogue. Several processes share
    the blocks, and each gets all lists; the result is the same to the bit for any number of
    processes.

    Args:
        vectors: Current item vectors `[item rows, dim]`.
        is_item: Whether each row is an item `[item rows]` bool; others are in no list.
        config: Size of the lists, and the limits for excluding items.
    """
    items = np.flatnonzero(is_item).astype(np.int32)
    norms = np.linalg.norm(vectors[items].astype(np.float32), axis=1, keepdims=True)
    directions = (vectors[items] / np.where(norms > 0, norms, 1.0)).astype(np.float32)
    skip = min(config.skip, len(items) - 1)
    pool = min(config.pool, len(items) - 1 - skip)
    if pool <= 0:
        return HardNegatives.none_yet(is_item)
    size = max(1, _BLOCK_SCORES // len(items))
    n_blocks = -(-len(items) // size)

    index, count = jax.process_index(), jax.process_count()

    def own_lists() -> np.ndarray:
        """Returns the lists, each with its length first, of every `count`-th block."""
        lists = np.zeros((-(-n_blocks // count), size, 1 + pool), np.int32)
        for own, block in zip(lists, range(index, n_blocks, count), strict=False):
            of = np.arange(block * size, min((block + 1) * size, len(items)))
            own[: len(of), 0], places = _nearest(directions, of, skip, pool, config.guard)
            is_listed = np.arange(pool) < own[: len(of), :1]
            own[: len(of), 1:] = np.where(is_listed, items[places], 0)
        return lists

    lists = stacked(own_lists).swapaxes(0, 1).reshape(-1, 1 + pool)[: len(items)]
    rows = np.zeros((len(vectors), pool), np.int32)
    lengths = np.zeros(len(vectors), np.int32)
    lengths[items], rows[items] = lists[:, 0], lists[:, 1:]
    return HardNegatives(rows, lengths, items)


def _nearest(
    directions: np.ndarray, of: np.ndarray, skip: int, pool: int, guard: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the length of the lists of items `[b]`, and the lists `[b, pool]`.

    Args:
        directions: Vectors of length 1 `[items, dim]` float32.
        of: Indices of the items whose lists are made `[b]`.
        skip: Number of nearest items to skip.
        pool: Maximum length of a list.
        guard: The highest cosine in a list.
    """
    scores = directions[of] @ directions.T
    scores[np.arange(len(of)), of] = -np.inf
    # Ties go to the lower row.
    similarity, places = map(np.asarray, jax.lax.top_k(scores, skip + pool))
    n_close = np.maximum((similarity > guard).sum(axis=1), skip)
    # The first `n_close` of the nearest items are skipped.
    shifted = np.minimum(np.arange(pool) + n_close[:, None], skip + pool - 1)
    nearest = np.take_along_axis(places, shifted, axis=1)
    return np.minimum(skip + pool - n_close, pool), nearest
