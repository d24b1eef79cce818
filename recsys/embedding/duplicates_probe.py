"""How much longer it takes here to sum the gradients of one row than those of many.

For `recsys doctor`: on a GPU, some versions of XLA add to the same place by a loop that tries
again, hundreds of times slower (jax#38806).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from recsys.embedding.rows import Gradients, Lookups, distinct

_BATCH, _HISTORY, _DIM, _ROWS = 4096, 50, 64, 1_000_000
_TIMES = 5


def slowdown() -> float:
    """Returns how many times as long a batch whose ids are all equal takes to sum."""
    n = _BATCH * _HISTORY
    grads = jnp.ones((_BATCH, _DIM), jnp.float32)
    summed = jax.jit(lambda rows: distinct(Gradients(Lookups(rows), grads), _ROWS))
    equal = _seconds(summed, jnp.zeros(n, jnp.int32))
    different = _seconds(summed, jnp.arange(n, dtype=jnp.int32))
    return equal / different


def _seconds(function: Callable[[jax.Array], object], rows: jax.Array) -> float:
    """Returns the shortest time of a call, after one that compiles [s]."""
    jax.block_until_ready(function(rows))
    seconds = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        jax.block_until_ready(function(rows))
        seconds.append(time.perf_counter() - started)
    return min(seconds)
