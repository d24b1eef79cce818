"""Small training logs and queries for baselines, and the lists that they recommend."""

import numpy as np

from benchmarks.stores import sorted_shard
from recsys.data.event_log import EventLog
from recsys.ragged import RaggedRows
from recsys.registry import Choice
from recsys.tasks.retrieval.judging.baselines import BaselineData
from recsys.tasks.retrieval.judging.queries import Queries
from recsys.tasks.retrieval.judging.ranking import rank

DAY_S = 86_400


def fit(name, data, **options):
    """Returns a baseline of this name, fitted."""
    return Choice("baseline").read({"type": name, **options}).fit(data)


def log_of(histories, times=None, user_rows=None, n_shards=1):
    """Returns a log of the users' items, the oldest first, by default a second apart."""
    times = [range(len(items)) for items in histories] if times is None else times
    rows = range(1, 1 + len(histories)) if user_rows is None else user_rows
    shards = []
    for users in np.array_split(np.arange(len(histories)), n_shards):
        n_events = [len(histories[user]) for user in users]
        shards.append(
            sorted_shard(
                np.repeat(np.arange(len(users)), n_events),
                np.repeat(np.array([rows[user] for user in users], np.int32), n_events),
                np.array([item for user in users for item in histories[user]], np.int32),
                np.array([time for user in users for time in times[user]], np.int64),
                len(users),
            )
        )
    return EventLog(tuple(shards))


def data_of(histories, n_rows, is_item=None, log=None, **options):
    """Returns what baselines learn from; row 0 is no item, and others if `is_item` says so."""
    log = log_of(histories) if log is None else log
    if is_item is None:
        is_item = np.arange(n_rows) > 0
    counts = np.bincount(np.asarray(log.item_row), minlength=n_rows)
    usual = {"cut": 100 * DAY_S, "recent_days": 30, "max_events": 10**6, "counts": counts}
    return BaselineData(train=log, is_item=np.asarray(is_item), **{**usual, **options})


def queries_of(histories):
    """Returns queries whose users did `histories` before."""
    n = len(histories)
    seen = RaggedRows.of([np.array(items, np.int32) for items in histories])
    none = RaggedRows(np.zeros(0, np.int32), np.zeros(n + 1, np.int64))
    return Queries(np.arange(n), np.arange(1, n + 1, dtype=np.int32), seen, none)


def scores_of(baseline, histories):
    """Returns the scores `[queries, item rows]`."""
    return baseline.scorer(queries_of(histories)).scores(slice(0, len(histories)))


def lists_of(baseline, data, histories, k):
    """Returns the `k` items that each query is recommended, the best first."""
    queries = queries_of(histories)
    scorer = baseline.scorer(queries)
    return rank(scorer, queries.positives, queries.seen, data.is_item, k).top.tolist()


def random_histories(seed, n_users, n_items, longest):
    """Returns items 1 … `n_items` of users, some taken twice, small ones more often."""
    rng = np.random.default_rng(seed)
    return [
        (1 + n_items * rng.random(rng.integers(1, longest + 1)) ** 2).astype(int).tolist()
        for _ in range(n_users)
    ]


def dense(histories, n_rows):
    """Returns who took what `[users, item rows]` float64."""
    taken = np.zeros((len(histories), n_rows))
    for user, items in enumerate(histories):
        taken[user, items] = 1.0
    taken[:, 0] = 0.0
    return taken
