"""The public splits, each as training events, the users to rank for, and what is known."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.data.catalogue import Catalogue, FeatureBags, save_features
from recsys.data.store import write_store
from recsys.data.vocabulary import Vocabulary

Bags = dict[str, list[list[str]]]


@dataclasses.dataclass(frozen=True)
class Csr:
    """A matrix of users and items whose entries are all 1.

    Attributes:
        items: Items of all users, one user after the other `[entries]`.
        offsets: First entry of each user, and the end `[users + 1]`.
        n_items: Items.
    """

    items: np.ndarray
    offsets: np.ndarray
    n_items: int

    @classmethod
    def load(cls, path: Path) -> Csr:
        """Reads what `scipy.sparse.save_npz` wrote of a CSR matrix."""
        with np.load(path, allow_pickle=False) as file:
            return cls(file["indices"], file["indptr"].astype(np.int64), int(file["shape"][1]))

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[int]], n_items: int) -> Csr:
        """Makes one of the items of each user."""
        offsets = np.cumsum([0, *map(len, lists)])
        return cls(np.array([i for items in lists for i in items], np.int32), offsets, n_items)

    @classmethod
    def drawn(cls, n_users: int, n_items: int, of_a_user: int) -> Csr:
        """Makes one of items drawn evenly, as many of each user."""
        items = np.random.default_rng(0).integers(0, n_items, n_users * of_a_user, np.int32)
        return cls(items, np.arange(n_users + 1, dtype=np.int64) * of_a_user, n_items)

    def shuffled(self) -> Csr:
        """Returns the same with the items of each user in an order drawn at random.

        Files without times have them sorted by number: the last hundred would be the
        hundred highest numbers.
        """
        draw = np.random.default_rng(0)
        user = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        order = np.lexsort((draw.random(len(user)), user))
        return dataclasses.replace(self, items=self.items[order])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> np.ndarray:
        """Returns the items of a user."""
        return self.items[self.offsets[user] : self.offsets[user + 1]]


@dataclasses.dataclass(frozen=True)
class Split:
    """Events to train on, and the protocol of the evaluation.

    Attributes:
        train: Training events; in the order of time where the data have one.
        kind: Protocol, a key of `benchmarks.quality.PROTOCOLS`.
        k: Cut-offs.
        relevant: Items of each user that were held out.
        seen: Events of users before the evaluation, their histories then, and no answers;
            None: the training events.
        candidates: Items that are ranked for each case `[cases, n]`, the held-out one
            last; None: all that the user hasn't seen.
        users: User of each case `[cases]`; None: all users with relevant items.
        item_tokens: Tokens of each item, by feature.
        user_tokens: Tokens of each user, by feature.
    """

    train: Csr
    kind: str
    k: tuple[int, ...]
    relevant: Csr
    seen: Csr | None = None
    candidates: np.ndarray | None = None
    users: np.ndarray | None = None
    item_tokens: Bags = dataclasses.field(default_factory=dict)
    user_tokens: Bags = dataclasses.field(default_factory=dict)


def load_gowalla(folder: Path, part: str) -> Split:
    """Reads Gowalla check-ins, the split of NGCF and LightGCN."""
    files = _protocol(folder)[part]
    train, held_out = (Csr.load(folder / files[name]) for name in ("train", "test"))
    return Split(train.shuffled(), "ranked among all", (20,), held_out)


def load_movielens_1m(folder: Path, part: str) -> Split:
    """Reads MovieLens-1M, the split of Neural Collaborative Filtering."""
    files = _protocol(folder)[part]
    train = Csr.load(folder / files["train"])
    with np.load(folder / files["candidates"], allow_pickle=False) as file:
        users, positive, negative = file["user"], file["pos"], file["neg"]
    candidates = np.concatenate([negative, positive[:, None]], axis=1)
    lists: list[list[int]] = [[] for _ in range(len(train))]
    for user, item in zip(users.tolist(), positive.tolist(), strict=True):
        lists[user].append(item)
    return Split(
        train.shuffled(),
        "ranked among given negatives",
        (10,),
        Csr.of_lists(lists, train.n_items),
        candidates=candidates,
        users=users,
        item_tokens={
            "genres": [row["genres"].split("|") for row in _rows(folder / "items.csv", "item")]
        },
        user_tokens={
            name: [[row[name]] for row in _rows(folder / "users.csv", "user")]
            for name in ("gender", "age", "occupation")
        },
    )


def load_beauty(folder: Path, part: str) -> Split:
    """Reads Amazon Beauty, the sequences of S3-Rec; the last item, or the one before, is asked.

    As S3-Rec and SASRec do, one trains without the last two items in either case; the one
    before the last is part of the history that the last is asked from.

    Items are numbered from 1, as the data have them; number 0 is in no sequence.
    """
    n_held = {"test": 1, "valid": 2}[part]
    text = (folder / "sequences.txt").read_text().splitlines()
    sequences = [[int(item) for item in line.split()[1:]] for line in text]
    with np.load(folder / "history_test.npz", allow_pickle=False) as file:
        n_items = int(file["shape"][1])
    attributes = json.loads((folder / "item2attributes.json").read_text())
    tokens = [[str(a) for a in attributes.get(str(i), ())] for i in range(n_items)]
    return Split(
        Csr.of_lists([items[:-2] for items in sequences], n_items),
        "ranked among all, one item",
        (10,),
        Csr.of_lists([[items[-n_held]] for items in sequences], n_items),
        seen=Csr.of_lists([items[:-n_held] for items in sequences], n_items),
        item_tokens={"attributes": tokens},
    )


LOADERS: dict[str, Callable[[Path, str], Split]] = {
    "gowalla_m1": load_gowalla,
    "ncf_ml1m": load_movielens_1m,
    "s3rec_beauty": load_beauty,
}


def _protocol(folder: Path) -> dict[str, dict[str, str]]:
    content: dict[str, dict[str, str]] = json.loads((folder / "protocol.json").read_text())
    return content


def _rows(path: Path, key: str) -> Iterable[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return sorted(csv.DictReader(file), key=lambda row: int(row[key]))


# --- A split as the data folder that `recsys.train` reads.


_WIDEST = 8


def write_data_folder(
    train: Csr,
    folder: Path,
    item_tokens: Bags | None = None,
    user_tokens: Bags | None = None,
    titles: Sequence[str] | None = None,
    first_id: int = 0,
) -> None:
    """Writes store, vocabularies, catalogue and features into `folder`.

    User and item `i` have row `i + 1`. The time of an event is its place among its
    user's, which is all that the data say.

    Args:
        train: Training events.
        folder: Where to.
        item_tokens: Tokens of each item, by feature.
        user_tokens: Tokens of each user, by feature.
        titles: Title of each item; its id by default.
        first_id: Number in the id of the first user and of the first item.
    """
    n_users, n_items = len(train), train.n_items
    ids = {
        name: [f"{name[0]}{first_id + i}" for i in range(n)]
        for name, n in (("users", n_users), ("items", n_items))
    }
    events = _events(train, pa.array(ids["users"]))
    write_store(folder / "store", int(np.diff(train.offsets).max()) + 1, events, events.slice(0, 0))
    (folder / "vocabulary").mkdir()
    counts = np.diff(train.offsets), np.bincount(train.items, minlength=n_items)
    for name, count in zip(ids, counts, strict=True):
        vocabulary = Vocabulary(pa.array(ids[name]), count)
        vocabulary.save(folder / "vocabulary" / f"{name}.parquet")
    names, features = ["", *ids["items"]], _feature_bags(item_tokens or {})
    Catalogue(names, ["", *(titles or ids["items"])], features).save(folder / "catalogue")
    if user_tokens:
        save_features(_feature_bags(user_tokens), folder / "user_features")


def _events(train: Csr, user_ids: pa.Array) -> pa.Table:
    lengths = np.diff(train.offsets)
    user = np.repeat(np.arange(len(train)), lengths)
    time = np.arange(len(user)) - np.repeat(train.offsets[:-1], lengths)
    rows = ((user + 1).astype(np.int32), (train.items + 1).astype(np.int32))
    columns = [user_ids.take(pa.array(user)), *rows, time.astype(np.int64)]
    return pa.table(columns, names=["user_id", "user_row", "item_row", "timestamp"])


def _feature_bags(tokens: Bags) -> tuple[FeatureBags, ...]:
    """Returns tokens as rows, numbered in the order of their text from 1 on."""
    features = []
    for name, lists in tokens.items():
        distinct = sorted({token for bag in lists for token in bag})
        token_row = {token: 1 + i for i, token in enumerate(distinct)}
        width = min(_WIDEST, max(map(len, lists)))
        bags = np.zeros((len(lists) + 1, width), np.int32)
        for row, bag in enumerate(lists, start=1):
            kept = [token_row[token] for token in bag[:width]]
            bags[row, : len(kept)] = kept
        features.append(FeatureBags(name, len(distinct) + 1, bags))
    return tuple(features)
