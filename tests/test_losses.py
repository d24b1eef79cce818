"""The sampled softmax against numpy in float64, and against numbers worked out by hand."""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from softmax_reference import assert_close, exact, random_batch

from recsys import native, softmax_blocks
from recsys.losses import plain_loss, sampled_softmax

GRADIENTS = ["query", "candidate", "log_q", "temperature", "weight"]


@pytest.fixture(params=["native", "blocks"])
def kernels(request, monkeypatch):
    """Computes with the C kernel, or with JAX alone in blocks of 8 queries."""
    if request.param == "native":
        if native.status().compiler is None:
            pytest.skip(native.status().reason)
        assert native.available()
    else:
        monkeypatch.setenv("RECSYS_NATIVE", "0")
        monkeypatch.setattr(softmax_blocks, "_CPU_LOGITS", 1)
        monkeypatch.setattr(softmax_blocks, "_FEWEST_QUERIES", 8)
    return request.param


def loss_of(query, candidate, log_q, temperature, weight, item_row):
    return sampled_softmax(query, candidate, item_row, log_q, temperature, weight)


def arguments(batch):
    temperature = np.float32(batch.temperature)
    return batch.query, batch.candidate, batch.log_q, temperature, batch.weight, batch.item_row


def loss_and_gradients(batch):
    """Returns the loss, and its gradients to everything by name."""
    function = jax.jit(jax.value_and_grad(loss_of, argnums=range(5)))
    loss, gradients = function(*arguments(batch))
    return loss, dict(zip(GRADIENTS, gradients, strict=True))


def expected_of(batch):
    """Returns the same in float64, from the closed forms of the weighted sum."""
    weight = np.asarray(batch.weight, np.float64)
    found = exact(batch._replace(weight=weight / weight.sum()))
    loss = weight @ found.losses / weight.sum()
    gradients = {name: getattr(found, name) for name in GRADIENTS}
    gradients["weight"] = (found.losses - loss) / weight.sum()
    return loss, gradients


def assert_right(batch, tolerance=3e-6):
    loss, gradients = loss_and_gradients(batch)
    expected_loss, expected = expected_of(batch)
    assert_close(loss, expected_loss, tolerance)
    for name in GRADIENTS:
        np.testing.assert_array_equal(np.isfinite(gradients[name]), True, err_msg=name)
        # What nearly cancels is as exact as the terms that cancel.
        size = {"temperature": 30 / batch.temperature, "weight": 10 / batch.weight.sum()}
        scale = max(np.abs(expected[name]).max(), size.get(name, 0) * max(1, abs(expected_loss)))
        np.testing.assert_allclose(
            gradients[name], expected[name], rtol=0, atol=tolerance * scale, err_msg=name
        )


# --- the formula


def by_hand(query, candidate, item_row, log_q, temperature):
    """The mean of -log p(positive) over each row's softmax, one logit at a time."""
    losses = []
    for i in range(len(query)):
        logits = {
            j: float(query[i] @ candidate[j]) / temperature - float(log_q[j])
            for j in range(len(candidate))
            if j == i or item_row[j] != item_row[i]
        }
        total = sum(np.exp(logit) for logit in logits.values())
        losses.append(-np.log(np.exp(logits[i]) / total))
    return float(np.mean(losses))


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "item_row",
    [[1, 2, 3, 4, 5], [1, 2, 1, 2, 1], [7, 7, 7, 7, 7], [1, 2, 3, 4, 5, 6, 3, 9]],
    ids=["distinct", "accidental hits", "one item only", "three negatives more"],
)
def test_loss_is_the_softmax_over_the_candidates_without_accidental_hits(kernels, item_row, jit):
    rng = np.random.default_rng(0)
    item_row = np.array(item_row, np.int32)
    n_candidates = len(item_row)
    query = rng.normal(size=(5, 3)).astype(np.float32)
    candidate = rng.normal(size=(n_candidates, 3)).astype(np.float32)
    log_q = np.log(rng.uniform(1e-9, 0.5, n_candidates)).astype(np.float32)

    def loss(query, candidate, item_row, log_q):
        return sampled_softmax(query, candidate, item_row, log_q, 0.2)

    found = (jax.jit(loss) if jit else loss)(query, candidate, item_row, log_q)
    assert float(found) == pytest.approx(
        by_hand(query, candidate, item_row, log_q, 0.2), rel=1e-5, abs=1e-6
    )


