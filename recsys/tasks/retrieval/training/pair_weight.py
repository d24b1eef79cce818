"""The weights of counted terms in a model's score, chosen on held-back events.

A model that has trained on an event ranks it too high without the term, so events must be held
back: those of `train.validation` or, without a validation, a few that are drawn in the same way as
the events that the run is judged on.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from recsys.data.config import ValidationConfig
from recsys.data.event_log import EventLog
from recsys.data.hold_out import (
    KeptEvents,
    draw_of,
    has_one_query_per_user,
    newest_events,
    random_share,
)
from recsys.data.split import SplitRule
from recsys.metrics import per_user
from recsys.ragged import RaggedRows, ranges, slices
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.scores import (
    Candidates,
    DotProducts,
    PairedProducts,
    Scorer,
)

MOST_QUERIES = 2000
"""Maximum number of queries on which a weight is chosen, and of events or users held back."""
_FEWEST, _ENOUGH = 100, 400
_SHARE, _OF_USERS, _LARGEST_SHARE = 0.03, 0.05, 0.2
"""Shares that are held back: of the events, of the users with their last event, and at most."""
_STEPS = 2.0 ** np.arange(-5, 5)
"""Weights to try, besides 0, in units of the scores' spread."""
_HALF_STEPS = 2.0 ** np.array([-0.5, 0.5])
"""Weights to try then, in units of the best one."""
_BLOCK_SCORES = 2**24
"""Maximum number of scores in memory, three times; 64 MiB of float32."""


def is_chosen(config: object) -> bool:
    """Returns whether a model's config leaves the weight of a term to the training."""
    return any(map(has_open_weight, getattr(config, "terms", ())))


def has_open_weight(term: object) -> bool:
    """Returns whether the config of a term leaves its weight to the training."""
    return getattr(term, "weight", 0.0) is None


def without_a_few(events: EventLog, split: SplitRule) -> KeptEvents:
    """Returns the events without a few, which are drawn in the same way as the held-out ones.

    Of a part that the data mark for validation, training keeps most: a few events are drawn like
    it, as the last ones or at random.

    Args:
        events: The training positives.
        split: How the positives were split, and their order.
    """
    draw = draw_of(events, ValidationConfig(), split)
    if draw == "given":
        draw = "random" if has_one_query_per_user(events, None, split) else "last"
    if draw == "last":
        return KeptEvents(events, _last_of_a_few(events), draw)
    n = len(events)
    n_held = min(MOST_QUERIES, max(_ENOUGH, int(_SHARE * n)), int(_LARGEST_SHARE * n))
    if n_held < _FEWEST:
        return KeptEvents(events)
    is_newest = draw == "newest"
    held = newest_events(events, n_held) if is_newest else random_share(events, n_held / n)
    return KeptEvents(events, held, draw)


