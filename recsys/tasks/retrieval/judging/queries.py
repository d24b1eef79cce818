"""The queries of an evaluation: user, time, known history, and positives.

A held-out event may repeat an item that its user has seen before. A model that masks seen items,
as the served one does by default, can never recommend it. Such events are counted, and are labels
of a query only if `repeats` is `include`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from recsys.data.catalogue import of_history as history_input
from recsys.data.event_features import LearnedFeature, values_at
from recsys.data.event_log import HistoryLog, input_dtype, newest_first
from recsys.data.store import InteractionStore
from recsys.errors import RecsysError, UsageError
from recsys.ragged import RaggedRows, ranges
from recsys.tasks.judging_side import of_some_users

Protocol = Literal["each_moment", "at_cut"]

_BLOCK_ROWS = 2**22


@dataclasses.dataclass(frozen=True)
class Queries:
    """Queries `[n]`, grouped by user, in time order.

    Attributes:
        user: Evaluation user of each query `[n]`, an index into `store.eval_users`.
        user_row: Row of that user `[n]` int32, own or shared.
        seen: Item rows of the user's events before the query, the oldest first.
        positives: Unique held-out item rows of the query.
        time: Query times `[n]` int64 [seconds since 1970, UTC]; None: the cut.
        idle_s: Time since the user's last event before the query `[n]` int64 [s]; -1 without
            such an event, or if it isn't computed.
        of_history: Inputs of a model with an entry for each of `seen`, in its order: attributes.
        of_query: Inputs of a model `[n, …]`: context.
        history: Item rows of the events before the query that a history holds, if they are more
            than `seen`; then `of_history` is in its order.
    """

    user: np.ndarray
    user_row: np.ndarray
    seen: RaggedRows
    positives: RaggedRows
    time: np.ndarray | None = None
    idle_s: np.ndarray | None = None
    of_history: Mapping[str, RaggedRows] = dataclasses.field(default_factory=dict)
    of_query: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    history: RaggedRows | None = None

    def __len__(self) -> int:
        return len(self.user)

    def select(self, chosen: np.ndarray) -> Queries:
        """Returns the queries that `chosen` `[n]` selects: a mask, or indices."""
        return Queries(
            self.user[chosen],
            self.user_row[chosen],
            self.seen.select(chosen),
            self.positives.select(chosen),
            None if self.time is None else self.time[chosen],
            None if self.idle_s is None else self.idle_s[chosen],
            {name: lists.select(chosen) for name, lists in self.of_history.items()},
            {name: values[chosen] for name, values in self.of_query.items()},
            None if self.history is None else self.history.select(chosen),
        )

    def histories(self, length: int) -> np.ndarray:
        """Returns the histories `[n, length]` int32, the newest first, padded with 0."""
        return self._newest(self.seen if self.history is None else self.history, length)

    def given(self, names: Collection[str], length: int) -> dict[str, np.ndarray]:
        """Returns inputs of a model that come from events, those of `names` that are known.

        They are `[n, length, …]`, in the order of `histories`, or `[n, …]`; token rows are int32.
        """
        histories = {n: self._newest(x, length) for n, x in self.of_history.items() if n in names}
        queries = {
            name: x.astype(input_dtype(x.dtype), copy=False)
            for name, x in self.of_query.items()
            if name in names
        }
        return {**histories, **queries}

    def _newest(self, lists: RaggedRows, length: int) -> np.ndarray:
        return newest_first(lists.rows, lists.offsets[:-1], lists.offsets[1:], length)


def protocol_of(store: InteractionStore, chosen: Protocol | None) -> Protocol:
    """Returns the protocol of the queries: the chosen one, or the default for the split.

    Raises:
        UsageError: Each moment was chosen, but held-out events may not come after the
            training events.
    """
    split, order = store.split.split, store.split.order
    if chosen == "each_moment" and (split == "random" or order == "none"):
        rule = "evaluate.query: each_moment needs held-out events after the training events."
        cure = "Remove evaluate.query, or set it to at_cut."
        raise UsageError("R413", rule, cure, store.split.text)
    by_default: Protocol = "each_moment" if split in ("time", "last_out") else "at_cut"
    return chosen or by_default


def make_queries(
    store: InteractionStore,
    kind: Protocol,
    most: int | None = None,
    seed: int = 0,
    inputs: Collection[str] = (),
    features: Iterable[LearnedFeature] = (),
) -> Queries:
    """Returns the queries of the held-out events.

    Args:
        store: The positives, split at the cut.
        kind: `each_moment`: one query for each user and second with held-out events, with
            all events of the user before that second. `at_cut`: one query per user, with the
            user's events before the cut.
        most: Maximum number of queries. If there are more, a reproducible sample of users
            is drawn, each with all of its queries; at least one user.
        seed: Seed of that sample.
        inputs: Names of the models' inputs that come from events. Each one of histories takes as
            much memory as them, or a quarter for few tokens.
        features: The features of the events. The context is that of a query's first held-out
            event. `at_cut` times and gaps are relative to the cut.

    Raises:
        RecsysError: No event is held out.
    """
    log = store.eval
    if len(log) == 0:
        rule = "The evaluation needs at least one held-out positive."
        cure = "Raise data.eval_share, or add events that are newer than the training events."
        raise RecsysError("R401", rule, cure, 0)
    if kind == "at_cut":
        starts = log.offsets[:-1][np.diff(log.offsets) > 0]
    else:
        starts = np.flatnonzero(np.asarray(log.tied) == 0)
    ends = np.append(starts[1:], len(log))
    user = log.user_index(starts)
    if most is not None and len(starts) > most:
        chosen = of_some_users(user, most, seed)
        starts, ends, user = starts[chosen], ends[chosen], user[chosen]
    now = log.timestamp[starts] if kind == "each_moment" else np.full(len(starts), store.cut)
    pasts = store.train.history, log.history
    until = pasts[1].ends(starts) if kind == "each_moment" else pasts[1].offsets[user]
    idle_s: Any = _idle(store, user, until, now)

    def before(column: Callable[[HistoryLog], Any]) -> RaggedRows:
        return _before(store, pasts, user, until, column)

    of_history, of_query = {}, {}
    for one in features:
        name = one.name
        if history_input(name) in inputs:
            of_history[history_input(name)] = before(_feature(name))
        if name in inputs:
            of_query[name] = log.features[name][starts]
            if kind == "at_cut" and store.split.has_cut and one.feature.value in ("time", "gap"):
                of_query[name] = one.encode(values_at(one.feature.value, now, idle_s))
    return Queries(
        user=user,
        user_row=store.eval_users.rows[user],
        seen=_before(store, (store.train, log), user, starts, lambda log: log.item_row),
        positives=without_twins(log.item_row[ranges(starts, ends - starts)], ends - starts),
        time=now if kind == "each_moment" else None,
        idle_s=idle_s,
        of_history=of_history,
        of_query=of_query,
        history=before(lambda log: log.item_row) if store.has_others else None,
    )


def _feature(name: str) -> Callable[[HistoryLog], Any]:
    return lambda log: log.features[name]


def _idle(
    store: InteractionStore, user: np.ndarray, until: np.ndarray, now: np.ndarray
) -> np.ndarray | None:
    """Returns the time since the event before each query `[n]` int64 [s]; -1 without one.

    None if it is unknown: without times, or if held-out events don't come last.

    Args:
        store: The events.
        user: Evaluation user of each query `[n]`.
        until: End of its history in `store.eval.history` `[n]`.
        now: Query times `[n]`.
    """
    if not store.split.has_cut:
        return None
    train, held_out = store.train.history, store.eval.history
    first, end = train.slices(store.trained_user[user])
    last = np.full(len(user), -1, np.int64)
    is_known = end > first
    last[is_known] = train.timestamp[end[is_known] - 1]
    is_later = until > held_out.offsets[user]
    last[is_later] = held_out.timestamp[until[is_later] - 1]
    return np.where(is_known | is_later, now - last, -1)


def keep_rankable(queries: Queries, is_item: np.ndarray, mask_seen: bool = True) -> np.ndarray:
    """Returns which queries have an item to rank besides the positives `[n]` bool.

    Args:
        queries: The queries.
        is_item: Whether each item row is an item `[item rows]` bool.
        mask_seen: Whether seen items are masked in the lists.
    """
    seen = queries.seen if mask_seen else RaggedRows.empty(len(queries))
    n_taken = np.empty(len(queries), np.int64)
    for block in seen.blocks(_BLOCK_ROWS):
        parts = [queries.positives.part(block), seen.part(block)]
        owner = np.concatenate([part.owner() for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        places = np.unique(owner[is_item[rows]] * len(is_item) + rows[is_item[rows]])
        n_taken[block] = np.bincount(places // len(is_item), minlength=len(parts[0]))
    return np.asarray(n_taken < is_item.sum())


def _before(
    store: InteractionStore,
    logs: tuple[Any, Any],
    user: np.ndarray,
    starts: np.ndarray,
    column: Callable[[Any], Any],
) -> RaggedRows:
    """Returns a column of each query's events before the cut, then of those up to the query.

    Args:
        store: The positives, split at the cut.
        logs: The events of `store.train` and `store.eval`, or of their histories.
        user: Evaluation user of each query `[n]`.
        starts: End of the query's held-out events in the second log `[n]`, exclusive.
        column: Returns a column of a log.
    """
    train_start, train_end = logs[0].slices(store.trained_user[user])
    eval_start = logs[1].offsets[user]
    n_train, n_eval = train_end - train_start, starts - eval_start
    offsets = np.concatenate([[0], np.cumsum(n_train + n_eval)])
    held_out = column(logs[1])
    trained = column(logs[0]) if len(logs[0]) else held_out
    rows = np.empty((offsets[-1], *held_out.shape[1:]), held_out.dtype)
    # One by one: index arrays for all queries would take six times the memory.
    for query in range(len(starts)):
        start, middle, end = (offsets[query], offsets[query] + n_train[query], offsets[query + 1])
        rows[start:middle] = trained[train_start[query] : train_end[query]]
        rows[middle:end] = held_out[eval_start[query] : starts[query]]
    return RaggedRows(rows, offsets)


def without_twins(rows: np.ndarray, counts: np.ndarray) -> RaggedRows:
    """Returns lists of `counts` rows each, with unique items."""
    owner = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((rows, owner))
    rows, owner = rows[order], owner[order]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (rows[1:] != rows[:-1]) | (owner[1:] != owner[:-1])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner[is_first], minlength=len(counts)))])
    return RaggedRows(rows[is_first].astype(np.int32), offsets)


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Counts of positives that repeat an item.

    Attributes:
        users: Number of users with such positives.
        queries: Number of queries with such positives.
        positives: Number of such positives.
        share: Their share of all positives [0..1].
        only: Number of queries without other positives.
    """

    users: int
    queries: int
    positives: int
    share: float
    only: int

    @classmethod
    def of(cls, queries: Queries, is_repeated: np.ndarray) -> Repeats:
        """Counts the positives of `queries` that `is_repeated` `[positives]` bool marks."""
        n_positives = np.diff(queries.positives.offsets)
        owner = queries.positives.owner()[is_repeated]
        n_repeated = np.bincount(owner, minlength=len(queries))
        return cls(
            users=len(np.unique(queries.user[owner])),
            queries=len(np.unique(owner)),
            positives=len(owner),
            share=len(owner) / max(1, len(is_repeated)),
            only=int((n_repeated == n_positives).sum()),
        )