def test_two_equal_candidates_cost_log_two(kernels):
    ones = np.ones((2, 4), np.float32)
    loss = sampled_softmax(ones, ones, np.array([1, 2]), np.zeros(2, np.float32), 1.0)
    assert float(loss) == pytest.approx(np.log(2))


def test_a_candidate_drawn_ten_times_as_often_weighs_a_tenth(kernels):
    ones = np.ones((2, 4), np.float32)
    log_q = np.log(np.array([0.05, 0.5], np.float32))
    loss = sampled_softmax(ones, ones, np.array([1, 2]), log_q, 1.0)
    # Odds of 10 : 1 for the rare candidate; one query wants it, the other the common one.
    assert float(loss) == pytest.approx((np.log(11 / 10) + np.log(11)) / 2)


def test_the_gradients_of_two_orthogonal_pairs_are_those_on_paper(kernels):
    # Logits (1, 0) and (0, 1) over temperature 1/2: p of the negative is 1 / (1 + e²).
    unit = np.eye(2, dtype=np.float32)
    item_row, log_q = np.array([1, 2], np.int32), np.zeros(2, np.float32)
    gradient = jax.grad(sampled_softmax, argnums=(0, 1))
    d_query, d_candidate = gradient(unit, unit, item_row, log_q, 0.5)
    p = 1 / (1 + np.exp(2))
    # Half of each query's loss, twice the slope of a logit.
    expected = np.array([[-p, p], [p, -p]])
    np.testing.assert_allclose(d_query, expected, rtol=1e-6)
    np.testing.assert_allclose(d_candidate, expected, rtol=1e-6)


def test_masked_candidates_get_no_gradient(kernels):
    rng = np.random.default_rng(1)
    query, candidate = rng.normal(size=(2, 3, 5)).astype(np.float32)

    def loss(query, candidate):
        same = np.array([5, 5, 5], np.int32)
        return sampled_softmax(query, candidate, same, np.zeros(3, np.float32), 0.3)

    loss, gradients = jax.value_and_grad(loss, argnums=(0, 1))(query, candidate)
    assert float(loss) == 0
    assert not np.any(gradients)


# --- gradients


@pytest.mark.parametrize(
    ("n_queries", "n_candidates", "dim", "items"),
    [
        (1, 1, 1, 1),
        (1, 30, 4, 5),
        (8, 8, 16, 100),
        (9, 9, 3, 4),
        (37, 50, 20, 20),
        (130, 300, 64, 50),
        (24, 24, 1030, 30),
    ],
    ids=["one", "one query", "a block", "a block and one", "uneven", "many", "wider than C takes"],
)
def test_loss_and_gradients_are_those_in_float64(kernels, n_queries, n_candidates, dim, items):
    assert_right(random_batch(n_queries, n_candidates, dim, items=items, spread=5))


@settings(max_examples=25)
@given(
    n_queries=st.integers(1, 20),
    n_negatives=st.integers(0, 12),
    dim=st.integers(1, 9),
    items=st.integers(1, 30),
    spread=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_has_the_loss_and_gradients_in_float64(
    n_queries, n_negatives, dim, items, spread, seed
):
    batch = random_batch(n_queries, n_queries + n_negatives, dim, items=items, seed=seed)
    batch = batch._replace(query=batch.query * np.float32(spread))
    assert_right(batch, tolerance=1e-5)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_logits_of_ten_thousand_are_as_right_as_float32_has_them(kernels, size):
    # One dimension: logits are exact in float32, and differ by hundreds.
    n = 12
    batch = random_batch(n, n, 1, items=6)._replace(
        query=np.full((n, 1), size, np.float32),
        candidate=(1 + np.arange(n, dtype=np.float32)[:, None] / 32),
        log_q=np.zeros(n, np.float32),
        temperature=1.0,
    )
    assert_right(batch)


def test_the_largest_logit_may_be_masked(kernels):
    # Query 0 would see 1e4 at candidate 1, its own item: without it, -50 is the largest.
    query, log_q = np.array([[1.0], [0.0]], np.float32), np.zeros(3, np.float32)
    candidate = np.array([[-50.0], [1e4], [-51.0]], np.float32)
    item_row = np.array([3, 3, 4], np.int32)
    weight = np.array([1.0, 0.0], np.float32)
    loss = sampled_softmax(query, candidate, item_row, log_q, 1.0, weight)
    assert float(loss) == pytest.approx(np.log1p(np.exp(-1)), rel=1e-6)


def test_gradients_come_without_those_that_nobody_asks_for(kernels):
    batch = random_batch(20, 30, 8, items=9)
    _, gradients = loss_and_gradients(batch)
    found = jax.grad(loss_of, argnums=1)(*arguments(batch))
    np.testing.assert_allclose(found, gradients["candidate"], atol=1e-7)


def test_bfloat16_counts_as_the_numbers_that_it_holds(kernels):
    batch = random_batch(40, 60, 16, items=30)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (batch.query, batch.candidate)]
    rounded = batch._replace(query=np.float32(half[0]), candidate=np.float32(half[1]))
    gradient = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1)))
    loss, found = gradient(*half, *arguments(batch)[2:])
    expected_loss, expected = expected_of(rounded)
    assert loss.dtype == jnp.float32
    assert_close(loss, expected_loss)
    for gradient, name in zip(found, ["query", "candidate"], strict=True):
        assert gradient.dtype == jnp.bfloat16
        assert_close(gradient, expected[name], 2**-8)


