"""Inclusion probabilities and negatives against exact arithmetic and against draws."""

from fractions import Fraction

import numpy as np
import pytest
from batch_sources import N_ITEMS, included, make, small_source
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.catalogue import Catalogue
from recsys.tasks.retrieval.training.sampling import ItemSampler, inclusion_log_probability


def of_one(p, n):
    return float(inclusion_log_probability((np.array([p]), n))[0])


@pytest.mark.parametrize(
    ("p", "n", "expected"),
    [
        (0.5, 1, np.log(0.5)),
        (0.5, 2, np.log(0.75)),
        (0.1, 3, np.log(0.271)),
        (1e-12, 1, np.log(1e-12)),
        (1e-12, 4096, np.log(4096e-12) - 4095 * 0.5e-12),
        (1e-300, 10, np.log(1e-299)),
        (1.0, 1, 0.0),
        (1.0, 0, -np.inf),
        (0.0, 65536, -np.inf),
        (0.5, 60, -(2.0**-60)),
        (0.9, 10**6, 0.0),
    ],
)
def test_the_probability_of_at_least_one_draw(p, n, expected):
    assert of_one(p, n) == pytest.approx(expected, rel=1e-14, abs=0)


@given(
    p=st.fractions(0, 1, max_denominator=1000),
    n=st.integers(0, 60),
    other=st.fractions(0, 1, max_denominator=1000),
    m=st.integers(0, 60),
)
def test_two_samplers_miss_an_item_if_both_do(p, n, other, m):
    samplers = [(np.array([float(x)]), draws) for x, draws in ((p, n), (other, m))]
    found = float(inclusion_log_probability(*samplers)[0])
    # Exact for the given numbers: near 1, rounding p changes 1 - p in the 13th digit.
    exact = 1 - (1 - Fraction(float(p))) ** n * (1 - Fraction(float(other))) ** m
    if exact == 0:
        assert found == -np.inf
    else:
        # The logarithm of a fraction near 1 by its distance from 1.
        expected = np.log1p(-float(1 - exact)) if exact > Fraction(1, 2) else np.log(float(exact))
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("samplers", "rule"),
    [
        *(([([0.5, p], 3)], "between 0 and 1") for p in (-0.1, 1.1, np.nan)),
        ([([0.5], -1)], "must not be negative"),
        ([], "at least one sampler"),
    ],
)
def test_an_invalid_sampler_is_refused(samplers, rule):
    with pytest.raises(ValueError, match=rule):
        inclusion_log_probability(*((np.array(p), n) for p, n in samplers))


COUNTS = np.array([5, 0, 1, 2, 9, 40, 0, 3, 300, 7])
IS_ITEM = np.array([False, True, True, True, False, True, True, True, True, True])


@pytest.fixture(name="source")
def _source():
    return small_source()


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("cold", [0.0, 0.3, 1.0])
def test_items_without_events_are_drawn_a_share_as_often(power, cold):
    sampler = ItemSampler(COUNTS, IS_ITEM, power, cold)
    weight = (COUNTS + 1.0) ** power * IS_ITEM * np.where(COUNTS == 0, cold, 1.0)
    expected = weight / weight.sum()
    assert np.allclose(sampler.probability, expected, rtol=1e-14)
    n = 400_000
    counts = np.bincount(sampler.draw(n, np.random.default_rng(1)), minlength=10)
    assert not counts[expected == 0].any()
    drawn = expected > 0
    squares = (counts - n * expected)[drawn] ** 2 / (n * expected[drawn])
    assert squares.sum() < 30


