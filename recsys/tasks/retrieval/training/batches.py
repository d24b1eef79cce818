"""Training batches, read from the memory-mapped store in a deterministic shuffle.

A batch is a function of (seed, step): nothing else decides what it holds, so a run can be
repeated and resumed to the bit, and each of several processes builds its own part of one
batch. `recsys.training.prefetch` reads them ahead.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import TYPE_CHECKING, Self

import numpy as np

from recsys.data.batch_part import WHOLE, BatchPart
from recsys.data.catalogue import Catalogue, FeatureBags, bags_of, bags_of_histories
from recsys.data.history_facts import ASKED_AT, ITEM, PLACE
from recsys.data.kept_events import KeptEvents
from recsys.data.shuffle import epoch_order
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.errors import RecsysError
from recsys.models.config import RetrievalConfig
from recsys.tasks.config import TrainConfig
from recsys.tasks.retrieval.training.examples import read_events
from recsys.tasks.retrieval.training.sampling import BatchCandidates, HardNegatives

if TYPE_CHECKING:
    pass

Batch = dict[str, np.ndarray]

_DERIVED = ("item_row", "id_row", "log_q", ITEM, PLACE)
"""Arrays of a batch that are drawn or looked up, not read; but the positives are."""

_OF_EVENTS = (ASKED_AT, "weight", "known")
"""Arrays that stay as they were read."""


class ReadCount:
    """How much was read for batches; threads add to it.

    Attributes:
        batches: Batches that were read, or parts of them.
        bytes: What was read for them: ids, histories, weights, and features.
    """

    def __init__(self) -> None:
        self.batches = self.bytes = 0
        self._lock = threading.Lock()

    def add(self, batches: int, n_bytes: int) -> None:
        """Adds what was read for some batches."""
        with self._lock:
            self.batches += batches
            self.bytes += n_bytes


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSource:
    """The batches of a training run, in order, over all epochs.

    Every epoch takes all events in another order; its last, partial batch is
    left out (other events each time).

    Attributes:
        events: Training events, without what validation holds back.
        catalogue: The items' features.
        model: What the towers read.
        train: The size of a batch, its negatives, the seed.
        user_features: The users' features.
        hard: The lists of the hard negatives; None: there are none yet, and as many
            items are drawn evenly.
        multiple: A full softmax fills the catalogue up to a multiple of this (devices).
        part: The rows of each array that are read, and returned.
        reads: Counts what is read for them.

    Raises:
        RecsysError: There are fewer events than a batch has.
    """

    events: KeptEvents
    catalogue: Catalogue
    model: RetrievalConfig
    train: TrainConfig
    user_features: tuple[FeatureBags, ...] = ()
    hard: HardNegatives | None = None
    multiple: int = 1
    part: BatchPart = WHOLE
    reads: ReadCount = dataclasses.field(default_factory=ReadCount)

    def __post_init__(self) -> None:
        if len(self.events) < self.batch_size:
            raise self._too_few()

    def _too_few(self) -> RecsysError:
        return RecsysError(
            "R320",
            "A batch must not hold more examples than there are training positives.",
            f"Lower train.batch_size to at most {len(self.events)}.",
            {"train.batch_size": self.batch_size, "training positives": len(self.events)},
        )

    @property
    def batch_size(self) -> int:
        """Events of a batch."""
        return self.train.batch_size

    @property
    def epochs(self) -> int:
        """Passes over the events."""
        return self.train.epochs

    @property
    def steps_per_epoch(self) -> int:
        """Full batches of an epoch."""
        return len(self.events) // self.batch_size

    @property
    def n_candidates(self) -> int:
        """Items of a batch, negatives included."""
        return len(self._candidates)

    @property
    def size_of_part(self) -> tuple[int, int, int]:
        """Examples and candidates of the part, and the entries of all arrays, about."""
        examples, candidates = (self.part.size(n) for n in (self.batch_size, self.n_candidates))
        of_user = sum(feature.bags.shape[1] for feature in self.user_features)
        of_item = sum(feature.bags.shape[1] for feature in self.catalogue.features)
        histories = self._read_model.history * (2 if self.history_items else 1)
        of_query = 2 + histories + self.train.known_positives + of_user
        return examples, candidates, examples * of_query + candidates * (3 + of_item)

    @property
    def bytes_per_epoch(self) -> int:
        """What is read of store and features for an epoch's parts; 0 before the first batch."""
        return self.reads.bytes * self.steps_per_epoch // max(1, self.reads.batches)

    def __len__(self) -> int:
        return self.steps_per_epoch * self.epochs

    def with_hard_negatives(self, hard: HardNegatives) -> Self:
        """Returns the same batches, but for hard negatives from other lists."""
        return dataclasses.replace(self, hard=hard)

    def __getitem__(self, step: int) -> Batch:
        """Returns batch `step`, the model's inputs with `item_row` and `log_q`.

        The items are `n_candidates`, in the order of `BatchCandidates`: `id_row`, `item_row`,
        `log_q` and the items' features have an entry for each. `user_row`, `history`,
        the users' features, and, where there are any, `asked_at`, `weight` and `known` have
        `batch_size`. Of each array the rows of `part` are read, and returned. Where the query
        reads the features of a history's items, they may be those of `history_item`, the items
        once each, and `history_place` says which is where; see `each_once`.
        """
        return self.batches(step, step + 1)[0]

    def batches(self, first: int, end: int) -> list[Batch]:
        """Returns the batches of the steps `first` … `end` - 1, of one epoch.

        Read together they come several times faster than one by one, and are the same.
        """
        epoch, position = divmod(first, self.steps_per_epoch)
        starts = np.arange(position, position + end - first) * self.batch_size
        examples = self._examples(epoch, starts)
        items = self._positives(epoch, starts, examples)
        sizes = {name: len(column) // len(starts) for name, column in examples.items()}
        batches = [
            self._batch(
                first + i,
                {k: v[i * sizes[k] : (i + 1) * sizes[k]] for k, v in examples.items()},
                items[i],
            )
            for i in range(len(starts))
        ]
        arrays = [
            x.nbytes for batch in batches for name, x in batch.items() if name not in _DERIVED
        ]
        of_items = len(starts) * len(self._needed_examples) * items.itemsize
        self.reads.add(len(starts), sum(arrays) + of_items)
        return batches

    def _examples(self, epoch: int, starts: np.ndarray) -> Batch:
        """Reads the examples of the part, those of one batch after those of another.

        Args:
            epoch: The epoch.
            starts: Place of each batch's first example in the epoch `[steps]`.
        """
        rows = self.part.rows(self.batch_size)
        return read_events(
            self.events,
            self._numbers(epoch, (starts[:, None] + rows).ravel()),
            self._read_model,
            self.train,
            with_items=self.part.is_whole,
        )

    def _numbers(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Returns the kept events `[n]` int64 at ascending places `[n]` of an epoch."""
        train = self.train
        return epoch_order(self.events.starts, train.shuffle, train.seed, epoch)[places]

    def _positives(self, epoch: int, starts: np.ndarray, examples: Batch) -> np.ndarray:
        """Returns the items of all examples `[steps, batch]` int32.

        Of a part those that its candidates need are read: they are other examples than its
        own, for negatives come after the positives. The rest is 0.
        """
        if self.part.is_whole:
            return examples["item_row"].reshape(len(starts), -1)
        items = np.zeros((len(starts), self.batch_size), np.int32)
        needed = self._needed_examples
        numbers = self._numbers(epoch, (starts[:, None] + needed).ravel())
        items[:, needed] = self.events.items(numbers).reshape(len(starts), -1)
        return items

    def _batch(self, step: int, examples: Batch, positives: np.ndarray) -> Batch:
        random = np.random.default_rng([self.train.seed, 1, step])
        item_row = self._candidates.of_batch(positives, random, self._candidate_rows)
        query, id_row = self._query(examples, random), self._trained_row[item_row]
        model = self.model
        share = model.id_dropout if model.item_id_dropout is None else model.item_id_dropout
        return {
            **query,
            "id_row": drop_rows(id_row, share, random, self.part),
            "item_row": item_row,
            "log_q": self._log_q[item_row],
            **{name: examples[name] for name in _OF_EVENTS if name in examples},
            **bags_of(self.catalogue.features, item_row),
            # A user who is shown as a new one keeps its features: they are known.
            **bags_of(self.user_features, examples["user_row"]),
            **(self._of_histories(query["history"]) if "history" in query else {}),
        }

    @functools.cached_property
    def _read_model(self) -> RetrievalConfig:
        """The model as its examples are read: with no histories where it doesn't train on them."""
        model = self.model
        return model if model.trains_on_history else model.model_copy(update={"history": 0})

    def _query(self, examples: Batch, random: np.random.Generator) -> Batch:
        """Returns what the query reads of users and histories, some of it dropped."""
        model, part = self.model, self.part
        user_row = drop_rows(examples["user_row"], model.id_dropout, random, part)
        history = drop_rows(examples["history"], model.history_dropout, random, part)
        if model.new_user_share:
            is_new = part.uniform(user_row.shape, random) < model.new_user_share
            user_row = np.where(is_new, UNKNOWN_ROW, user_row)
            history[is_new] = UNKNOWN_ROW
        histories = {"history": history} if model.trains_on_history else {}
        return {"user_row": user_row, **histories}

    @functools.cached_property
    def history_items(self) -> int:
        """Items that are given once each for most batches' histories; 0: all are in place."""
        is_split = self.multiple > 1 or not self.part.is_whole
        if not self.model.distinct_history or is_split or self.train.accumulate > 1:
            return 0  # Each device has its own part; what is accumulated is of one length.
        positions = np.linspace(0, self.steps_per_epoch - 1, _LOOKED_AT).astype(np.int64)
        random = np.random.default_rng([self.train.seed, 4])
        parts = [self._examples(0, np.array([n])) for n in np.unique(positions) * self.batch_size]
        return items_for([self._query(examples, random)["history"] for examples in parts])

    def _of_histories(self, history: np.ndarray) -> Batch:
        """Returns what the query reads of the items of histories `[b, history]`."""
        features = self.catalogue.features if self.model.history_features else ()
        if not self.history_items:
            return bags_of_histories(features, history)
        once = each_once(history, self.history_items)
        return {**once, **bags_of_histories(features, once[ITEM])}

    @functools.cached_property
    def _log_q(self) -> np.ndarray:
        """The correction of scores, by item row `[item rows]` float32."""
        candidates = self._candidates
        return candidates.log_q((candidates.event_shares, self.batch_size))

    @functools.cached_property
    def _candidate_rows(self) -> np.ndarray:
        """Which candidates the part has `[candidates of the part]` int64, ascending."""
        return self.part.rows(self.n_candidates)

    @functools.cached_property
    def _needed_examples(self) -> np.ndarray:
        """Which examples of a batch have an item that the part's candidates need `[k]` int64."""
        return self._candidates.examples_of(self._candidate_rows)

    @functools.cached_property
    def _candidates(self) -> BatchCandidates:
        train = self.train.model_copy(update={"batch_size": self.batch_size})
        return BatchCandidates(
            self._counts, self.catalogue.is_item, train, self.hard, self.multiple
        )

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """Training events of each item row `[item rows]` int64."""
        return self.events.item_counts(self.catalogue.n_rows)

    @functools.cached_property
    def _trained_row(self) -> np.ndarray:
        """Row of the table that each item row reads `[item rows]` int32: 0 without events."""
        rows = np.arange(len(self._counts), dtype=np.int32)
        return np.where(self._counts > 0, rows, np.int32(UNKNOWN_ROW))


def drop_rows(
    rows: np.ndarray, share: float, random: np.random.Generator, part: BatchPart
) -> np.ndarray:
    """Returns the part's `rows` `[n, …]` with a share of them read as unknown [0..1)."""
    if not share:
        return rows
    return np.where(part.uniform(rows.shape, random) < share, np.int32(UNKNOWN_ROW), rows)


# --- the items of histories, each once

_LOOKED_AT = 8
"""Batches whose histories say how many different items to expect."""

_MARGIN, _MULTIPLE = 1.125, 128


def each_once(history: np.ndarray, n: int) -> dict[str, np.ndarray]:
    """Returns the items of histories once each.

    The arrays are the same for every batch: Keras' `fit` wants the keys of the first in all.

    Args:
        history: Item rows `[batch, history]` int32; 0 is padding, and counts as an item.
        n: Items to return, doubled until there is room for all; the last is repeated to
            fill them up.

    Returns:
        `history_item` `[n]` int32, the rows, ascending; `history_place` `[batch, history]`
        int32, where among them each entry of `history` is.
    """
    rows, place = np.unique(history, return_inverse=True)
    while n < len(rows):
        n *= 2
    items = np.pad(rows, (0, n - len(rows)), mode="edge")
    return {ITEM: items, PLACE: place.reshape(history.shape).astype(np.int32)}


def items_for(histories: list[np.ndarray]) -> int:
    """Returns how many items to give of a batch's histories, judged by some batches' own.

    A batch that has more gives twice as many, and is compiled for anew: there is a margin.

    Args:
        histories: Those of some batches, each `[batch, history]`.

    Returns:
        The number, a multiple of 128; 0 where most items come once, and there is no gain.
    """
    most = max(len(np.unique(history)) for history in histories)
    n = -(-int(most * _MARGIN) // _MULTIPLE) * _MULTIPLE
    return n if n <= histories[0].size // 2 else 0
