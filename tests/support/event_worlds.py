"""A data folder whose events have features of every kind, and a trained model of it."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
from data_folders import counted, event_table, write_data
from tower_models import random_values

from recsys.config import TrainConfig, TrainStage, TwoTowerConfig
from recsys.data.config import read_event_feature
from recsys.data.event_features import LearnedFeature, encode_features, save_event_features
from recsys.data.store import InteractionStore
from recsys.models import ModelInputs, TwoTower
from recsys.models.config import SasRecConfig
from recsys.tasks.model_folder import save_model
from recsys.tasks.retrieval.probe import save_candidates, save_probe

CUT, HISTORY, TIME = 1_700_000_000, 4, "at"
DEVICES = ["phone", "tv", "café"]
KINDS = [
    {"name": "device", "column": "device", "kind": "category"},
    {"name": "hashed", "column": "device", "kind": "category", "hash_buckets": 5},
    {"name": "place", "column": "a.place", "kind": "category", "context": True},
    {"name": "dwell", "column": "s", "kind": "number", "buckets": 4, "outcome": True},
    {"name": "dense", "column": "s", "kind": "number", "as": "dense"},
    {"name": "price", "column": "price", "kind": "price"},
    {"name": "picture", "column": "v", "kind": "vector", "width": 3},
    {"name": "hour", "column": TIME, "kind": "hour", "zone": "Europe/Paris"},
    {"name": "weekday", "column": TIME, "kind": "weekday"},
    {"name": "month", "column": "sent", "kind": "month"},
    {"name": "gap", "kind": "gap"},
    {"name": "pair", "kind": "cross", "of": ["device", "hour"], "hash_buckets": 40},
]
ENCODER = SasRecConfig(layers=1, heads=2, dropout=0.0)


@dataclasses.dataclass
class Events:
    """Events with raw values.

    Attributes:
        who: User ids.
        what: Item ids.
        time: Times, in order.
        positive: Which are positives; histories hold all.
        raw: Values by column; None is missing.
    """

    who: np.ndarray
    what: np.ndarray
    time: np.ndarray
    positive: np.ndarray
    raw: dict


def make_events(n=300, seed=0):
    rng = np.random.default_rng(seed)
    time = np.sort(CUT + rng.integers(-9_000_000, 2_000_000, n))
    time[1::7] = time[::7][: len(time[1::7])]  # Some are of the same second.
    raw = {
        "device": rng.choice([*DEVICES, None], n),
        "a.place": rng.choice(["home", "work", None], n),
        "s": np.where(rng.random(n) < 0.2, np.nan, rng.lognormal(2, 2, n)).astype(np.float32),
        "price": np.where(rng.random(n) < 0.2, np.nan, rng.lognormal(1, 1, n)).astype(np.float32),
        "v": [None if x < 0.2 else rng.normal(size=3).astype(np.float32) for x in rng.random(n)],
        "sent": time - 40_000_000,
    }
    who = rng.choice([f"u{k}" for k in range(12)], n)
    what, positive = rng.choice([f"i{k}" for k in range(20)], n), rng.random(n) < 0.4
    return Events(who, what, time, positive, raw)


def typed(value, column):
    """Returns the typed values of a raw column."""
    kinds = {"text": pa.string(), "number": pa.float32(), "time": pa.int64(), "gap": pa.int64()}
    if value == "number":
        column = [None if x is None or np.isnan(x) else x for x in column]
    return pa.array(list(column), kinds.get(value, pa.list_(pa.float32())))


def gaps(events):
    """Returns the time since each user's newest event of an earlier second; None without one."""
    before = [
        events.time[(events.who == who) & (events.time < time)].max(initial=-1)
        for who, time in zip(events.who, events.time, strict=True)
    ]
    return [None if b < 0 else int(t - b) for t, b in zip(events.time, before, strict=True)]


def values_of(events):
    """Returns the typed values of each feature but crosses."""
    columns = {**events.raw, TIME: events.time, None: gaps(events)}
    features = [read_event_feature(options) for options in KINDS]
    return {f.name: typed(f.value, columns[f.column]) for f in features if f.value != "tokens"}


def learned(events):
    """Returns the features, learned from all events."""
    values, made = values_of(events), []
    for options in KINDS:
        feature = read_event_feature(options)
        table = pa.table({})
        if feature.value in ("text", "number"):
            counts = values[feature.name].drop_null().value_counts()
            columns = dict(zip(("value", "count"), counts.flatten(), strict=True))
            table = feature.learn(pa.table(columns).sort_by("value"), None)
        made.append(LearnedFeature(feature, table))
    return tuple(made)


def write_world(folder, seed=0):
    """Writes a data folder; returns its events and features."""
    events = make_events(seed=seed)
    features = learned(events)
    encoded = encode_features(features, values_of(events))
    rows = list(zip(events.who, events.what, events.time.tolist(), strict=True))
    is_train = events.time < CUT
    of_train = [row for row, own in zip(rows, is_train, strict=True) if own]
    users = counted(sorted({row[0] for row in of_train}), [row[0] for row in of_train])
    items = counted(sorted({row[1] for row in of_train}), [row[1] for row in of_train])
    tables = []
    for which in (is_train, ~is_train):
        chosen = [row for row, own in zip(rows, which, strict=True) if own]
        table = event_table(chosen, users, items)
        table = table.append_column("positive", pa.array(events.positive[which]))
        for name, x in encoded.items():
            table = table.append_column(f"feature:{name}", pa.array([*x[which]]))
        tables.append(table)
    save_event_features(folder / "event_features", features, TIME)
    write_data(folder, CUT, *tables, users, items)
    return events, features


def write_model(folder, data, seed=0, **options):
    """Writes a model folder with random weights, as a trainer does."""
    inputs = ModelInputs.open(data)
    options = {"pooling": ENCODER, **options}
    config = TwoTowerConfig(dim=8, feature_dim=3, history=HISTORY, widths=(6,), **options)
    model = TwoTower(inputs.spec(config))
    model.build()
    for number, variable in enumerate(model.weights):
        if "steps" not in variable.path:
            variable.assign(random_values(variable, number + seed))
    save_model(folder, model, TrainStage(model=config, train=TrainConfig()), data)
    save_candidates(folder, model, inputs)
    save_probe(folder, model, inputs, InteractionStore.open(data / "store").train)
    training = {"steps": 1, "examples": 1, "devices": 1, "platform": "cpu", "seconds": 1.0}
    (folder / "training.json").write_text(json.dumps(training))
    return model, inputs