# --- weights


def test_a_weight_of_two_is_the_query_twice(kernels):
    batch = random_batch(6, 10, 4)._replace(weight=np.array([2, 0, 1, 1, 0, 4], np.float32))
    loss, _ = loss_and_gradients(batch)
    losses = exact(batch).losses
    assert float(loss) == pytest.approx(np.mean(np.repeat(losses, [2, 0, 1, 1, 0, 4])), rel=1e-6)


def test_without_weights_all_weigh_the_same(kernels):
    batch = random_batch(6, 10, 4)
    loss = sampled_softmax(
        batch.query, batch.candidate, batch.item_row, batch.log_q, batch.temperature
    )
    assert float(loss) == pytest.approx(exact(batch).losses.mean(), rel=1e-6)


def test_weights_that_sum_to_zero_give_loss_and_gradients_zero(kernels):
    batch = random_batch(6, 10, 4)._replace(weight=np.zeros(6, np.float32))
    loss, gradients = loss_and_gradients(batch)
    assert float(loss) == 0
    for name, gradient in gradients.items():
        assert not np.any(gradient), name


# --- inputs that are no numbers


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["query", "candidate", "log_q"])
def test_a_number_that_is_none_makes_the_loss_none(kernels, where, bad):
    batch = random_batch(6, 10, 4)
    array = getattr(batch, where).copy()
    array[-1] = bad
    args = arguments(batch._replace(**{where: array}))
    assert np.isnan(loss_of(*args))
    assert np.isnan(jax.value_and_grad(loss_of)(*args)[0])


def test_fewer_candidates_than_queries_are_refused():
    batch = random_batch(6, 6, 4)
    with pytest.raises(ValueError, match="6 queries, 5 candidates"):
        sampled_softmax(batch.query, batch.candidate[:5], batch.item_row[:5], batch.log_q[:5], 1.0)


# --- what is computed


def test_no_array_has_a_place_for_each_query_and_candidate(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "0")
    args = arguments(random_batch(3000, 5000, 8))
    compiled = jax.jit(jax.value_and_grad(loss_of, argnums=range(5))).lower(*args).compile()
    assert "3000,5000" not in compiled.as_text()
    # A quarter of one such array.
    assert compiled.memory_analysis().temp_size_in_bytes < 3000 * 5000


def test_evaluation_computes_no_gradients(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "0")
    args = arguments(random_batch(8, 8, 4))
    assert str(jax.make_jaxpr(loss_of)(*args)).count("dot_general") == 1
    assert str(jax.make_jaxpr(jax.grad(loss_of))(*args)).count("dot_general") == 3


@pytest.mark.skipif(native.status().compiler is None, reason=native.status().reason)
@pytest.mark.parametrize(
    ("transform", "results"),
    [
        (lambda f: f, "f32[6]"),
        (jax.grad, "f32[6] f32[6,4] f32[10,4] f32[0]"),
        (lambda f: jax.grad(f, argnums=2), "f32[6] f32[6,4] f32[10,4] f32[10]"),
    ],
    ids=["loss", "gradient", "gradient of log_q"],
)
def test_the_c_kernel_is_asked_for_what_is_wanted(transform, results):
    args = arguments(random_batch(6, 10, 4))
    jaxpr = str(jax.make_jaxpr(transform(loss_of))(*args))
    (line,) = [line for line in jaxpr.splitlines() if "ffi_call" in line]
    assert " ".join(re.findall(r"f32[^ ]*", line)) == results


# --- several devices


