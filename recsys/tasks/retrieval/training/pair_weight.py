"""The weight of transitions in a model's score, chosen on held-back events.

A model that has trained on an event ranks it too high without any transitions, so events must be
held back: those of `train.validation` or, without a validation, the last event of a few users.
"""

from __future__ import annotations

import numpy as np

from recsys.data.event_log import EventLog
from recsys.models.config import TransitionsConfig
from recsys.ragged import RaggedRows, ranges
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.scores import DotProducts, PairedProducts

MOST_QUERIES = 2000
"""Maximum number of queries on which a weight is chosen, and of users who lose an event for it."""
_FEWEST, _ENOUGH = 100, 400
_SHARE, _LARGEST_SHARE = 0.05, 0.2
"""Shares of the users who lose an event: usually, and for enough queries with few users."""
_STEPS = 2.0 ** np.arange(-4, 5)
"""Weights to try, besides 0, in units of the scores' spread."""


def is_chosen(config: object) -> bool:
    """Returns whether a model's config leaves the weight of its transitions to the training."""
    terms = getattr(config, "terms", ())
    return any(isinstance(term, TransitionsConfig) and term.weight is None for term in terms)


def events_to_hold_back(events: EventLog) -> np.ndarray:
    """Returns the last events of a few users, evenly spaced over all, as indices `[h]` int64.

    It is one event of each, or several if there are few users with many events.
    """
    lengths = np.diff(events.offsets)
    users = np.flatnonzero(lengths > 1)
    enough = min(_ENOUGH, int(_LARGEST_SHARE * len(users)))
    n = min(MOST_QUERIES, max(enough, int(_SHARE * len(users))))
    if not n:
        return users[:0]
    chosen = users[np.linspace(0, len(users) - 1, n).astype(np.int64)]
    most = np.maximum(1, (_SHARE * lengths[chosen]).astype(np.int64))
    counts = np.minimum(-(-_ENOUGH // n), most)
    if counts.sum() < _FEWEST:
        return users[:0]
    return ranges(events.offsets[chosen + 1] - counts, counts)


def choose_weight(
    paired: PairedProducts, positives: RaggedRows, hidden: RaggedRows, is_item: np.ndarray
) -> float:
    """Returns the weight with the highest mean of 1 / log2(1 + rank) over the positives.

    Weights are tried as multiples of the ratio of two means over the queries: the standard
    deviation of the similarities with all items, and the highest summand. 0 is among them, and the
    answer for fewer than 100 positives, of which the best weight would be best by chance.

    Args:
        paired: The similarities, and the summands for a weight of 1.
        positives: Held-back item rows of each query.
        hidden: Item rows to leave out of each list.
        is_item: Whether each item row is an item `[item rows]` bool.
    """
    products, added = paired.products, paired.added
    highest = added.max(axis=1).toarray()
    if len(positives.rows) < _FEWEST or not highest.any():
        return 0.0
    sample = DotProducts(products.query[:: max(1, len(positives) // 100)], products.candidates)
    spread = sample.scores(slice(0, len(sample.query)))[:, is_item].std(axis=1)
    unit = float(spread.mean() / highest[highest > 0].mean())
    weights = [0.0, *(unit * _STEPS).tolist()]
    gains = []
    for weight in weights:
        scorer = PairedProducts(products, added * np.float32(weight))
        ranks = rank(scorer, positives, hidden, is_item, 1).ranks
        gains.append((1 / np.log2(1 + ranks)).mean())
    return weights[int(np.argmax(gains))]