def _last_of_a_few(events: EventLog) -> np.ndarray:
    """Returns the last events of a few users, evenly spaced over all, as indices `[h]` int64.

    It is one event of each, or several if there are few users with many events.
    """
    lengths = np.diff(events.offsets)
    users = np.flatnonzero(lengths > 1)
    enough = min(_ENOUGH, int(_LARGEST_SHARE * len(users)))
    n = min(MOST_QUERIES, max(enough, int(_OF_USERS * len(users))))
    if not n:
        return users[:0]
    chosen = users[np.linspace(0, len(users) - 1, n).astype(np.int64)]
    most = np.maximum(1, (_OF_USERS * lengths[chosen]).astype(np.int64))
    counts = np.minimum(-(-_ENOUGH // n), most)
    if counts.sum() < _FEWEST:
        return users[:0]
    return ranges(events.offsets[chosen + 1] - counts, counts)


@dataclasses.dataclass(frozen=True)
class NewItems:
    """Items without events, which have features.

    Attributes:
        share: Their share of all items.
        candidates: Embedding of each item row as if it had no event.
    """

    share: float
    candidates: Candidates


@dataclasses.dataclass(frozen=True)
class AsNew:
    """Scores of which the positives' are those of items without events.

    Attributes:
        scorer: The scores.
        candidates: Embedding of each item row as if it had no event.
        positives: Item rows of each query.
    """

    scorer: DotProducts | PairedProducts
    candidates: Candidates
    positives: RaggedRows

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32."""
        scorer, scores = self.scorer, np.array(self.scorer.scores(block))
        products = scorer.products if isinstance(scorer, PairedProducts) else scorer
        as_new = DotProducts(products.query, self.candidates).scores(block)
        positives = self.positives.part(block)
        place = positives.owner(), positives.rows
        scores[place] = as_new[place]
        return scores


def choose_weight(
    zero: PairedProducts,
    one: PairedProducts,
    positives: RaggedRows,
    hidden: RaggedRows,
    user: np.ndarray,
    is_item: np.ndarray,
    new: NewItems | None = None,
) -> float:
    """Returns the weight with the highest mean over the users of 1 / log2(1 + rank).

    A term that knows nothing of items without events puts them below all others. If there are such
    items, the mean is also over the ranks of the same positives as if they had no event.

    Weights are tried as multiples of the ratio of two means over the queries: the standard
    deviation of the scores of all items without the term, and the highest summand. The answer is 0
    for fewer than 100 positives.

    Args:
        zero: The scores without the term.
        one: The scores for a weight of 1, with the same candidates.
        positives: Held-back item rows of each query, at least one.
        hidden: Item rows to leave out of each list.
        user: User of each query `[queries]`.
        is_item: Whether each item row is an item `[item rows]` bool.
        new: Items without events; None: there are none.
    """
    users, place = np.unique(user, return_inverse=True)
    if len(positives.rows) < _FEWEST or not (unit := _unit(zero, one, is_item)):
        return 0.0
    owner, counts = positives.owner(), np.diff(positives.offsets)

    def gain(weight: float) -> float:
        scorer = _weighed(zero, one, weight)
        if new is None:
            return gain_of(scorer)
        as_new = AsNew(scorer, new.candidates, positives)
        return (1 - new.share) * gain_of(scorer) + new.share * gain_of(as_new)

    def gain_of(scorer: Scorer) -> float:
        ranks = rank(scorer, positives, hidden, is_item, 1).ranks
        of_query = np.bincount(owner, 1 / np.log2(1 + ranks), len(counts)) / counts
        return float(per_user(of_query, place, len(users)).mean())

    tried = {weight: gain(weight) for weight in [0.0, *(unit * _STEPS).tolist()]}
    best = max(tried, key=tried.__getitem__)
    tried |= {weight: gain(weight) for weight in (best * _HALF_STEPS).tolist() if weight}
    return max(tried, key=tried.__getitem__)


def _unit(zero: PairedProducts, one: PairedProducts, is_item: np.ndarray) -> float:
    """Returns the spread of scores relative to the highest summands; 0 without summands."""
    n, spread, highest = len(zero.products.query), [], []
    for block in slices(n, max(1, _BLOCK_SCORES // len(is_item))):
        scores = zero.scores(block)[:, is_item]
        spread.append(scores.std(axis=1))
        highest.append((one.scores(block)[:, is_item] - scores).max(axis=1, initial=0.0))
    largest = np.concatenate(highest)
    sample = np.concatenate(spread)[:: max(1, n // 100)]
    return float(sample.mean() / largest[largest > 0].mean()) if largest.any() else 0.0


def _weighed(
    zero: PairedProducts, one: PairedProducts, weight: float
) -> DotProducts | PairedProducts:
    """Returns the scores for another weight, of which they are a linear function."""
    share, query = np.float32(weight), zero.products.query
    products = dataclasses.replace(
        zero.products, query=query + share * (one.products.query - query)
    )
    if one.added is None:
        return products
    before = one.added * np.float32(0) if zero.added is None else zero.added
    return PairedProducts(products, before + (one.added - before) * share)
