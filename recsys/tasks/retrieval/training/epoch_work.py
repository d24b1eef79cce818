"""The work between epochs: validation on held-back positives, and the weights of terms."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import jax
import keras
import numpy as np

from recsys.data.config import ValidationConfig
from recsys.data.hold_out import ONE_QUERY_PER_USER, KeptEvents
from recsys.distributed.coordination import agreed
from recsys.errors import RecsysError
from recsys.metrics import RankedLists, per_query, per_user
from recsys.metrics.rankings import Ndcg, Recall, ReciprocalRank
from recsys.models import ModelInputs
from recsys.models.config import RetrievalConfig
from recsys.models.inference import Inference
from recsys.models.inputs import EventInput
from recsys.models.terms import assign_scalar
from recsys.ragged import RaggedRows, ranges
from recsys.strict import Repeats
from recsys.tasks.judging_side import of_some_users
from recsys.tasks.retrieval.judging.queries import (
    Queries,
    repeated,
    without,
    without_twins,
)
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.ranking_devices import embedded_catalogue
from recsys.tasks.retrieval.judging.scores import Candidates, DotProducts, PairedProducts, Scorer
from recsys.tasks.retrieval.training.pair_weight import (
    MOST_QUERIES,
    NewItems,
    choose_weight,
    has_open_weight,
    is_chosen,
)
from recsys.tasks.training_side import EpochWork


@dataclasses.dataclass(eq=False)
class RetrievalEpochWork(EpochWork):
    """Validates the model between two epochs."""

    def __post_init__(self) -> None:
        """Makes the queries of the validation."""
        train = self.stage.train
        self._inference = Inference(self.model)
        self._validates, self._held = train.validation is not None, None
        if self._validates or len(self.source.events.held):
            self._held = self._held_back(train.validation or ValidationConfig())

    def _held_back(self, config: ValidationConfig) -> Validator | None:
        events, model = self.source.events, self.stage.model
        try:
            return Validator(events, self.inputs, model, config, self.since, self.stage.repeats)
        except RecsysError:
            if self._validates:
                raise
            return None  # All that is held back was seen before: the earlier weight is kept.

    def validate(self) -> dict[str, float]:
        """Returns the validation's metrics of the current model; empty without validation."""
        if self._held is None or not self._validates:
            return {}
        self.settle()
        return self._held.metrics(self._inference)

    def settle(self) -> None:
        """Updates what is computed from the current vectors, also the weights of terms."""
        catalogue = self.inputs.catalogue
        is_trained = (self.inputs.items.row_counts > 0) & catalogue.is_item

        def trained() -> Iterator[np.ndarray]:
            start = 0
            for block in self._inference.catalogue_blocks(self.inputs):
                yield block[is_trained[start : start + len(block)]]
                start += len(block)

        self.model.settle(trained())
        if self._held is not None and is_chosen(self.stage.model):
            self._held.choose_weights(self._inference)


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
        of_events = inputs.event_inputs(model)
        queries = held_back_queries(_since(events, since), model, config.max_queries, of_events)
        self.queries, self._hidden = queries, RaggedRows.empty(len(queries))
        if repeats == "exclude":
            self.queries = without(queries, repeated(queries, inputs.catalogue.is_item))
            self._hidden = self.queries.seen
        if not len(self.queries):
            raise _nothing_held_back(len(events.log), len(queries.positives.rows))
        self._inputs = inputs
        self._histories = self.queries.histories(model.history)
        self._given = self.queries.given([x.name for x in of_events], model.history)
        k = config.metric.rpartition("@")[2]
        self._ks = sorted({_K, int(k)} if k.isdecimal() else {_K})

    def metrics(self, towers: Inference) -> dict[str, float]:
        """Returns `recall@k`, `ndcg@k` and `mrr`, means over the users of the queries.

        Args:
            towers: The towers of the current model.
        """
        queries, paired = self.queries, self._scores(towers)
        scorer: Scorer = paired.products if paired.added is None else paired
        is_item = self._inputs.catalogue.is_item
        ranks = rank(scorer, queries.positives, self._hidden, is_item, min(self._ks)).ranks
        lists = RankedLists(ranks, queries.positives.owner(), len(queries))
        values = per_query((Recall(), Ndcg(), ReciprocalRank()), lists, self._ks)
        users, user = np.unique(queries.user, return_inverse=True)
        names = [f"{name}@{k}" for name in ("recall", "ndcg") for k in self._ks]
        return {
            name: float(per_user(values[name], user, len(users)).mean()) for name in [*names, "mrr"]
        }

    def choose_weights(self, towers: Inference) -> None:
        """Sets the weights of the model's terms that have no fixed one, see `pair_weight`."""
        part = slice(0, MOST_QUERIES)
        queries, is_item = self.queries, self._inputs.catalogue.is_item
        lists = queries.positives.part(part), self._hidden.part(part), queries.user[part]
        candidates: Candidates | None = None
        new: NewItems | None = None
        for term in towers.model.terms.values():
            if not has_open_weight(term.options):
                continue
            assign_scalar(term.weight, 0.0)
            zero = self._scores(towers, part, candidates)
            if candidates is None:
                new = self._new_items(towers)
            candidates = zero.products.candidates
            assign_scalar(term.weight, 1.0)
            one = self._scores(towers, part, candidates)
            # Processes may differ in the last bits of a score, and so in the weight.
            own = choose_weight(zero, one, *lists, is_item, new)
            assign_scalar(term.weight, agreed(functools.partial(float, own)))

    def _scores(
        self,
        towers: Inference,
        part: slice = slice(None),
        candidates: Candidates | None = None,
    ) -> PairedProducts:
        """Returns the scores of all items for some of the queries."""
        history, given = self._histories[part], {n: x[part] for n, x in self._given.items()}
        query = towers.queries(self.queries.user_row[part], history, self._inputs, given)
        if candidates is None:
            candidates = _candidates(towers, self._inputs)
        transitions = towers.model.transitions
        added = None if transitions is None else transitions.of_histories(history)
        return PairedProducts(DotProducts(query, candidates), added)

    def _new_items(self, towers: Inference) -> NewItems | None:
        """Returns the items without events; None: they have no features, or there are none."""
        inputs = self._inputs
        is_item = inputs.catalogue.is_item
        share = float((inputs.items.row_counts[is_item] == 0).mean())
        if not share or not inputs.catalogue.features:
            return None
        return NewItems(share, _candidates(towers, inputs.with_new_items()))


