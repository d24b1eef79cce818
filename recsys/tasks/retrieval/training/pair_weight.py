"""The weight of transitions in a model's score, chosen on held-back events.

A model that has trained on an event ranks it too high without any transitions, so events must be
held back: those of `train.validation` or, without a validation, a few that are drawn in the same
way as the events that the run is judged on.
"""

from __future__ import annotations

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
from recsys.models.config import TransitionsConfig
from recsys.ragged import RaggedRows, ranges
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.scores import DotProducts, PairedProducts

MOST_QUERIES = 2000
"""Maximum number of queries on which a weight is chosen, and of events or users held back."""
_FEWEST, _ENOUGH = 100, 400
_SHARE, _OF_USERS, _LARGEST_SHARE = 0.03, 0.05, 0.2
"""Shares that are held back: of the events, of the users with their last event, and at most."""
_STEPS = 2.0 ** np.arange(-5, 5)
"""Weights to try, besides 0, in units of the scores' spread."""
_HALF_STEPS = 2.0 ** np.array([-0.5, 0.5])
"""Weights to try then, in units of the best one."""


def is_chosen(config: object) -> bool:
    """Returns whether a model's config leaves the weight of its transitions to the training."""
    terms = getattr(config, "terms", ())
    return any(isinstance(term, TransitionsConfig) and term.weight is None for term in terms)


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


def choose_weight(
    paired: PairedProducts,
    positives: RaggedRows,
    hidden: RaggedRows,
    user: np.ndarray,
    is_item: np.ndarray,
) -> float:
    """Returns the weight with the highest mean over the users of 1 / log2(1 + rank).

    Weights are tried as multiples of the ratio of two means over the queries: the standard
    deviation of the similarities with all items, and the highest summand. The answer is 0 unless
    the best weight is ahead of it by more than a standard error over the users, and for fewer than
    100 positives.

    Args:
        paired: The similarities, and the summands for a weight of 1.
        positives: Held-back item rows of each query, at least one.
        hidden: Item rows to leave out of each list.
        user: User of each query `[queries]`.
        is_item: Whether each item row is an item `[item rows]` bool.
    """
    products, added = paired.products, paired.added
    highest = added.max(axis=1).toarray()
    users, place = np.unique(user, return_inverse=True)
    if len(positives.rows) < _FEWEST or len(users) < 2 or not highest.any():
        return 0.0
    owner, counts = positives.owner(), np.diff(positives.offsets)

    def gains(weight: float) -> np.ndarray:
        """Returns the mean of each user."""
        scorer = PairedProducts(products, added * np.float32(weight))
        ranks = rank(scorer, positives, hidden, is_item, 1).ranks
        of_query = np.bincount(owner, 1 / np.log2(1 + ranks), len(counts)) / counts
        return per_user(of_query, place, len(users))

    sample = DotProducts(products.query[:: max(1, len(positives) // 100)], products.candidates)
    spread = sample.scores(slice(0, len(sample.query)))[:, is_item].std(axis=1)
    unit = float(spread.mean() / highest[highest > 0].mean())
    tried = {weight: gains(weight) for weight in [0.0, *(unit * _STEPS).tolist()]}
    best = max(tried, key=lambda weight: tried[weight].mean())
    tried |= {weight: gains(weight) for weight in (best * _HALF_STEPS).tolist() if weight}
    best = max(tried, key=lambda weight: tried[weight].mean())
    ahead = tried[best] - tried[0.0]
    return best if ahead.mean() > ahead.std(ddof=1) / np.sqrt(len(users)) else 0.0
