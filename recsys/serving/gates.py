"""What a SavedModel must do before it may become a bundle: answer as the trainer does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError

TOLERANCE = 1e-5
_BATCHES = (0, 1, 7, 512)
_TRIES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Reference:
    """What the trainer computed.

    Attributes:
        users: Vocabulary of the users.
        items: Vocabulary of the items.
        user_row: User row of each probe `[n]`.
        history: Item rows of each probe `[n, length]`, the newest first.
        query: Embedding of each probe `[n, dim]`.
        candidates: Embedding of each item row `[item rows, dim]`.
    """

    users: Vocabulary
    items: Vocabulary
    user_row: np.ndarray
    history: np.ndarray
    query: np.ndarray
    candidates: np.ndarray


def check(model: Any, reference: Reference) -> float:
    """Asks a loaded SavedModel in raw ids for what the trainer computed from rows.

    The embeddings of all probes and all items, the candidates of all probes, in
    batches of 0, 1, 7 and 512, and the same from serialized tf.Examples.

    Returns:
        The largest difference of an embedding or of a score.

    Raises:
        RecsysError: A difference is over the tolerance.
    """
    ask = model.signatures
    probes, n = _raw_probes(reference), len(reference.query)
    found = _in_batches(lambda part: _answer(ask["embed_query"], probes, part), n)
    queries = _difference("R530", "query embeddings", found["embedding"], reference.query)
    items = _items_difference(ask["embed_candidate"], reference)
    found = _in_batches(lambda part: _answer(ask["recommend"], probes, part), n)
    scores = _candidates_difference("recommend", found, reference)
    found = _in_batches(lambda part: ask["serving_default"](examples=_examples(probes, part)), n)
    return max(queries, items, scores, _candidates_difference("serving_default", found, reference))


_Probes = dict[str, np.ndarray]


def _raw_probes(reference: Reference) -> _Probes:
    """Returns user ids, histories and `exclude_seen` of the probes, as a client sends them.

    An unknown id follows each history, so that an empty one is given as empty and
    not taken for the stored one.
    """
    users = stand_ins(reference.users, reference.user_row)
    items = stand_ins(reference.items, reference.history)
    unknown = _unknown_id({*users.tolist(), *items.tolist()})
    if reference.users.first_own_row == 1:
        users[0] = unknown
    last = np.full((len(reference.user_row), 1), unknown, object)
    return {
        "user_id": users[reference.user_row],
        "history": np.concatenate([items[reference.history], last], axis=1),
        "exclude_seen": np.zeros(len(reference.user_row), bool),
    }


def stand_ins(vocabulary: Vocabulary, rows: np.ndarray) -> np.ndarray:
    """Returns an id `[n_rows]` for each of `rows` `[...]`; other shared rows have none.

    A row that unknown ids share has one of them, found by trying.
    """
    ids = np.asarray(vocabulary.names_of_rows(), object)
    is_shared = (rows > 0) & (rows < vocabulary.first_own_row)
    wanted = np.unique(rows[is_shared])
    tried = 0
    while len(wanted):
        tries = [f"?{number}" for number in range(tried, tried + _TRIES)]
        found, first = np.unique(vocabulary.rows(tries), return_index=True)
        hit = np.isin(found, wanted)
        ids[found[hit]] = np.asarray(tries, object)[first[hit]]
        wanted = np.setdiff1d(wanted, found)
        tried += _TRIES
    return ids


def _unknown_id(known: set[str]) -> str:
    unknown = "?"
    while unknown in known:
        unknown += "?"
    return unknown


def _answer(signature: Any, probes: _Probes, part: slice) -> dict[str, tf.Tensor]:
    """Asks a signature for some probes; raw columns are padding, for what is stored."""
    inputs = {}
    for name, spec in signature.structured_input_signature[1].items():
        n = len(probes["user_id"][part])
        values = probes[name][part] if name in probes else np.full((n, 1), "", object)
        inputs[name] = tf.constant(values, spec.dtype, values.shape)
    return signature(**inputs)


def _examples(probes: _Probes, part: slice) -> tf.Tensor:
    serialized = []
    for user_id, history in zip(probes["user_id"][part], probes["history"][part], strict=True):
        example = tf.train.Example()
        feature = example.features.feature
        feature["user_id"].bytes_list.value.append(user_id.encode())
        feature["history"].bytes_list.value.extend(id_.encode() for id_ in history)
        feature["exclude_seen"].int64_list.value.append(0)
        serialized.append(example.SerializeToString())
    return tf.constant(serialized, tf.string, [len(serialized)])


def _in_batches(ask: Callable[[slice], dict[str, tf.Tensor]], n: int) -> dict[str, np.ndarray]:
    answers = [ask(part) for part in _parts(n)]
    return {name: np.concatenate([a[name].numpy() for a in answers]) for name in answers[0]}


def _parts(n: int) -> Iterator[slice]:
    """Yields slices of 0, 1, 7 and 512, then of 512 up to `n`."""
    start = 0
    for size in _BATCHES:
        yield slice(start, min(start + size, n))
        start = min(start + size, n)
    while start < n:
        yield slice(start, min(start + _BATCHES[-1], n))
        start += _BATCHES[-1]


def _items_difference(signature: Any, reference: Reference) -> float:
    """Returns the largest difference between the found embeddings of items and the trainer's."""
    is_item = reference.items.has_id()
    ids = np.asarray(reference.items.names_of_rows(), object)[is_item]
    raw = set(signature.structured_input_signature[1]) - {"item_id"}

    def embed(part: slice) -> dict[str, tf.Tensor]:
        n = len(ids[part])
        columns = {name: tf.fill([n, 1], "") for name in raw}
        return signature(item_id=tf.constant(ids[part], tf.string, [n]), **columns)

    found = _in_batches(embed, len(ids))["embedding"]
    return _difference("R531", "item embeddings", found, reference.candidates[is_item])


