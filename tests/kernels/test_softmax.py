"""The softmax kernel against numpy in float64 and against JAX, and what else it promises."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from softmax_reference import assert_close, exact, random_batch

from recsys import kernels
from recsys.losses import softmax_jax

INT32 = np.iinfo(np.int32)

pytestmark = pytest.mark.skipif(not kernels.status().available, reason=kernels.status().reason)


@pytest.fixture
def workers():
    """Returns a function that limits the threads of a call."""
    library = ctypes.CDLL(str(kernels.status().path))
    yield library.recsys_limit_workers
    library.recsys_limit_workers(0)


def arrays_of(batch):
    """Returns what the kernels take."""
    arrays = (jnp.asarray(x) for x in (*batch[:5], batch.known))
    return softmax_jax.SoftmaxBatch(
        *arrays, jnp.float32(1 / batch.temperature), jnp.int32(batch.first)
    )


def swept(batch, with_log_q=True, gradients=softmax_jax.native_gradients):
    """Returns losses and gradients of query, candidate and log_q."""
    return [np.asarray(x) for x in gradients(arrays_of(batch), with_log_q)]


def assert_exact(found, batch, tolerance=3e-6):
    expected = exact(batch)
    for actual, wanted in zip(
        found,
        (expected.losses, expected.query, expected.candidate, expected.log_q),
        strict=True,
    ):
        assert_close(actual, wanted, tolerance)


# --- right numbers

# Around the heights and widths of blocks (96), panels (48), tiles (24) and lanes (256).
SHAPES = [
    (1, 1, 1),
    (1, 100, 64),
    (2, 2, 16),
    (23, 47, 17),
    (24, 48, 32),
    (95, 96, 48),
    (97, 97, 64),
    (256, 300, 64),
    (257, 257, 20),
    (600, 1000, 64),
    (100, 150, 80),
    (100, 150, 128),
    (50, 60, 1024),
]


@pytest.mark.parametrize(("n_queries", "n_candidates", "dim"), SHAPES)
@pytest.mark.parametrize(("items", "known"), [(3, 7), (90, 7), (10**6, 0)])
def test_losses_and_gradients_are_those_in_float64(n_queries, n_candidates, dim, items, known):
    first = (n_candidates - n_queries) // 2
    batch = random_batch(
        n_queries, n_candidates, dim, items=items, first=first, spread=3, known=known
    )
    assert_exact(swept(batch), batch)


def test_losses_come_without_gradients_too():
    batch = random_batch(300, 500, 40, items=100, first=70, known=4)
    np.testing.assert_array_equal(
        np.asarray(softmax_jax._losses(arrays_of(batch))), swept(batch)[0]
    )


def test_item_rows_may_be_any_integers():
    # Multiples of 2¹⁶ would all meet in one place of a careless hash table.
    batch = random_batch(200, 400, 8)
    some = [INT32.min, INT32.max, -1, 0, *(np.arange(40) << 16)]
    random = np.random.default_rng(0)
    batch = batch._replace(
        item_row=random.choice(some, 400).astype(np.int32),
        known=random.choice([*some, 5 << 20], (200, 6)).astype(np.int32),
    )
    assert_exact(swept(batch), batch)


def test_exponentials_are_right_to_the_last_bits():
    # One query and a second candidate with the logit x: its p is e^x / (1 + e^x), and so
    # is the gradient of its log_q, with the other sign.
    for x in -np.concatenate([np.linspace(0, 87, 500), np.logspace(-6, 0, 50)]):
        x = np.float32(x)
        batch = softmax_jax.SoftmaxBatch(
            jnp.ones((1, 1)), jnp.array([[0.0], [x]]), jnp.array([1, 2]), jnp.zeros(2),
            jnp.ones(1), jnp.zeros((1, 0), jnp.int32), jnp.float32(1), jnp.int32(0),
        )  # fmt: skip
        found = softmax_jax.native_gradients(batch, True)
        e = np.exp(np.float64(x))
        assert -float(found[3][1]) == pytest.approx(e / (1 + e), rel=3e-7), x


def test_numbers_far_below_the_largest_count_as_zero_and_what_is_none_stays():
    query, candidate = jnp.ones((1, 1)), jnp.array([[0.0], [-89.0], [-1e30]])
    none = jnp.zeros((1, 0), jnp.int32)
    arguments = (jnp.arange(3), jnp.zeros(3), jnp.ones(1), none, jnp.float32(1), jnp.int32(0))
    batch = softmax_jax.SoftmaxBatch(query, candidate, *arguments)
    loss, _, _, d_log_q = softmax_jax.native_gradients(batch, True)
    assert float(loss[0]) == 0
    assert not np.any(d_log_q)
    for bad in (np.nan, np.inf):
        worse = batch._replace(candidate=candidate.at[1].set(bad))
        loss, *_ = softmax_jax.native_gradients(worse, True)
        assert np.isnan(loss[0])


# --- what else is promised


def test_results_are_the_same_bits_for_any_number_of_threads(workers):
    batch = random_batch(1500, 1700, 24, items=900, known=10)
    workers(1)
    expected = swept(batch)
    for n_threads in (2, 3, 0):
        workers(n_threads)
        for _ in range(5):
            for actual, wanted in zip(swept(batch), expected, strict=True):
                np.testing.assert_array_equal(actual, wanted)


def test_what_a_call_leaves_in_memory_is_no_ones_result():
    large = random_batch(700, 900, 60, items=50)
    swept(large._replace(query=large.query * np.nan))
    small = random_batch(90, 100, 50, items=50)
    assert_exact(swept(small), small)


@pytest.mark.parametrize("first", [-1, 3, INT32.max, INT32.min])
def test_positives_outside_of_the_candidates_are_refused(first):
    batch = random_batch(8, 10, 4)
    with pytest.raises(jax.errors.JaxRuntimeError, match="positive is not among"):
        swept(batch._replace(first=first))


def test_calls_may_be_mapped():
    batches = [random_batch(10, 12, 4, seed=seed, known=2) for seed in range(3)]
    stacked = [jnp.stack([(*b[:5], b.known)[i] for b in batches]) for i in range(6)]

    def one(*arrays):
        batch = softmax_jax.SoftmaxBatch(*arrays, jnp.float32(0.5), jnp.int32(0))
        return tuple(softmax_jax.native_gradients(batch, True))

    for found, batch in zip(zip(*jax.vmap(one)(*stacked), strict=True), batches, strict=True):
        assert_exact(found, batch._replace(temperature=2.0))
