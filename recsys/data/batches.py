"""Training batches, read from the memory-mapped store in a deterministic global shuffle.

A batch is a function of (seed, step): nothing else decides what it holds, so a run
can be repeated, and later resumed, to the bit.
"""

from __future__ import annotations

import dataclasses
import functools

import grain
import numpy as np

from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.store import EventLog
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.errors import RecsysError

Batch = dict[str, np.ndarray]
_READ_AHEAD_BATCHES = 16


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSource:
    """The batches of a training run, one after the other, for as many epochs as asked.

    Every epoch is another permutation of all events; its last, partial batch is
    left out (other events each time).

    Attributes:
        events: Training events.
        catalogue: The items' features.
        history: Items of a history at the most.
        batch_size: Events of a batch.
        uniform_negatives: Items drawn evenly from the catalogue for each batch.
        epochs: Passes over the events.
        id_dropout: Share of users and items whose id is read as unknown [0..1).
        new_user_share: Share of examples whose user has neither id nor history [0..1).
        seed: Seed of the shuffle and of the dropout.
        user_features: The users' features.
    """

    events: EventLog
    catalogue: Catalogue
    history: int
    batch_size: int
    uniform_negatives: int
    epochs: int
    id_dropout: float
    new_user_share: float
    seed: int
    user_features: tuple[FeatureBags, ...] = ()

    def __post_init__(self) -> None:
        if len(self.events) < self.batch_size:
            raise RecsysError(
                "R320",
                "A batch must not hold more examples than there are training positives.",
                f"Lower train.batch_size to at most {len(self.events)}.",
                {"train.batch_size": self.batch_size, "training positives": len(self.events)},
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full batches of an epoch."""
        return len(self.events) // self.batch_size

    def __len__(self) -> int:
        return self.steps_per_epoch * self.epochs

    def __getitem__(self, step: int) -> Batch:
        """Returns batch `step`, the model's inputs with `item_row` and `log_q`.

        The items are those of the events, then the uniform negatives: `id_row`,
        `item_row`, `log_q` and the features have `batch_size + uniform_negatives`
        entries, `user_row` and `history` `batch_size`.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        first = position * self.batch_size
        chosen = self._permutation(epoch)[first : first + self.batch_size]
        random = np.random.default_rng([self.seed, 1, step])
        drawn = random.integers(1, self.catalogue.n_rows, self.uniform_negatives, np.int32)
        item_row = np.concatenate([self.events.item_row[chosen], drawn])
        is_new = random.random(len(chosen)) < self.new_user_share
        address = np.asarray(self.events.user_row[chosen])
        user_row = self._drop(address, random)
        history = self.events.histories(chosen, self.history)
        return {
            "user_row": np.where(is_new, UNKNOWN_ROW, user_row),
            "history": np.where(is_new[:, None], UNKNOWN_ROW, history),
            "id_row": self._drop(np.where(self._counts[item_row] > 0, item_row, 0), random),
            "item_row": item_row,
            "log_q": self._log_q[item_row],
            **{f.name: np.asarray(f.bags[item_row]) for f in self.catalogue.features},
            # A user who is shown as a new one keeps its features: they are known.
            **{f.name: np.asarray(f.bags[address]) for f in self.user_features},
        }

    def _drop(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        return np.where(random.random(len(rows)) < self.id_dropout, UNKNOWN_ROW, rows)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a source lives as long as its run
    def _permutation(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 0, epoch]).permutation(len(self.events))

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """Training events of each item row `[item rows]` int64."""
        return np.bincount(self.events.item_row, minlength=self.catalogue.n_rows)

    @functools.cached_property
    def _log_q(self) -> np.ndarray:
        """Log of the share of each item row among the items of all batches `[item rows]`.

        An item comes as the item of an event, or drawn from the catalogue: its
        probability is the mixture of both (Yang et al., WWW 2020, section 3.2).
        """
        n_items = self.batch_size + self.uniform_negatives
        by_event = self._counts / len(self.events) * self.batch_size / n_items
        by_draw = self.uniform_negatives / n_items / (self.catalogue.n_rows - 1)
        q = by_event + by_draw
        # What is in no batch has no logarithm, and needs none.
        return np.log(np.where(q > 0, q, 1.0)).astype(np.float32)


def read_ahead(source: BatchSource, first_step: int = 0) -> grain.IterDataset:
    """Returns a Grain dataset of `(batch,)` from `first_step` on, read by threads ahead."""
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=_READ_AHEAD_BATCHES)
    dataset = grain.MapDataset.source(source)[first_step:]
    return dataset.map(lambda batch: (batch,)).to_iter_dataset(options)