def _candidates_difference(
    signature: str, found: dict[str, np.ndarray], reference: Reference
) -> float:
    """Returns the largest difference between the found scores and the trainer's best.

    Ids are compared by their scores: two items of one score may change places.
    """
    scores = reference.query @ reference.candidates.T
    k = found["scores"].shape[1]
    is_item = reference.items.has_id()
    best = -np.sort(-scores[:, is_item], axis=1)[:, :k]
    subject = f"scores of {signature}"
    of_best = _difference("R532", subject, found["scores"], best)
    row_of = {id_.encode(): row for row, id_ in enumerate(reference.items.names_of_rows())}
    row_of[b""] = 0
    rows = np.asarray([[row_of[id_] for id_ in ids] for ids in found["candidate_ids"]], np.int64)
    rows = rows.reshape(-1, k)
    n_distinct = [len(set(ids)) for ids in rows.tolist()]
    if (rows == 0).any() or min(n_distinct, default=k) < k:
        raise _refused("R533", f"candidates of {signature}", "an item twice, or none")
    of_ids = np.take_along_axis(scores, rows, axis=1)
    subject = f"scores of the candidates of {signature}"
    return max(of_best, _difference("R533", subject, of_ids, best))


def _difference(code: str, subject: str, found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape:
        raise _refused(code, subject, f"shape {found.shape} instead of {expected.shape}")
    worst = float(np.max(np.abs(found - expected), initial=0.0))
    # Dots may be large; cosines, and the entries of unit vectors, are 1 at the most.
    largest = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    if not (worst <= TOLERANCE * largest and np.isfinite(worst)):  # NaN is over it too.
        raise _refused(code, subject, f"a difference of {worst:.3g}")
    return worst


def _refused(code: str, subject: str, received: str) -> RecsysError:
    return RecsysError(
        code,
        f"The {subject} of the exported model must be the trainer's within {TOLERANCE:g}"
        " of the largest number, or of 1.",
        "Nothing was exported. Train again: recsys run; if it stays, report it as a bug.",
        received,
    )
