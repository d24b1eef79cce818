"""Parity of retrieval: embeddings and best items must be the same as in training.

The reference, the results in training for some probes, is passed in a folder to the process that
checks the bundle:

    probes.parquet     user_id, history, query and source of each probe, in raw ids, and raw
                       values of the query and of the events of its history
    encoded.npz        the same values as inputs of the model
    popularity.npy     score of each item row for users without any information
    transitions.npz    summands of the scores, and history.npy, the item rows of the histories;
                       missing if there are none
    options.json       storage of the items, and the requirements for the bundle

Scores are compared in blocks of items; see `recsys.savedmodel.parity` for the tolerance.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from recsys.data.catalogue import read_is_item
from recsys.data.transitions import TransitionScores
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
from recsys.savedmodel.signatures import ENCODED, POPULAR, POPULARITY, Arrays
from recsys.tasks.retrieval.serving.candidates import Kind, best_scores, check_parity, stored
from recsys.tasks.serving.requests import example

_PROBES, _ENCODED, _POPULARITY = "probes.parquet", "encoded.npz", "popularity.npy"
_OPTIONS, _HISTORY = "options.json", "history.npy"
_COLUMNS = ("user_id", "history", "query", "source")
_BLOCK_ROWS = 2048
_ITEMS = 512
"""Number of items that are embedded at a time."""


@dataclasses.dataclass(frozen=True)
class RetrievalReference(Reference):
    """The results that a bundle must reproduce.

    Attributes:
        user_id: User of each probe `[n]`, text.
        history: Item ids of each probe `[n, length + 1]`, text, the newest first.
        query: Embedding of each probe `[n, dim]` float32.
        source: Required source of each answer `[n]`, text, one of `SOURCES`.
        popularity: Score of each item row for users without any information `[item rows]`
            float32.
        kind: Dtype of the candidates in the SavedModel.
        min_parity: Minimum recall of the exact best candidates [0..1].
        vectors: Location of the candidates, `bundle` or `apart`.
        history_row: Item rows of each history `[n, length]`, the newest first, padded with 0.
        transitions: What is added to the scores of items by `history_row`; None: nothing.
        events: Raw values of queries and of the events of `history` `[n, any]` text, by input.
        encoded: The same values as inputs of the model `[n, …]`, by input of `embed_encoded`.
    """

    user_id: np.ndarray
    history: np.ndarray
    query: np.ndarray
    source: np.ndarray
    popularity: np.ndarray
    kind: Kind = "float32"
    min_parity: float = 0.99
    vectors: Literal["bundle", "apart"] = "bundle"
    history_row: np.ndarray | None = None
    transitions: TransitionScores | None = None
    events: Arrays = dataclasses.field(default_factory=dict)
    encoded: Arrays = dataclasses.field(default_factory=dict)

    @property
    def probes(self) -> Arrays:
        """Inputs of the probes, by name of the signature's input."""
        return {"user_id": self.user_id, "history": self.history, **self.events}

    def __len__(self) -> int:
        return len(self.query)

    def save(self, folder: Path) -> None:
        """Writes the reference into `folder`, which must exist."""
        probes = {**self.probes, "query": self.query, "source": self.source}
        columns = {name: pa.array(values.tolist()) for name, values in probes.items()}
        pq.write_table(pa.table(columns), folder / _PROBES)
        encoded: Any = self.encoded
        np.savez(folder / _ENCODED, **encoded)
        np.save(folder / _POPULARITY, self.popularity)
        if self.transitions is not None and self.history_row is not None:
            self.transitions.save(folder)
            np.save(folder / _HISTORY, self.history_row)
        names = ("kind", "min_parity", "vectors")
        options = {name: getattr(self, name) for name in names}
        (folder / _OPTIONS).write_text(json.dumps(options))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a reference that `save` wrote."""
        probes = pq.read_table(folder / _PROBES).to_pydict()
        transitions = TransitionScores.load(folder)
        return cls(
            user_id=np.asarray(probes["user_id"], object),
            history=np.asarray(probes["history"], object),
            query=np.asarray(probes["query"], np.float32),
            source=np.asarray(probes["source"], object),
            popularity=np.load(folder / _POPULARITY, allow_pickle=False),
            history_row=None if transitions is None else np.load(folder / _HISTORY),
            transitions=transitions,
            events={n: np.asarray(x, object) for n, x in probes.items() if n not in _COLUMNS},
            encoded=dict(np.load(folder / _ENCODED, allow_pickle=False)),
            **json.loads((folder / _OPTIONS).read_text()),
        )

    def check(self, model: Any, bundle: Path, report: Report) -> float:
        """Compares a loaded SavedModel, queried with raw ids, with the results by row.

        It compares the embeddings of all probes and all items, and the candidates of all probes,
        in batches of 0, 1, 7 and more, and from serialized tf.Examples. If the vectors are not in
        the bundle, it compares the sources of the answers, and the popular items.

        Args:
            model: The loaded SavedModel.
            bundle: The unfinished bundle, with vocabulary and item embeddings.
            report: Called after each check with a description.

        Returns:
            The largest difference of an embedding or of a score.

        Raises:
            RecsysError: A difference exceeds the tolerance (R530 … R533), or the recall of
                quantized item embeddings is too low (R538).
        """
        ask, n = model.signatures, len(self)
        items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
        embeddings = np.load(bundle / "item_embeddings.npy", mmap_mode="r", allow_pickle=False)
        outputs = self.outputs(ask["embed_query"])
        largest = difference("R530", "query embeddings", outputs["embedding"], self.query)
        if ENCODED in ask:
            found = in_batches(lambda part: ask[ENCODED](**self._encoded(part)), n)["embedding"]
            largest = max(largest, difference("R530", "encoded queries", found, self.query))
        report(f"{n:,} query embeddings are the trainer's")
        largest = max(largest, _items_difference(ask["embed_candidate"], items, embeddings))
        report(f"{int(items.has_id().sum()):,} item embeddings are the trainer's")
        answers, expected = self._ranked(ask, items)
        largest = max(largest, compare_scores(answers, expected, embeddings, read_is_item(bundle)))
        report(f"the candidates of {n:,} queries are the trainer's")
        return largest

    def request(self, model: Any, number: int) -> Request:
        """Returns a request of one user, to `recommend`, or to `prepare_query` without vectors."""
        signature = "prepare_query" if self.vectors == "apart" else "recommend"
        probe = number % len(self)
        return signature, self._inputs(model.signatures[signature], slice(probe, probe + 1))

    def outputs(self, signature: Any) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature for all probes, asked in batches."""
        return in_batches(lambda part: signature(**self._inputs(signature, part)), len(self))

    def _inputs(self, signature: Any, part: slice) -> dict[str, tf.Tensor]:
        """Returns the inputs of a signature for some probes; other inputs are padding."""
        of_probes = {name: texts[part] for name, texts in self.probes.items()}
        n = len(of_probes["user_id"])
        of_probes["exclude_seen"] = np.zeros(n, bool)
        inputs = {}
        for name, spec in signature.structured_input_signature[1].items():
            values = of_probes[name] if name in of_probes else np.full((n, 1), "", object)
            inputs[name] = tf.constant(values, spec.dtype, values.shape)
        return inputs

    def _encoded(self, part: slice) -> dict[str, tf.Tensor]:
        """Returns the inputs of `embed_encoded` for some probes."""
        texts = {"user_id": self.user_id[part], "history": self.history[part]}
        inputs = {name: tf.constant(x, tf.string, x.shape) for name, x in texts.items()}
        return inputs | {name: tf.constant(x[part]) for name, x in self.encoded.items()}

    def _examples(self, part: slice) -> tf.Tensor:
        events = {name: texts[part] for name, texts in self.events.items()}
        probes = zip(self.user_id[part], self.history[part], strict=True)
        serialized = [
            example(*probe, {name: texts[n] for name, texts in events.items()}, exclude_seen=0)
            for n, probe in enumerate(probes)
        ]
        return tf.constant(serialized, tf.string, [len(serialized)])

    def _ranked(self, ask: Any, items: Vocabulary) -> tuple[list[Answers], RetrievalReference]:
        """Returns the answers of the ranking signatures, and the reference for them."""
        n = len(self)
        if self.vectors == "apart":
            prepared = self.outputs(ask["prepare_query"])
            difference("R530", "query embeddings", prepared["embedding"], self.query)
            nothing = np.zeros((n, 0), np.int32)
            sources = Answers("prepare_query", nothing, nothing, prepared["source"])
            _check_sources(sources, self)
            everybody = np.full(n, POPULARITY, object)
            expected = dataclasses.replace(self, source=everybody, kind="float32")
            return [Answers.of(POPULAR, self.outputs(ask[POPULAR]), items)], expected
        of_examples = in_batches(
            lambda part: ask["serving_default"](examples=self._examples(part)), n
        )
        answers = {"recommend": self.outputs(ask["recommend"]), "serving_default": of_examples}
        return [Answers.of(name, found, items) for name, found in answers.items()], self


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