def test_without_cold_items_even_draws_are_those_of_a_catalogue_without_them():
    is_warm = IS_ITEM & (COUNTS > 0)
    without, ours = ItemSampler(COUNTS, is_warm, 0.0), ItemSampler(COUNTS, IS_ITEM, 0.0, 0.0)
    drawn = [sampler.draw(50, np.random.default_rng(2)).tolist() for sampler in (without, ours)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("chance", [0.0, np.nextafter(1.0, 0.0)])
def test_the_ends_of_the_unit_interval_draw_items(chance):
    class Fixed:
        def random(self, n):
            return np.full(n, chance)

    drawn = ItemSampler(COUNTS, IS_ITEM, 1.0).draw(3, Fixed())
    assert drawn.tolist() == [1 if chance == 0 else 9] * 3
    assert drawn.dtype == np.int32


def test_log_q_is_how_often_an_item_is_in_a_batch(source):
    """By experiment: batches of many epochs, each item counted once a batch."""
    settings = {"uniform_negatives": 3, "negative_power": 1.0, "batch_size": 2, "epochs": 400}
    many = make(source.events.log, source.catalogue, **settings)
    n_batches = 20_000
    is_there = np.zeros(N_ITEMS)
    log_q = np.zeros(N_ITEMS)
    for first in range(0, n_batches, 50):
        epoch = first // 50 * many.steps_per_epoch
        for batch in many.batches(epoch, epoch + 50):
            is_there[np.unique(batch["item_row"])] += 1
            log_q[batch["item_row"]] = batch["log_q"]
    share = is_there[1:] / n_batches
    deviation = np.sqrt(np.exp(log_q[1:]) * (1 - np.exp(log_q[1:])) / n_batches)
    # Events are drawn without replacement, which the formula leaves out: 2 of 103.
    assert np.all(np.abs(share - np.exp(log_q[1:])) < 5 * deviation + 2e-3)
    assert share.max() > 2 * share.min()


def test_log_q_in_groups_is_how_often_an_item_is_among_the_candidates_of_one(source):
    """By experiment, and in closed form: a group draws half of what the batch draws."""
    settings = {"uniform_negatives": 6, "batch_size": 4, "epochs": 500, "negative_groups": 2}
    many = make(source.events.log, source.catalogue, **settings)
    n_steps, n_groups = 10_000, 2
    hits, log_q = np.zeros(N_ITEMS), np.zeros(N_ITEMS)
    for first in range(0, n_steps, 25):
        epoch = first // 25 * many.steps_per_epoch
        for batch in many.batches(epoch, epoch + 25):
            for group in np.split(batch["item_row"], n_groups):
                hits[np.unique(group)] += 1
            log_q[batch["item_row"]] = batch["log_q"]
    share, q = hits[1:] / (n_steps * n_groups), np.exp(log_q[1:])
    deviation = np.sqrt(q * (1 - q) / (n_steps * n_groups))
    # Events are drawn without replacement, which the formula leaves out: 4 of 103.
    assert np.all(np.abs(share - q) < 5 * deviation + 2e-3)
    counts = source.events.item_counts(N_ITEMS)[1:]
    closed = included((counts / counts.sum(), 2), (np.full(N_ITEMS - 1, 1 / (N_ITEMS - 1)), 3))
    np.testing.assert_allclose(q, closed, rtol=1e-6)


@pytest.mark.parametrize("groups", [2, 5])
def test_groups_order_the_candidates_of_a_batch_anew(source, groups):
    settings = {"uniform_negatives": 20, "negative_power": 0.5}
    plain = make(source.events.log, source.catalogue, **settings)
    grouped = make(source.events.log, source.catalogue, negative_groups=groups, **settings)
    for step in (0, 7):
        batch, expected = grouped[step], plain[step]["item_row"]
        parts = batch["item_row"].reshape(groups, 30 // groups)
        n = 10 // groups
        assert parts[:, :n].ravel().tolist() == expected[:10].tolist()
        assert parts[:, n:].ravel().tolist() == expected[10:].tolist()
        np.testing.assert_array_equal(batch["id_row"], batch["item_row"])
        genres = source.catalogue.features[0].bags
        np.testing.assert_array_equal(batch["genres"], genres[batch["item_row"]])


@pytest.fixture(name="with_cold")
def _with_cold(source):
    """The source; item 20 has no events."""
    ids = [*source.catalogue.ids, "i20"]
    return source.events.log, Catalogue(ids, ids, ())


@pytest.mark.parametrize("cold", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0])
def test_log_q_is_that_of_the_draws_times_its_strength(with_cold, cold, strength):
    settings = {"uniform_negatives": 30, "cold_negatives": cold, "log_q_correction": strength}
    batch = make(*with_cold, **settings)[3]
    counts = np.append(make(*with_cold).events.item_counts(N_ITEMS), 0)
    weight = np.where(counts > 0, 1.0, cold)
    weight[0] = 0
    q = included((counts / counts.sum(), 10), (weight / weight.sum(), 30))
    expected = strength * np.log(q[batch["item_row"]])
    expected -= np.log(np.where(batch["item_row"] == 20, cold or 1.0, 1.0))
    np.testing.assert_allclose(batch["log_q"], expected, rtol=1e-6, atol=1e-7)
    assert cold > 0 or 20 not in batch["item_row"]


@pytest.mark.parametrize("cold", [0.2, 1.0])
def test_an_item_without_events_counts_its_share(with_cold, cold):
    source = make(*with_cold, uniform_negatives=30, cold_negatives=cold, epochs=200)
    counted = np.zeros(N_ITEMS + 1)
    for step in range(n := len(source)):
        batch = source[step]
        rows, first = np.unique(batch["item_row"], return_index=True)
        counted[rows] += np.exp(-batch["log_q"][first].astype(np.float64))
    expected = np.append(np.ones(N_ITEMS - 1), cold)
    np.testing.assert_allclose(counted[1:] / n, expected, atol=0.1)


@pytest.mark.parametrize("cold", [0.0, 0.5])
def test_a_full_softmax_can_leave_out_items_without_events(with_cold, cold):
    source = make(*with_cold, loss="full_softmax", cold_negatives=cold)
    rows = source[0]["item_row"]
    assert rows[10:].tolist() == list(range(1, N_ITEMS + (cold > 0)))
    assert source.n_candidates == len(rows)
    expected = np.where(rows == 20, -np.log(cold or 1.0), 0.0)
    np.testing.assert_allclose(source[0]["log_q"], expected, rtol=1e-6)


@pytest.mark.parametrize("multiple", [1, 8])
def test_a_full_softmax_has_every_item_behind_the_positives(source, multiple):
    ids = [*source.catalogue.ids]
    ids[3] = ""
    catalogue = Catalogue(ids, ids, ())
    settings = {"loss": "full_softmax", "multiple": multiple}
    full = make(source.events.log, catalogue, **settings)
    batch, plain = full[4], source[4]
    expected = [row for row in range(1, N_ITEMS) if row != 3]
    if multiple == 8:
        expected += expected[:6]
    assert batch["item_row"].tolist() == [*plain["item_row"], *expected]
    assert full.n_candidates == len(batch["item_row"])
    assert not batch["log_q"].any()
    assert batch["item_row"].dtype == np.int32
