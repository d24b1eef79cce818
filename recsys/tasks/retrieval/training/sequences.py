"""Training batches of sequences: each event of a row is predicted from the ones before it.

The kept events of all users are concatenated, each user's in the order of time, and divided into
rows of equal length. A row holds one user's long history or several users' short ones, without
padding (packing without attention across examples: Krell et al., "Efficient Sequence Packing
without Cross-contamination", 2021). A row repeats the end of the previous row as context, and
the division differs in each epoch. A batch is a function of (seed, step).
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from recsys.data.catalogue import of_history
from recsys.data.event_log import input_dtype
from recsys.data.hold_out import KeptEvents
from recsys.data.shuffle import epoch_order
from recsys.errors import RecsysError
from recsys.models.config import RetrievalConfig
from recsys.tasks.batch_parts import drop_rows
from recsys.tasks.config import TrainConfig
from recsys.tasks.retrieval.training.batches import BatchSource, read_events
from recsys.tasks.training_side import Batch

NO_STATE = -1
"""Column of an example without an earlier item."""


def packing(
    model: RetrievalConfig, train: TrainConfig, multiple: int = 1, events_of_example: float = 1.0
) -> tuple[int, int]:
    """Returns the number of rows per batch, and of examples per row.

    Args:
        model: The length of a history.
        train: The batch size, and the overlap of rows.
        multiple: Number of devices; the rows are a multiple of it and `train.negative_groups`.
        events_of_example: Mean number of events in histories per example: more than 1 with
            `data.interactions.history_events`.
    """
    multiple = math.lcm(multiple, train.negative_groups)
    new = model.history - round(model.history * train.window_overlap)
    new = max(1, round(new / events_of_example))
    return max(1, train.batch_size // new // multiple) * multiple, new


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceSource(BatchSource):
    """The batches of a run whose model learns at every position of a history.

    A batch has `rows` histories, each with `model.history` items of one or several users, and
    `new` examples of each: the events from the successor of the last item backwards. An example
    reads the state of the newest item of an earlier second. So a batch is

        history  [rows, history]  item rows, the newest first; 0 is padding
        segment  [rows, history]  users of the items: equal numbers are the same user
        at       [rows, new]      column of the history whose state an example reads;
                                  `NO_STATE`: the user has no earlier item

    attributes `history.<feature>` `[rows, history, …]`, and the other arrays of
    `BatchSource`. Examples are in the order of rows, the newest first.

    Raises:
        RecsysError: There are fewer events than a batch has, or they have no order (R336).
    """

    def __post_init__(self) -> None:
        if self.model.history_of == "others":
            raise RecsysError(
                "R336",
                "A model that learns at every position of a history needs events that have an"
                " order, and past ones as history.",
                "Leave model.history_of out and, if the events have no order, name a column of"
                " times in data.interactions.columns; or choose mean or attention as"
                " model.pooling.",
                {"model.history_of": "others"},
            )
        if self.steps_per_epoch < 1:
            raise self._too_few() if self._n_rows else self._too_long()

    def _too_long(self) -> RecsysError:
        return RecsysError(
            "R320",
            "A history must not hold more examples than there are training positives in two.",
            f"Lower model.history to at most {max(1, (len(self.events) + 1) // 2)}.",
            {"model.history": self.model.history, "training positives": len(self.events)},
        )

    @property
    def new(self) -> int:
        """Number of examples per row."""
        return self._packing[1]

    @property
    def rows(self) -> int:
        """Number of rows per batch, a multiple of the number of devices."""
        return self._packing[0]

    @functools.cached_property
    def _packing(self) -> tuple[int, int]:
        log = self.events.log
        share = len(log.history) / max(1, len(log))
        return packing(self.model, self.train, self.multiple, share)

    @property
    def batch_size(self) -> int:
        """Number of events per batch: at most `train.batch_size`, unless one row has more."""
        return self.rows * self.new

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches per epoch, wherever its first row begins."""
        return self._n_rows // self.rows

    @property
    def _n_rows(self) -> int:
        return max(0, len(self.events) - self.new + 1) // self.new

    def _examples(self, epoch: int, starts: np.ndarray) -> Batch:
        rows = (starts[:, None] // self.new + self.part.rows(self.rows)).ravel()
        end = self._row_ends(epoch, rows)
        numbers = (end[:, None] - 1 - np.arange(self.new)).ravel()
        events = read_events(
            self.events,
            numbers,
            self.model.model_copy(update={"history": 0}),
            self.train,
            with_items=self.part.is_whole,
            context=self.context,
        )
        is_more = self.events.log.has_others
        return events | (self._windows_of_others(end) if is_more else self._windows(end))

    def _numbers(self, epoch: int, places: np.ndarray) -> np.ndarray:
        row, place = np.divmod(places, self.new)
        rows, lengths = np.unique(row, return_counts=True)
        return np.repeat(self._row_ends(epoch, rows), lengths) - 1 - place

    def _row_ends(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        """Returns the ends, as numbers of kept events, of the rows at indices of an epoch `[n]`."""
        train, phase = self.train, self._phase(epoch)
        # A row belongs to the shard of its first event.
        starts = np.clip(-((phase - self.events.starts) // self.new), 0, self._n_rows)
        starts[-1] = self._n_rows
        row = epoch_order(starts, train.shuffle, train.seed, epoch, self.new)[rows]
        return phase + (row + 1) * self.new

    def _windows(self, end: np.ndarray) -> Batch:
        """Reads the histories of rows.

        Args:
            end: End of each row's examples `[n]`, as a number of kept events, exclusive.

        Returns:
            `history`, `segment` `[n, history]` and `at` `[n, new]` int32, and the attributes
            of the events that the model reads.
        """
        width, log = self.model.history, self.events.log
        # One column more than the history, since the newest example is not part of it.
        numbers = end[:, None] - 1 - np.arange(width + 1)
        places = self.events.log_indices(np.maximum(numbers, 0).ravel())
        user, time = (
            x.reshape(numbers.shape) for x in (log.user_index(places), log.timestamp[places])
        )
        user = np.where(numbers >= 0, user, -1)
        item = np.where(numbers >= 0, log.item_row[places].reshape(numbers.shape), 0)
        windows = {
            "history": item[:, 1:].astype(np.int32),
            "segment": (user[:, 1:] - user.min(axis=1, keepdims=True)).astype(np.int32),
            "at": _columns_before(user, time)[:, : self.new],
        }
        of_events = places.reshape(numbers.shape)[:, 1:]
        for name in self.attributes:
            x = log.features[name][of_events]
            windows[of_history(name)] = x.astype(input_dtype(x.dtype), copy=False)
        return windows

    def _windows_of_others(self, end: np.ndarray) -> Batch:
        """Reads the histories of rows as `_windows` does, if they hold other events, too."""
        events, log, past = self.events, self.events.log, self.events.log.history
        examples = events.log_indices((end[:, None] - 1 - np.arange(self.new)).ravel())
        asking, stop = log.user_index(examples), past.ends(examples)
        first, stop = map(events.history_numbers, (past.offsets[asking], stop))
        asking, first, stop = (x.reshape(len(end), self.new) for x in (asking, first, stop))
        # The history of the newest example ends the row.
        numbers = stop[:, :1] - 1 - np.arange(self.model.history)
        places = events.history_places(np.maximum(numbers, 0).ravel()).reshape(numbers.shape)
        user = np.where(numbers >= 0, past.user_index(places), -1)
        item = np.where(numbers >= 0, past.item_row[places], 0)
        at = stop[:, :1] - stop
        is_there = (stop > first) & (at < self.model.history)
        windows = {
            "history": item.astype(np.int32),
            "segment": (user - user.min(axis=1, keepdims=True)).astype(np.int32),
            "at": np.where(is_there, at, NO_STATE).astype(np.int32),
        }
        for name in self.attributes:
            x = past.features[name][places]
            windows[of_history(name)] = x.astype(input_dtype(x.dtype), copy=False)
        return windows

    def _query(self, examples: Batch, random: np.random.Generator) -> Batch:
        model, part = self.model, self.part
        user_row = drop_rows(examples["user_row"], model.id_dropout, random, part)
        history = drop_rows(examples["history"], model.history_dropout, random, part)
        at = _newest_left(history, examples["segment"], examples["at"])
        if model.new_user_share:
            is_new = part.uniform(user_row.shape, random) < model.new_user_share
            user_row = np.where(is_new, np.int32(0), user_row)
            at = np.where(is_new.reshape(at.shape), np.int32(NO_STATE), at)
        rows = {"user_row": user_row, "history": history, "segment": examples["segment"], "at": at}
        return rows | self._of_events(examples, history, random)

    def _phase(self, epoch: int) -> int:
        """Returns the number of the first event in the first row of an epoch."""
        return int(np.random.default_rng([self.train.seed, 2, epoch]).integers(self.new))

    @functools.cached_property
    def _log_q(self) -> np.ndarray:
        candidates = self._candidates
        if candidates.is_full:
            return candidates.log_q((np.zeros(1), self.rows))
        shares = _row_shares(self.events, self._n_rows, self.new, self.catalogue.n_rows)
        return candidates.log_q((shares, self.rows))


@functools.lru_cache(maxsize=1)
def _row_shares(events: KeptEvents, n_rows: int, new: int, n_items: int) -> np.ndarray:
    """Returns the share of an epoch's rows that contain each item `[n_items]` float64.

    It is the mean over the `new` possible beginnings of an epoch's first row, which are equally
    likely. So it is computed once for all epochs. An item is
    counted at its first event in a row. If the previous event with the same item is d events
    earlier, a row begins between the two for min(d, new) of the beginnings.

    Args:
        events: The kept events.
        n_rows: Number of rows per epoch.
        new: Number of examples per row.
        n_items: Number of item rows.
    """
    counts, end = np.zeros(n_items), n_rows * new
    for first in range(0, end + new - 1, _EVENTS_AT_ONCE):
        last = min(first + _EVENTS_AT_ONCE, end + new - 1)
        numbers = np.arange(max(0, first - new + 1), last)
        item = events.log.item_row[events.log_indices(numbers)]
        order = np.argsort(item, kind="stable")
        distance = np.where(np.diff(item[order]) == 0, np.diff(order), new)
        beginnings = np.full(len(item), new)
        beginnings[order[1:]] = np.minimum(distance, new)
        # The first events are in no row for late beginnings, and the last in none for early ones.
        beginnings = np.minimum(beginnings, numbers + 1) - np.maximum(0, numbers - end + 1)
        own = slice(first - numbers[0], None)
        counts += np.bincount(item[own], np.maximum(beginnings[own], 0), n_items)
    return counts / (new * n_rows)


_EVENTS_AT_ONCE = 1 << 22


def _columns_before(user: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Returns the column of the newest event of the same user in an earlier second.

    Args:
        user: User of each event `[n, width + 1]`, the newest first; -1 is padding.
        time: Time of each event `[n, width + 1]`.

    Returns:
        Columns of the history, which begins at the second event `[n, width + 1]` int32;
        `NO_STATE` if there is none.
    """
    n, width = user.shape
    column = np.arange(width, dtype=np.int32)
    is_other = np.ones((n, width), bool)  # Than the previous event in time, the right neighbour.
    is_other[:, :-1] = (user[:, 1:] != user[:, :-1]) | (time[:, 1:] != time[:, :-1])
    # The last event of each run with the same user and second, from right to left.
    last = np.where(is_other, column, np.int32(width))
    before = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1] + 1
    is_there = before < width
    inside = np.minimum(before, width - 1)
    same = np.take_along_axis(user, inside, axis=1) == user
    return np.where(is_there & same & (user >= 0), before - 1, np.int32(NO_STATE)).astype(np.int32)


def _newest_left(history: np.ndarray, segment: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns the first columns from `at` on, of the same user, whose items weren't dropped."""
    width = history.shape[1]
    column = np.where(history > 0, np.arange(width, dtype=np.int32), np.int32(width))
    left = np.minimum.accumulate(column[:, ::-1], axis=1)[:, ::-1]
    start = np.maximum(at, 0)
    there = np.take_along_axis(left, start, axis=1)
    inside = np.minimum(there, width - 1)
    same = np.take_along_axis(segment, inside, axis=1) == np.take_along_axis(segment, start, axis=1)
    return np.where((at >= 0) & (there < width) & same, there, np.int32(NO_STATE)).astype(np.int32)
