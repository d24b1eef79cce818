"""The row kernels against loops in numpy, and what they promise beside right numbers."""

import ctypes
import dataclasses
import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys import kernels
from recsys.embedding import optimizers
from recsys.embedding import rows as row_operations
from recsys.embedding.rows import Lookups, RowGradients, StepScalars
from recsys.errors import RecsysError

INT32 = np.iinfo(np.int32)
N_SLOTS = {"sgd": 0, "adagrad": 1, "row_wise_adagrad": 1, "lazy_adam": 2, "ftrl": 2}
OPTIMIZERS = {
    cls.kind: cls
    for cls in (
        optimizers.SGD,
        optimizers.Adagrad,
        optimizers.RowWiseAdagrad,
        optimizers.LazyAdam,
        optimizers.Ftrl,
    )
}
KINDS = sorted(N_SLOTS)
DTYPES = ["float32", "bfloat16"]
NO_SEED = np.zeros(2, np.int32)

pytestmark = pytest.mark.skipif(not kernels.status().available, reason=kernels.status().reason)


# --- the reference: one row, one entry at a time, in float64


def entries(n_rows, n_bags, rows, bag):
    """Yields the position, the row and the bag of each entry that isn't skipped."""
    for i, (r, b) in enumerate(zip(rows.tolist(), bag.tolist(), strict=True)):
        if 0 <= r < n_rows and 0 <= b < n_bags:
            yield i, r, b


def pooled(table, rows, bag, weight, n_bags):
    out = np.zeros((n_bags, table.shape[1]))
    for i, r, b in entries(len(table), n_bags, rows, bag):
        out[b] += np.float64(weight[i]) * table[r].astype(np.float64)
    return out


def row_gradients(n_rows, rows, bag, weight, grads):
    sums = {}
    for i, r, b in entries(n_rows, len(grads), rows, bag):
        sums[r] = sums.get(r, 0.0) + np.float64(weight[i]) * grads[b].astype(np.float64)
    return sums


def stepped(kind, w, slots, g, lr, alpha, a):
    """Returns one row and its slots after one step, as the papers have it."""
    if clip := a.get("clipnorm", 0.0):
        g = g * clip / max(np.linalg.norm(g), clip)
    w = w - lr * a.get("weight_decay", 0.0) * w
    if kind == "sgd":
        return w - lr * g, []
    eps = a.get("epsilon", 1e-7)
    if kind == "adagrad":
        acc = slots[0] + g**2
        return w - lr * g / np.sqrt(acc + eps), [acc]
    if kind == "row_wise_adagrad":
        acc = slots[0] + np.mean(g**2)
        return w - lr * g / np.sqrt(acc + eps), [acc]
    if kind == "lazy_adam":
        b1, b2 = a.get("beta_1", 0.9), a.get("beta_2", 0.999)
        m, v = b1 * slots[0] + (1 - b1) * g, b2 * slots[1] + (1 - b2) * g**2
        return w - alpha * m / (np.sqrt(v) + eps), [m, v]
    p = -a.get("learning_rate_power", -0.5)
    l1 = a.get("l1_regularization_strength", 0.0)
    l2 = a.get("l2_regularization_strength", 0.0) + a.get("beta", 0.0) / (2 * lr)
    shrunk = g + 2 * a.get("l2_shrinkage_regularization_strength", 0.0) * w
    acc = slots[0] + g**2
    z = slots[1] + shrunk - (acc**p - slots[0] ** p) / lr * w
    return (np.clip(z, -l1, l1) - z) / (acc**p / lr + 2 * l2), [acc, z]


def updated(kind, table, slots, rows, bag, weight, grads, scalars, **attributes):
    table = table.astype(np.float64)
    slots = [s.astype(np.float64) for s in slots]
    lr, scale, alpha, _ = (float(x) for x in scalars)
    for r, g in row_gradients(len(table), rows, bag, weight, grads).items():
        state = [s[r].copy() for s in slots]
        table[r], new = stepped(kind, table[r], state, scale * g, lr, alpha, attributes)
        for s, x in zip(slots, new, strict=True):
            s[r] = x
    return table, slots


# --- inputs and calls

PLAIN_SCALARS = np.array([0.1, 1.0, 0.05, 0], np.float32)


def slots_of(kind, n_rows, dim, rng):
    shapes = [(n_rows, 1 if kind == "row_wise_adagrad" else dim)] * N_SLOTS[kind]
    return [rng.uniform(0.1, 1, shape).astype(np.float32) for shape in shapes]


