"""EASE: weights of pairs of items that best reconstruct the users' sets of items, by vectors.

The weights B minimise |X - X B|² + regularisation |B|² with a diagonal of 0, for the user-item
matrix X. With P = (XᵀX + regularisation I)⁻¹ they are `B_ij = -P_ij / P_jj` (Steck, "Embarrassingly
Shallow Autoencoders for Sparse Data", WWW 2019, eq. 8). If X = U S Vᵀ, then P is proportional to
I - F Fᵀ with F = V S (S² + regularisation I)^-½, so that

    B_ij = F_i · F_j / (1 - |F_j|²)    for i ≠ j

which are dot products of short vectors if only the largest singular values are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recsys.data.hold_out import KeptEvents
from recsys.data.neighbours import as_sets
from recsys.data.transitions import known_lists

_MORE = 32
"""Vectors of the randomised decomposition besides those that are kept."""
_ROUNDS = 4
"""Power iterations of the randomised decomposition."""


def ease_vectors(
    events: KeptEvents, is_item: np.ndarray, dim: int, regularisation: float
) -> np.ndarray:
    """Returns the vectors F of all item rows `[item rows, dim]` float32; 0 without events.

    Args:
        events: The events that training sees.
        is_item: Whether each item row is an item `[item rows]` bool; others are left out.
        dim: Width of the vectors. With fewer users or items, the last numbers are 0.
        regularisation: Strength of the regularisation.
    """
    lists, out = known_lists(events, is_item), np.zeros((len(is_item), dim), np.float32)
    rows = np.unique(lists.rows)
    if not len(rows):
        return out
    values, vectors = largest_singular(as_sets(lists, len(is_item))[:, rows], dim)
    squares = np.square(values)
    out[rows, : len(values)] = vectors * np.sqrt(squares / (squares + regularisation))
    return out


def as_candidates(vectors: np.ndarray) -> np.ndarray:
    """Returns what the sum of a history's vectors is multiplied by, `F / (1 - |F|²)`."""
    return vectors / (1.0 - np.square(vectors).sum(axis=-1, keepdims=True))


def token_means(
    candidates: np.ndarray, counts: np.ndarray, bags: np.ndarray, n_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean vector and the weight of each token, for items without events.

    Args:
        candidates: Vectors of all item rows `[item rows, dim]`, see `as_candidates`.
        counts: Number of training events of each item row `[item rows]`.
        bags: Token rows of each item row `[item rows, width]`, padded with 0.
        n_tokens: Token rows, row 0 included.

    Returns:
        The mean vector over the events with each token `[token rows, dim]` float32, and the
        token's weight `[token rows]` float32, the logarithm of all events per event with it; 0
        without one.
    """
    from scipy import sparse

    item, place = np.nonzero((bags > 0) & (counts[:, None] > 0))
    of_token = sparse.csr_array(
        (np.ones(len(item), np.float32), (bags[item, place], item)),
        shape=(n_tokens, len(bags)),
    )
    of_token.data = counts[of_token.indices].astype(np.float32)  # A token of a bag counts once.
    events = np.asarray(of_token.sum(axis=1)).ravel()
    means = (of_token @ candidates) / np.maximum(events, 1.0)[:, None]
    weights = np.log(counts.sum() / np.maximum(events, 1.0)) * (events > 0)
    return means.astype(np.float32), np.maximum(weights, 0.0).astype(np.float32)


def largest_singular(x: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `n` largest singular values of a sparse matrix, and the right vectors.

    By power iterations from random vectors (Halko, Martinsson and Tropp, "Finding Structure with
    Randomness", SIAM Review 2011, algorithms 4.4 and 5.1), which are exact for a matrix of `n`
    rows or columns.

    Args:
        x: A CSR matrix `[rows, columns]`.
        n: Number of values, at most.

    Returns:
        The values `[m]`, the largest first; and the vectors `[columns, m]`, float32.
    """
    width = min(n + _MORE, *x.shape)
    basis = np.random.default_rng(0).standard_normal((x.shape[1], width), np.float32)
    for _ in range(_ROUNDS):
        basis = np.linalg.qr(x.T @ (x @ basis))[0]
    _, values, turns = np.linalg.svd(x @ basis, full_matrices=False)
    n = min(n, width)
    return values[:n], basis @ turns[:n].T