def _candidates(towers: Inference, inputs: ModelInputs) -> Candidates:
    """Returns the embedding of each item row; with several processes, none holds all."""
    layout = keras.distribution.distribution()
    is_split = jax.process_count() > 1 and layout is not None
    return embedded_catalogue(towers, inputs, layout.device_mesh.backend_mesh if is_split else None)


def _since(events: KeptEvents, since: int | None) -> KeptEvents:
    """Returns the events without holding back those before `since`."""
    if since is None:
        return events
    is_new = np.asarray(events.log.timestamp[events.held]) >= since
    return dataclasses.replace(events, held=events.held[is_new])


def held_back_queries(
    events: KeptEvents, model: RetrievalConfig, most: int, of_events: Iterable[EventInput] = ()
) -> Queries:
    """Returns the queries whose labels are the held-back events.

    As in the evaluation, there is one query per user and second with the user's earlier events as
    history, if held-back events are newer than kept ones. With `history_of: others`, or for a
    random draw, there is one query per user, with all kept events and without context.

    Args:
        events: The training positives, with the held-back ones.
        model: Kind of a history.
        most: Maximum number of queries; if there are more, a reproducible sample of users is
            used.
        of_events: Context and attributes that the model reads.

    Raises:
        RecsysError: No event is held back.
    """
    log, held = events.log, events.held
    if not len(held):
        raise _nothing_held_back(len(log))
    user = log.user_index(held)
    is_first = np.ones(len(held), bool)
    is_first[1:] = user[1:] != user[:-1]
    each_moment = model.history_of != "others" and events.draw not in ONE_QUERY_PER_USER
    if each_moment:
        time = log.timestamp[held]
        is_first[1:] |= time[1:] != time[:-1]
    first = np.flatnonzero(is_first)
    end = np.append(first[1:], len(held))
    if len(first) > most:
        chosen = of_some_users(user[first], most)
        first, end = first[chosen], end[chosen]
    places = held[ranges(first, end - first)]
    seen = _seen(events, user[first], first)
    past = log.history
    before = _histories(events, user[first], first) if log.has_others else seen
    of_history, of_query = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for x in of_events:
        if x.of_history:
            of_history[x.name] = past.features[x.feature][before.rows]
        elif each_moment:
            of_query[x.name] = log.features[x.feature][held[first]]
    return Queries(
        user=user[first],
        user_row=log.user_row[held[first]],
        seen=RaggedRows(log.item_row[seen.rows], seen.offsets),
        positives=without_twins(log.item_row[places], end - first),
        of_history={name: RaggedRows(x, before.offsets) for name, x in of_history.items()},
        of_query=of_query,
        history=RaggedRows(past.item_row[before.rows], before.offsets) if log.has_others else None,
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


def _histories(events: KeptEvents, user: np.ndarray, first: np.ndarray) -> RaggedRows:
    """Returns the indices in `events.log.history` of each query's history; args as in `_seen`."""
    past = events.log.history
    starts, ends = past.offsets[user], past.offsets[user + 1]
    if events.draw in ONE_QUERY_PER_USER:
        starts, ends = events.history_numbers(starts), events.history_numbers(ends)
        places = events.history_places(ranges(starts, ends - starts))
        return RaggedRows(places, np.cumsum([0, *(ends - starts)]))
    counts = past.ends(events.held[first]) - starts
    return RaggedRows(ranges(starts, counts), np.cumsum([0, *counts]))