def batch(seed, n=300, n_rows=40, n_bags=17, dim=8, dtype="float32"):
    """Returns a table, a list with duplicates and skipped entries, and gradients."""
    rng = np.random.default_rng(seed)
    table = np.asarray(jnp.asarray(rng.normal(size=(n_rows, dim)), dtype))
    rows = rng.integers(-3, n_rows + 3, n).astype(np.int32)
    rows[rng.random(n) < 0.1] = INT32.min
    rows[rng.random(n) < 0.1] = INT32.max
    rows[rng.random(n) < 0.2] = min(5, n_rows - 1)
    bag = np.sort(rng.integers(0, max(n_bags, 1), n)).astype(np.int32)
    weight = rng.normal(size=n).astype(np.float32)
    weight[rng.random(n) < 0.2] = 0
    return table, rows, bag, weight, rng.normal(size=(n_bags, dim)).astype(np.float32)


@functools.partial(jax.jit, static_argnums=4)
def pool(table, rows, bag, weight, n_bags):
    return row_operations.pool(table, Lookups(rows, bag, weight), n_bags)


@jax.jit
def weight_grad(table, rows, bag, grads):
    return row_operations.weight_grad(table, Lookups(rows, bag), grads, len(grads))


@functools.partial(jax.jit, static_argnums=4)
def sum_squares(rows, bag, weight, grads, n_rows):
    return row_operations.sum_squares(RowGradients(Lookups(rows, bag, weight), grads), n_rows)


@functools.cache
def update_with(kind, attributes, donate=()):
    names = {field.name for field in dataclasses.fields(OPTIMIZERS[kind])}
    optimizer = OPTIMIZERS[kind](**{k: v for k, v in attributes if k in names})

    def step(table, slots, rows, bag, weight, grads, scalars, rounding):
        seed, offset = jax.lax.bitcast_convert_type(rounding[0], jnp.uint32), rounding[1]
        numbers = StepScalars(scalars[0], scalars[2], scalars[1], seed, offset)
        gradients = RowGradients(Lookups(rows, bag, weight), grads)
        return row_operations.update(optimizer, table, slots, gradients, numbers)

    return jax.jit(step, donate_argnums=donate)


def update(kind, table, slots, *rest, rounding=NO_SEED, **attributes):
    call = update_with(kind, tuple(sorted(attributes.items())))
    table, slots = call(table, tuple(slots), *rest, rounding)
    return np.asarray(table), [np.asarray(s) for s in slots]


def limit_workers(n):
    ctypes.CDLL(str(kernels.status().path)).recsys_limit_workers(n)


@pytest.fixture
def workers():
    """Returns a function that limits the threads of a call."""
    yield limit_workers
    limit_workers(0)


def close(actual, expected, tolerance=1e-6):
    expected = np.asarray(expected)
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=tolerance * scale)


# --- reading

DIMS = [1, 3, 15, 16, 17, 64, 100, 129]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_pool_sums_the_weighted_rows_of_each_bag(dim, dtype):
    table, rows, bag, weight, _ = batch(dim, dim=dim, dtype=dtype)
    close(pool(table, rows, bag, weight, 17), pooled(table, rows, bag, weight, 17))


def test_pool_takes_equal_bags_without_numbers_and_ones_without_weights():
    table, rows, *_ = batch(1, n=60, n_bags=12)
    bag, ones = np.repeat(np.arange(12, dtype=np.int32), 5), np.ones(60, np.float32)
    close(pool(table, rows, None, None, 12), pooled(table, rows, bag, ones, 12))


def test_a_row_that_is_not_looked_up_can_hold_anything():
    table = np.full((4, 20), np.nan, np.float32)
    table[2] = 1
    rows = np.array([2, -1, 4, INT32.max, INT32.min], np.int32)
    out = pool(table, rows, np.zeros(5, np.int32), np.ones(5, np.float32), 1)
    assert np.asarray(out).tolist() == [[1] * 20]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_weight_grad_is_the_product_of_row_and_gradient(dim, dtype):
    table, rows, bag, _, grads = batch(dim, dim=dim, dtype=dtype)
    bag[::9] = 17
    bag[::10] = -2
    expected = np.zeros(len(rows))
    for i, r, b in entries(len(table), 17, rows, bag):
        expected[i] = table[r].astype(np.float64) @ grads[b].astype(np.float64)
    close(weight_grad(table, rows, bag, grads), expected)


