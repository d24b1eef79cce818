"""SASRec and LiGR equal NumPy, are causal, and equal with and without packing."""

import functools

import jax
import keras
import numpy as np
import pytest
from keras import ops

from recsys.models import sequences
from recsys.models.sequences import Ligr, SasRec

DIM, HEADS, LENGTH = 8, 2, 7
SHARE, FREQUENCIES = 0.7, 2
FILTERED = {"filter_share": SHARE, "filter_frequencies": FREQUENCIES}
KINDS = {
    "sasrec": SasRec,
    "ligr": Ligr,
    "sasrec, filter": functools.partial(SasRec, **FILTERED),
    "ligr, filter": functools.partial(Ligr, **FILTERED),
}


def build(kind, length=LENGTH, layers=2, **options):
    layer = KINDS[kind](length, DIM, layers=layers, heads=HEADS, seed=3, name="history", **options)
    layer.build()
    for number, variable in enumerate(layer.trainable_variables):
        rng = np.random.default_rng(number)
        variable.assign(rng.normal(0, 0.5, variable.shape).astype(np.float32))
    return layer


def states(layer, items, rows, **packed):
    return np.asarray(jax.jit(lambda items, packed: layer(items, rows, **packed))(items, packed))


def packed(seed=0, n=4):
    """Rows of two or three users each, with padding between; all columns are returned."""
    rng = np.random.default_rng(seed)
    items = rng.normal(size=(n, LENGTH, DIM)).astype(np.float32)
    rows = rng.integers(1, 50, (n, LENGTH)) * (rng.random((n, LENGTH)) < 0.8)
    segment = np.sort(rng.integers(0, 3, (n, LENGTH)))[:, ::-1]
    at = np.broadcast_to(np.arange(LENGTH), (n, LENGTH))
    return items, rows.astype(np.int32), segment.astype(np.int32), at.astype(np.int32)


# --- numpy's reading


def w(layer, name):
    found = [v for v in layer.weights if v.path.endswith(f"history/{name}")]
    assert len(found) == 1, [v.path for v in layer.weights]
    return np.asarray(found[0].value, np.float64)


def linear(layer, name, x):
    return x @ w(layer, f"{name}/kernel") + w(layer, f"{name}/bias")


def norm(layer, name, x):
    off = x - x.mean(-1, keepdims=True)
    scaled = off / np.sqrt((off**2).mean(-1, keepdims=True) + 1e-6)
    return scaled * w(layer, f"{name}/gamma") + w(layer, f"{name}/beta")


