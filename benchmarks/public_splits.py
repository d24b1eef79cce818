"""A public split: training events, the users to rank for, and what is known of both.

It is a folder whose `protocol.json` says what is trained on and what is asked. `write_data_folder`
writes it as the data folder that `recsys.stages.train` reads.

Keys of `protocol.json`; a part's keys name files of the folder:

    type            fullrank    all items are ranked for each user with items in `test`
                    loo_neg     the `pos` of each case of `candidates` is among its `neg`
                    loo_full    the `target` of each user is ranked among all items
    k               cut-offs of the metrics; [10] by default
    test, valid     the parts: `train`, and `test`, `candidates` or `target`, as above
      train         matrix of users × items (CSR, `scipy.sparse.save_npz`): what is trained on
                    and not ranked
      items         FILE.npz:ARRAY, the items that are ranked; all by default
      times         seconds since 1970 of the entries of `train` (.npy), where they are known

One trains on `train` of the part, but with `loo_full` on that of `valid` where there is one,
which for `test` too leaves out the last two items of a user, as S3-Rec and SASRec do.

Further files, where they are there; numbers are those of the matrices:

    sequences.txt           `user item item …`: the oldest first; users count from 1
    item2attributes.json    {"item": [token, …]}
    items.csv, users.csv    a column `item` or `user`, and features; `|` is between tokens

A column whose tokens occur less than twice in the mean, as ids and titles do, is no feature.
An item or a user keeps the first 64 tokens of a feature. What is left out is printed.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, PositiveInt

from benchmarks.stores import save_catalogue, save_features, write_store
from recsys.config import RESERVED_FEATURE_NAMES, Order
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
        """Reads what `scipy.sparse.save_npz` wrote of a CSR matrix."""
        import scipy.sparse

        matrix = scipy.sparse.load_npz(path)
        return cls(matrix.indices, matrix.indptr.astype(np.int64), matrix.shape[1])

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


@dataclasses.dataclass(frozen=True)
class Split:
    """Events to train on, and the protocol of the evaluation.

    Attributes:
        protocol: `fullrank`, `loo_neg` or `loo_full`; as in `protocol.json`.
        k: Cut-offs of the metrics.
        train: Training events; where they have an order, the oldest of a user first.
        relevant: Items of each user that were held out.
        masked: Items of each user that aren't ranked.
        seen: Events of users before the evaluation, their histories then, ordered like
            `train`.
        order: What orders the events: `time`, `file` (they have an order and no times) or
            `none`.
        times: Time of each training event `[entries]` int64 [seconds since 1970]; None: its
            position among its user's events.
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
    """
    n_users, n_items = len(train), train.n_items
    sizes = {"users": n_users, "items": n_items}
    ids = {name: [f"{name[0]}{first_id + i}" for i in range(n)] for name, n in sizes.items()}
    if times is None:
        times = np.arange(len(train.items)) - train.offsets[train.users]
    events = _events(train, pa.array(ids["users"]), times.astype(np.int64))
    (folder / "vocabulary").mkdir(parents=True)
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


# --- reading a split from a folder


MOST_TOKENS = 64
_FEWEST_OF_A_TOKEN = 2.0
PartName = Literal["test", "valid"]


class Part(BaseModel):
    """Files of a part; see above."""

    train: str
    test: str = ""
    candidates: str = ""
    target: str = ""
    items: str | None = None
    times: str | None = None


class Protocol(BaseModel):
    """`protocol.json`; see above."""

    name: str = "default"
    type: Literal["fullrank", "loo_neg", "loo_full"]
    k: tuple[PositiveInt, ...] = (10,)
    test: Part
    valid: Part | None = None

    @classmethod
    def of(cls, folder: Path) -> Protocol:
        """Reads that of a folder."""
        return cls.model_validate_json((folder / "protocol.json").read_bytes())

    def files(self, part: PartName) -> Part:
        """Returns the files of a part."""
        found = self.test if part == "test" else self.valid
        if found is None:
            raise ValueError("The protocol has no part 'valid'.")
        return found


def read_split(folder: Path, part: PartName) -> Split:
    """Reads a part of a public split.

    Args:
        folder: A folder with `protocol.json`.
        part: Which one.

    Raises:
        ValueError: `sequences.txt` hasn't the events of `train`, or there is no such part.
    """
    protocol, notes = Protocol.of(folder), list[str]()
    files = protocol.files(part)
    masked, relevant, asked = _answers(folder, protocol, files)
    seen, times, order = _history(folder, protocol, files)
    train = seen
    if protocol.type == "loo_full" and protocol.valid is not None:
        train, times, order = _history(folder, protocol, protocol.valid)
    item_tokens = _tokens(folder, "item", train.n_items, RESERVED_FEATURE_NAMES, notes)
    taken = RESERVED_FEATURE_NAMES.union(item_tokens)
    user_tokens = _tokens(folder, "user", len(train), taken, notes)
    known: dict[str, Any] = {"item_tokens": item_tokens, "user_tokens": user_tokens, **asked}
    known["notes"] = tuple(notes)
    return Split(protocol.type, protocol.k, train, relevant, masked, seen, order, times, **known)


def _answers(
    folder: Path, protocol: Protocol, files: Part
) -> tuple[Csr, Csr, dict[str, np.ndarray]]:
    """Returns what isn't ranked, what was held out, and what else of `Split` says who is asked."""
    masked = Csr.load(folder / files.train)
    n_users, n_items = len(masked), masked.n_items
    asked: dict[str, np.ndarray] = {}
    if protocol.type == "fullrank":
        relevant = Csr.load(folder / files.test)
    elif protocol.type == "loo_neg":
        with np.load(folder / files.candidates) as cases:
            users, positive, negative = (cases[name] for name in ("user", "pos", "neg"))
        candidates = np.concatenate([negative, positive[:, None]], axis=1)
        asked = {"candidates": candidates, "users": users}
        relevant = Csr.of_pairs(users, positive, n_users, n_items)
    else:
        target = np.load(folder / files.target)
        users = np.flatnonzero(target >= 0)
        relevant = Csr.of_pairs(users, target[users], n_users, n_items)
    if files.items is not None:
        name, _, array = files.items.partition(":")
        asked["ranked"] = np.isin(np.arange(n_items), np.load(folder / name)[array])
    return masked, relevant, asked