# --- updating

ATTRIBUTES = {
    "plain": {},
    "clipped": {"clipnorm": 0.8},
    "decayed": {"weight_decay": 0.3},
    "all": {
        "clipnorm": 1.5, "weight_decay": 0.1, "epsilon": 1e-3, "beta_1": 0.7, "beta_2": 0.9,
        "learning_rate_power": -0.7, "l1_regularization_strength": 0.05, "beta": 0.2,
        "l2_regularization_strength": 0.1, "l2_shrinkage_regularization_strength": 0.2,
    },
}  # fmt: skip


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_update_steps_each_distinct_row_once(kind, attributes):
    scalars = np.array([0.1, 0.7, 0.05, 0], np.float32)
    for dim in (3, 64, 129):
        table, *lookups = batch(dim, dim=dim)
        slots = slots_of(kind, len(table), dim, np.random.default_rng(1))
        out, state = update(kind, table, slots, *lookups, scalars, **attributes)
        expected, expected_state = updated(kind, table, slots, *lookups, scalars, **attributes)
        close(out, expected, 2e-6)
        for s, e in zip(state, expected_state, strict=True):
            close(s, e, 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_update_of_a_bfloat16_table_lands_on_a_neighbour_of_the_exact_row(kind):
    table, *lookups = batch(4, dim=37, dtype="bfloat16")
    slots = slots_of(kind, len(table), 37, np.random.default_rng(1))
    out, state = update(kind, table, slots, *lookups, PLAIN_SCALARS, weight_decay=0.1)
    expected, expected_state = updated(
        kind, table, slots, *lookups, PLAIN_SCALARS, weight_decay=0.1
    )
    assert out.dtype == jnp.bfloat16
    spacing = 2.0 ** (np.floor(np.log2(np.abs(expected) + 1e-30)) - 7)
    assert np.all(np.abs(out.astype(np.float64) - expected) <= spacing * 1.001 + 1e-6)
    for s, e in zip(state, expected_state, strict=True):
        close(s, e, 2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_not_in_the_list_keep_their_bits(dtype):
    table = np.array(jnp.full((50, 5), np.nan, dtype))
    table[[3, 7]] = 1
    slots = [np.full((50, 5), np.nan, np.float32)]
    slots[0][[3, 7]] = 1
    rows = np.array([7, 3, 7, -1, 50, INT32.max, INT32.min, 9, 9], np.int32)
    bag = np.array([0, 0, 1, 0, 0, 0, 0, 2, -1], np.int32)
    grads = np.ones((2, 5), np.float32)
    weight = np.ones(9, np.float32)
    out, [state] = update("adagrad", table, slots, rows, bag, weight, grads, PLAIN_SCALARS)
    untouched = np.setdiff1d(np.arange(50), [3, 7])
    assert np.isfinite(out[[3, 7]].astype(np.float32)).all()
    assert out[untouched].tobytes() == table[untouched].tobytes()
    assert state[untouched].tobytes() == slots[0][untouched].tobytes()
    assert np.all(state[[3, 7]] == [[2], [5]])


@pytest.mark.parametrize("n_between", [0, 20_000])
def test_gradients_of_a_row_are_summed_in_the_order_of_the_list(n_between):
    table, other = np.zeros((9, 20), np.float32), np.full(n_between, 2)
    rows = np.concatenate([[4], other, [4], other, [4]]).astype(np.int32)
    bag = np.concatenate([[0], 0 * other, [1], 0 * other, [2]]).astype(np.int32)
    grads = np.repeat(np.array([[1e8], [-1e8], [1]], np.float32), 20, axis=1)
    scalars = np.array([1, 1, 1, 0], np.float32)
    weight = np.ones(len(rows), np.float32)
    out, _ = update("sgd", table, [], rows, bag, weight, grads, scalars)
    assert out[4].tolist() == [-1] * 20


def test_nan_in_one_gradient_touches_its_row_alone():
    table, slots = np.ones((6, 70), np.float32), [np.ones((6, 1), np.float32)]
    grads = np.ones((3, 70), np.float32)
    grads[1, 69] = np.nan
    rows = np.array([4, 2, 0], np.int32)
    out, [state] = update(
        "row_wise_adagrad", table, slots, rows, None, None, grads, PLAIN_SCALARS, clipnorm=1.0
    )
    assert np.isnan(out).any(axis=1).tolist() == [False, False, True, False, False, False]
    assert np.isnan(state[:, 0]).tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize(("n", "n_bags", "n_rows"), [(0, 0, 5), (0, 4, 5), (6, 0, 5), (6, 4, 0)])
def test_nothing_happens_where_there_is_nothing(n, n_bags, n_rows):
    _, rows, bag, weight, grads = batch(5, n=n, n_rows=5, n_bags=n_bags)
    table = np.ones((n_rows, 8), np.float32)
    assert not np.asarray(pool(table, rows, bag, weight, n_bags)).any()
    assert not np.asarray(weight_grad(table, rows, bag, grads)).any()
    assert sum_squares(rows, bag, weight, grads, n_rows) == 0
    slots = [np.ones((n_rows, 8), np.float32)]
    out, [state] = update("adagrad", table, slots, rows, bag, weight, grads, PLAIN_SCALARS)
    assert np.all(out == 1)
    assert np.all(state == 1)


LENGTHS = [0, 1, 2, 33, 200]
ANY_ROW = st.one_of(st.integers(-2, 12), st.sampled_from([INT32.min, INT32.max]))


@given(st.data())
def test_any_list_gives_what_the_loops_give(data):
    n = data.draw(st.sampled_from(LENGTHS))
    draw = functools.partial(st.lists, min_size=n, max_size=n)
    rows = np.array(data.draw(draw(ANY_ROW)), np.int32)
    bag = np.array(data.draw(draw(st.integers(-1, 5))), np.int32)
    weight = np.array(data.draw(draw(st.integers(-3, 3))), np.float32)
    rng = np.random.default_rng(0)
    table, grads = (rng.integers(-9, 9, (k, 19)).astype(np.float32) for k in (10, 5))
    # Whole numbers: every sum is exact, whatever its order.
    assert np.array_equal(pool(table, rows, bag, weight, 5), pooled(table, rows, bag, weight, 5))
    sums = row_gradients(10, rows, bag, weight, grads)
    scalars = np.array([0.5, 1, 1, 0], np.float32)
    out, _ = update("sgd", table, [], rows, bag, weight, grads, scalars)
    assert np.array_equal(out, updated("sgd", table, [], rows, bag, weight, grads, scalars)[0])
    expected = sum(float(g @ g) for g in sums.values())
    assert sum_squares(rows, bag, weight, grads, 10) == expected


# --- rounding


def mixed(x):
    x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
    return x ^ x >> 16


def rounded(x, row, column, seed):
    """Returns the 16 bits of `x` after stochastic rounding, by the formula."""
    bits = int(np.float32(x).view(np.uint32))
    by_column = mixed((column * 0x85EBCA77 % 2**32) ^ seed)
    key = mixed((row * 0x9E3779B1 % 2**32) ^ by_column)
    return (bits + (key >> 16)) >> 16


@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (123456789, 3), (2**32 - 1, 2**31 - 40)])
def test_stochastic_rounding_follows_the_formula_bit_for_bit(seed, offset):
    rng = np.random.default_rng(0)
    table = np.asarray(jnp.asarray(rng.integers(-64, 64, (30, 21)) / 8, jnp.bfloat16))
    grads = rng.integers(-(2**13), 2**13, (30, 21)).astype(np.float32) / 2**14
    rows = np.arange(30, dtype=np.int32)[::-1].copy()
    rounding = np.array([seed, offset], np.uint32).view(np.int32)
    scalars = np.array([1, 1, 1, 0], np.float32)
    out, _ = update("sgd", table, [], rows, None, None, grads, scalars, rounding=rounding)
    # Few bits each: the difference is exact in float32.
    exact = table.astype(np.float32) - grads[::-1]
    expected = [[rounded(exact[r, c], offset + r, c, seed) for c in range(21)] for r in range(30)]
    assert np.array_equal(out.view(np.uint16), expected)


