"""Parity of retrieval: embeddings and best items must be the same as in training.

Scores are compared in blocks of items; see `recsys.savedmodel.parity` for the tolerance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from recsys.data.catalogue import read_is_item
from recsys.data.vocabulary import Vocabulary, as_texts
from recsys.ragged import slices
from recsys.savedmodel.parity import (
    Reference,
    Report,
    Request,
    difference,
    in_batches,
    parts,
    refused,
)
from recsys.savedmodel.row_slices import read_rows
from recsys.savedmodel.signatures import POPULAR, POPULARITY
from recsys.tasks.retrieval.serving.quantization import best_scores, check_parity, stored
from recsys.tasks.retrieval.serving.reference import RetrievalProbes
from recsys.tasks.retrieval.serving.requests import example

_BLOCK_ROWS = 2048


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers of a signature to all probes.

    Attributes:
        signature: Name of the signature.
        rows: Item rows `[n, k]`, the best first.
        scores: Their scores `[n, k]`.
        source: Source of each answer `[n]`, bytes.
    """

    signature: str
    rows: np.ndarray
    scores: np.ndarray
    source: np.ndarray


def compare_scores(
    answers: Sequence[Answers],
    reference: RetrievalProbes,
    embeddings: np.ndarray,
    is_item: np.ndarray,
) -> float:
    """Returns the largest difference between the answers' scores and the best in training.

    Items are compared by their scores, since items with equal scores may be in any order.

    Args:
        answers: Answers of each ranking signature, with equal k and sources.
        reference: The results in training.
        embeddings: Embeddings of the item rows `[item rows, dim]`, memory-mapped.
        is_item: Whether each item row is an item `[item rows]` bool.

    Raises:
        RecsysError: A difference exceeds the tolerance (R532, R533), an answer has the wrong
            source (R533), or the recall of quantized item embeddings is too low (R538).
    """
    worst = 0.0
    is_popular = reference.source == POPULARITY
    for answer in answers:
        _check_sources(answer, reference)
        blocks = _blocks(is_popular, reference, embeddings)
        best, of_rows = best_scores(answer.rows, blocks, is_item)
        subject = f"scores of {answer.signature}"
        worst = max(worst, difference("R532", subject, answer.scores, best))
        if reference.kind != "float32":
            known = ~is_popular
            exact = reference.query[known], embeddings
            check_parity(answer.rows[known], *exact, is_item, reference.min_parity)
        subject = f"scores of the candidates of {answer.signature}"
        worst = max(worst, difference("R533", subject, of_rows, best))
    return worst


def _check_sources(answers: Answers, reference: RetrievalProbes) -> None:
    expected = np.asarray([source.encode() for source in reference.source], object)
    wrong = np.flatnonzero(answers.source != expected)
    if len(wrong):
        first = wrong[0]
        raise refused(
            "R533",
            f"source of the answers of {answers.signature}",
            f"{len(wrong):,} others, such as {answers.source[first].decode()} for"
            f" {reference.source[first]}",
        )