# --- the order of events


def _history(folder: Path, protocol: Protocol, files: Part) -> tuple[Csr, np.ndarray | None, Order]:
    """Returns the events before a part, in their order; their times; and what orders them."""
    masked = Csr.load(folder / files.train)
    if (path := folder / "sequences.txt").exists():
        lines = [[*map(int, line.split())] for line in path.read_text().splitlines() if line]
        target = np.full(len(masked), -1)
        if protocol.type == "loo_full":
            target = np.load(folder / files.target)
        sequences = {line[0] - 1: line[1:] for line in lines}
        return _as_in_sequences(masked, target, sequences), None, "file"
    if files.times is not None:
        times = np.load(folder / files.times)
        return masked.sorted_by(times), times[np.lexsort((times, masked.users))], "time"
    return masked.shuffled(), None, "none"


def _as_in_sequences(masked: Csr, target: np.ndarray, sequences: dict[int, list[int]]) -> Csr:
    """Returns the events of each user in the order in which its sequence has them."""
    lists = [
        _events_before(sequences.get(user, []), set(masked[user].tolist()), int(target[user]))
        for user in range(len(masked))
    ]
    wrong = [user for user, events in enumerate(lists) if events is None]
    if wrong:
        raise ValueError(
            "sequences.txt must have the items of train, and then the target;"
            f" it hasn't for {len(wrong)} users, as for {wrong[0] + 1}."
        )
    return Csr.of_lists([events or [] for events in lists], masked.n_items)


def _events_before(sequence: list[int], items: set[int], target: int) -> list[int] | None:
    """Returns the events with just `items` that come before a target; None if there are none.

    Args:
        sequence: Events of a user.
        items: What is known of them.
        target: The item that comes after them; -1: none does.
    """
    if target < 0:
        events = [item for item in sequence if item in items]
        return events if set(events) == items else None
    ends = (end for end in reversed(range(len(sequence))) if sequence[end] == target)
    return next((sequence[:end] for end in ends if set(sequence[:end]) == items), None)


# --- features


def _tokens(folder: Path, side: str, n: int, taken: frozenset[str], notes: list[str]) -> Bags:
    """Returns the features of the items or the users, and notes what is left out.

    Args:
        folder: The folder.
        side: `item` or `user`.
        n: How many there are.
        taken: Names that a feature may not have; it gets `side` in front of its own.
        notes: Where to.
    """
    bags: Bags = {}
    names = ("item2attributes.json", "items.csv") if side == "item" else ("users.csv",)
    for path in [folder / name for name in names if (folder / name).exists()]:
        for column, tokens in _columns(path, side).items():
            count = sum(map(len, tokens.values()))
            distinct = len(set(itertools.chain.from_iterable(tokens.values())))
            if count < _FEWEST_OF_A_TOKEN * distinct or not count:
                notes.append(f"{path.name}: {column} is no feature, its tokens hardly repeat.")
                continue
            cut = sum(max(0, len(bag) - MOST_TOKENS) for bag in tokens.values())
            if cut:
                notes.append(
                    f"{path.name}: {cut:,} of {count:,} tokens of {column} are left out:"
                    f" {MOST_TOKENS} are kept of each {side}."
                )
            name = re.sub(r"\W", "_", column)
            name = f"{side}_{name}" if name in taken else name
            bags[name] = [tokens.get(i, [])[:MOST_TOKENS] for i in range(n)]
    return bags


