"""Ages of items: births, moments and g by numpy, in the score, and in a world of new items."""

import numpy as np
import pytest
from baseline_worlds import log_of, random_histories
from hypothesis import given
from hypothesis import strategies as st
from tower_models import ITEMS, batch, build, run, trained
from training_runs import on_devices

from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import TrainConfig, TwoTowerConfig
from recsys.data.dataset import open_data
from recsys.data.event_log import OLDEST
from recsys.data.hold_out import KeptEvents
from recsys.data.split import SplitRule
from recsys.errors import UsageError
from recsys.models import ModelSpec, TwoTower
from recsys.models.config import ItemAgeConfig
from recsys.models.terms.item_age import KNOTS, ItemAge, item_births, moments
from recsys.training.trainer import Trainer

MINUTE, DAY = 60, 86_400
AGED = ItemAgeConfig(bins=6)


def events_of(seed, n_shards=1, n_held=0):
    """Returns events at random times, and when and of what each kept one is, in minutes."""
    rng = np.random.default_rng(seed)
    histories = random_histories(seed, n_users=12, n_items=9, longest=7)
    times = [np.sort(rng.integers(0, 500 * MINUTE, len(items))) for items in histories]
    log = log_of(histories, times, n_shards=n_shards)
    held = np.sort(rng.choice(len(log), n_held, replace=False))
    kept = np.delete(np.arange(len(log)), held)
    return KeptEvents(log, held), log.timestamp[kept] // 60, log.item_row[kept]


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3), st.integers(0, 4))
def test_births_and_moments_are_those_of_the_kept_events(seed, n, n_shards, n_held):
    events, minute, item = events_of(seed, n_shards, n_held)
    births = item_births(events, 12)
    assert births.dtype == np.int32
    for row in range(12):
        own = minute[item == row]
        assert births[row] == (own.min() if len(own) and row else -1)
    found = moments(events, n)
    assert (found.shape, found.dtype) == ((n,), np.int32)
    assert found[-1] == minute.max() + 1
    # As many events before the first as between one and the next, but for the rounding.
    before = [(minute < moment).sum() for moment in found[:-1]]
    upto = [(minute <= moment).sum() for moment in found[:-1]]
    expected = np.arange(1, n) * len(minute) / n
    assert (np.array(before, float) <= expected).all()
    assert (np.array(upto) + 1 >= expected).all()


def test_of_many_events_moments_are_found_by_a_sample(monkeypatch):
    monkeypatch.setattr("recsys.data.hold_out._MOST_TIMES", 10)
    log = log_of([[1] * 100], [np.arange(100) * MINUTE])
    assert moments(KeptEvents(log), 5).tolist() == [20, 40, 60, 80, 100]


def layer_of(births, at, seed=0):
    """Returns a layer with these births and moments, its other numbers random."""
    rng = np.random.default_rng(seed)
    config = TwoTowerConfig(item_age=ItemAgeConfig(bins=len(at)))
    spec = ModelSpec(config=config, user_rows=1, item_rows=len(births), features=())
    layer = ItemAge(config.item_age, spec)
    layer.build()
    layer.births.assign(np.array(births, np.int32))
    layer.moments.assign(np.array(at, np.int32))
    layer.at_knots.assign(rng.normal(size=16))
    layer.unseen.assign(rng.normal(size=1))
    return layer


