"""Small sources of training batches, for several files of tests."""

import numpy as np

from benchmarks.stores import sorted_shard
from recsys.config import TrainConfig, TwoTowerConfig
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.event_log import EventLog
from recsys.data.hold_out import KeptEvents
from recsys.tasks.retrieval.training.batches import BatchSource

N_EVENTS, N_USERS, N_ITEMS = 103, 8, 20
PLAIN = {
    "history": 4,
    "batch_size": 10,
    "uniform_negatives": 0,
    "epochs": 2,
    "id_dropout": 0.0,
    "new_user_share": 0.0,
    "seed": 3,
}


def small_source():
    """A source of 103 events of 7 users and 19 items, with a feature, in plain batches."""
    rng = np.random.default_rng(0)
    user = rng.integers(1, N_USERS, N_EVENTS)
    # Times are unique, so that each identifies an event.
    events = make_log(user, rng.integers(1, N_ITEMS, N_EVENTS), rng.permutation(N_EVENTS))
    bags = rng.integers(0, 5, (N_ITEMS, 3)).astype(np.int32)
    ids = ["", *(f"i{n}" for n in range(1, N_ITEMS))]
    catalogue = Catalogue(ids, ids, (FeatureBags("genres", 5, bags),))
    return make(events, catalogue)


def make_log(user, item, time, weight=None, positive=None, features=None):
    """A log of two shards: the users below 4, and the others; user `u` has row `u`."""
    shards = []
    for first, end in ((0, 4), (4, N_USERS)):
        which = (first <= user) & (user < end)
        columns = [column[which] for column in (user, item, time)]
        optional = {"weight": weight, "positive": positive}
        optional = {name: x[which] for name, x in optional.items() if x is not None}
        own = {name: x[which] for name, x in (features or {}).items()}
        shards.append(sorted_shard(user[which] - first, *columns, end - first, own, **optional))
    return EventLog(tuple(shards))


def make(events, catalogue, held=(), multiple=1, **changes):
    """A source of plain batches but for `changes`, which are keys of model or train."""
    settings = {**PLAIN, **changes}
    of_model = {key: settings.pop(key) for key in [*settings] if key in TwoTowerConfig.model_fields}
    kept = KeptEvents(events, np.array(sorted(held), np.int64))
    model, train = TwoTowerConfig(**of_model), TrainConfig(**settings)
    return BatchSource(kept, catalogue, model, train, multiple=multiple)


def again(source, **changes):
    return make(source.events.log, source.catalogue, **changes)


def included(*samplers):
    """Probability that at least one of n draws, each of probability p, gives an item."""
    missed = 1.0
    for p, n in samplers:
        missed *= (1 - p) ** n
    return 1 - missed
