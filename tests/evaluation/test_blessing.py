"""The verdict, on users whose figures are known."""

import dataclasses
import re

import numpy as np
import pytest

from recsys.config import BlessConfig, BlessRule
from recsys.evaluation.blessing import Evidence, judge
from recsys.evaluation.figures import Key, UserMeans
from recsys.tasks.judging_side import BLESSED, MODEL

N = 400
BASE = np.random.default_rng(0).uniform(0.1, 0.3, N)


def evidence(left_out=None, sampled=None, lower=(), **subjects):
    """Figures of subjects that are given as the mrr of each user."""
    means = UserMeans(np.arange(N), 1_000, 0.95)
    for name, values in subjects.items():
        means.add(Key(name, "mrr"), values)
        means.add(Key(name, "mrr", "late"), np.where(np.arange(N) >= N - 1, values, np.nan))
        means.add(Key(name, "mrr", "odd"), np.where(np.arange(N) % 2, values, np.nan))
    means.resample([Key(name, "mrr", part) for name in subjects for part in (None, "late", "odd")])
    titles = {"recent_popularity": "recent popularity", "item_knn": "item-kNN", "ials": "iALS"}
    is_blessed, lower = BLESSED in subjects, frozenset(lower)
    return Evidence(means, 0.95, left_out or {}, is_blessed, sampled, 50, titles, lower)


def bless(**thresholds):
    """Asks for nothing but `thresholds`."""
    nothing = {"over": {}, "over_blessed": 0.0, "over_strongest": 0.0, "sure_loss": "allow"}
    return BlessConfig(**{"metric": "mrr", **nothing, **thresholds})


@pytest.mark.parametrize(
    ("times", "asked", "blessed"),
    [(1.05, 1.05, True), (1.06, 1.05, True), (1.04, 1.05, False), (0.95, 0.9, True)],
    ids=["just reached", "over it", "under it", "a little worse is allowed"],
)
def test_a_ratio_that_all_users_have_is_sure(times, asked, blessed):
    found = evidence(model=times * BASE, blessed_model=BASE)
    assert judge(bless(over_blessed=asked), found).blessed is blessed


def test_the_lower_end_of_the_interval_decides_and_not_the_mean():
    noise = np.random.default_rng(1).normal(0.0, 0.2, N)
    found = evidence(model=BASE + 0.005 + noise - noise.mean(), popularity=BASE)
    verdict = judge(bless(over={"popularity": 1.0}), found)
    [rule] = verdict.rules
    assert rule.value > rule.other
    assert not verdict.blessed
    assert not rule.passed
    assert judge(bless(over={"popularity": 0.8}), found).blessed


def test_a_floor_is_asked_of_the_lower_end_too():
    found = evidence(model=BASE)
    low, _ = found.means.interval(Key(MODEL, "mrr"))
    assert low < BASE.mean()
    assert judge(bless(at_least=low - 1e-6), found).blessed
    assert not judge(bless(at_least=BASE.mean()), found).blessed
    refused = judge(bless(at_least=0.9), found)
    assert "required: at least 0.9, which is missed" in refused.reasons[0]


def test_a_tie_with_a_baseline_is_no_lead():
    found = evidence(model=BASE, popularity=BASE)
    assert not judge(bless(over={"popularity": 1.0}), found).blessed
    assert judge(bless(over={"popularity": 0.99}), found).blessed


@pytest.mark.parametrize("thresholds", [{"over": {"popularity": 0.9}}, {"over_blessed": 0.9}])
def test_a_model_that_finds_nothing_is_as_good_as_no_other_one(thresholds):
    nothing = np.zeros(N)
    found = evidence(model=nothing, popularity=nothing, blessed_model=nothing)
    assert not judge(bless(**thresholds), found).blessed


