"""The sampled softmax in numpy and float64: each formula as the papers have it."""

from typing import NamedTuple

import numpy as np


class Batch(NamedTuple):
    """Arguments of the loss; candidate `first` + i is the positive of query i."""

    query: np.ndarray
    candidate: np.ndarray
    item_row: np.ndarray
    log_q: np.ndarray
    weight: np.ndarray
    temperature: float
    first: int = 0


class Exact(NamedTuple):
    """The losses, and the gradients of their weighted sum."""

    losses: np.ndarray
    query: np.ndarray
    candidate: np.ndarray
    log_q: np.ndarray
    temperature: np.ndarray
    weight: np.ndarray


def random_batch(n_queries, n_candidates, dim, *, items=None, first=0, seed=0, spread=1.0):
    """Returns a batch whose dot products over the temperature are about ± `spread`."""
    rng = np.random.default_rng(seed)
    query, candidate = (rng.normal(size=(n, dim)) for n in (n_queries, n_candidates))
    return Batch(
        query=query.astype(np.float32),
        candidate=candidate.astype(np.float32),
        item_row=rng.integers(0, items or n_candidates, n_candidates).astype(np.int32),
        log_q=np.log(rng.uniform(1e-6, 1.0, n_candidates)).astype(np.float32),
        weight=rng.uniform(0, 2 / n_queries, n_queries).astype(np.float32),
        temperature=float(np.float32(np.sqrt(dim) / spread)),
        first=first,
    )


def exact(batch):
    """Returns losses and gradients of the weighted sum in float64, all in closed form."""
    query, candidate, log_q, weight = (
        np.asarray(x, np.float64) for x in (batch.query, batch.candidate, batch.log_q, batch.weight)
    )
    scaled = query @ candidate.T / batch.temperature
    each = np.arange(len(query))
    positive = batch.first + each
    masked = batch.item_row[positive][:, None] == batch.item_row[None, :]
    masked[each, positive] = False
    logits = np.where(masked, -np.inf, scaled - log_q)
    top = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - top).sum(axis=1, keepdims=True)
    losses = np.log(total)[:, 0] + top[:, 0] - logits[each, positive]
    # The gradient of loss i to logit ij is p_ij - [j is positive].
    slopes = np.exp(logits - top) / total
    slopes[each, positive] -= 1
    slopes *= weight[:, None]
    return Exact(
        losses=losses,
        query=slopes @ candidate / batch.temperature,
        candidate=slopes.T @ query / batch.temperature,
        log_q=-slopes.sum(axis=0),
        temperature=-(slopes * scaled).sum() / batch.temperature,
        weight=losses,
    )


def assert_close(actual, expected, tolerance=2e-6):
    """Asserts equality to `tolerance` times the largest of what is expected, or 1."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    scale = max(1e-30, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)
