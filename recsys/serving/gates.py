"""What a SavedModel must do before it may become a bundle: answer as the trainer does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from recsys.errors import RecsysError

TOLERANCE = 1e-5
_BATCHES = (0, 1, 7, 512)


@dataclasses.dataclass(frozen=True)
class Reference:
    """What the trainer computed.

    Attributes:
        user_ids: Id of each user row; that of row 0 is empty.
        item_ids: Id of each item row; that of row 0 is empty.
        user_row: User row of each probe `[n]`.
        history: Item rows of each probe `[n, length]`, the newest first.
        query: Embedding of each probe `[n, dim]`.
        candidates: Embedding of each item row `[item rows, dim]`.
    """

    user_ids: Sequence[str]
    item_ids: Sequence[str]
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
    probes = _raw_probes(reference)
    found = _in_batches(lambda part: ask["embed_query"](**_pick(probes, part, 2)), len(probes[0]))
    queries = _difference("R530", "query embeddings", found["embedding"], reference.query)
    items = _difference(
        "R531", "item embeddings", _embedded_items(ask, reference), reference.candidates[1:]
    )
    found = _in_batches(lambda part: ask["recommend"](**_pick(probes, part, 3)), len(probes[0]))
    scores = _candidates_difference("recommend", found, reference)
    found = _in_batches(
        lambda part: ask["serving_default"](examples=_examples(probes, part)), len(probes[0])
    )
    return max(queries, items, scores, _candidates_difference("serving_default", found, reference))


def _raw_probes(reference: Reference) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns user ids, histories and `exclude_seen` of the probes, as a client sends them.

    An unknown id follows each history, so that an empty one is given as empty and
    not taken for the stored one; the users of row 0 have an unknown id too.
    """
    unknown = _unknown_id({*reference.user_ids, *reference.item_ids})
    users = np.asarray([unknown, *reference.user_ids[1:]], object)[reference.user_row]
    items = np.asarray(["", *reference.item_ids[1:]], object)[reference.history]
    last = np.full((len(users), 1), unknown, object)
    return users, np.concatenate([items, last], axis=1), np.zeros(len(users), bool)


def _unknown_id(known: set[str]) -> str:
    unknown = "?"
    while unknown in known:
        unknown += "?"
    return unknown


def _pick(probes: tuple[np.ndarray, ...], part: slice, n_inputs: int) -> dict[str, tf.Tensor]:
    names, types = ("user_id", "history", "exclude_seen"), (tf.string, tf.string, tf.bool)
    inputs = list(zip(names, probes, types, strict=True))[:n_inputs]
    return {name: tf.constant(x[part], type_, x[part].shape) for name, x, type_ in inputs}


def _examples(probes: tuple[np.ndarray, ...], part: slice) -> tf.Tensor:
    serialized = []
    for user_id, history in zip(probes[0][part], probes[1][part], strict=True):
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


def _embedded_items(ask: Any, reference: Reference) -> np.ndarray:
    signature = ask["embed_candidate"]
    ids = np.asarray(reference.item_ids[1:], object)
    raw = set(signature.structured_input_signature[1]) - {"item_id"}

    def embed(part: slice) -> dict[str, tf.Tensor]:
        n = len(ids[part])
        columns = {name: tf.fill([n], "") for name in raw}
        return signature(item_id=tf.constant(ids[part], tf.string, [n]), **columns)

    return _in_batches(embed, len(ids))["embedding"]


def _candidates_difference(
    signature: str, found: dict[str, np.ndarray], reference: Reference
) -> float:
    """Returns the largest difference between the found scores and the trainer's best.

    Ids are compared by their scores: two items of one score may change places.
    """
    scores = reference.query @ reference.candidates.T
    k = found["scores"].shape[1]
    best = -np.sort(-scores[:, 1:], axis=1)[:, :k]
    subject = f"scores of {signature}"
    of_best = _difference("R532", subject, found["scores"], best)
    row_of = {id_.encode(): row for row, id_ in enumerate(reference.item_ids)}
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
    if not worst <= TOLERANCE:  # NaN is over the tolerance too.
        raise _refused(code, subject, f"a difference of {worst:.3g}")
    return worst


def _refused(code: str, subject: str, received: str) -> RecsysError:
    return RecsysError(
        code,
        f"The {subject} of the exported model must be the trainer's within {TOLERANCE:g}.",
        "Nothing was exported. Train again: recsys run; if it stays, report it as a bug.",
        received,
    )
