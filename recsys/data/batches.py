"""Training batches, read from the memory-mapped store in a deterministic global shuffle.

A batch is a function of (seed, step): nothing else decides what it holds, so a run
can be repeated and resumed to the bit. Threads read them ahead, in blocks.

Its events are those of a log, without the ones held back for validation. Numbers count the
kept events, 0 … n - 1; places are where they lie in the log. Without a hold-out the two are
the same, and nothing is copied. With one, the places held back take 8 bytes each, and the
kept items, where they are read at all, 4 bytes an event.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Self

import grain
import numpy as np

from recsys.config import RetrievalConfig, TrainConfig
from recsys.data.catalogue import Catalogue, FeatureBags, bags_of, bags_of_histories
from recsys.data.event_log import EventLog, EventShard, newest_first, split_sorted
from recsys.data.hold_out import Draw, draw_of, held_back
from recsys.data.sampling import BatchCandidates, HardNegatives, Permutation
from recsys.data.split import BY_TIME, SplitRule
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.errors import RecsysError

Batch = dict[str, np.ndarray]

# --- the events that training sees


class _Kept:
    """What is left of events of which those at the places `held` are held back."""

    held: np.ndarray

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Returns where the kept events `numbers` `[b]` lie among all `[b]` int64."""
        if not len(self.held):
            return numbers
        return numbers + np.searchsorted(self._kept_before, numbers, side="right")

    @functools.cached_property
    def _kept_before(self) -> np.ndarray:
        return self.held - np.arange(len(self.held))