def _blocks(
    is_popular: np.ndarray, reference: RetrievalProbes, embeddings: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields slices of the item rows, and their expected scores `[n, part]`."""
    for part in slices(len(embeddings), _BLOCK_ROWS):
        block = stored(read_rows(embeddings, part.start, part.stop), reference.kind)
        scores = reference.query @ block.floats(slice(None)).T
        scores[is_popular] = reference.popularity[part]
        yield part, scores


_ITEMS = 512
"""Number of items that are embedded at a time."""


def check(model: Any, bundle: Path, reference: RetrievalProbes, report: Report) -> float:
    """Compares a loaded SavedModel, queried with raw ids, with the results in training by row.

    It compares the embeddings of all probes and all items, and the candidates of all probes, in
    batches of 0, 1, 7 and more, and from serialized tf.Examples. If the vectors are not in the
    bundle, it compares the sources of the answers, and the popular items.

    Args:
        model: The loaded SavedModel.
        bundle: The unfinished bundle, with vocabulary and item embeddings.
        reference: The results in training.
        report: Called after each check with a description.

    Returns:
        The largest difference of an embedding or of a score.

    Raises:
        RecsysError: A difference exceeds the tolerance (R530 … R533), or the recall of
            quantized item embeddings is too low (R538).
    """
    ask, n = model.signatures, len(reference.query)
    items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
    embeddings = np.load(bundle / "item_embeddings.npy", mmap_mode="r", allow_pickle=False)
    outputs = in_batches(lambda part: _answer(ask["embed_query"], reference, part), n)
    largest = difference("R530", "query embeddings", outputs["embedding"], reference.query)
    report(f"{n:,} query embeddings are the trainer's")
    largest = max(largest, _items_difference(ask["embed_candidate"], items, embeddings))
    report(f"{int(items.has_id().sum()):,} item embeddings are the trainer's")
    answers, expected = _ranked(ask, reference, items)
    largest = max(largest, compare_scores(answers, expected, embeddings, read_is_item(bundle)))
    report(f"the candidates of {n:,} queries are the trainer's")
    return largest


def _ranked(
    ask: Any, reference: RetrievalProbes, items: Vocabulary
) -> tuple[list[Answers], RetrievalProbes]:
    """Returns the answers of the ranking signatures, and the reference for them."""
    n = len(reference.query)

    def outputs(signature: str) -> dict[str, np.ndarray]:
        return in_batches(lambda part: _answer(ask[signature], reference, part), n)

    if reference.vectors == "apart":
        prepared = outputs("prepare_query")
        difference("R530", "query embeddings", prepared["embedding"], reference.query)
        nothing = np.zeros((n, 0), np.int32)
        sources = Answers("prepare_query", nothing, nothing, prepared["source"])
        _check_sources(sources, reference)
        everybody = np.full(n, POPULARITY, object)
        expected = dataclasses.replace(reference, source=everybody, kind="float32")
        return [_answers(POPULAR, outputs(POPULAR), items)], expected

    def examples(part: slice) -> dict[str, tf.Tensor]:
        return ask["serving_default"](examples=_examples(reference, part))

    answers = [_answers("recommend", outputs("recommend"), items)]
    answers.append(_answers("serving_default", in_batches(examples, n), items))
    return answers, reference


def inputs_of(signature: Any, reference: RetrievalProbes, part: slice) -> dict[str, tf.Tensor]:
    """Returns the inputs of a signature for some probes; other inputs are padding."""
    of_probes = {name: texts[part] for name, texts in reference.probes.items()}
    n = len(of_probes["user_id"])
    of_probes["exclude_seen"] = np.zeros(n, bool)
    specs = signature.structured_input_signature[1]
    inputs = {}
    for name, spec in specs.items():
        values = of_probes[name] if name in of_probes else np.full((n, 1), "", object)
        inputs[name] = tf.constant(values, spec.dtype, values.shape)
    return inputs


def _answer(signature: Any, reference: RetrievalProbes, part: slice) -> dict[str, tf.Tensor]:
    return signature(**inputs_of(signature, reference, part))


def _examples(reference: RetrievalProbes, part: slice) -> tf.Tensor:
    facts = {name: fact[part] for name, fact in reference.facts.items()}
    probes = zip(reference.user_id[part], reference.history[part], strict=True)
    serialized = [
        example(*probe, {name: fact[n] for name, fact in facts.items()}, exclude_seen=0)
        for n, probe in enumerate(probes)
    ]
    return tf.constant(serialized, tf.string, [len(serialized)])


def _items_difference(signature: Any, items: Vocabulary, embeddings: np.ndarray) -> float:
    """Returns the largest difference between the embeddings of items and those in training."""
    rows = np.flatnonzero(items.has_id())
    raw = set(signature.structured_input_signature[1]) - {"item_id"}
    worst = 0.0
    for part in parts(len(rows), _ITEMS):
        # In batches, since all embeddings may be as large as a table.
        ids = items.ids_of_rows.take(rows[part]).to_pylist()
        columns = {name: tf.fill([len(ids), 1], "") for name in raw}
        outputs = signature(item_id=tf.constant(ids, tf.string, [len(ids)]), **columns)
        outputs = outputs["embedding"].numpy()
        # Ascending rows are close together.
        start, stop = (rows[part][0], rows[part][-1] + 1) if ids else (0, 0)
        expected = read_rows(embeddings, start, stop)[rows[part] - start]
        worst = max(worst, difference("R531", "item embeddings", outputs, expected))
    return worst


def _answers(signature: str, outputs: dict[str, np.ndarray], items: Vocabulary) -> Answers:
    """Returns the answers of a signature in item rows.

    Raises:
        RecsysError: An item is repeated or missing (R533).
    """
    ids, place = np.unique(outputs["candidate_ids"].astype(object), return_inverse=True)
    places = items.index.find(as_texts([id_.decode() for id_ in ids]))
    rows = np.where(places >= 0, places + items.first_own_row, 0)[place]
    rows = rows.reshape(outputs["candidate_ids"].shape)
    n_distinct = [len(set(row)) for row in rows.tolist()]
    k = outputs["candidate_ids"].shape[1]
    if (rows == 0).any() or min(n_distinct, default=k) < k:
        raise refused("R533", f"candidates of {signature}", "an item twice, or none")
    return Answers(signature, rows, outputs["scores"], outputs["source"])


def request(model: Any, reference: RetrievalProbes, number: int) -> Request:
    """Returns a request of one user, to `recommend`, or to `prepare_query` without vectors."""
    signature = "prepare_query" if reference.vectors == "apart" else "recommend"
    probe = number % len(reference)
    inputs = inputs_of(model.signatures[signature], reference, slice(probe, probe + 1))
    return signature, inputs


@dataclasses.dataclass(frozen=True)
class RetrievalReference(RetrievalProbes, Reference):
    """The results that a bundle of retrieval must reproduce."""

    def check(self, model: Any, bundle: Path, report: Report) -> float:
        """Compares embeddings and best items; see `Reference.check`."""
        return check(model, bundle, self, report)

    def request(self, model: Any, number: int) -> Request:
        """Returns a request of one user; see `Reference.request`."""
        return request(model, self, number)
