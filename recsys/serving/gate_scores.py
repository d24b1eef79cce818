"""The candidates that a SavedModel gave, against the trainer's best, block by block."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from recsys.serving.gate_reference import Reference
from recsys.serving.slices import read_rows
from recsys.serving.sources import POPULARITY
from recsys.serving.stored_embeddings import check_parity, stored
from recsys.serving.tolerance import difference, refused

_BLOCK_ROWS = 8192


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a signature answered to all probes.

    Attributes:
        signature: Its name.
        rows: Item rows `[n, k]`, the best first.
        scores: Their scores `[n, k]`.
        source: What each answer says that it rests on `[n]`, bytes.
    """

    signature: str
    rows: np.ndarray
    scores: np.ndarray
    source: np.ndarray


def compare_scores(
    answers: Sequence[Answers], reference: Reference, embeddings: np.ndarray, is_item: np.ndarray
) -> float:
    """Returns the largest difference between found scores and the trainer's best.

    Ids are compared by their scores: two items of one score may change places.

    Args:
        answers: Of each signature that recommends; alike in k and in what they rest on.
        reference: What the trainer computed.
        embeddings: Of each item row `[item rows, dim]`, memory-mapped.
        is_item: Which item rows are items `[item rows]` bool.

    Raises:
        RecsysError: A difference is over the tolerance (R532, R533), an answer rests on
            something else than it must (R533), or short item
            embeddings find too few (R538).
    """
    worst = 0.0
    is_popular = reference.source == POPULARITY
    for one in answers:
        _check_sources(one, reference)
        best, of_rows = _expected(one.rows, is_popular, reference, embeddings, is_item)
        subject = f"scores of {one.signature}"
        worst = max(worst, difference("R532", subject, one.scores, best))
        if reference.kind != "float32":
            known = ~is_popular
            exact = reference.query[known], embeddings
            check_parity(one.rows[known], *exact, is_item, reference.min_parity)
        subject = f"scores of the candidates of {one.signature}"
        worst = max(worst, difference("R533", subject, of_rows, best))
    return worst


def _check_sources(answers: Answers, reference: Reference) -> None:
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


def _expected(
    rows: np.ndarray,
    is_popular: np.ndarray,
    reference: Reference,
    embeddings: np.ndarray,
    is_item: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best scores `[n, k]`, and the scores of given item rows `[n, k]`.

    All scores, `[n, item rows]`, are never there at once, nor are all embeddings.
    """
    n, k = rows.shape
    best = np.full((n, k), -np.inf, np.float32)
    of_rows = np.zeros((n, k), np.float32)
    for start in range(0, len(embeddings), _BLOCK_ROWS):
        part = slice(start, min(start + _BLOCK_ROWS, len(embeddings)))
        floats = stored(read_rows(embeddings, part.start, part.stop), reference.kind).floats(
            slice(None)
        )
        scores = reference.query @ floats.T
        scores[is_popular] = reference.popularity[part]
        who, place = np.nonzero((rows >= part.start) & (rows < part.stop))
        of_rows[who, place] = scores[who, rows[who, place] - part.start]
        scores[:, ~is_item[part]] = -np.inf
        both = np.concatenate([best, scores], axis=1)
        best = np.partition(both, both.shape[1] - k, axis=1)[:, both.shape[1] - k :]
    return -np.sort(-best, axis=1), of_rows
