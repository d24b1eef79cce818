"""The sampled softmax in numpy and float64: each formula as the papers have it."""

from typing import NamedTuple

import numpy as np
import pytest

from recsys import kernels
from recsys.losses import SampledSoftmax, softmax_jax

GRADIENTS = ["query", "candidate", "log_q", "temperature", "weight"]
"""Arguments with a gradient, in the order of `loss_of`."""


class Batch(NamedTuple):
    """Arguments of the loss; candidate `first` + i is the positive of query i.

    `known` `[batch, known]` has items that are no negatives of a query, filled up with 0.
    """

    query: np.ndarray
    candidate: np.ndarray
    item_row: np.ndarray
    log_q: np.ndarray
    weight: np.ndarray
    temperature: float
    known: np.ndarray
    first: int = 0


class Exact(NamedTuple):
    """The losses, and the gradients of their weighted sum."""

    losses: np.ndarray
    query: np.ndarray
    candidate: np.ndarray
    log_q: np.ndarray
    temperature: np.ndarray
    weight: np.ndarray


def random_batch(n_queries, n_candidates, dim, *, items=None, first=0, seed=0, spread=1.0, known=0):
    """Returns a batch whose dot products over the temperature are about ± `spread`.

    A query's `known` items are padding, its own item, items of the batch (some of them twice), and
    items outside of the batch.
    """
    rng = np.random.default_rng(seed)
    query, candidate = (rng.normal(size=(n, dim)) for n in (n_queries, n_candidates))
    n_items = items or n_candidates
    return Batch(
        query=query.astype(np.float32),
        candidate=candidate.astype(np.float32),
        item_row=rng.integers(0, n_items, n_candidates).astype(np.int32),
        log_q=np.log(rng.uniform(1e-6, 1.0, n_candidates)).astype(np.float32),
        weight=rng.uniform(0, 2 / n_queries, n_queries).astype(np.float32),
        temperature=float(np.float32(np.sqrt(dim) / spread)),
        known=rng.integers(0, n_items + 2, (n_queries, known)).astype(np.int32),
        first=first,
    )


def negatives(batch):
    """Returns which candidates are negatives of each query `[queries, candidates]` bool."""
    is_first = np.zeros(len(batch.item_row), bool)
    is_first[np.unique(batch.item_row, return_index=True)[1]] = True
    own = batch.item_row[batch.first :][: len(batch.query)]
    found = is_first[None, :] & (batch.item_row[None, :] != own[:, None])
    for items in batch.known.T:
        found &= (batch.item_row[None, :] != items[:, None]) | (items[:, None] == 0)
    return found


def exact(batch):
    """Returns losses and gradients of the weighted sum in float64, all in closed form."""
    query, candidate, log_q, weight = (
        np.asarray(x, np.float64) for x in (batch.query, batch.candidate, batch.log_q, batch.weight)
    )
    scaled = query @ candidate.T / batch.temperature
    each = np.arange(len(query))
    positive = batch.first + each
    is_candidate = negatives(batch)
    is_candidate[each, positive] = True
    logits = np.where(is_candidate, scaled - log_q, -np.inf)
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


def mean_of(batch):
    """Returns the weighted mean of the losses, and its gradients by name, in float64."""
    weight = np.asarray(batch.weight, np.float64)
    found = exact(batch._replace(weight=weight / weight.sum()))
    loss = weight @ found.losses / weight.sum()
    gradients = {name: getattr(found, name) for name in GRADIENTS}
    gradients["weight"] = (found.losses - loss) / weight.sum()
    return loss, gradients


def loss_of(query, candidate, log_q, temperature, weight, item_row, known):
    """The loss under test, with what has gradients first."""
    return SampledSoftmax()(query, candidate, item_row, log_q, temperature, weight, known)


def arguments(batch):
    """Returns the arguments of `loss_of`."""
    temperature = np.float32(batch.temperature)
    numbers = batch.query, batch.candidate, batch.log_q, temperature, batch.weight
    return *numbers, batch.item_row, batch.known


def use_kernels(name, monkeypatch):
    """Makes the loss compute with the C kernel, or only with JAX in blocks of 8 queries."""
    if name == "native":
        if not kernels.status().available:
            pytest.skip(kernels.status().reason)
        assert kernels.available()
    else:
        monkeypatch.setenv("RECSYS_NATIVE", "0")
        monkeypatch.setattr(softmax_jax, "_CPU_LOGITS", 1)
        monkeypatch.setattr(softmax_jax, "_FEWEST_QUERIES", 8)


def assert_close(actual, expected, tolerance=2e-6):
    """Asserts equality to `tolerance` times the largest of what is expected, or 1."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    scale = max(1e-30, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)
