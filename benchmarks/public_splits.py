"""A public split: training events, the users to rank for, and what is known of both.

`benchmarks.split_files` reads one from a folder, `write_data_folder` writes it as the data
folder that `recsys.stages.train` reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.stores import save_catalogue, save_features, write_store
from recsys.config import Order
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.split import BY_TIME, SplitRule
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
        """Reads what `scipy.sparse.save_npz` wrote of a CSR matrix.

        Raises:
            ValueError: It is another matrix, or a damaged one.
        """
        with np.load(path, allow_pickle=False) as file:
            if "format" in file and file["format"].item() not in (b"csr", "csr"):
                raise ValueError(f"a matrix in the form {file['format'].item()!r}, not CSR")
            items, offsets = file["indices"], file["indptr"].astype(np.int64)
            n_users, n_items = (int(n) for n in file["shape"])
        is_whole = len(offsets) == n_users + 1 and offsets[0] == 0 and offsets[-1] == len(items)
        if not (is_whole and (np.diff(offsets) >= 0).all() and is_below(items, n_items)):
            raise ValueError(f"entries that don't fit into {n_users} users and {n_items} items")
        return cls(items, offsets, n_items)

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[int]], n_items: int) -> Csr:
        """Makes one of the items of each user."""
        offsets = np.cumsum([0, *map(len, lists)])
        return cls(np.array([i for items in lists for i in items], np.int32), offsets, n_items)

    @classmethod
    def of_pairs(cls, users: np.ndarray, items: np.ndarray, n_users: int, n_items: int) -> Csr:
        """Makes one of users and their items `[entries]` each."""
        order = np.argsort(users, kind="stable")
        counts = np.bincount(users, minlength=n_users)
        return cls(items[order].astype(np.int32), np.append(0, np.cumsum(counts)), n_items)

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
        return self.sorted_by(np.random.default_rng(0).random(len(self.items)))

    def sorted_by(self, keys: np.ndarray) -> Csr:
        """Returns the same with the items of each user in the order of keys `[entries]`."""
        return dataclasses.replace(self, items=self.items[np.lexsort((keys, self.users))])

    @property
    def users(self) -> np.ndarray:
        """User of each entry `[entries]`."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> np.ndarray:
        """Returns the items of a user."""
        return self.items[self.offsets[user] : self.offsets[user + 1]]


def is_below(numbers: np.ndarray, end: int) -> bool:
    """Returns whether all of `numbers` are in 0 … end - 1."""
    return not len(numbers) or (numbers.min() >= 0 and numbers.max() < end)


@dataclasses.dataclass(frozen=True)
class Split:
    """Events to train on, and the protocol of the evaluation.

    Attributes:
        protocol: `fullrank`, `loo_neg` or `loo_full`; see `benchmarks.split_files`.
        k: Cut-offs of the metrics.
        train: Training events; where they have an order, the oldest of a user first.
        relevant: Items of each user that were held out.
        masked: Items of each user that aren't ranked.
        seen: Events of users before the evaluation, their histories then, ordered like
            `train`.
        order: What orders the events: `time`, `file` (they have an order and no times) or
            `none`.
        times: Time of each training event `[entries]` int64 [seconds since 1970]; None: its
            place among those of its user.
        ranked: Which items are ranked `[items]` bool; None: all.
        candidates: Items that are ranked for each case `[cases, n]`, the held-out one last.
        users: User of each case `[cases]`.
        item_tokens: Tokens of each item, by feature.
        user_tokens: Tokens of each user, by feature.
        notes: What of the folder was left out, in sentences.
    """

    protocol: str
    k: tuple[int, ...]
    train: Csr
    relevant: Csr
    masked: Csr
    seen: Csr
    order: Order = "none"
    times: np.ndarray | None = None
    ranked: np.ndarray | None = None
    candidates: np.ndarray | None = None
    users: np.ndarray | None = None
    item_tokens: Bags = dataclasses.field(default_factory=dict)
    user_tokens: Bags = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> SplitRule:
        """How the rest was held out, as a store says it, so that validation can draw alike."""
        is_last = self.protocol != "fullrank" and self.order != "none"
        return SplitRule("last_out" if is_last else "random", self.order)

    def __str__(self) -> str:
        order = {"none": "without an order", "file": "in order", "time": "with times"}[self.order]
        return (
            f"{len(self.train):,} users, {self.train.n_items:,} items,"
            f" {len(self.train.items):,} training events {order},"
            f" {np.count_nonzero(np.diff(self.relevant.offsets)):,} users with items held out,"
            f" features: {', '.join([*self.item_tokens, *self.user_tokens]) or 'none'}"
        )


