"""Validation: the ranks of the positives that were held back from training."""

from __future__ import annotations

import dataclasses

import jax
import keras
import numpy as np

from recsys.data.config import ValidationConfig
from recsys.data.event_log import minutes
from recsys.data.hold_out import ONE_QUERY_PER_USER, KeptEvents
from recsys.errors import RecsysError
from recsys.metrics import RankedLists, per_query, per_user
from recsys.metrics.rankings import Ndcg, Recall, ReciprocalRank
from recsys.models import ModelInputs
from recsys.models.config import RetrievalConfig
from recsys.models.inference import Inference
from recsys.ragged import RaggedRows, ranges
from recsys.strict import Repeats
from recsys.tasks.retrieval.judging.queries import (
    Queries,
    of_some_users,
    repeated,
    without,
    without_twins,
)
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.scores import DotProducts
from recsys.tasks.retrieval.judging.sharded_candidates import embedded_catalogue

_K = 10
"""Cut-off of the metrics that are shown besides the monitored one."""


class Validator:
    """Ranks the held-back positives among the whole catalogue, as the evaluation does.

    Args:
        events: The training positives, with the held-back ones.
        inputs: Inputs of users and items, as `trained_inputs` returns them.
        model: Kind and length of a history.
        config: The metric, and the number of queries.
        since: Start of the labels: the earlier model of a warm start was trained on older
            events [seconds since 1970, UTC].
        repeats: Whether lists may contain items that a user has seen.

    Raises:
        RecsysError: No event is held back, or only repeats, which are excluded.
    """

    def __init__(
        self,
        events: KeptEvents,
        inputs: ModelInputs,
        model: RetrievalConfig,
        config: ValidationConfig,
        since: int | None = None,
        repeats: Repeats = "exclude",
    ) -> None:
        queries = held_back_queries(_since(events, since), model, config.max_queries)
        self.queries, self._hidden = queries, RaggedRows.empty(len(queries))
        if repeats == "exclude":
            self.queries = without(queries, repeated(queries, inputs.catalogue.is_item))
            self._hidden = self.queries.seen
        if not len(self.queries):
            raise _nothing_held_back(len(events.log), len(queries.positives.rows))
        self._inputs = inputs
        self._histories = self.queries.histories(model.history)
        self._facts = self.queries.fact_inputs(model.query_facts, model.history)
        k = config.metric.rpartition("@")[2]
        self._ks = sorted({_K, int(k)} if k.isdecimal() else {_K})

    def metrics(self, towers: Inference) -> dict[str, float]:
        """Returns `recall@k`, `ndcg@k` and `mrr`, means over the users of the queries.

        Args:
            towers: The towers of the current model.
        """
        queries, layout = self.queries, keras.distribution.distribution()
        # With several processes, none holds all candidates.
        is_split = jax.process_count() > 1 and layout is not None
        mesh = layout.device_mesh.backend_mesh if is_split else None
        embedded = towers.queries(queries.user_row, self._histories, self._inputs, self._facts)
        ranks = rank(
            DotProducts(embedded, embedded_catalogue(towers, self._inputs, mesh)),
            queries.positives,
            self._hidden,
            self._inputs.catalogue.is_item,
            min(self._ks),
        ).ranks
        lists = RankedLists(ranks, queries.positives.owner(), len(queries))
        values = per_query((Recall(), Ndcg(), ReciprocalRank()), lists, self._ks)
        users, user = np.unique(queries.user, return_inverse=True)
        names = [f"{name}@{k}" for name in ("recall", "ndcg") for k in self._ks]
        return {
            name: float(per_user(values[name], user, len(users)).mean()) for name in [*names, "mrr"]
        }


def _since(events: KeptEvents, since: int | None) -> KeptEvents:
    """Returns the events without holding back those before `since`."""
    if since is None:
        return events
    is_new = np.asarray(events.log.timestamp[events.held]) >= since
    return dataclasses.replace(events, held=events.held[is_new])


def held_back_queries(events: KeptEvents, model: RetrievalConfig, most: int) -> Queries:
    """Returns the queries whose labels are the held-back events.

    As in the evaluation, there is one query per user and second with the user's earlier events as
    history, if held-back events are newer than kept ones. With `history_of: others`, or for a
    random draw, there is one query per user, with all kept events.

    Args:
        events: The training positives, with the held-back ones.
        model: Kind of a history.
        most: Maximum number of queries; if there are more, a reproducible sample of users is
            used.

    Raises:
        RecsysError: No event is held back.
    """
    log, held = events.log, events.held
    if not len(held):
        raise _nothing_held_back(len(log))
    user = log.user_index(held)
    is_first = np.ones(len(held), bool)
    is_first[1:] = user[1:] != user[:-1]
    if model.history_of != "others" and events.draw not in ONE_QUERY_PER_USER:
        time = log.timestamp[held]
        is_first[1:] |= time[1:] != time[:-1]
    first = np.flatnonzero(is_first)
    end = np.append(first[1:], len(held))
    if len(first) > most:
        chosen = of_some_users(user[first], most)
        first, end = first[chosen], end[chosen]
    places = held[ranges(first, end - first)]
    seen = _seen(events, user[first], first)
    now = log.timestamp[held[first]]
    if events.draw in ONE_QUERY_PER_USER:  # The query time is after all events.
        newest = max(int(shard.timestamp.max()) for shard in log.shards if len(shard))
        now = np.full(len(first), newest)
    facts = log.facts(model.history_facts, seen.rows, np.repeat(now, np.diff(seen.offsets)))
    return Queries(
        user=user[first],
        user_row=log.user_row[held[first]],
        seen=RaggedRows(log.item_row[seen.rows], seen.offsets),
        positives=without_twins(log.item_row[places], end - first),
        facts={name: RaggedRows(fact, seen.offsets) for name, fact in facts.items()},
        query_time=minutes(now),
    )


def _nothing_held_back(n_positives: int, n_repeated: int = 0) -> RecsysError:
    more = {"held back, all of items seen before": n_repeated} if n_repeated else {}
    return RecsysError(
        "R329",
        "Validation needs at least one training positive that is held back; while repeats is"
        " `exclude`, of an item new to its user.",
        "Raise train.validation.share, set train.validation to null, or repeats to include.",
        {"training positives": n_positives, **more},
    )


def _seen(events: KeptEvents, user: np.ndarray, first: np.ndarray) -> RaggedRows:
    """Returns the indices of each user's events before the query: kept, and earlier held-back.

    Args:
        events: The training positives.
        user: User of each query `[n]`.
        first: Index of the query's first event among the held-back ones `[n]`.
    """
    held, offsets = events.held, events.log.offsets
    lists = [np.zeros(0, np.int64)]
    for start, end, query in zip(offsets[user], offsets[user + 1], first, strict=True):
        own = slice(*np.searchsorted(held, (start, end)).tolist())
        kept = np.delete(np.arange(start, end), held[own] - start)
        lists.append(np.concatenate([kept, held[own.start : query]]))
    return RaggedRows(np.concatenate(lists), np.cumsum([len(part) for part in lists]))
