"""Losses of scores against sums over rows, pairs and lists in float64."""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from softmax_reference import assert_close

from recsys.data.label_config import LabelConfig
from recsys.errors import RecsysError
from recsys.losses import (
    Binary,
    Listwise,
    Pairwise,
    Squared,
    joint_labels,
    joint_logits,
    joint_weights,
    sum_over_labels,
    thinned_logits,
)
from recsys.tasks.ranking.rows import joint_labels as joint_rows

LOSSES = [Binary(), Squared(), Pairwise(), Listwise()]
EACH = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__.lower())


def of_row(loss, s, y):
    return np.logaddexp(0, s) - y * s if isinstance(loss, Binary) else (s - y) ** 2


def of_group(loss, s, y, w):
    """Returns the loss of the rows of a group; None if it has none."""
    if isinstance(loss, Listwise):
        t = w * y
        return np.log(np.exp(s).sum()) - t @ s / t.sum() if t.sum() else None
    pairs = [(i, j) for i in range(len(s)) for j in range(len(s)) if y[i] > y[j]]
    of_pairs = [np.logaddexp(0, s[j] - s[i]) for i, j in pairs]
    return np.average(of_pairs, weights=[w[i] * w[j] for i, j in pairs]) if pairs else None


def exact(loss, logit, label, weight, group):
    used = ~np.isnan(label) & (weight > 0)
    if not loss.reads_group:
        parts = [(of_row(loss, logit[i], label[i]), weight[i]) for i in np.flatnonzero(used)]
    else:
        group = np.zeros(len(logit), int) if group is None else group
        members = [np.flatnonzero(used & (group == g)) for g in np.unique(group[group >= 0])]
        parts = [
            (of_group(loss, logit[m], label[m], weight[m]), weight[m].mean())
            for m in members
            if len(m)
        ]
    parts = [(value, w) for value, w in parts if value is not None]
    values, weights = zip(*parts, strict=True) if parts else ((0.0,), (1.0,))
    return np.average(values, weights=weights)


def slopes_of(function, logit, step=1e-5):
    sides = np.eye(len(logit)) * step
    return np.array([(function(logit + s) - function(logit - s)) / (2 * step) for s in sides])


def batch_of(n, seed, labels=(0.0, 0.0, 1.0, np.nan)):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=n).astype(np.float32) * 3,
        rng.choice(labels, n).astype(np.float32),
        rng.choice([0.0, 0.5, 1.0, 2.0], n).astype(np.float32),
        rng.integers(-1, 4, n).astype(np.int32),
    )


@functools.partial(jax.jit, static_argnums=0)
def value_and_slopes(loss, logit, label, weight, group=None):
    def of(logit):
        return loss(logit, label, weight=weight, group=group)

    return jax.value_and_grad(of)(logit)


@EACH
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    labels=st.sampled_from([(0.0, 0.0, 1.0, np.nan), (0.0, 0.25, 1.0), (0.0,), (np.nan,)]),
    grouped=st.booleans(),
)
def test_loss_and_gradient_are_those_of_rows_pairs_and_lists(loss, seed, labels, grouped):
    logit, label, weight, group = batch_of(12, seed, labels)
    group = group if grouped else None
    found, slopes = value_and_slopes(loss, logit, label, weight, group)
    wide = [np.asarray(x, np.float64) for x in (label, weight)]
    expected = exact(loss, logit.astype(np.float64), *wide, group)
    assert found.dtype == jnp.float32
    assert float(found) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    wanted = slopes_of(lambda s: exact(loss, s, *wide, group), logit.astype(np.float64))
    np.testing.assert_allclose(slopes, wanted, rtol=1e-4, atol=2e-6)
    assert not np.any(slopes[np.isnan(label) | (weight == 0)])


@EACH
def test_masked_rows_have_no_effect_whatever_their_size(loss):
    logit, label, weight, group = batch_of(40, seed=1)
    masked = np.isnan(label) | (weight == 0)
    found, slopes = value_and_slopes(loss, logit, label, weight, group)
    loud = np.where(masked, 3e30, logit).astype(np.float32)
    assert np.array_equal(found, value_and_slopes(loss, loud, label, weight, group)[0])
    kept = [x[~masked] for x in (logit, label, weight, group)]
    alone, own = value_and_slopes(loss, *kept)
    assert float(found) == pytest.approx(float(alone), rel=1e-6)
    np.testing.assert_allclose(slopes[~masked], own, rtol=1e-5, atol=1e-8)


