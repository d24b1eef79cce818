"""Reads public splits: folders whose `protocol.json` says what is trained on and what is asked.

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
import functools
import itertools
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.public_splits import Bags, Csr, Split, is_below
from recsys.config import RESERVED_FEATURE_NAMES, Order

MOST_TOKENS = 64
ANSWERS = {"fullrank": "test", "loo_neg": "candidates", "loo_full": "target"}
"""Files of a part besides `train`, by type."""
_DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, EOFError),
    zipfile.BadZipFile,
)
_FEWEST_OF_A_TOKEN = 2.0
T = TypeVar("T")


class FolderError(Exception):
    """An error in a folder, as a sentence."""


def read_split(folder: Path, part: str) -> Split:
    """Reads a part of a public split.

    Args:
        folder: A folder with `protocol.json`.
        part: `test` or `valid`.

    Raises:
        FolderError: A file is missing or damaged, or two of them disagree.
    """
    protocol = read_protocol(folder, part)
    kind, notes = protocol["type"], list[str]()
    sequences = _sequences(folder / "sequences.txt")
    masked, relevant, asked = _answers(folder, protocol, part)
    seen, times, order = _history(folder, protocol, part, sequences)
    train = seen
    if kind == "loo_full" and part != "valid" and "valid" in protocol:
        train, times, order = _history(folder, protocol, "valid", sequences)
    if not (len(train.items) and len(relevant.items)):
        raise FolderError(f"{folder}: {part} has nothing to train on, or nobody to rank for.")
    item_tokens = _tokens(folder, "item", train.n_items, RESERVED_FEATURE_NAMES, notes)
    taken = RESERVED_FEATURE_NAMES.union(item_tokens)
    user_tokens = _tokens(folder, "user", len(train), taken, notes)
    known: dict[str, Any] = {"item_tokens": item_tokens, "user_tokens": user_tokens, **asked}
    known["notes"] = tuple(notes)
    return Split(kind, tuple(protocol["k"]), train, relevant, masked, seen, order, times, **known)


def read_protocol(folder: Path, part: str) -> dict[str, Any]:
    """Returns `protocol.json` of a folder, whose `part` names what its type needs.

    Raises:
        FolderError: There is none, it is damaged, or of a type that is not known.
    """
    path = folder / "protocol.json"
    if not path.is_file():
        raise FolderError(f"{str(folder)!r} must be a folder with a protocol.json.")
    protocol: dict[str, Any] = {"k": [10], **_read(path, lambda: json.loads(path.read_text()))}
    kind, k, files = protocol.get("type"), protocol["k"], protocol.get(part)
    if kind not in ANSWERS:
        raise FolderError(f"{path}: type must be one of {', '.join(ANSWERS)}; is {kind!r}.")
    if not (isinstance(k, list) and k and all(isinstance(n, int) and n > 0 for n in k)):
        raise FolderError(f"{path}: k must be a list of whole numbers above 0; is {k!r}.")
    needed = {"train", ANSWERS[kind]}
    if not (isinstance(files, dict) and all(isinstance(name, str) for name in files.values())):
        raise FolderError(f"{path}: {part!r} must be a part, with the names of its files.")
    if missing := sorted(needed - set(files)):
        raise FolderError(f"{path}: {part!r} of {kind} must name {' and '.join(missing)}.")
    return protocol


def _read(path: Path, read: Callable[[], T]) -> T:
    """Returns what `read` makes of a file, whose damage becomes a sentence."""
    try:
        return read()
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise FolderError(f"{path} must be a file as its name says: {reason}.") from None


def _matrix(path: Path, like: Csr | None = None) -> Csr:
    matrix = _read(path, lambda: Csr.load(path))
    if like is not None:
        shapes = [(len(csr), csr.n_items) for csr in (matrix, like)]
        _check(shapes[0] == shapes[1], path, f"must have the shape of train, {shapes[1]}")
    return matrix


def _array(path: Path, name: str | None = None) -> np.ndarray:
    """Returns the array of an .npy file, or one array of an .npz file."""

    def read() -> np.ndarray:
        array = np.load(path, allow_pickle=False)
        if name is not None:
            with array as file:
                array = file[name]
        if array.dtype.kind not in "iu":
            raise ValueError(f"{array.dtype} where whole numbers are expected")
        return np.asarray(array)

    return _read(path, read)


def _check(is_right: bool, path: Path, rule: str) -> None:
    if not is_right:
        raise FolderError(f"{path} {rule}.")


def _answers(
    folder: Path, protocol: dict[str, Any], part: str
) -> tuple[Csr, Csr, dict[str, np.ndarray]]:
    """Returns what isn't ranked, what was held out, and what else of `Split` says who is asked."""
    kind, files = protocol["type"], protocol[part]
    masked, path = _matrix(folder / files["train"]), folder / files[ANSWERS[kind]]
    n_users, n_items = len(masked), masked.n_items
    asked: dict[str, np.ndarray] = {}
    if kind == "fullrank":
        relevant = _matrix(path, masked)
    elif kind == "loo_neg":
        users, positive, negative = (_array(path, name) for name in ("user", "pos", "neg"))
        fits = users.ndim == 1 and positive.shape == users.shape == negative.shape[:1]
        _check(fits and negative.ndim == 2, path, "must have as many user and pos as rows of neg")
        candidates = np.concatenate([negative, positive[:, None]], axis=1)
        fits = is_below(users, n_users) and is_below(candidates.ravel(), n_items)
        _check(fits, path, f"must name users below {n_users} and items below {n_items}, as train")
        asked = {"candidates": candidates, "users": users}
        relevant = Csr.of_pairs(users, positive, n_users, n_items)
    else:
        target = _array(path)
        fits = target.shape == (n_users,) and is_below(target + 1, n_items + 1)
        _check(fits, path, f"must hold an item below {n_items}, or -1, for each of {n_users} users")
        users = np.flatnonzero(target >= 0)
        relevant = Csr.of_pairs(users, target[users], n_users, n_items)
    if "items" in files:
        name, _, array = files["items"].partition(":")
        items = _array(folder / name, array)
        _check(is_below(items, n_items), folder / name, f"must name items below {n_items}")
        asked["ranked"] = np.isin(np.arange(n_items), items)
    return masked, relevant, asked


