"""The sampled softmax on several devices, and on other backends than JAX."""

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
from softmax_reference import (
    GRADIENTS,
    arguments,
    assert_close,
    exact,
    loss_of,
    mean_of,
    random_batch,
    use_kernels,
)

from recsys.losses.batch import plain_loss


@pytest.fixture(params=["native", "blocks"])
def kernels(request, monkeypatch):
    use_kernels(request.param, monkeypatch)
    return request.param


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
    return keras.distribution.distribution()


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


@pytest.mark.parametrize(
    ("kernels", "distribution", "known"),
    [
        *(("native", name, 5) for name in ("2-D", "data")),
        ("blocks", "1-D", 5),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [("native", "1-D", 5), ("native", "1x8", 5), ("blocks", "1-D", 0)]
        ),
    ],
    indirect=["kernels", "distribution"],
)
def test_devices_that_share_the_batch_find_what_one_finds(kernels, distribution, known):
    batch = random_batch(64, 88, 16, items=40, known=known)
    args = arguments(batch)
    function = jax.value_and_grad(loss_of, argnums=range(5))
    found = jax.jit(function)(*placed(distribution, args))
    for actual, expected in zip(
        jax.tree.leaves(found), jax.tree.leaves(one_device(function, args)), strict=True
    ):
        assert_close(actual, expected, 1e-6)
    assert_close(found[0], mean_of(batch)[0])
    axis = distribution.batch_dim_name
    if distribution.device_mesh.shape[0] > 1:
        assert found[1][0].sharding.spec == found[1][1].sharding.spec == PartitionSpec(axis)
    evaluated = jax.jit(loss_of)(*placed(distribution, args))
    assert_close(evaluated, found[0], 1e-6)


@pytest.mark.parametrize("distribution", ["1-D"], indirect=True)
@pytest.mark.parametrize(("n_queries", "n_candidates"), [(63, 95)])
def test_sizes_that_dont_divide_are_computed_too(distribution, n_queries, n_candidates):
    batch = random_batch(n_queries, n_candidates, 16, items=40, known=3)
    loss, gradients = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1)))(*arguments(batch))
    expected_loss, expected = mean_of(batch)
    assert_close(loss, expected_loss)
    assert_close(gradients[0], expected["query"])
    assert_close(gradients[1], expected["candidate"])


@pytest.mark.parametrize("distribution", ["1-D"], indirect=True)
def test_devices_exchange_candidates_and_their_gradients_and_nothing_larger(kernels, distribution):
    args = placed(distribution, arguments(random_batch(64, 96, 16, items=40)))
    step = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1)))
    text = step.lower(*args).compile().as_text()
    collectives = re.findall(r"= (\w+\[[\d,]*\])\S* ([a-z-]+)\(.*replica_groups", text)
    assert {(shape, kind) for shape, kind in collectives if "," in shape} == {
        ("f32[96,16]", "all-gather"),
        ("f32[12,16]", "reduce-scatter"),
    }
    assert ("f32[]", "all-reduce") in collectives


# --- other backends


PLAIN = jax.jit(jax.value_and_grad(plain_loss, argnums=(0, 1, 3, 4, 5)))


def assert_plain(batch):
    arrays = [batch[i] for i in (0, 1, 2, 3, 5, 4)]
    loss, found = PLAIN(*(jnp.asarray(x) for x in arrays), jnp.asarray(batch.known))
    expected = exact(batch)
    assert float(loss) == pytest.approx(batch.weight @ expected.losses, rel=1e-6, abs=1e-6)
    for actual, name in zip(found, GRADIENTS, strict=True):
        # Differences that nearly cancel are as exact as their terms, of about 1.
        wanted = getattr(expected, name)
        scale = max(1, np.abs(wanted).max())
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=3e-6 * scale, err_msg=name)


@settings(max_examples=8)
@given(  # Of few shapes: each is compiled.
    n_queries=st.sampled_from([1, 20]),
    n_negatives=st.sampled_from([0, 12]),
    items=st.integers(1, 30),
    known=st.just(3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_plain_formula_is_right_for_any_batch(n_queries, n_negatives, items, known, seed):
    n_candidates = n_queries + n_negatives
    assert_plain(random_batch(n_queries, n_candidates, 6, items=items, known=known, seed=seed))


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_tensorflow_computes_it_without_jax():
    program = """
        import sys
        sys.modules["jax"] = None
        import numpy as np
        import tensorflow as tf
        from recsys.losses import SampledSoftmax
        query = tf.Variable(np.eye(2, dtype=np.float32))
        with tf.GradientTape() as tape:
            candidate = tf.concat([query, query, 9 * query], axis=0)
            loss = SampledSoftmax()(
                query, candidate, np.array([1, 2, 1, 2, 7, 7]), np.zeros(6, np.float32), 0.5,
                np.array([3.0, 0.0]), np.array([[0, 7], [0, 0]]),
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