@EACH
@pytest.mark.parametrize("n", [0, 5])
def test_without_labels_or_weights_loss_and_gradients_are_zero(loss, n):
    logit, _, weight, group = batch_of(n, seed=2)
    no_label, no_weight = np.full((2, n), np.nan, np.float32), np.zeros(n, np.float32)
    for label, w in [(no_label[0], weight), (np.ones(n, np.float32), no_weight)]:
        found, slopes = value_and_slopes(loss, logit, label, w, group)
        assert float(found) == 0
        assert not np.any(slopes)


@EACH
def test_gradients_of_extreme_scores_are_finite(loss):
    logit = np.array([1e4, -1e4, 0, 1e4], np.float32)
    label, weight = np.array([0, 1, 1, 1], np.float32), np.ones(4, np.float32)
    found, slopes = value_and_slopes(loss, logit, label, weight)
    assert np.isfinite(found)
    assert np.isfinite(slopes).all()


@EACH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_score_makes_the_loss_nan(loss, bad):
    logit, label, weight, group = batch_of(6, seed=3)
    weight[2], logit[2] = 0.0, bad
    assert np.isnan(value_and_slopes(loss, logit, label, weight, group)[0])


def test_a_label_of_another_length_is_refused():
    with pytest.raises(RecsysError, match=r"R334.*label must have one entry for each of the 3"):
        Binary()(np.zeros(3), np.zeros(2), weight=np.ones(3))


@EACH
def test_eight_devices_compute_what_one_does(loss):
    batch = batch_of(64, seed=4)
    expected = value_and_slopes(loss, *batch)
    mesh = keras.distribution.DeviceMesh((8,), ("batch",), keras.distribution.list_devices())
    spec = NamedSharding(mesh.backend_mesh, PartitionSpec("batch"))
    found = value_and_slopes(loss, *(jax.device_put(x, spec) for x in batch))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    assert_close(found[1], expected[1], 1e-6)


# --- several labels, thinned rows

GIVEN = {"buy": "click", "review": "buy"}


@settings(max_examples=50)
@given(logits=st.tuples(*[st.floats(-20, 20)] * 3))
def test_given_labels_multiply_their_probabilities(logits):
    names = ("review", "click", "buy")  # In any order.
    found = joint_logits(
        {name: jnp.float32([x]) for name, x in zip(names, logits, strict=True)}, GIVEN
    )
    assert list(found) == list(names)
    review, click, buy = (1 / (1 + np.exp(-np.float64(np.float32(x)))) for x in logits)
    for name, p in {"click": click, "buy": click * buy, "review": click * buy * review}.items():
        odds = np.log(p) - np.log1p(-p)
        assert float(found[name][0]) == pytest.approx(odds, rel=1e-5, abs=1e-4)


@jax.jit
def joint_and_slopes(click, buy):
    def joint(click, buy):
        return joint_logits({"click": click, "buy": buy}, {"buy": "click"})["buy"]

    return jax.value_and_grad(joint, argnums=(0, 1))(click, buy)


@pytest.mark.parametrize("click", [-1e4, -90.0, 0.0, 90.0, 1e4])
@pytest.mark.parametrize("buy", [-1e4, -90.0, 0.0, 90.0, 1e4])
def test_joint_logits_of_any_size_are_finite_with_their_gradients(click, buy):
    found, slopes = joint_and_slopes(click, buy)
    assert float(found) <= min(click, buy) + 1e-3
    assert np.isfinite(found)
    # d joint / d click = P(no click) / P(no purchase).
    inverse = [np.exp(min(-click, 300.0)), np.exp(min(-buy, 300.0))]
    total = inverse[0] + inverse[1] + inverse[0] * inverse[1]
    if np.isfinite(total) and total > 0:
        wanted = [x * (1 + y) / total for x, y in (inverse, inverse[::-1])]
        np.testing.assert_allclose(slopes, wanted, rtol=1e-3, atol=1e-4)
    assert np.isfinite(slopes).all()