def mesh_of(shape, names):
    return keras.distribution.DeviceMesh(shape, names, keras.distribution.list_devices())


def model_parallel(shape, names):
    return keras.distribution.ModelParallel(
        layout_map=keras.distribution.LayoutMap(mesh_of(shape, names)),
        batch_dim_name=names[0],
        auto_shard_dataset=False,
    )


DISTRIBUTIONS = {
    "1-D": lambda: model_parallel((8,), ("x",)),
    "2-D": lambda: model_parallel((4, 2), ("x", "y")),
    "1x8": lambda: model_parallel((1, 8), ("x", "y")),
    "data": lambda: keras.distribution.DataParallel(
        device_mesh=mesh_of((8,), ("batch",)), auto_shard_dataset=False
    ),
}


@pytest.fixture(params=DISTRIBUTIONS)
def distribution(request):
    keras.distribution.set_distribution(DISTRIBUTIONS[request.param]())
    yield keras.distribution.distribution()
    keras.distribution.set_distribution(None)


def placed(distribution, args):
    """Returns the arrays, split over the batch axis as a training step gets them."""
    mesh, axis = distribution.device_mesh.backend_mesh, distribution.batch_dim_name
    specs = [PartitionSpec(axis) if np.ndim(x) else PartitionSpec() for x in args]
    return [
        jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(args, specs, strict=True)
    ]


def one_device(function, args):
    active = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    found = jax.jit(function)(*args)
    keras.distribution.set_distribution(active)
    return found


def test_devices_that_share_the_batch_find_what_one_finds(kernels, distribution):
    args = arguments(random_batch(64, 88, 16, items=40))
    function = jax.value_and_grad(loss_of, argnums=range(5))
    found = jax.jit(function)(*placed(distribution, args))
    for actual, expected in zip(
        jax.tree.leaves(found), jax.tree.leaves(one_device(function, args)), strict=True
    ):
        assert_close(actual, expected, 1e-6)
    axis = distribution.batch_dim_name
    if distribution.device_mesh.shape[0] > 1:
        assert found[1][0].sharding.spec == found[1][1].sharding.spec == PartitionSpec(axis)
    evaluated = jax.jit(loss_of)(*placed(distribution, args))
    assert_close(evaluated, found[0], 1e-6)


@pytest.mark.parametrize("distribution", ["1-D"], indirect=True)
@pytest.mark.parametrize(("n_queries", "n_candidates"), [(63, 96), (64, 95)])
def test_sizes_that_dont_divide_are_computed_too(distribution, n_queries, n_candidates):
    batch = random_batch(n_queries, n_candidates, 16, items=40)
    assert_right(batch)


@pytest.mark.parametrize("distribution", ["1-D"], indirect=True)
def test_devices_exchange_candidates_and_their_gradients_and_nothing_larger(kernels, distribution):
    args = placed(distribution, arguments(random_batch(64, 96, 16, items=40)))
    text = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1))).lower(*args).compile().as_text()
    collectives = re.findall(r"= (\w+\[[\d,]*\])\S* ([a-z-]+)\(.*replica_groups", text)
    assert {(shape, kind) for shape, kind in collectives if "," in shape} == {
        ("f32[96,16]", "all-gather"),
        ("f32[12,16]", "reduce-scatter"),
    }
    assert ("f32[]", "all-reduce") in collectives


# --- other backends


def test_the_plain_formula_is_the_same():
    batch = random_batch(30, 44, 8, items=20)
    plain = plain_loss(*(batch[i] for i in (0, 1, 2, 3, 5, 4)))
    assert float(plain) == pytest.approx(batch.weight @ exact(batch).losses, rel=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_tensorflow_computes_it_without_jax():
    program = """
        import sys
        sys.modules["jax"] = None
        import numpy as np
        import tensorflow as tf
        from recsys.losses import sampled_softmax
        query = tf.Variable(np.eye(2, dtype=np.float32))
        with tf.GradientTape() as tape:
            loss = sampled_softmax(
                query, query, np.array([1, 2]), np.zeros(2, np.float32), 0.5, np.array([3.0, 0.0])
            )
        print(float(loss), *tape.gradient(loss, query).numpy().ravel())
    """
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    loss, *gradient = (float(x) for x in found.stdout.split())
    p = 1 / (1 + np.exp(2))
    assert loss == pytest.approx(np.log1p(np.exp(-2)), rel=1e-5)
    # As query and as candidate.
    assert gradient == pytest.approx([-4 * p, 2 * p, 2 * p, 0], rel=1e-5)
