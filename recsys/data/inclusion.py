"""How probably an item is among the candidates of a batch, in logarithms."""

from __future__ import annotations

import numpy as np

Sampler = tuple[np.ndarray, int]
"""Probability of each item in one draw `[items]` float64, and the number of draws."""

_LOG_HALF = -np.log(2.0)


def inclusion_log_probability(*samplers: Sampler) -> np.ndarray:
    """Returns the log probability that at least one draw gives an item `[items]` float64.

    With probability p in each of n draws it is `log(1 - (1 - p)^n)`; several samplers
    miss an item if each of them does: `log(1 - prod_s (1 - p_s)^n_s)`. That is what
    `recsys.losses.sampled_softmax` takes as `log_q`, where an item counts once however
    often it was drawn. For rare items it is `log(n p)`, the logarithm of the expected
    count; for items in nearly every batch it is nearly 0.

    Computed from the logarithm of the miss probability (Mächler, "Accurately computing
    log(1 - exp(-|a|))", 2012), so it is exact to float64 for p = 1e-300 and for p = 1.

    Args:
        *samplers: Pairs of the items' probabilities in one draw `[items]` float64, each
            in [0, 1], and how many draws there are.

    Returns:
        Log probabilities, at most 0: 0 for what is always drawn, minus infinity for what
        no sampler ever draws (it is in no batch, so nothing should read it).

    Raises:
        ValueError: There is no sampler, or a probability or a number of draws that is none.
    """
    if not samplers:
        raise ValueError("There must be at least one sampler.")
    log_miss = np.zeros((), np.float64)
    for probability, n_draws in samplers:
        log_miss = log_miss + _log_miss(np.asarray(probability, np.float64), n_draws)
    with np.errstate(divide="ignore"):
        # Each form where it doesn't cancel.
        return np.where(
            log_miss > _LOG_HALF, np.log(-np.expm1(log_miss)), np.log1p(-np.exp(log_miss))
        )


def _log_miss(probability: np.ndarray, n_draws: int) -> np.ndarray:
    """Returns the log probability that no draw gives an item `[items]`."""
    if not np.all((probability >= 0) & (probability <= 1)):
        worst = probability[~((probability >= 0) & (probability <= 1))].flat[0]
        raise ValueError(f"Probabilities must be between 0 and 1. Received: {worst!r}.")
    if not n_draws >= 0:
        raise ValueError(f"The number of draws must not be negative. Received: {n_draws!r}.")
    if n_draws == 0:  # Nor is certainty a reason without a draw.
        return np.zeros_like(probability)
    with np.errstate(divide="ignore"):
        return n_draws * np.log1p(-probability)
