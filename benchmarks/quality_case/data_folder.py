"""A split as the data folder that `recsys.train` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.quality_case.data_sets import Bags, Csr, Split
from recsys.data.catalogue import Catalogue, FeatureBags, save_features
from recsys.data.store import write_store
from recsys.data.vocabulary import Vocabulary

_WIDEST = 8


def write_data_folder(split: Split, folder: Path) -> None:
    """Writes store, vocabularies, catalogue and features of a split into `folder`.

    User and item `i` have row `i + 1`. The time of an event is its place among its
    user's, which is all that the data say.
    """
    train = split.train
    n_users, n_items = len(train), train.n_items
    events = _events(train)
    write_store(folder / "store", int(np.diff(train.offsets).max()) + 1, events, events.slice(0, 0))
    (folder / "vocabulary").mkdir()
    counts = np.diff(train.offsets), np.bincount(train.items, minlength=n_items)
    for name, n, count in zip(("users", "items"), (n_users, n_items), counts, strict=True):
        ids = pa.array([f"{name[0]}{i}" for i in range(n)])
        Vocabulary(ids, count).save(folder / "vocabulary" / f"{name}.parquet")
    names = ["", *(f"i{i}" for i in range(n_items))]
    Catalogue(names, names, _bags(split.item_tokens)).save(folder / "catalogue")
    if split.user_tokens:
        save_features(_bags(split.user_tokens), folder / "user_features")


def _events(train: Csr) -> pa.Table:
    lengths = np.diff(train.offsets)
    user = np.repeat(np.arange(len(train)), lengths)
    time = np.arange(len(user)) - np.repeat(train.offsets[:-1], lengths)
    ids = pa.array([f"u{i}" for i in range(len(train))]).take(pa.array(user))
    rows = ((user + 1).astype(np.int32), (train.items + 1).astype(np.int32))
    columns = [ids, *rows, time.astype(np.int64)]
    return pa.table(columns, names=["user_id", "user_row", "item_row", "timestamp"])


def _bags(tokens: Bags) -> tuple[FeatureBags, ...]:
    """Returns tokens as rows, numbered in the order of their text from 1 on."""
    found = []
    for name, lists in tokens.items():
        known = {token: 1 + i for i, token in enumerate(sorted({t for one in lists for t in one}))}
        width = min(_WIDEST, max(map(len, lists)))
        bags = np.zeros((len(lists) + 1, width), np.int32)
        for row, one in enumerate(lists, start=1):
            kept = [known[token] for token in one[:width]]
            bags[row, : len(kept)] = kept
        found.append(FeatureBags(name, len(known) + 1, bags))
    return tuple(found)