def test_an_item_has_g_of_its_age_at_each_moment_and_one_value_before():
    births = [-1, 0, 100, 5_000_000, -1]
    at = [0, 1, 100, 101, 60_000, 9_000_000, OLDEST // 60]
    layer = layer_of(births, at)
    g, unseen = np.asarray(layer.at_knots.value), float(layer.unseen.value[0])
    age = np.array(at)[None, :] - np.array(births)[:, None]
    by_numpy = np.interp(np.log1p(age.clip(0) / 60), np.log1p(KNOTS / 60), g)
    was_seen = (age > 0) & (np.array(births)[:, None] >= 0)
    expected = np.where(was_seen, by_numpy, unseen)
    found = layer.of_items(np.arange(5))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert was_seen[1:4].any(axis=0).sum() == 6  # Each case is there.
    assert not was_seen[[0, 4]].any()
    assert KNOTS[0] == 0
    assert KNOTS[-1] == pytest.approx(OLDEST / 60)


def test_a_question_reads_the_last_moment_that_is_not_after_it():
    layer = layer_of([-1, 0], [10, 20, 20, 30])
    asked = np.array([0, 9, 10, 19, 20, 29, 30, 2**31 - 1, -1], np.int32)
    found = np.asarray(layer.at_moment(asked))
    places = np.searchsorted([10, 20, 20, 30], np.where(asked < 0, 2**31 - 1, asked), "right") - 1
    assert places.tolist() == [-1, -1, 0, 0, 2, 2, 3, 3, 3]
    np.testing.assert_array_equal(found, np.arange(4) == places[:, None])


@given(st.integers(0, 10**6), st.integers(2, 7))
def test_what_comes_later_changes_no_number_of_a_moment(seed, n):
    """An item's later events, and its birth itself, say nothing to questions before them."""
    events, minute, item = events_of(seed)
    at = moments(events, n)
    whole = layer_of(item_births(events, 12), at)
    numbers = np.asarray(whole.of_items(np.arange(12)))
    for place, moment in enumerate(at):
        seen = minute < moment
        log = log_of([item[seen].tolist()], [np.sort(minute[seen]) * MINUTE])
        births = np.full(12, -1)
        for row in {*item[seen].tolist()} - {0}:
            births[row] = minute[seen & (item == row)].min()
        assert len(log) == seen.sum()
        then = layer_of(births, at)
        np.testing.assert_array_equal(np.asarray(then.of_items(np.arange(12)))[:, place],
                                      numbers[:, place])  # fmt: skip


def aged(similarity="cosine", **options):
    """Returns a model with random weights, whose items were born at its moments."""
    model = build(widths=None, similarity=similarity, item_age=AGED, **options)
    layer = model.terms["item_age"]
    layer.moments.assign(np.arange(100, 700, 100))
    layer.births.assign(np.array([-1, *np.linspace(0, 650, ITEMS - 1)], np.int32))
    return model


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_the_dot_product_is_similarity_bias_and_age(similarity):
    model, x = aged(similarity, item_bias=True), batch()
    x["asked_at"] = np.array([0, 100, 250, 399, 400, 601, 5000, -1], np.int32)
    x["id_row"] = np.arange(ITEMS, dtype=np.int32)
    query, item = (run(model, f"embed_{side}", x) for side in ("query", "candidate"))
    assert query.shape[1] == item.shape[1] == model.config.vector_dim == 8 + 1 + 6
    layer = model.terms["item_age"]
    numbers = np.asarray(layer.of_items(x["id_row"]))
    expected = query[:, :9] @ item[:, :9].T
    for n, place in enumerate([None, 0, 1, 2, 3, 5, 5, 5]):
        expected[n] += 0 if place is None else numbers[:, place]
    np.testing.assert_allclose(query @ item.T, expected, atol=1e-5)
    if similarity == "cosine":
        np.testing.assert_allclose(np.linalg.norm(item[:, :8], axis=1), 1, atol=1e-5)
    trained_on = run(model, "call", {**x, "item_row": x["id_row"]}, training=True)
    np.testing.assert_allclose(trained_on["query"][:, 9:], query[:, 9:])
    np.testing.assert_allclose(trained_on["candidate"], item, atol=1e-6)


def test_a_step_learns_ages_and_leaves_births_and_moments_alone():
    model, x = aged(), batch()
    x["asked_at"] = np.arange(8, dtype=np.int32) * 90
    layer = model.terms["item_age"]
    before = [np.asarray(v.value) for v in layer.weights]
    trained(model, [x])
    changed = [
        v.path.rsplit("/")[-1]
        for v, was in zip(layer.weights, before, strict=True)
        if (np.asarray(v.value) != was).any()
    ]
    assert changed == ["at_knots", "unseen"]


# --- a world where an item is taken for three days after its first event, and never again

DAYS, BORN, TAKEN_FOR, PER_DAY = 40, 4, 3, 30


def write_world(folder):
    """Writes the events of `DAYS` days: `PER_DAY` new users a day take 3 of the newest items."""
    rng = np.random.default_rng(2)
    lists, times = [], []
    for day in range(DAYS):
        newest = np.arange(max(0, day - TAKEN_FOR + 1) * BORN, (day + 1) * BORN)
        for _ in range(PER_DAY):
            lists.append(rng.choice(newest, 3, replace=False).tolist())
            times.append(np.sort(day * DAY + rng.integers(0, DAY, 3)))
    write_data_folder(Csr.of_lists(lists, DAYS * BORN), folder, times=np.concatenate(times))


def fitted(folder, checkpoints, half_life=None, **options):
    config = TwoTowerConfig(
        dim=8, history=4, widths=None, item_bias=True, table_placement="row", **options
    )
    train = TrainConfig(
        batch_size=128,
        uniform_negatives=64,
        epochs=4,
        validation=None,
        tower_learning_rate=0.05,
        half_life=half_life,
    )
    data = open_data(folder)
    model = TwoTower.from_config(config, data)
    with on_devices(1):
        Trainer(train, checkpoints=checkpoints, verbose=0).fit(model, data)
    return model


def best_of_a_stranger(model, n, asked_at=-1):
    """Returns the item rows that score best for who has no history."""
    asked = {"user_row": np.zeros(1, np.int32), "history": np.zeros((1, 4), np.int32)}
    asked |= {"asked_at": np.array([asked_at], np.int32)} if model.config.item_age else {}
    rows = np.arange(1, DAYS * BORN + 1, dtype=np.int32)
    query, items = run(model, "embed_query", asked), run(model, "embed_candidate", {"id_row": rows})
    return 1 + np.argsort(-(query @ items.T)[0])[:n]


def test_where_recency_alone_decides_a_model_with_ages_finds_the_newest_items(tmp_path):
    write_world(tmp_path / "data")
    n = BORN * (TAKEN_FOR - 1)  # Those that are still taken on the next day.
    newest = DAYS * BORN + 1 - n
    plain = best_of_a_stranger(fitted(tmp_path / "data", tmp_path / "plain"), n)
    model = fitted(tmp_path / "data", tmp_path / "aged", item_age=ItemAgeConfig(bins=DAYS))
    found = best_of_a_stranger(model, n)
    assert (plain >= newest).mean() <= 0.5
    assert (found >= newest).mean() >= 0.8
    # On another day others were new.
    then = best_of_a_stranger(model, n, asked_at=20 * DAY // 60)
    assert ((then > 17 * BORN) & (then <= 20 * BORN)).mean() >= 0.8


@pytest.mark.thorough
def test_weights_of_two_days_half_life_find_what_was_taken_most_of_late(tmp_path):
    """Which isn't the newest."""
    write_world(tmp_path / "data")
    n = BORN * (TAKEN_FOR - 1)
    plain = best_of_a_stranger(fitted(tmp_path / "data", tmp_path / "plain"), n)
    weighed = fitted(tmp_path / "data", tmp_path / "weighed", half_life=2 / DAYS)
    assert (plain > (DAYS - 6) * BORN).mean() <= 0.5
    assert (best_of_a_stranger(weighed, n) > (DAYS - 6) * BORN).mean() >= 0.8


@pytest.mark.parametrize(
    ("key", "options"),
    [("model.item_age", {"item_age": AGED}), ("train.half_life", {"half_life": 0.1})],
)
def test_events_without_times_are_refused(key, options, tmp_path):
    by_place = SplitRule(split="last_out", order="file")
    write_data_folder(Csr.of_lists([[0, 1, 2]] * 9, 3), tmp_path / "data", rule=by_place)
    with pytest.raises(UsageError, match=rf"R336.*{key} needs events that have times"):
        fitted(tmp_path / "data", tmp_path / "run", **options)