def test_joint_labels_are_no_without_the_label_that_they_need():
    nan = np.nan
    labels = {"click": [0, 1, 1, nan, 0], "buy": [nan, 0, 1, nan, 1], "review": [nan, nan, 1, 0, 0]}
    found = joint_labels({name: np.float32(y) for name, y in labels.items()}, GIVEN)
    np.testing.assert_array_equal(found["buy"], [0, 0, 1, nan, 0])
    np.testing.assert_array_equal(found["review"], [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(found["click"], labels["click"])


@pytest.mark.parametrize("of", ["loss", "rows"])
def test_unknown_labels_given_others_do_not_make_them_rare(of):
    """The weighted mean of what is known is the true probability, whatever share is hidden."""
    rng, n = np.random.default_rng(0), 200_000
    click = (rng.random(n) < 0.3) * 1.0
    buy = click * (rng.random(n) < 0.4)
    review = buy * (rng.random(n) < 0.5)
    hidden, gone = (rng.random(n) < share for share in (0.4, 0.7))
    own = {"click": click, "buy": np.where((click == 0) | hidden, np.nan, buy)}
    own["review"] = np.where((np.nan_to_num(own["buy"]) == 0) | gone, np.nan, review)
    weight = rng.uniform(0.5, 1.5, n)
    if of == "loss":
        labels, weights = (
            joint_labels(own, GIVEN),
            joint_weights(own, GIVEN, dict.fromkeys(own, weight)),
        )
    else:
        configs = {x: LabelConfig(column=x, at_least=1, given=GIVEN.get(x)) for x in own}
        labels, factors = joint_rows(own, configs, weight)
        weights = {name: weight * factors.get(name, 1.0) for name in own}
    for name, true in (("click", 0.3), ("buy", 0.12), ("review", 0.06)):
        y, w = np.asarray(labels[name], float), np.asarray(weights[name], float)
        is_known = ~np.isnan(y)
        found = np.average(y[is_known], weights=w[is_known])
        assert found == pytest.approx(true, rel=0.03), name


def test_losses_of_labels_are_summed_by_their_weights():
    first, second = batch_of(20, seed=5), batch_of(20, seed=6)
    logits, labels = ({"like": x, "seconds": y} for x, y in zip(first[:2], second[:2], strict=True))
    weight, group = first[2:]
    losses = {"like": Pairwise(), "seconds": Squared()}
    alone = [losses[n](logits[n], labels[n], weight=weight, group=group) for n in losses]
    for weights, expected in [(None, sum(alone)), ({"seconds": 0.1}, alone[0] + 0.1 * alone[1])]:
        found = sum_over_labels(
            losses, logits, labels, weight=weight, group=group, label_weights=weights
        )
        assert float(found) == pytest.approx(float(expected), rel=1e-6)
    # A label of weight 0 is left out, even if its scores are NaN.
    logits["seconds"] = logits["seconds"] * np.nan
    found = sum_over_labels(losses, logits, labels, weight=weight, label_weights={"seconds": 0})
    assert np.isfinite(found)


def test_thinned_negatives_leave_the_best_scores_as_they_were():
    """The expected loss over kept rows has no gradient at the log odds among all rows."""
    p, rate = np.array([0.01, 0.3, 0.8]), 0.1
    odds = np.log(p / (1 - p)).astype(np.float32)
    label, weight = np.repeat([1.0, 0.0], 3), np.concatenate([p, rate * (1 - p)])

    def of_kept(score):
        kept = jnp.tile(thinned_logits(score, np.log(rate)), 2)
        return Binary()(kept, jnp.float32(label), weight=jnp.float32(weight))

    assert np.abs(jax.grad(of_kept)(odds)).max() < 1e-7
    kept = p / (p + rate * (1 - p))
    among_kept = np.log(kept / (1 - kept))
    np.testing.assert_allclose(thinned_logits(odds, np.log(rate)), among_kept, rtol=1e-6)