def write_data_folder(
    train: Csr,
    folder: Path,
    item_tokens: Bags | None = None,
    user_tokens: Bags | None = None,
    titles: Sequence[str] | None = None,
    first_id: int = 0,
    rule: SplitRule = BY_TIME,
    times: np.ndarray | None = None,
    later: Csr | None = None,
    kinds: Sequence[str] | None = None,
) -> None:
    """Writes store, vocabularies, catalogue and features into `folder`.

    User and item `i` have row `i + 1`.

    Args:
        train: Training events.
        folder: Where to.
        item_tokens: Tokens of each item, by feature.
        user_tokens: Tokens of each user, by feature.
        titles: Title of each item; its id by default.
        first_id: Number in the id of the first user and of the first item.
        rule: How the held-out events were split off, and what orders the events.
        times: Time of each event `[entries]` [seconds since 1970]; by default its place
            among its user's.
        later: Events of the same users and items that are held out; None: none.
        kinds: Kind of each event `[entries]`; None: they have none.
    """
    n_users, n_items = len(train), train.n_items
    sizes = {"users": n_users, "items": n_items}
    ids = {name: [f"{name[0]}{first_id + i}" for i in range(n)] for name, n in sizes.items()}
    if times is None:
        times = np.arange(len(train.items)) - train.offsets[train.users]
    events = _events(train, pa.array(ids["users"]), times.astype(np.int64))
    (folder / "vocabulary").mkdir(parents=True)
    if kinds is not None:
        known = pa.array(kinds).dictionary_encode()
        kind = known.indices.to_numpy()
        vocabulary = Vocabulary(known.dictionary, np.bincount(kind))
        vocabulary.save(folder / "vocabulary" / "kinds.parquet")
        events = events.append_column("kind", pa.array(kind + 1, pa.uint8()))
    cut = int(times.max(initial=0)) + 1 if rule.order == "time" else 0
    held_out = events.slice(0, 0)
    if later is not None:
        held_out = _events(later, pa.array(ids["users"]), np.full(len(later.items), cut))
    write_store(folder / "store", cut, events, held_out, rule)
    counts = np.diff(train.offsets), np.bincount(train.items, minlength=n_items)
    for name, count in zip(ids, counts, strict=True):
        vocabulary = Vocabulary(pa.array(ids[name]), count)
        vocabulary.save(folder / "vocabulary" / f"{name}.parquet")
    names, features = ["", *ids["items"]], _feature_bags(item_tokens or {})
    catalogue = Catalogue(names, ["", *(titles or ids["items"])], features)
    save_catalogue(catalogue, folder / "catalogue")
    if user_tokens:
        save_features(_feature_bags(user_tokens), folder / "user_features")


def _events(train: Csr, user_ids: pa.Array, times: np.ndarray) -> pa.Table:
    user = train.users
    rows = ((user + 1).astype(np.int32), (train.items + 1).astype(np.int32))
    columns = [user_ids.take(pa.array(user)), *rows, times]
    return pa.table(columns, names=["user_id", "user_row", "item_row", "timestamp"])


def _feature_bags(tokens: Bags) -> tuple[FeatureBags, ...]:
    """Returns tokens as rows, numbered in the order of their text from 1 on."""
    features = []
    for name, lists in tokens.items():
        distinct = sorted({token for bag in lists for token in bag})
        token_row = {token: 1 + i for i, token in enumerate(distinct)}
        bags = np.zeros((len(lists) + 1, max(map(len, lists))), np.int32)
        for row, bag in enumerate(lists, start=1):
            bags[row, : len(bag)] = [token_row[token] for token in bag]
        features.append(FeatureBags(name, len(distinct) + 1, bags))
    return tuple(features)