def test_a_slice_below_the_limit_cannot_be_judged():
    rules = (BlessRule(metric="mrr", slice="odd", over={"popularity": 1.0}),)
    found = evidence(model=2 * BASE, popularity=BASE)
    asked = bless(at_least=0.01, rules=rules)
    assert judge(asked, found).blessed
    verdict = judge(asked, dataclasses.replace(found, small_slice=N // 2 + 1))
    assert not verdict.blessed
    assert f"{N // 2} users are too few" in verdict.reasons[1]


@pytest.mark.parametrize(("times", "is_warned"), [(0.9, True), (1.0, False), (1.1, False)])
@pytest.mark.parametrize("title", ["popularity", "iALS"])
def test_a_model_that_is_worse_than_a_baseline_is_warned_of_whatever_is_asked(
    title, times, is_warned
):
    others = {"popularity": 0.5 * BASE, "ials": 0.5 * BASE, title.lower(): BASE}
    found = evidence(model=times * BASE, **others)
    verdict = judge(bless(at_least=0.01), dataclasses.replace(found, cures={"ials": "dim: 8"}))
    assert verdict.blessed
    assert verdict.warning.startswith(f"Worse than {title}: mrr is 0.1") == is_warned
    assert bool(verdict.warning) == is_warned
    assert ("dim: 8" in verdict.warning) == (is_warned and title == "iALS")


def test_a_model_that_is_not_surely_worse_than_popularity_is_not_warned_of():
    noise = np.random.default_rng(1).normal(0.0, 0.2, N)
    found = evidence(model=BASE - 0.001 + noise - noise.mean(), popularity=BASE)
    assert not judge(bless(at_least=0.01), found).warning


def test_a_first_model_needs_no_other_one_but_something_to_reach():
    found = evidence(model=BASE)
    verdict = judge(bless(over_blessed=0.9), found)
    assert not verdict.blessed
    assert "there are no thresholds" in verdict.sentence
    verdict = judge(bless(over_blessed=0.9, at_least=0.1), found)
    assert verdict.blessed
    assert any("blessed model" in reason for reason in verdict.reasons)
    assert any("no baseline was measured" in reason for reason in verdict.reasons)


def test_a_baseline_that_could_not_be_measured_blesses_nothing():
    found = evidence(left_out={"item_knn": "it has no events"}, model=BASE)
    verdict = judge(bless(at_least=0.01, over={"item_knn": 1.0}), found)
    assert not verdict.blessed
    assert any("it has no events" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("name", "words"),
    [("no such slice", "these data have no such slice"), ("late", "1 user is too few")],
)
def test_a_slice_that_cannot_be_judged_blesses_nothing(name, words):
    rules = (BlessRule(metric="mrr", slice=name, at_least=0.001),)
    verdict = judge(bless(at_least=0.01, rules=rules), evidence(model=BASE))
    assert not verdict.blessed
    assert words in verdict.reasons[1]


def test_a_rule_on_a_slice_looks_at_that_slice_alone():
    better = np.where(np.arange(N) % 2, 0.8, 2.0) * BASE
    found = evidence(model=better, popularity=BASE)
    rules = (BlessRule(metric="mrr", slice="odd", over={"popularity": 1.0}),)
    verdict = judge(bless(over={"popularity": 1.0}, rules=rules), found)
    assert [rule.passed for rule in verdict.rules] == [True, False]
    assert "−20.0 % mrr of 'odd' over popularity" in verdict.sentence


def test_sampled_figures_never_bless():
    verdict = judge(bless(at_least=0.01), evidence(sampled=100, model=BASE))
    assert not verdict.blessed
    assert "random items decide nothing" in verdict.sentence


def test_over_a_baseline_of_zero_a_model_with_something_is_better():
    found = evidence(model=BASE, popularity=np.zeros(N))
    verdict = judge(bless(over={"popularity": 1.5}), found)
    assert verdict.blessed
    assert f"that of popularity 0.0000: {BASE.mean():+.4f}" in verdict.reasons[0]


NOISE = np.random.default_rng(2).normal(0.0, 0.04, N)
DEFAULT = BlessConfig(metric="mrr")


def noisy(times):
    """A model that is so many times as good as `BASE`, with an interval about ±2 %."""
    return times * BASE + NOISE - NOISE.mean()


def test_a_model_that_beats_popularity_but_not_another_baseline_is_refused():
    # As on Last.fm play counts: twice as good as popularity, 24 to 31 % below iALS.
    found = evidence(model=noisy(0.73), popularity=0.35 * BASE, item_knn=0.97 * BASE, ials=BASE)
    verdict = judge(DEFAULT, found)
    assert not verdict.blessed
    assert "−27.0 % mrr over iALS, the strongest baseline, 95 % interval −2" in verdict.sentence
    assert verdict.sentence.endswith("significantly worse; refused")
    [failed] = [rule for rule in verdict.rules if not rule.passed]
    assert (failed.against, failed.is_strongest) == ("ials", True)
    assert "--set bless.sure_loss=allow --set bless.over_strongest=0.7" in failed.text


def test_a_sure_loss_within_the_margin_is_refused_unless_it_is_allowed():
    found = evidence(model=noisy(0.93), popularity=0.35 * BASE, ials=BASE)
    refused = judge(DEFAULT, found)
    assert not refused.blessed
    assert "significantly worse (to push it anyway: --set bless.sure_loss=allow)" in (
        refused.rules[-1].text
    )
    allowed = judge(DEFAULT.model_copy(update={"sure_loss": "allow"}), found)
    assert allowed.blessed
    assert "−7.0 % mrr over iALS, the strongest baseline" in allowed.sentence
    assert allowed.sentence.endswith("significantly worse; blessed")


def test_the_margin_can_be_set():
    found = evidence(model=noisy(0.73), popularity=0.35 * BASE, ials=BASE)
    pushed = {"over_strongest": 0.7, "sure_loss": "allow"}
    assert judge(DEFAULT.model_copy(update=pushed), found).blessed
    assert not judge(DEFAULT.model_copy(update={"sure_loss": "allow"}), found).blessed
    nothing = {"over_strongest": 0.0, "sure_loss": "allow"}
    verdict = judge(DEFAULT.model_copy(update=nothing), found)
    assert verdict.blessed
    assert not any(rule.is_strongest for rule in verdict.rules)


def test_a_model_like_the_shipped_one_is_blessed_and_told_beside_the_strongest():
    # Its interval over iALS is about -7 % to +15 %.
    noise = np.random.default_rng(4).normal(0.0, 0.6 * BASE.mean(), N)
    found = evidence(model=1.04 * BASE + noise - noise.mean(), popularity=0.65 * BASE, ials=BASE)
    verdict = judge(DEFAULT, found)
    [rule] = [rule for rule in verdict.rules if rule.is_strongest]
    assert -0.1 < rule.interval[0] < 0 < rule.interval[1]
    assert verdict.blessed
    assert verdict.sentence.startswith("+4.0 % mrr over iALS, the strongest baseline, 95 %")
    assert verdict.sentence.endswith("; blessed")


def test_a_baseline_that_was_not_measured_is_not_the_strongest():
    found = evidence(left_out={"ials": "too many items"}, model=noisy(1.0), popularity=0.5 * BASE)
    verdict = judge(DEFAULT, found)
    assert verdict.blessed
    assert "over popularity, the strongest baseline" in verdict.sentence


def keys_of(text):
    """Returns the thresholds that a ruling's text says to set."""
    words = re.findall(r"--set bless\.(\w+)=([\w.]*)", text)
    return {name: value if name == "sure_loss" else float(value) for name, value in words}


@pytest.mark.parametrize(
    ("thresholds", "model"),
    [
        ({}, noisy(0.73)),
        ({}, noisy(0.93)),
        ({"over_strongest": 1.0}, BASE),
        ({"over_strongest": 1.0, "sure_loss": "allow"}, noisy(1.0)),
    ],
    ids=["a large loss", "a small loss", "a tie that isn't enough", "a chance of a loss"],
)
def test_the_keys_that_a_refusal_names_push_the_model(thresholds, model):
    asked = DEFAULT.model_copy(update=thresholds)
    found = evidence(model=model, popularity=0.35 * BASE, ials=BASE)
    refused = judge(asked, found)
    assert not refused.blessed
    keys = keys_of(refused.rules[-1].text)
    assert keys
    assert judge(asked.model_copy(update=keys), found).blessed


@pytest.mark.parametrize(
    "subjects",
    [
        {"model": noisy(0.5), "popularity": BASE},
        {"model": noisy(0.5), "popularity": 0.1 * BASE, "ials": BASE, "blessed_model": BASE},
        {"model": 0.0 * BASE, "popularity": 0.0 * BASE},
        {"model": np.where(np.arange(N) < 5, BASE, np.nan), "popularity": BASE},
        {"sampled": 100, "model": noisy(0.5), "popularity": 0.1 * BASE, "ials": BASE},
    ],
    ids=["below popularity too", "below what is served too", "nothing", "few users", "sampled"],
)
def test_a_refusal_that_has_other_reasons_too_names_no_keys(subjects):
    verdict = judge(DEFAULT, evidence(**subjects))
    assert not verdict.blessed
    assert not any("--set" in text for text in [verdict.sentence, *verdict.reasons])


def losses(noise=0.0, **means):
    """Figures of subjects with a mean loss over users, of which lower values are better."""
    values = {name: np.full(N, float(mean)) for name, mean in means.items()}
    values["model"] = values["model"] + noise
    return evidence(lower=["mrr"], **values)


@pytest.mark.parametrize(
    ("asked", "loss", "blessed"),
    [
        ({"over": {"popularity": 1.0}}, 0.49, True),
        ({"over": {"popularity": 1.0}}, 0.5, False),
        ({"over": {"popularity": 1.2}}, 0.39, True),
        ({"over": {"popularity": 1.2}}, 0.41, False),
        ({"over_blessed": 1.0}, 0.4, True),
        ({"over_blessed": 0.9}, 0.44, True),
        ({"over_blessed": 0.9}, 0.45, False),
        ({"over_blessed": 0.9}, 0.0, True),
        ({"over_strongest": 0.8}, 0.35, True),
        ({"over_strongest": 0.8}, 0.37, False),
        ({"over": {"popularity": 0.5}, "sure_loss": "refuse"}, 0.31, False),
        ({"over": {"popularity": 0.5}, "sure_loss": "refuse"}, 0.29, True),
    ],
)
def test_a_loss_must_be_low_enough(asked, loss, blessed):
    found = losses(model=loss, popularity=0.5, blessed_model=0.4, ials=0.3)
    verdict = judge(bless(**asked), found)
    assert verdict.blessed is blessed
    assert {rule.against for rule in verdict.rules if rule.is_strongest} <= {"ials"}


def test_the_upper_end_of_a_loss_decides():
    noise = np.random.default_rng(1).normal(0.0, 0.2, N)
    draws = np.random.default_rng(3).integers(0, N, (4000, N))
    upper = np.quantile((0.4 + noise)[draws].mean(axis=1), 0.975)
    for other, blessed in ((upper + 0.002, True), (upper - 0.002, False)):
        found = losses(model=0.4, noise=noise, popularity=other)
        verdict = judge(bless(over={"popularity": 1.0}), found)
        assert verdict.rules[0].value < other
        assert verdict.blessed is blessed


def test_a_loss_that_is_surely_above_the_strongest_baseline_says_so():
    found = losses(model=0.36, popularity=0.5, ials=0.3)
    verdict = judge(DEFAULT.model_copy(update={"over_strongest": 0.0}), found)
    assert not verdict.blessed
    assert verdict.sentence.startswith("+20.0 % mrr over iALS, the strongest baseline")
    assert verdict.sentence.endswith("significantly worse; refused")
    assert judge(bless(over={"ials": 0.1}), losses(model=0.6, popularity=0.5, ials=0.4)).warning