# --- comparison of the best items


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

    @classmethod
    def of(cls, signature: str, outputs: dict[str, np.ndarray], items: Vocabulary) -> Answers:
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
        return cls(signature, rows, outputs["scores"], outputs["source"])


def compare_scores(
    answers: Sequence[Answers],
    reference: RetrievalReference,
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
        blocks = _blocks(is_popular, reference, embeddings, reference.kind)
        best, of_rows = best_scores(answer.rows, blocks, is_item)
        subject = f"scores of {answer.signature}"
        worst = max(worst, difference("R532", subject, answer.scores, best))
        if reference.kind != "float32":
            exact = _blocks(is_popular, reference, embeddings)
            check_parity(answer.rows, ~is_popular, exact, is_item, reference.min_parity)
        subject = f"scores of the candidates of {answer.signature}"
        worst = max(worst, difference("R533", subject, of_rows, best))
    return worst


def _check_sources(answers: Answers, reference: RetrievalReference) -> None:
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
    is_popular: np.ndarray,
    reference: RetrievalReference,
    embeddings: np.ndarray,
    kind: Kind = "float32",
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields slices of the item rows, and their expected scores `[n, part]`."""
    added = None
    if reference.transitions is not None and reference.history_row is not None:
        added = reference.transitions.of_histories(reference.history_row).tocsc()
    for part in slices(len(embeddings), _BLOCK_ROWS):
        block = stored(read_rows(embeddings, part.start, part.stop), kind)
        scores = reference.query @ block.floats(slice(None)).T
        if added is not None:
            scores += added[:, part].toarray()
        scores[is_popular] = reference.popularity[part]
        yield part, scores