def test_infinity_and_nan_are_not_rounded_into_something_else():
    table = np.asarray(jnp.ones((3, 40), jnp.bfloat16))
    grads = np.zeros((3, 40), np.float32)
    # All bits set: one more would make zero of this NaN.
    grads[0], grads[1], grads[2] = np.inf, -np.inf, np.uint32(0x7FFFFFFF).view(np.float32)
    rows = np.arange(3, dtype=np.int32)
    out, _ = update("sgd", table, [], rows, None, None, grads, PLAIN_SCALARS)
    out = out.astype(np.float32)
    assert np.all(out[0] == -np.inf)
    assert np.all(out[1] == np.inf)
    assert np.isnan(out[2]).all()


# --- threads, memory, and where it may be called


def big_batch(dtype="float32"):
    return batch(6, n=60_000, n_rows=5_000, n_bags=1_000, dim=24, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_thread_and_two_and_a_second_run_give_the_same_bits(workers, dtype):
    table, *lookups = big_batch(dtype)
    slots = slots_of("adagrad", len(table), 24, np.random.default_rng(1))

    def everything():
        out, state = update("adagrad", table, slots, *lookups, PLAIN_SCALARS, clipnorm=2.0)
        rows, bag, weight, grads = lookups
        more = (
            pool(table, rows, bag, weight, 1_000),
            weight_grad(table, rows, bag, grads),
            sum_squares(rows, bag, weight, grads, len(table)),
        )
        return [np.asarray(x).tobytes() for x in (out, *state, *more)]

    workers(1)
    alone = everything()
    workers(2)
    assert everything() == alone
    assert everything() == alone


def test_a_large_update_is_right_with_threads():
    table, rows, bag, weight, grads = big_batch()
    # Whole numbers: the sum over a hot row is exact in float32 too.
    lookups = rows, bag, np.round(weight), np.round(grads)
    slots = slots_of("lazy_adam", len(table), 24, np.random.default_rng(1))
    out, state = update("lazy_adam", table, slots, *lookups, PLAIN_SCALARS)
    expected, expected_state = updated("lazy_adam", table, slots, *lookups, PLAIN_SCALARS)
    close(out, expected, 2e-6)
    for s, e in zip(state, expected_state, strict=True):
        close(s, e, 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_donated_tables_are_changed_where_they_lie(kind):
    n_rows = 20_000
    _, *lookups = batch(7, n_rows=n_rows, dim=64)
    slots = tuple(map(jnp.asarray, slots_of(kind, n_rows, 64, np.random.default_rng(1))))
    state = (jnp.ones((n_rows, 64)), slots)
    step = update_with(kind, (), donate=(0, 1))
    rest = (*lookups, PLAIN_SCALARS, NO_SEED)
    analysis = step.lower(*state, *rest).compile().memory_analysis()
    state_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    assert analysis.alias_size_in_bytes == state_bytes
    assert analysis.temp_size_in_bytes < 4096
    where = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    out = step(*state, *rest)
    assert [x.unsafe_buffer_pointer() for x in jax.tree.leaves(out)] == where
    assert all(x.is_deleted() for x in jax.tree.leaves(state))


def flags_of(address):
    """Returns the kernel's flags of the memory at `address`."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            low, high = (int(x, 16) for x in found.groups())
            is_inside = low <= address < high
        elif is_inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here"
)
def test_a_large_table_asks_for_huge_pages_when_it_comes_again():
    step = update_with("sgd", (), donate=(0,))
    _, *lookups = batch(10, dim=64)
    table = jnp.ones((160_000, 64))
    asked = []
    for _ in range(3):
        table, _ = step(table, (), *lookups, PLAIN_SCALARS, NO_SEED)
        asked.append("hg" in flags_of(table.unsafe_buffer_pointer() + table.nbytes // 2))
    # Unless the process runs with huge pages for all memory anyway.
    assert asked in ([False, True, True], [True, True, True])


def test_a_table_that_is_not_donated_stays_as_it_was():
    table, *lookups = batch(8)
    before = jnp.asarray(table)
    out, _ = update("sgd", before, [], *lookups, PLAIN_SCALARS)
    assert np.array_equal(before, table)
    assert not np.array_equal(out, table)


# --- refusals


@pytest.mark.parametrize(
    "lookups",
    [
        Lookups(np.zeros(4, np.int64), np.zeros(4, np.int32)),
        Lookups(np.zeros(4, np.int32), np.zeros(3, np.int32)),
        Lookups(np.zeros(4, np.int32), None, np.zeros(4, np.float16)),
        Lookups(np.zeros(5, np.int32)),
    ],
    ids=["wide rows", "too few bags", "half weights", "bags of unequal length"],
)
def test_what_the_kernels_would_read_wrongly_is_refused(lookups):
    gradients = RowGradients(lookups, np.zeros((2, 3), np.float32))
    with jax.enable_x64(True), pytest.raises(RecsysError, match="R342"):
        row_operations.sum_squares(gradients, 5)