def repeated(queries: Queries, is_item: np.ndarray) -> np.ndarray:
    """Returns which positives have an item that is in the query's `seen` `[positives]` bool.

    Args:
        queries: The queries.
        is_item: Whether each item row is an item `[item rows]` bool; items in other, shared
            rows can't be distinguished, and count as new.
    """
    is_repeated = np.zeros(len(queries.positives.rows), bool)
    for block in queries.seen.blocks(_BLOCK_ROWS):
        positives, seen = queries.positives.part(block), queries.seen.part(block)
        keys, seen_keys = (part.owner() * len(is_item) + part.rows for part in (positives, seen))
        first = queries.positives.offsets[block.start]
        is_repeated[first : first + len(keys)] = np.isin(keys, seen_keys) & is_item[positives.rows]
    return is_repeated


def without(queries: Queries, is_repeated: np.ndarray) -> Queries:
    """Returns the queries without the marked positives; queries with no others are left out.

    Args:
        queries: The queries.
        is_repeated: Positives to leave out `[positives]` bool.
    """
    if not is_repeated.any():
        return queries
    kept = ~is_repeated
    counts = np.bincount(queries.positives.owner()[kept], minlength=len(queries))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    positives = RaggedRows(queries.positives.rows[kept], offsets)
    return dataclasses.replace(queries, positives=positives).select(counts > 0)
