"""A bundle with the signature `rank`: a SavedModel of sums, so that answers have a closed form."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from recsys.bundles.bundle import write_manifest
from recsys.data.config import read_event_feature
from recsys.data.event_features import FOLDER, LearnedFeature, save_event_features
from recsys.data.vocabulary import Vocabulary
from recsys.savedmodel.event_columns import Column, EventColumns

USERS, ITEMS = {"u1": 0.5, "u2": -0.5}, {"i1": 1.0, "i2": 3.0, "i3": -2.0, "i4": 0.25}
DEVICES, COUNTRIES = {"phone": 0.5, "tv": -1.0}, {"DE": 0.125}
STORED = {"u1": ["i1"], "u2": ["i3", "i4"]}
LABELS = ("click", "buy")
EVENTS = EventColumns(
    {
        "device": Column("context_device", "text", ("device",)),
        "price": Column("context_price", "number", ("price",)),
    },
    {"device": Column("history_device", "text", ("device",))},
)


def expected(user, items, device="", price=0.0, history=None, country=""):
    """Returns the probability of each label of items; device and price are one or by item."""
    devices, prices = (x if isinstance(x, list) else [x] * len(items) for x in (device, price))
    liked = STORED.get(user, []) if history is None else [one["item"] for one in history]
    given = [] if history is None else [one["device"] for one in history]
    base = USERS.get(user, 0.0) + 0.25 * sum(ITEMS.get(one, 0.0) for one in liked)
    base += 0.0625 * sum(DEVICES.get(one, 0.0) for one in given) + COUNTRIES.get(country, 0.0)
    click = [
        1 / (1 + np.exp(-(base + ITEMS.get(item, 0.0) + DEVICES.get(d, 0.0) - p / 4)))
        for item, d, p in zip(items, devices, prices, strict=True)
    ]
    return {"click": np.array(click), "buy": np.array(click) * 0.5}


class Sums(tf.Module):
    """Adds a number for each value of the inputs."""

    def __init__(self):
        super().__init__()
        names = ("users", "items", "devices", "countries")
        for name, values in zip(names, (USERS, ITEMS, DEVICES, COUNTRIES), strict=True):
            pairs = tf.lookup.KeyValueTensorInitializer([*values], [*values.values()])
            setattr(self, name, tf.lookup.StaticHashTable(pairs, 0.0))
        stored = {user: 0.25 * sum(map(ITEMS.get, items)) for user, items in STORED.items()}
        pairs = tf.lookup.KeyValueTensorInitializer([*stored], [*stored.values()])
        self.stored = tf.lookup.StaticHashTable(pairs, 0.0)

    def rank(self, user_id, history, history_device, context_device, context_price, country,
             item_id):  # fmt: skip
        own = tf.reduce_sum(0.25 * self.items[history], 1)
        own += tf.reduce_sum(0.0625 * self.devices[history_device], 1)
        is_given = tf.reduce_any(history != "", axis=1)
        base = self.users[user_id] + tf.where(is_given, own, self.stored[user_id])
        base += self.countries[country[:, 0]]
        price = tf.strings.to_number(tf.where(context_price == "", "0", context_price))
        logit = base[:, None] + self.items[item_id] + self.devices[context_device] - price / 4
        click = tf.sigmoid(logit)
        return {
            "click": click,
            "buy": click * 0.5,
            "known": tf.reduce_any(user_id[:, None] == [*USERS], axis=1),
            "known_items": tf.reduce_any(item_id[..., None] == [*ITEMS], axis=2),
        }

    def signatures(self):
        names = ("history", "history_device", "context_device", "context_price", "country",
                 "item_id")  # fmt: skip
        specs = {name: tf.TensorSpec([None, None], tf.string, name) for name in names}
        specs["user_id"] = tf.TensorSpec([None], tf.string, "user_id")
        rank = tf.function(self.rank).get_concrete_function(**specs)
        return {"rank": rank, "serving_default": rank}


def write_ranking_bundle(folder):
    """Writes the bundle into `folder`."""
    module = Sums()
    tf.saved_model.save(module, str(folder), signatures=module.signatures())
    device, price = (
        read_event_feature({"name": name, "kind": kind, "column": name})
        for name, kind in (("device", "category"), ("price", "price"))
    )
    features = [
        LearnedFeature(device, pa.table({"token": [*DEVICES]})),
        LearnedFeature(price, pa.table({})),
    ]
    save_event_features(folder / FOLDER, features)
    (folder / "vocabulary").mkdir()
    items = Vocabulary(pa.array([*ITEMS]), np.array([5, 1, 9, 2]))
    items.save(folder / "vocabulary" / "items.parquet")
    Vocabulary(pa.array([*USERS]), np.ones(2, int)).save(folder / "vocabulary" / "users.parquet")
    named = pa.table({"id": [*ITEMS], "title": ["One", "Two", "i3", "i4"]})
    (folder / "catalogue").mkdir()
    for path in ("titles.parquet", "catalogue/items.parquet"):
        pq.write_table(named, folder / path)
    fields = {"answers": "scores", "labels": [*LABELS], **EVENTS.to_json()}
    write_manifest(folder, {"name": "sums", **json.loads(json.dumps(fields))})
    return Path(folder)