def _columns(path: Path, key: str) -> dict[str, dict[int, list[str]]]:
    """Returns the tokens of each column but `key`, by the number that `key` holds."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        return {"attributes": {int(i): [*map(str, content[i])] for i in content}}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        name: {int(row[key]): [t for t in row[name].split("|") if t] for row in rows}
        for name in rows[0]
        if name != key
    }


# --- the published protocols


_BLOCK = 512


def measure(
    split: Split, user: np.ndarray, item: np.ndarray, added: Any = None
) -> dict[str, float]:
    """Returns the metrics of a split's protocol, at each of its cut-offs.

    Over all items as NGCF and LightGCN count: recall over all relevant items of a user, the
    ideal DCG over the first min(k, relevant) places, means over the users with a relevant item.

    Args:
        split: What was held out.
        user: User vectors `[users, dim]` float32.
        item: Item vectors `[items, dim]` float32.
        added: Summands of the scores `[users, items]` in CSR; None: there are none.
    """
    ranks = _among_given if split.protocol == "loo_neg" else _among_all
    asked, rank = map(np.concatenate, zip(*ranks(split, user, item, added), strict=True))
    n = np.unique(asked, return_counts=True)[1]
    place = np.repeat(np.arange(len(n)), n)
    ideal = np.cumsum(1 / np.log2(np.arange(2, max(split.k) + 2)))
    metrics: dict[str, float] = {}
    for k in split.k:
        n_hits = np.bincount(place, rank <= k)
        dcg = np.bincount(place, np.where(rank <= k, 1 / np.log2(rank + 1), 0))
        values = {"HR": n_hits > 0, "NDCG": dcg / ideal[np.minimum(n, k) - 1]}
        if split.protocol == "fullrank":
            values |= {"Recall": n_hits / n, "Precision": n_hits / k}
        metrics |= {f"{name}@{k}": float(of_users.mean()) for name, of_users in values.items()}
    return metrics if split.protocol == "fullrank" else {**metrics, "MRR": float((1 / rank).mean())}


Ranks = Iterator[tuple[np.ndarray, np.ndarray]]
"""Blocks of who is asked, and the rank of each item that was held out of them, from 1 on.

A tie counts against it; what isn't ranked itself is at infinity.
"""


def _among_all(split: Split, user: np.ndarray, item: np.ndarray, added: Any) -> Ranks:
    """Ranks among all items but those that are masked."""
    for rows in _blocks(np.flatnonzero(np.diff(split.relevant.offsets))):
        scores = user[rows] @ item.T
        scores = scores if added is None else scores + added[rows]
        for row, of_user in zip(rows, scores, strict=True):
            relevant = split.relevant[row]
            target = of_user[relevant]
            of_user[split.masked[row]] = -np.inf
            if split.ranked is not None:
                of_user[~split.ranked] = -np.inf
            if split.protocol == "loo_full":  # Users come back to what they had.
                of_user[relevant] = target
            target = of_user[relevant]
            rank = len(item) - np.searchsorted(np.sort(of_user), target)
            yield np.full(len(relevant), row), np.where(target > -np.inf, rank, np.inf)


def _among_given(split: Split, user: np.ndarray, item: np.ndarray, added: Any) -> Ranks:
    """Ranks among the negatives of each case.

    A negative that is the item itself, as some published lists have, is left out.
    """
    if split.candidates is None or split.users is None:
        raise ValueError("The split must name the candidates of each case.")
    for cases in _blocks(np.arange(len(split.users))):
        candidates = split.candidates[cases]
        scores = np.einsum("ncd,nd->nc", item[candidates], user[split.users[cases]])
        if added is not None:
            scores += np.take_along_axis(added[split.users[cases]].toarray(), candidates, axis=1)
        is_other = candidates != candidates[:, -1:]
        yield cases, 1 + ((scores >= scores[:, -1:]) & is_other).sum(axis=1)


def _blocks(numbers: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(numbers), _BLOCK):
        yield numbers[start : start + _BLOCK]
