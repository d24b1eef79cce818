"""Candidates shared within groups, and sent in bfloat16: numbers, and what devices send."""

import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from softmax_reference import (
    GRADIENTS,
    arguments,
    assert_close,
    exact,
    random_batch,
)

import recsys
from recsys.config import TrainConfig
from recsys.errors import RecsysError
from recsys.losses import CandidateSharing, SampledSoftmax

BFLOAT16_HALF_ULP = 2.0**-8


@pytest.fixture
def place():
    """Places arrays over the first axis of a mesh of some devices, which is active from then."""

    def placed(args, *shape):
        devices = keras.distribution.list_devices()[: int(np.prod(shape))]
        names = ("x", "y")[: len(shape)]
        mesh = keras.distribution.DeviceMesh(shape, names, devices)
        layouts = keras.distribution.LayoutMap(mesh)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(
                layout_map=layouts, batch_dim_name="x", auto_shard_dataset=False
            )
        )
        split, whole = (
            NamedSharding(mesh.backend_mesh, PartitionSpec(*axes)) for axes in [("x",), ()]
        )
        return [jax.device_put(x, split if np.ndim(x) else whole) for x in args]

    return placed


def loss_with(sharing):
    def loss(query, candidate, log_q, temperature, weight, item_row, known):
        batch = (query, candidate, item_row, log_q, temperature, weight, known)
        return SampledSoftmax()(*batch, sharing=sharing)

    return loss


def cut(batch, groups):
    """Yields the batch of each group."""
    parts = {
        name: np.split(getattr(batch, name), groups)
        for name in ("query", "candidate", "item_row", "log_q", "weight", "known")
    }
    for number in range(groups):
        yield batch._replace(**{name: of_groups[number] for name, of_groups in parts.items()})


def grouped_mean(batch, groups):
    """Returns the weighted mean over all queries and its gradients, group by group in float64."""
    weight = np.asarray(batch.weight, np.float64)
    results = [exact(part) for part in cut(batch._replace(weight=weight / weight.sum()), groups)]
    losses = np.concatenate([result.losses for result in results])
    mean = weight @ losses / weight.sum()
    gradients = {
        name: np.concatenate([getattr(result, name) for result in results])
        for name in ("query", "candidate", "log_q")
    }
    gradients["temperature"] = sum(result.temperature for result in results)
    gradients["weight"] = (losses - mean) / weight.sum()
    return mean, gradients


# --- groups


@pytest.mark.parametrize(
    ("kernels", "mesh", "groups"),
    [
        *(("native", mesh, n) for mesh, n in [((1,), 4), ((8,), 2), ((2,), 8), ((4, 2), 1)]),
        *(("blocks", (8,), groups) for groups in (1, 2)),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [
                *(("native", mesh, 2) for mesh in [(2,), (4, 2)]),
                *(("native", mesh, 1) for mesh in [(8,), (1, 8)]),
                ("blocks", (1,), 4),
            ]
        ),
    ],
    indirect=["kernels"],
    ids=str,
)
def test_each_group_is_a_batch_of_its_own_in_one_mean(kernels, place, mesh, groups):
    # Few items, so that queries meet copies of their own and known items, also in other groups.
    batch = random_batch(64, 88, 16, items=30, known=5)
    args = arguments(batch)
    args = place(args, *mesh) if np.prod(mesh) > 1 else args
    function = jax.value_and_grad(loss_with(CandidateSharing(groups)), argnums=range(5))
    loss, gradients = jax.jit(function)(*args)
    mean, expected = grouped_mean(batch, groups)
    assert_close(loss, mean)
    for gradient, name in zip(gradients, GRADIENTS, strict=True):
        assert_close(gradient, expected[name])
    assert_close(jax.jit(loss_with(CandidateSharing(groups)))(*args), mean)
    assert groups == 1 or abs(mean - grouped_mean(batch, 1)[0]) > 0.1


def test_one_group_is_the_loss_of_the_whole_batch_to_the_bit(kernels, place):
    args = place(arguments(random_batch(64, 88, 16, items=30, known=3)), 4)

    def results(**sharing):
        function = jax.value_and_grad(
            lambda q, c, log_q, t, w, row, known: SampledSoftmax()(
                q, c, row, log_q, t, w, known, **sharing
            ),
            argnums=(0, 1, 2),
        )
        return jax.tree.leaves(jax.jit(function)(*args))

    for ours, plain in zip(results(sharing=CandidateSharing(1, "float32")), results(), strict=True):
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize(
    ("n_queries", "n_candidates", "groups"), [(60, 80, 4), (12, 20, 4), (63, 95, 1)]
)
def test_sizes_that_dont_divide_among_the_devices_are_computed_too(
    place, n_queries, n_candidates, groups
):
    batch = random_batch(n_queries, n_candidates, 8, items=12, known=2)
    place([], 8)
    function = jax.value_and_grad(loss_with(CandidateSharing(groups)), argnums=(0, 1))
    loss, gradients = jax.jit(function)(*arguments(batch))
    mean, expected = grouped_mean(batch, groups)
    assert_close(loss, mean)
    for gradient, name in zip(gradients, ("query", "candidate"), strict=True):
        assert_close(gradient, expected[name])


def test_sizes_that_dont_divide_into_the_groups_are_refused():
    with pytest.raises(RecsysError, match=r"R344.*groups.*63 queries"):
        loss_with(CandidateSharing(4))(*arguments(random_batch(63, 88, 4)))


# --- what devices send


