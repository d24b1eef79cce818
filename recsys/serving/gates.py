"""What a SavedModel must do before it may become a bundle: answer as the trainer does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from recsys.data.vocabulary import Vocabulary, as_texts
from recsys.serving.gate_reference import Reference
from recsys.serving.gate_scores import Answers, compare_scores
from recsys.serving.slices import read_rows
from recsys.serving.tolerance import difference, refused

_BATCHES = (0, 1, 7, 512)

Tell = Callable[[str], None]
"""Is told what was checked."""


def check(model: Any, bundle: Path, reference: Reference, tell: Tell) -> float:
    """Asks a loaded SavedModel in raw ids for what the trainer computed from rows.

    The embeddings of all probes and all items, the candidates of all probes, in
    batches of 0, 1, 7 and 512, and the same from serialized tf.Examples.

    Args:
        model: The loaded SavedModel.
        bundle: The unfinished bundle; vocabulary and item embeddings are read there.
        reference: What the trainer computed.
        tell: Is told after each check.

    Returns:
        The largest difference of an embedding or of a score.

    Raises:
        RecsysError: A difference is over the tolerance (R530 … R533), or short item
            embeddings find too few (R538).
    """
    ask, n = model.signatures, len(reference.query)
    items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
    embeddings = np.load(bundle / "item_embeddings.npy", mmap_mode="r", allow_pickle=False)
    found = _in_batches(lambda part: _answer(ask["embed_query"], reference, part), n)
    worst = difference("R530", "query embeddings", found["embedding"], reference.query)
    tell(f"{n:,} query embeddings are the trainer's")
    worst = max(worst, _items_difference(ask["embed_candidate"], items, embeddings))
    tell(f"{int(items.has_id().sum()):,} item embeddings are the trainer's")

    def examples(part: slice) -> dict[str, tf.Tensor]:
        return ask["serving_default"](examples=_examples(reference, part))

    found = _in_batches(lambda part: _answer(ask["recommend"], reference, part), n)
    answers = [_answers("recommend", found, items)]
    answers.append(_answers("serving_default", _in_batches(examples, n), items))
    worst = max(worst, compare_scores(answers, reference, embeddings, items.has_id()))
    tell(f"the candidates of {n:,} queries are the trainer's")
    return worst


def inputs_of(signature: Any, reference: Reference, part: slice) -> dict[str, tf.Tensor]:
    """Returns the inputs of a signature for some probes; others are padding, for the stored."""
    given = {"user_id": reference.user_id[part], "history": reference.history[part]}
    n = len(given["user_id"])
    given["exclude_seen"] = np.zeros(n, bool)
    specs = signature.structured_input_signature[1]
    inputs = {}
    for name, spec in specs.items():
        values = given[name] if name in given else np.full((n, 1), "", object)
        inputs[name] = tf.constant(values, spec.dtype, values.shape)
    return inputs


def _answer(signature: Any, reference: Reference, part: slice) -> dict[str, tf.Tensor]:
    return signature(**inputs_of(signature, reference, part))


def _examples(reference: Reference, part: slice) -> tf.Tensor:
    serialized = []
    for user_id, history in zip(reference.user_id[part], reference.history[part], strict=True):
        example = tf.train.Example()
        feature = example.features.feature
        feature["user_id"].bytes_list.value.append(user_id.encode())
        feature["history"].bytes_list.value.extend(id_.encode() for id_ in history)
        feature["exclude_seen"].int64_list.value.append(0)
        serialized.append(example.SerializeToString())
    return tf.constant(serialized, tf.string, [len(serialized)])


def _in_batches(ask: Callable[[slice], dict[str, tf.Tensor]], n: int) -> dict[str, np.ndarray]:
    answers = [{name: t.numpy() for name, t in ask(part).items()} for part in _parts(n)]
    return {name: np.concatenate([a[name] for a in answers]) for name in answers[0]}


def _parts(n: int) -> Iterator[slice]:
    """Yields slices of 0, 1, 7 and 512, then of 512 up to `n`."""
    start = 0
    for size in _BATCHES:
        yield slice(start, min(start + size, n))
        start = min(start + size, n)
    while start < n:
        yield slice(start, min(start + _BATCHES[-1], n))
        start += _BATCHES[-1]


def _items_difference(signature: Any, items: Vocabulary, embeddings: np.ndarray) -> float:
    """Returns the largest difference between the found embeddings of items and the trainer's."""
    rows = np.flatnonzero(items.has_id())
    raw = set(signature.structured_input_signature[1]) - {"item_id"}
    worst = 0.0
    for part in _parts(len(rows)):
        # Batch by batch: all at once they may be as large as a table.
        ids = items.ids_of_rows.take(rows[part]).to_pylist()
        columns = {name: tf.fill([len(ids), 1], "") for name in raw}
        found = signature(item_id=tf.constant(ids, tf.string, [len(ids)]), **columns)
        found = found["embedding"].numpy()
        expected = _picked(embeddings, rows[part])
        worst = max(worst, difference("R531", "item embeddings", found, expected))
    return worst


def _picked(embeddings: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the embeddings of ascending `rows`, which lie close together."""
    if not len(rows):
        return np.zeros((0, embeddings.shape[1]), np.float32)
    return read_rows(embeddings, rows[0], rows[-1] + 1)[rows - rows[0]]


def _answers(signature: str, found: dict[str, np.ndarray], items: Vocabulary) -> Answers:
    """Returns what a signature answered, in item rows.

    Raises:
        RecsysError: There is an item twice, or none where there should be one (R533).
    """
    ids, place = np.unique(found["candidate_ids"].astype(object), return_inverse=True)
    places = items.index.find(as_texts([id_.decode() for id_ in ids]))
    rows = np.where(places >= 0, places + items.first_own_row, 0)[place]
    rows = rows.reshape(found["candidate_ids"].shape)
    n_distinct = [len(set(row)) for row in rows.tolist()]
    k = found["candidate_ids"].shape[1]
    if (rows == 0).any() or min(n_distinct, default=k) < k:
        raise refused("R533", f"candidates of {signature}", "an item twice, or none")
    return Answers(signature, rows, found["scores"], found["source"])