def mean(layer, items, columns):
    """Means of the entries up to each one, the oldest first, weighted by distance."""
    weights = np.log1p(np.exp(w(layer, "recency")))
    rows = []
    for i, column in enumerate(columns):
        of_past = weights[columns[: i + 1] - column]
        rows.append(of_past @ items[: i + 1].astype(np.float64) / of_past.sum())
    return np.array(rows)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def heads_of(x):
    return x.reshape(len(x), HEADS, DIM // HEADS).transpose(1, 0, 2)


def attention(layer, name, x):
    """Attention over a causal sequence `[n, dim]`, the oldest first, already normalised."""
    q, k, v = (heads_of(linear(layer, f"{name}/{part}", x)) for part in ("query", "key", "value"))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(DIM // HEADS)
    scores[:, np.triu_indices(len(x), 1)[0], np.triu_indices(len(x), 1)[1]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return linear(layer, f"{name}/out", (weights @ v).transpose(1, 0, 2).reshape(len(x), DIM))


def bsarec_filter(layer, name, x):
    """BSARec's filter of the newest entry of each history `x[:t]`, which zeros pad to a window."""
    filtered = []
    for newest in range(len(x)):
        window = np.zeros((LENGTH, DIM))
        window[LENGTH - 1 - newest :] = x[: newest + 1]
        spectrum = np.fft.rfft(window, axis=0)
        spectrum[FREQUENCIES:] = 0
        low = np.fft.irfft(spectrum, LENGTH, axis=0)
        filtered.append((low + w(layer, f"{name}/scale") ** 2 * (window - low))[-1])
    return np.array(filtered)


def mixed(layer, name, x):
    """The first part of a block over a causal sequence `[n, dim]`, the oldest first."""
    x = norm(layer, f"{name}/norm", x)
    if not any("filter" in v.path for v in layer.weights):
        return attention(layer, name, x)
    filtered = bsarec_filter(layer, f"{name}/filter", x)
    return SHARE * filtered + (1 - SHARE) * attention(layer, name, x)


def sasrec(layer, name, x):
    x = x + mixed(layer, name, x)
    inner = np.maximum(linear(layer, f"{name}/widen", norm(layer, f"{name}/feed_norm", x)), 0)
    return x + linear(layer, f"{name}/narrow", inner)


def ligr(layer, name, x):
    gate = sigmoid(linear(layer, f"{name}/gate", x))
    x = x + gate * mixed(layer, name, x)
    normed = norm(layer, f"{name}/feed_norm", x)
    inner = silu(linear(layer, f"{name}/swish", normed)) * linear(layer, f"{name}/widen", normed)
    return x + sigmoid(linear(layer, f"{name}/feed_gate", x)) * linear(
        layer, f"{name}/narrow", inner
    )


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_the_papers_equations(kind):
    layer = build(kind)
    items, rows, segment, at = packed()
    values = states(layer, items, rows, segment=segment, at=at).reshape(len(rows), LENGTH, DIM)
    block = {"sasrec": sasrec, "ligr": ligr}[kind.split(",")[0]]
    n_compared = 0
    for r in range(len(rows)):
        for user in set(segment[r].tolist()):
            # The oldest first, without what isn't known.
            columns = np.flatnonzero((segment[r] == user) & (rows[r] > 0))[::-1]
            if not len(columns):
                continue
            place = np.arange(len(columns))
            x = items[r, columns].astype(np.float64) * np.sqrt(DIM) + w(layer, "place")[place]
            for number in range(2):
                x = block(layer, f"block_{number}", x)
            expected = norm(layer, "norm", x) + mean(layer, items[r, columns], columns)
            np.testing.assert_allclose(values[r, columns], expected, rtol=2e-4, atol=2e-4)
            n_compared += len(columns)
    assert n_compared > 15


@pytest.mark.parametrize("kind", KINDS)
def test_no_state_knows_of_newer_items_or_of_another_user(kind):
    layer = build(kind)
    items, rows, segment, at = packed(seed=1)
    rows = np.maximum(rows, 1)
    before = states(layer, items, rows, segment=segment, at=at).reshape(len(rows), LENGTH, DIM)
    other, seen = np.random.default_rng(5).normal(size=DIM), []
    for planted in range(LENGTH):
        changed = items.copy()
        changed[:, planted] = other
        after = states(layer, changed, rows, segment=segment, at=at).reshape(before.shape)
        for r in range(len(rows)):
            # The newest first: it may be seen from its own column and from those before it.
            may_see = (segment[r] == segment[r, planted]) & (np.arange(LENGTH) <= planted)
            np.testing.assert_array_equal(after[r, ~may_see], before[r, ~may_see])
            change = np.abs(after[r] - before[r]).max(-1)
            assert change[planted] > 1e-3
            seen.extend(change[may_see] > 1e-5)
    # Some weights of an attention are too small for float32.
    assert np.mean(seen) > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_long_histories_attend_in_blocks_to_the_same_result(kind, monkeypatch):
    layer = build(kind, length=30)
    rng = np.random.default_rng(0)
    items = rng.normal(size=(2, 30, DIM)).astype(np.float32)
    rows = rng.integers(0, 5, (2, 30)).astype(np.int32)
    at = np.broadcast_to(np.arange(30, dtype=np.int32), (2, 30))
    whole = states(layer, items, rows, at=at)
    monkeypatch.setattr(sequences, "_BLOCK", 7)
    np.testing.assert_allclose(states(layer, items, rows, at=at), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_item_gives_zeros_and_finite_gradients(kind):
    layer = build(kind, layers=1)
    items, rows = np.ones((2, LENGTH, DIM), np.float32), np.zeros((2, LENGTH), np.int32)
    rows[1, 2] = 4

    @jax.jit
    def outputs(values, items):
        with keras.StatelessScope(list(zip(layer.trainable_variables, values, strict=True))):
            return layer(items, rows), layer(items, rows, at=np.full((2, 1), -1, np.int32))

    def total(values, items):
        return sum(ops.sum(out) for out in outputs(values, items))

    values = [variable.value for variable in layer.trainable_variables]
    newest, none = (np.asarray(out) for out in outputs(values, items))
    assert not none.any()
    assert not newest[0].any()
    assert newest[1].any()
    gradients = jax.tree.leaves(jax.grad(total, (0, 1))(values, items))
    assert all(np.isfinite(np.asarray(g)).all() for g in gradients)