def sent(function, args):
    """Returns the collectives of arrays with a width, and their sizes, of the compiled program."""
    text = jax.jit(function).lower(*args).compile().as_text()
    found = re.findall(r"= (.+?) ([a-z-]+?)(?:-start)?\([^)]*\), .*(?:replica_groups|pairs)", text)
    return sorted(
        (kind, array)
        for arrays, kind in found
        for array in re.findall(r"\w+\[\d+,[\d,]*\]", arrays)
    )


def test_devices_exchange_candidates_and_their_gradients_and_nothing_larger(kernels, place):
    args = place(arguments(random_batch(64, 96, 16, items=40)), 8)
    step = jax.value_and_grad(loss_with(CandidateSharing()), argnums=(0, 1))
    assert sent(step, args) == [("all-gather", "f32[96,16]"), ("reduce-scatter", "f32[12,16]")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_device_sends_in_a_group_of_two_doesnt_grow_with_the_devices(place, dtype):
    programs = []
    for devices in (4, 8):
        args = place(arguments(random_batch(8 * devices, 12 * devices, 16, items=40)), devices)
        function = loss_with(CandidateSharing(devices // 2, dtype))
        programs.append(sent(jax.value_and_grad(function, argnums=(0, 1)), args))
    assert programs[0] == programs[1] != []
    if dtype == "float32":
        assert programs[0] == [("all-gather", "f32[24,16]"), ("reduce-scatter", "f32[12,16]")]


# --- bfloat16


def test_candidates_and_their_gradients_are_sent_in_two_bytes(place):
    args = place(arguments(random_batch(64, 96, 16, items=40)), 8)
    for groups, n in ((1, 8), (2, 4)):
        function = jax.value_and_grad(
            loss_with(CandidateSharing(groups, "bfloat16")), argnums=(0, 1)
        )
        collectives = sent(function, args)
        # Two numbers as one of four bytes: half of the bytes of 12 n × 16 floats, both ways.
        n_bytes = {"all-gather": 0, "all-to-all": 0}
        for kind, array in collectives:
            assert array.startswith("u32[")
            n_bytes[kind] += 4 * np.prod(_sizes(array))
        assert set(n_bytes.values()) == {12 * n * 16 * 4 // 2}


def _sizes(array):
    return [int(size) for size in re.findall(r"\d+", array.partition("[")[2])]


@pytest.mark.parametrize(
    ("kernels", "groups"), [("native", 1), ("native", 2), ("blocks", 1)], indirect=["kernels"]
)
def test_only_what_is_sent_is_rounded(kernels, place, groups):
    batch = random_batch(64, 96, 16, items=40, known=3)
    rounded = np.asarray(jnp.asarray(batch.candidate, jnp.bfloat16), np.float32)
    function = jax.value_and_grad(loss_with(CandidateSharing(groups, "bfloat16")), argnums=range(5))
    loss, gradients = jax.jit(function)(*place(arguments(batch), 8))
    mean, expected = grouped_mean(batch._replace(candidate=rounded), groups)
    gradients = dict(zip(GRADIENTS, gradients, strict=True))
    assert_close(loss, mean)
    for name in set(GRADIENTS) - {"candidate"}:
        assert_close(gradients[name], expected[name])
    # Each device's share of a gradient is off by half a unit in the last place at the most.
    off = np.abs(gradients["candidate"] - expected["candidate"])
    shares = list(_of_devices(batch, rounded, groups))
    assert np.all(off <= BFLOAT16_HALF_ULP * np.sum(np.abs(shares), axis=0) + 1e-7)
    assert off.max() > 1e-5 * np.abs(expected["candidate"]).max()


def _of_devices(batch, rounded, groups):
    """Yields the candidates' gradients by the queries of one device after the other."""
    weight = batch.weight / batch.weight.sum(dtype=np.float64)
    for first in range(0, 64, 8):
        own = np.zeros(64)
        own[first : first + 8] = weight[first : first + 8]
        parts = cut(batch._replace(candidate=rounded, weight=own), groups)
        yield np.concatenate([exact(part).candidate for part in parts])


def test_one_device_sends_nothing_and_rounds_nothing(kernels):
    args = arguments(random_batch(32, 40, 8))
    short, plain = (
        jax.jit(loss_with(CandidateSharing(2, dtype)))(*args) for dtype in ("bfloat16", "float32")
    )
    assert float(short) == float(plain)


# --- the config


@recsys.register_loss("groups_unaware")
class Unaware(recsys.Loss):
    """A loss of someone's own."""


@pytest.mark.parametrize("loss", ["bpr", "full_softmax", "groups_unaware"])
def test_a_loss_that_shares_no_candidates_refuses_groups(loss):
    with pytest.raises(ValueError, match=f"loss {loss} doesn't compare within groups"):
        TrainConfig(loss=loss, negative_groups=2)


@pytest.mark.parametrize("loss", ["bpr", "groups_unaware"])
def test_a_loss_that_sends_no_candidates_refuses_another_type(loss):
    with pytest.raises(ValueError, match=f"loss {loss} sends no candidates"):
        TrainConfig(loss=loss, negatives_dtype="bfloat16")


def test_the_sampled_softmax_takes_both():
    config = TrainConfig(loss="sampled_softmax", negative_groups=2, negatives_dtype="bfloat16")
    assert CandidateSharing.of_config(config) == CandidateSharing(2, "bfloat16")
    assert TrainConfig(loss="full_softmax", negatives_dtype="bfloat16").negative_groups == 1
