"""Stochastic rounding to bfloat16: its formula to the bit, and what is true on average."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from embedding_meshes import NATIVE, Lookup, compiled, on_mesh, row_operations

from recsys.embedding import SGD, Adagrad, TableConfig
from recsys.embedding import rows as row_updates
from recsys.embedding.rows import Lookups
from recsys.kernels.rounding import round_stochastically

MASK = 0xFFFFFFFF


def fmix32(x):
    """The finalizer of MurmurHash3, from Appleby's published constants, in whole numbers."""
    x ^= x >> 16
    x = x * 0x85EBCA6B & MASK
    x ^= x >> 13
    x = x * 0xC2B2AE35 & MASK
    return x ^ x >> 16


def rounded_by_hand(value, place, column, seed):
    key = fmix32((place * 0x9E3779B1 & MASK) ^ fmix32((column * 0x85EBCA77 & MASK) ^ seed))
    if not np.isfinite(value):
        return np.float32(value)
    bits = int(np.float32(value).view(np.uint32)) + (key >> 16) & MASK
    return np.uint32(bits & 0xFFFF0000).view(np.float32)


def rounded(x, places, seed, first_column=0):
    out = round_stochastically(
        jnp.asarray(x, jnp.float32),
        jnp.asarray(places, jnp.int32),
        jnp.uint32(seed),
        jnp.bfloat16,
        first_column,
    )
    assert out.dtype == jnp.bfloat16
    return np.asarray(out).astype(np.float32)


def test_the_formula_holds_to_the_bit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5)).astype(np.float32) * 10.0 ** rng.integers(-20, 20, (6, 5))
    x[0] = [np.inf, -np.inf, 0.0, -0.0, 1e-45]
    places, seed = [0, 1, 7, 3839, 2**31 - 1, 12], 0xFEDCBA98
    expected = [
        [rounded_by_hand(x[i, c], place, c + 2, seed) for c in range(5)]
        for i, place in enumerate(places)
    ]
    assert np.array_equal(rounded(x, places, seed, first_column=2), np.array(expected))


def test_nan_stays_nan():
    assert np.isnan(rounded([[np.nan]], [3], 5)).all()


def test_a_bfloat16_number_stays_itself():
    x = np.random.default_rng(1).normal(size=(50, 8)).astype(ml_dtypes.bfloat16)
    x = x.astype(np.float32)
    assert np.array_equal(rounded(x, np.arange(50), 9), x)


@pytest.mark.parametrize("kind", ["pure", NATIVE])
@pytest.mark.parametrize("offset", [0, 960])
def test_an_update_rounds_by_the_formula(kind, offset):
    """A part of a table that starts at row `offset`; row 2 occurs twice."""
    rng = np.random.default_rng(3)
    table = rng.normal(size=(6, 5)).astype(ml_dtypes.bfloat16)
    grads = rng.normal(size=(4, 5)).astype(np.float32)
    numbers = row_updates.StepScalars(
        jnp.float32(0.01), jnp.float32(0), jnp.float32(1), jnp.uint32(77), jnp.int32(offset)
    )
    lookups = Lookups(jnp.asarray([2, 5, -1, 2], jnp.int32), None, None)
    gradients = row_updates.RowGradients(lookups, jnp.asarray(grads))
    with row_operations(kind):
        found, () = row_updates.update(SGD(), jnp.asarray(table), (), gradients, numbers)
    expected = table.astype(np.float32)
    for row, grad in ((2, grads[0] + grads[3]), (5, grads[1])):
        new = expected[row] - np.float32(0.01) * grad
        expected[row] = [rounded_by_hand(w, row + offset, c, 77) for c, w in enumerate(new)]
    assert np.array_equal(np.asarray(found).astype(np.float32), expected)


@pytest.mark.parametrize(
    ("mesh", "placement", "kind"),
    [
        ("one device", "replicated", "pure"),
        ("2×2", "column", "pure"),
        pytest.param("one device", "row", "native", marks=NATIVE.marks),
        pytest.param("8", "row", "native", marks=NATIVE.marks),
    ],
)
def test_small_steps_arrive_on_average(mesh, placement, kind):
    """Each is a 40th of the distance between two bfloat16 numbers: plainly rounded, none would."""
    gap, n, dim = 2.0**-7, 64, 16
    table = TableConfig("t", n, dim, "ones", SGD(1.0), "sum", placement=placement, dtype="bfloat16")
    x = {"f": np.arange(n, dtype=np.int32)}
    with on_mesh(mesh, [table]), row_operations(kind):
        model = Lookup({"f": table})
        # The gradient is -gap / 40 whatever the weight.
        model.compile("sgd", loss=lambda y, out: -(gap / 40) * n * (out * y).sum(axis=-1))
        for _ in range(20):
            model.train_on_batch(x, np.ones((n, dim), np.float32))
        (after,) = model.state()["t"]
    moved = (after - 1) / gap
    # Twenty draws of 1/40: the sum's mean is 1/2, its variance 20 · 39/1600.
    assert abs(moved.mean() - 0.5) < 4 * np.sqrt(20 * 39 / 1600 / moved.size)
    assert moved.var() == pytest.approx(20 * 39 / 1600, rel=0.3)


@pytest.mark.parametrize("kind", [NATIVE])
def test_the_mesh_changes_no_draw(kind):
    table = TableConfig("t", 64, 4, optimizer=Adagrad(0.1), placement="row", dtype="bfloat16")
    rng = np.random.default_rng(0)
    batches = [
        ({"f": rng.permutation(64)[:16].astype(np.int32)}, rng.normal(size=(16, 4)))
        for _ in range(3)
    ]
    found = {}
    for mesh in ("one device", "8", "2×2"):
        with on_mesh(mesh, [table]), row_operations(kind):
            model = compiled(Lookup({"f": table}))
            for x, y in batches:
                model.train_on_batch(x, y)
            found[mesh] = model.state()["t"]
            weights, accumulator = model.embedding.tables[0].variables_by_row
            assert (weights.dtype, accumulator.dtype) == ("bfloat16", "float32")
    for mesh in ("8", "2×2"):
        assert np.array_equal(found[mesh][0], found["one device"][0])
        np.testing.assert_allclose(found[mesh][1], found["one device"][1], rtol=1e-6)