# --- the order of events


def _sequences(path: Path) -> dict[int, list[int]] | None:
    """Returns the items of each user, the oldest first; None where there is no such file."""
    if not path.exists():
        return None
    lines = _read(path, lambda: [[*map(int, x.split())] for x in path.read_text().splitlines()])
    return {line[0] - 1: line[1:] for line in lines if line}


def _history(
    folder: Path, protocol: dict[str, Any], part: str, sequences: dict[int, list[int]] | None
) -> tuple[Csr, np.ndarray | None, Order]:
    """Returns the events before a part, in their order; their times; and what orders them."""
    files = read_protocol(folder, part)[part]
    masked = _matrix(folder / files["train"])
    if sequences is not None:
        target = np.full(len(masked), -1)
        if protocol["type"] == "loo_full":
            target = _array(folder / files["target"])
        return _as_in_sequences(masked, target, sequences, folder), None, "file"
    if "times" in files:
        times = _array(path := folder / files["times"])
        _check(times.shape == masked.items.shape, path, "must have a time for each entry of train")
        return masked.sorted_by(times), times[np.lexsort((times, masked.users))], "time"
    return masked.shuffled(), None, "none"


def _as_in_sequences(
    masked: Csr, target: np.ndarray, sequences: dict[int, list[int]], folder: Path
) -> Csr:
    """Returns the events of each user in the order in which its sequence has them."""
    lists = [
        _events_before(sequences.get(user, []), set(masked[user].tolist()), int(target[user]))
        for user in range(len(masked))
    ]
    wrong = [user for user, events in enumerate(lists) if events is None]
    if wrong:
        raise FolderError(
            f"{folder / 'sequences.txt'} must have the items of train, and then the target;"
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
        for column, tokens in _read(path, functools.partial(_columns, path, side)).items():
            _check(is_below(np.array([*tokens]), n), path, f"must number {side}s below {n}")
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
