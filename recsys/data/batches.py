"""Training batches, read from the memory-mapped store in a deterministic global shuffle.

A batch is a function of (seed, step): nothing else decides what it holds, so a run
can be repeated, and later resumed, to the bit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import grain
import numpy as np

from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.event_log import EventLog
from recsys.data.example_reader import Examples, read_examples
from recsys.data.permutation import Permutation
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.errors import RecsysError

Batch = dict[str, np.ndarray]
_BLOCK_EXAMPLES = 1 << 17
_READ_AHEAD_BLOCKS = 2
_READERS = 2


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
        `item_row`, `log_q` and the items' features have `batch_size +
        uniform_negatives` entries; `user_row`, `history`, the users' features, and
        `weight` where the events have one, have `batch_size`.
        """
        return self.batches(step, step + 1)[0]

    def batches(self, first: int, end: int) -> list[Batch]:
        """Returns the batches of the steps `first` … `end` - 1, of one epoch.

        Read together they come several times faster than one by one, and are the same.
        """
        epoch, position = divmod(first, self.steps_per_epoch)
        places = np.arange(position * self.batch_size, (position + end - first) * self.batch_size)
        examples = read_examples(self.events, self._permutation(epoch)[places], self.history)
        return [
            self._batch(first + i, examples.part(slice(i * n, (i + 1) * n)))
            for n in (self.batch_size,)
            for i in range(end - first)
        ]

    def _batch(self, step: int, examples: Examples) -> Batch:
        random = np.random.default_rng([self.seed, 1, step])
        drawn = self._items[random.integers(0, len(self._items), self.uniform_negatives)]
        item_row = np.concatenate([examples.item_row, drawn])
        user_row = self._drop(examples.user_row, random)
        history = examples.history
        if self.new_user_share:
            is_new = random.random(len(user_row), np.float32) < self.new_user_share
            user_row = np.where(is_new, UNKNOWN_ROW, user_row)
            history[is_new] = UNKNOWN_ROW
        weight = {} if examples.weight is None else {"weight": examples.weight}
        return {
            "user_row": user_row,
            "history": history,
            "id_row": self._drop(self._trained_row[item_row], random),
            "item_row": item_row,
            "log_q": self._log_q[item_row],
            **weight,
            **_bags(self.catalogue.features, item_row),
            # A user who is shown as a new one keeps its features: they are known.
            **_bags(self.user_features, examples.user_row),
        }

    def _drop(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        if not self.id_dropout:
            return rows
        is_dropped = random.random(len(rows), np.float32) < self.id_dropout
        return np.where(is_dropped, np.int32(UNKNOWN_ROW), rows)

    def _permutation(self, epoch: int) -> Permutation:
        return Permutation(len(self.events), (self.seed, 0, epoch))

    @functools.cached_property
    def _items(self) -> np.ndarray:
        """The rows that are items `[items]` int32: shared and free rows are none."""
        return np.flatnonzero(self.catalogue.is_item).astype(np.int32)

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """Training events of each item row `[item rows]` int64."""
        n_rows = self.catalogue.n_rows
        counts = np.zeros(n_rows, np.int64)
        for shard in self.events.shards:
            counts += np.bincount(shard.item_row, minlength=n_rows)
        return counts

    @functools.cached_property
    def _trained_row(self) -> np.ndarray:
        """Row of the table that each item row reads `[item rows]` int32: 0 without events."""
        return np.where(self._counts > 0, np.arange(len(self._counts)), UNKNOWN_ROW).astype(
            np.int32
        )

    @functools.cached_property
    def _log_q(self) -> np.ndarray:
        """Log of the share of each item row among the items of all batches `[item rows]`.

        An item comes as the item of an event, or drawn from the catalogue: its
        probability is the mixture of both (Yang et al., WWW 2020, section 3.2).
        """
        n_items = self.batch_size + self.uniform_negatives
        q = self._counts / len(self.events) * self.batch_size / n_items
        q[self._items] += self.uniform_negatives / n_items / max(1, len(self._items))
        # What is in no batch has no logarithm, and needs none.
        return np.log(np.where(q > 0, q, 1.0)).astype(np.float32)


class _Blocks:
    """The batches of a source, many consecutive ones of an epoch at a time.

    Args:
        source: The batches.
        first_step: Step to begin with.
    """

    def __init__(self, source: BatchSource, first_step: int) -> None:
        self._source, self._first = source, first_step
        self._size = max(1, _BLOCK_EXAMPLES // source.batch_size)
        self._per_epoch = -(-source.steps_per_epoch // self._size)
        self._skipped = self._block_of(first_step)

    def __len__(self) -> int:
        return self._source.epochs * self._per_epoch - self._skipped

    def __getitem__(self, number: int) -> list[Batch]:
        epoch, position = divmod(number + self._skipped, self._per_epoch)
        begin = epoch * self._source.steps_per_epoch
        first = begin + position * self._size
        end = min(first + self._size, begin + self._source.steps_per_epoch)
        return self._source.batches(max(first, self._first), end)

    def _block_of(self, step: int) -> int:
        epoch, position = divmod(step, self._source.steps_per_epoch)
        return epoch * self._per_epoch + position // self._size


class _Unpack(grain.experimental.FlatMapTransform):
    """Lays the batches of blocks one after the other, each as Keras takes it."""

    max_fan_out = _BLOCK_EXAMPLES

    def flat_map(self, element: list[Batch]) -> list[tuple[Batch]]:
        """Returns the batches of a block as tuples of one."""
        return [(batch,) for batch in element]


def read_ahead(source: BatchSource, first_step: int = 0) -> grain.IterDataset:
    """Returns a Grain dataset of `(batch,)` from `first_step` on, read by threads ahead."""
    options = grain.ReadOptions(num_threads=_READERS, prefetch_buffer_size=_READ_AHEAD_BLOCKS)
    blocks = grain.MapDataset.source(_Blocks(source, first_step)).to_iter_dataset(options)
    return grain.experimental.FlatMapIterDataset(blocks, _Unpack())


def _bags(features: Iterable[FeatureBags], rows: np.ndarray) -> Batch:
    """Returns the token rows `[b, width]` int32 of `rows` `[b]`, by feature."""
    return {feature.name: np.asarray(feature.bags[rows]) for feature in features}