@dataclasses.dataclass(frozen=True, eq=False)
class KeptShard(_Kept):
    """The kept events of a shard.

    Attributes:
        shard: All of its events.
        held: Places of those held back `[h]` int64, ascending.
    """

    shard: EventShard
    held: np.ndarray

    def __len__(self) -> int:
        return len(self.shard) - len(self.held)

    def newest(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest kept items of the users of events, before or after them.

        Args:
            numbers: Kept events of the shard `[b]`.
            length: Items of a user at the most.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0; the event's
            own item is among them.
        """
        user = self._user(numbers)
        return newest_first(self.item_row, self.offsets[user], self.offsets[user + 1], length)

    def past(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest kept items before events, without those of the same second.

        Args:
            numbers: Kept events of the shard `[b]`.
            length: Items of a user at the most.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0.
        """
        places = self.places(numbers)
        if self._is_past_whole:
            return self.shard.histories(places, length)
        ends = places - self.shard.tied[places]
        ends = ends - np.searchsorted(self.held, ends)
        return newest_first(self.item_row, self.offsets[self._user(numbers)], ends, length)

    def others(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns what `newest` does, without the events themselves (leave one out)."""
        end = self.offsets[self._user(numbers) + 1]
        rows = self.newest(numbers, length + 1)
        # Places of a row count back from the user's last event.
        is_before = np.arange(length) < (end - 1 - numbers)[:, None]
        others = np.where(is_before, rows[:, :-1], rows[:, 1:])
        # Where the user took the same item twice, the answer must not stand in the question.
        own = self.item_row[numbers]
        return np.where(others == own[:, None], 0, others)

    def of_user(self, numbers: np.ndarray) -> np.ndarray:
        """Returns how many kept events the users of events `[b]` have `[b]` int64."""
        user = self._user(numbers)
        return self.offsets[user + 1] - self.offsets[user]

    @functools.cached_property
    def item_row(self) -> np.ndarray:
        """Items of the kept events `[kept]` int32."""
        return np.delete(self.shard.item_row, self.held) if len(self.held) else self.shard.item_row

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """First kept event of each user, and the end `[users + 1]` int64."""
        return self.shard.offsets - np.searchsorted(self.held, self.shard.offsets)

    @functools.cached_property
    def _is_past_whole(self) -> bool:
        """Whether all that lies before a kept event in time is kept, as of the newest share.

        The column is read as it is then: without a copy of the kept items.
        """
        user = np.searchsorted(self.shard.offsets, self.held, side="right") - 1
        is_first = np.append(True, user[1:] != user[:-1])[: len(user)]
        user, first_held = user[is_first], self.held[is_first]
        last_kept = self.offsets[user + 1] - 1
        has_kept = last_kept >= self.offsets[user]
        newest, time = self.places(last_kept[has_kept]), self.shard.timestamp
        return bool((time[newest] <= time[first_held[has_kept]]).all())

    def _user(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.offsets, numbers, side="right") - 1


@dataclasses.dataclass(frozen=True, eq=False)
class KeptEvents(_Kept):
    """The kept events of a log.

    Attributes:
        log: All events.
        held: Places of those held back `[h]` int64, ascending.
        draw: How they were chosen.
    """

    log: EventLog
    held: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    draw: Draw = "newest"

    def __len__(self) -> int:
        return len(self.log) - len(self.held)

    @functools.cached_property
    def shards(self) -> tuple[KeptShard, ...]:
        """The kept events of each shard."""
        starts = self.log.item_row.starts
        borders = np.searchsorted(self.held, starts)
        return tuple(
            KeptShard(shard, self.held[borders[i] : borders[i + 1]] - starts[i])
            for i, shard in enumerate(self.log.shards)
        )

    def item_counts(self, n_rows: int) -> np.ndarray:
        """Returns the kept events of each item row `[n_rows]` int64."""
        return np.pad(self._item_counts, (0, n_rows - len(self._item_counts)))

    def user_counts(self, n_rows: int) -> np.ndarray:
        """Returns the kept events of each user row `[n_rows]` int64."""
        counts = self._counts("user_row")
        return np.pad(counts, (0, n_rows - len(counts)))

    @functools.cached_property
    def n_users(self) -> int:
        """Users with a kept event."""
        return sum(int((np.diff(part.offsets) > 0).sum()) for part in self.shards)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """First kept event of each shard, and the end `[shards + 1]` int64."""
        return np.cumsum([0, *(len(shard) for shard in self.shards)])

    @functools.cached_property
    def _item_counts(self) -> np.ndarray:
        return self._counts("item_row")

    def _counts(self, column: str) -> np.ndarray:
        """Returns the kept events of each row, up to the highest that has one."""
        counts = np.zeros(0, np.int64)
        for part in self.shards:
            rows = getattr(part.shard, column)
            of_shard = np.bincount(rows, minlength=len(counts))
            of_shard -= np.bincount(rows[part.held], minlength=len(of_shard))
            of_shard[: len(counts)] += counts
            counts = of_shard
        return counts


def training_events(events: EventLog, train: TrainConfig, split: SplitRule = BY_TIME) -> KeptEvents:
    """Returns what training sees of `events`: all, or all but what validation holds back.

    Args:
        events: The training positives.
        train: Whether there is a validation, and how it draws.
        split: How the positives were split, and what orders them.

    Raises:
        RecsysError: There are fewer than two events to divide.
        UsageError: The draw needs what the data don't have.
    """
    if train.validation is None:
        return KeptEvents(events)
    draw = draw_of(events, train.validation, split)
    return KeptEvents(events, held_back(events, train.validation, draw), draw)


def read_events(
    events: KeptEvents,
    numbers: np.ndarray,
    model: RetrievalConfig,
    known: int,
    user_balance: float = 0.0,
) -> dict[str, np.ndarray]:
    """Reads events at any places, with the histories of their users.

    Sorted, they meet each shard once and its pages in order, which is several times
    faster for many events than as they come.

    Args:
        events: The events that training sees.
        numbers: Which of them `[n]` int64.
        model: What a history is, and how long.
        known: Newest items of each event's user.
        user_balance: Power of its user's events that an event's weight is divided by:
            at 1 all users weigh the same, whatever they did (Covington et al., "Deep
            Neural Networks for YouTube Recommendations", RecSys 2016, section 3.3,
            takes equally many examples of each).

    Returns:
        `user_row` and `item_row` `[n]` int32; `history` `[n, model.history]` int32, what the
        user did before, or did else; where `known` is not 0, `known` `[n, known]` int32, the
        newest items of the user, its own among them or not; and `weight` `[n]` float32 where
        one is not 1. Items are the newest first, padded with 0.
    """
    n, order = len(numbers), np.argsort(numbers)
    widths = {"history": model.history, **({"known": known} if known else {})}
    read = {name: np.empty(n, np.int32) for name in ("user_row", "item_row")}
    read |= {name: np.empty((n, width), np.int32) for name, width in widths.items()}
    if events.log.weight is not None or user_balance > 0:
        read["weight"] = np.empty(n, np.float32)
    for number, part in split_sorted(numbers[order], events.starts):
        kept, to = events.shards[number], order[part]
        ordered, shard = numbers[to] - events.starts[number], kept.shard
        places = kept.places(ordered)
        read["user_row"][to] = shard.user_row[places]
        read["item_row"][to] = shard.item_row[places]
        if model.history and model.history_of == "others":
            read["history"][to] = kept.others(ordered, model.history)
        elif model.history:
            read["history"][to] = kept.past(ordered, model.history)
        if known:
            read["known"][to] = kept.newest(ordered, known)
        if "weight" in read:
            own = 1.0 if shard.weight is None else shard.weight[places]
            read["weight"][to] = own * kept.of_user(ordered) ** -user_balance
    return read


# --- batches


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSource:
    """The batches of a training run, in order, over all epochs.

    Every epoch is another permutation of all events; its last, partial batch is
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
    def numbers_of_batch(self) -> int:
        """Entries of all arrays of a batch, as near as matters for memory."""
        of_user = sum(feature.bags.shape[1] for feature in self.user_features)
        of_item = sum(feature.bags.shape[1] for feature in self.catalogue.features)
        of_query = 2 + self.model.history + self.train.known_positives + of_user
        return self.batch_size * of_query + self.n_candidates * (3 + of_item)

    def __len__(self) -> int:
        return self.steps_per_epoch * self.epochs

    def with_hard_negatives(self, hard: HardNegatives) -> Self:
        """Returns the same batches, but for hard negatives from other lists."""
        return dataclasses.replace(self, hard=hard)

    def __getitem__(self, step: int) -> Batch:
        """Returns batch `step`, the model's inputs with `item_row` and `log_q`.

        The items are `n_candidates`, in the order of `BatchCandidates`: `id_row`, `item_row`,
        `log_q` and the items' features have an entry for each. `user_row`, `history`,
        the users' features, and, where there are any, `weight` and `known` have
        `batch_size`.
        """
        return self.batches(step, step + 1)[0]

    def batches(self, first: int, end: int) -> list[Batch]:
        """Returns the batches of the steps `first` … `end` - 1, of one epoch.

        Read together they come several times faster than one by one, and are the same.
        """
        n, train = self.batch_size, self.train
        epoch, position = divmod(first, self.steps_per_epoch)
        numbers = self._permutation(epoch)[np.arange(position * n, (position + end - first) * n)]
        examples = read_events(
            self.events, numbers, self.model, train.known_positives, train.user_balance
        )
        return [
            self._batch(
                first + i, {k: column[i * n : (i + 1) * n] for k, column in examples.items()}
            )
            for i in range(end - first)
        ]

    def _batch(self, step: int, examples: Batch) -> Batch:
        random = np.random.default_rng([self.train.seed, 1, step])
        item_row = self._candidates.of_batch(examples["item_row"], random)
        query = self._query(examples, random)
        return {
            **query,
            "id_row": drop_rows(self._trained_row[item_row], self.model.id_dropout, random),
            "item_row": item_row,
            "log_q": self._log_q(step // self.steps_per_epoch)[item_row],
            **{name: examples[name] for name in ("weight", "known") if name in examples},
            **bags_of(self.catalogue.features, item_row),
            # A user who is shown as a new one keeps its features: they are known.
            **bags_of(self.user_features, examples["user_row"]),
            **bags_of_histories(self.catalogue.features, query["history"], self.model),
        }

    def _query(self, examples: Batch, random: np.random.Generator) -> Batch:
        """Returns what the query reads of users and histories, some of it dropped."""
        user_row = drop_rows(examples["user_row"], self.model.id_dropout, random)
        history = drop_rows(examples["history"], self.model.history_dropout, random)
        if self.model.new_user_share:
            is_new = random.random(len(user_row), np.float32) < self.model.new_user_share
            user_row = np.where(is_new, UNKNOWN_ROW, user_row)
            history[is_new] = UNKNOWN_ROW
        return {"user_row": user_row, "history": history}

    def _permutation(self, epoch: int) -> Permutation:
        return Permutation(len(self.events), (self.train.seed, 0, epoch))

    def _log_q(self, epoch: int) -> np.ndarray:
        """Returns the correction of an epoch's scores, by item row `[item rows]` float32."""
        return self._log_q_of_events

    @functools.cached_property
    def _log_q_of_events(self) -> np.ndarray:
        candidates = self._candidates
        return candidates.log_q((candidates.event_shares, self.batch_size))

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


def drop_rows(rows: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """Returns `rows` `[...]` with a share of them read as unknown [0..1)."""
    if not share:
        return rows
    is_dropped = random.random(rows.shape, np.float32) < share
    return np.where(is_dropped, np.int32(UNKNOWN_ROW), rows)


# --- threads that read ahead

_BLOCK_EXAMPLES = 1 << 17
_BLOCK_CANDIDATES = 1 << 19
_BLOCK_NUMBERS = 1 << 25  # Of four bytes each.
_FIRST_PART = 16
_READ_AHEAD_BLOCKS = 2
_READERS = 2


class _Blocks:
    """The batches of a source, many consecutive ones of an epoch at a time.

    The first block comes in two parts, of which the first is small: training waits for it.

    Args:
        source: The batches.
        first_step: Step to begin with.
        end_step: Step to end before.
    """

    def __init__(self, source: BatchSource, first_step: int, end_step: int) -> None:
        self._source, self._first, self._end = source, first_step, end_step
        examples = _BLOCK_EXAMPLES // source.batch_size
        candidates = _BLOCK_CANDIDATES // source.n_candidates
        numbers = _BLOCK_NUMBERS // source.numbers_of_batch
        self._size = max(1, min(examples, candidates, numbers))
        self._per_epoch = -(-source.steps_per_epoch // self._size)
        self._skipped = self._block_of(first_step)

    def __len__(self) -> int:
        if self._end <= self._first:
            return 0
        return self._block_of(self._end - 1) + 2 - self._skipped

    def __getitem__(self, number: int) -> list[Batch]:
        first, end = self._steps_of(max(0, number - 1))
        border = min(first + max(1, self._size // _FIRST_PART), end)
        if number < 2:
            first, end = ((first, border), (border, end))[number]
        return self._source.batches(first, end) if first < end else []

    def _steps_of(self, block: int) -> tuple[int, int]:
        """Returns the steps of a block: the first, and the one after the last."""
        epoch, position = divmod(block + self._skipped, self._per_epoch)
        begin = epoch * self._source.steps_per_epoch
        first = begin + position * self._size
        end = min(first + self._size, begin + self._source.steps_per_epoch, self._end)
        return max(first, self._first), end

    def _block_of(self, step: int) -> int:
        epoch, position = divmod(step, self._source.steps_per_epoch)
        return epoch * self._per_epoch + position // self._size


class _Unpack(grain.experimental.FlatMapTransform):
    """Lays the batches of blocks one after the other, each as Keras takes it."""

    max_fan_out = _BLOCK_EXAMPLES

    def flat_map(self, element: list[Batch]) -> list[tuple[Batch]]:
        """Returns the batches of a block as tuples of one."""
        return [(batch,) for batch in element]


def read_ahead(
    source: BatchSource, first_step: int = 0, end_step: int | None = None
) -> grain.IterDataset:
    """Returns a Grain dataset of `(batch,)`, read by threads ahead.

    Args:
        source: The batches.
        first_step: Step to begin with.
        end_step: Step to end before; None: the end of the run.
    """
    end = len(source) if end_step is None else min(end_step, len(source))
    options = grain.ReadOptions(num_threads=_READERS, prefetch_buffer_size=_READ_AHEAD_BLOCKS)
    blocks = grain.MapDataset.source(_Blocks(source, first_step, end)).to_iter_dataset(options)
    return grain.experimental.FlatMapIterDataset(blocks, _Unpack())
