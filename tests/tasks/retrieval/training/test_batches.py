"""Training batches: every event once an epoch, the same again for the same seed."""

import numpy as np
import pytest
from batch_sources import N_ITEMS, N_USERS, again, included, make, make_log, small_source
from hypothesis import given
from hypothesis import strategies as st

from recsys.config import TrainConfig, TwoTowerConfig
from recsys.data.catalogue import Catalogue
from recsys.data.hold_out import KeptEvents
from recsys.errors import RecsysError
from recsys.tasks.retrieval.training.batches import read_events
from recsys.training import prefetch as reader
from recsys.training.prefetch import read_ahead


@pytest.fixture(name="source")
def _source():
    return small_source()


def test_an_epoch_has_every_event_at_most_once_except_a_partial_batch(source):
    log = source.events.log
    assert source.steps_per_epoch == 10
    assert len(source) == 20
    for epoch in (0, 1):
        pairs = [
            pair
            for step in range(epoch * 10, epoch * 10 + 10)
            for pair in zip(source[step]["user_row"], source[step]["item_row"], strict=True)
        ]
        events = list(zip(log.user_row, log.item_row, strict=True))
        assert len(pairs) == 100
        for pair in set(pairs):
            assert pairs.count(pair) <= events.count(pair)


def test_epochs_differ_and_a_seed_repeats(source):
    same, other = again(source), again(source, seed=4)
    assert not np.array_equal(source[0]["item_row"], source[10]["item_row"])
    for name, values in source[7].items():
        assert np.array_equal(values, same[7][name])
    assert not np.array_equal(source[7]["item_row"], other[7]["item_row"])


def test_log_q_is_the_log_of_the_probability_to_be_in_a_batch(source):
    batch = source[0]
    items = np.asarray(source.events.log.item_row)
    expected = [included(((items == row).mean(), 10)) for row in batch["item_row"]]
    assert np.allclose(batch["log_q"], np.log(expected), rtol=1e-6)
    assert batch["log_q"].dtype == np.float32


def test_negatives_come_from_the_whole_catalogue_and_log_q_counts_both_ways_in(source):
    mixed = again(source, uniform_negatives=30)
    plain, items = source[3], np.asarray(source.events.log.item_row)
    drawn = np.concatenate([mixed[step]["item_row"][10:] for step in range(20)])
    assert set(drawn) == set(range(1, N_ITEMS))
    batch = mixed[3]
    assert mixed.n_candidates == len(batch["item_row"]) == 40
    assert len(batch["user_row"]) == 10
    assert np.array_equal(batch["item_row"][:10], plain["item_row"])
    # 10 items come from events, 30 from the 19 items evenly.
    share = [included(((items == row).mean(), 10), (1 / 19, 30)) for row in batch["item_row"]]
    assert np.allclose(batch["log_q"], np.log(share), rtol=1e-6)
    bags = source.catalogue.features[0].bags
    assert np.array_equal(batch["genres"], bags[batch["item_row"]])


def test_a_drawn_item_without_events_has_no_row_of_its_own(source):
    log = source.events.log
    columns = [log.user_row, log.item_row, log.timestamp]
    without = np.asarray(log.item_row) != 7
    log = make_log(*(np.asarray(column)[without] for column in columns))
    mixed = make(log, source.catalogue, uniform_negatives=30)
    batches = [mixed[step] for step in range(len(mixed))]
    item_row, id_row = (
        np.concatenate([batch[name] for batch in batches]) for name in ("item_row", "id_row")
    )
    assert (item_row == 7).sum() > 10
    assert not id_row[item_row == 7].any()
    assert np.array_equal(id_row[item_row != 7], item_row[item_row != 7])


def test_dropout_hides_ids_and_never_the_item_that_the_loss_needs(source):
    hidden = again(source, id_dropout=0.5)
    plain, dropped = source[0], hidden[0]
    assert np.array_equal(plain["item_row"], dropped["item_row"])
    for name, true in (("user_row", plain["user_row"]), ("id_row", plain["item_row"])):
        kept = dropped[name] != 0
        assert 0 < kept.sum() < len(kept)
        assert np.array_equal(dropped[name][kept], true[kept])


@pytest.mark.parametrize(("of_all", "of_items"), [(0.0, 0.5), (0.5, 0.0)])
def test_ids_of_items_may_be_dropped_by_a_separate_share(source, of_all, of_items):
    batch, plain = again(source, id_dropout=of_all, item_id_dropout=of_items)[0], source[0]
    for name, share in (("user_row", of_all), ("id_row", of_items)):
        is_hidden = (batch[name] == 0) & (plain[name] > 0)
        assert is_hidden.any() == (share > 0)
        assert np.array_equal(batch[name][~is_hidden], plain[name][~is_hidden])


def test_dropout_of_a_history_leaves_a_share_of_it_out(source):
    dropping = again(source, history_dropout=0.3)
    plain, dropped = (
        np.concatenate([s[step]["history"] for step in range(20)]) for s in (source, dropping)
    )
    kept = dropped[plain > 0] > 0
    assert np.array_equal(dropped[dropped > 0], plain[dropped > 0])
    # About 700 entries: four standard deviations are 0.07.
    assert kept.mean() == pytest.approx(0.7, abs=0.07)
    assert np.array_equal(dropping[5]["history"], dropping[5]["history"])


def test_a_new_user_has_neither_id_nor_history(source):
    all_new = again(source, new_user_share=0.999)
    batch = all_new[0]
    assert not batch["user_row"].any()
    assert not batch["history"].any()


RANDOM = {
    "id_dropout": 0.3,
    "new_user_share": 0.3,
    "history_dropout": 0.2,
    "uniform_negatives": 7,
    "negative_power": 0.5,
    "known_positives": 3,
}


@pytest.mark.parametrize("first_step", [0, 3, 9, 10, 17, 19, 20])
@pytest.mark.parametrize("block", [10, 30, 70, 1000])
def test_grain_reads_the_same_batches_in_order_from_any_step(
    source, monkeypatch, first_step, block
):
    monkeypatch.setattr(reader, "_BLOCK_EXAMPLES", block)
    random = again(source, **RANDOM)
    read = [batch for (batch,) in read_ahead(random, first_step)]
    assert len(read) == 20 - first_step
    for step, batch in zip(range(first_step, 20), read, strict=True):
        alone = random[step]
        assert batch.keys() == alone.keys()
        for name, values in batch.items():
            assert np.array_equal(values, alone[name])
            assert values.dtype == alone[name].dtype


@pytest.mark.parametrize(("first", "end"), [(0, 0), (0, 1), (2, 9), (5, 10), (8, 13), (0, 99)])
@pytest.mark.parametrize("block", [10, 70])
def test_grain_reads_up_to_a_step_and_no_further(source, monkeypatch, first, end, block):
    monkeypatch.setattr(reader, "_BLOCK_EXAMPLES", block)
    read = [batch["item_row"] for (batch,) in read_ahead(source, first, end)]
    expected = [source[step]["item_row"] for step in range(first, min(end, 20))]
    assert len(read) == len(expected)
    assert np.array_equal(np.array(read), np.array(expected))


def test_blocks_of_many_candidates_hold_few_batches(source, monkeypatch):
    monkeypatch.setattr(reader, "_BLOCK_CANDIDATES", 100)
    mixed = again(source, uniform_negatives=30)
    blocks = reader._Blocks(mixed, 0, 20)
    assert [len(blocks[number]) for number in range(len(blocks))] == [1, 1] + [2] * 9


def test_weights_come_with_their_events(source):
    user = np.arange(1, 40) % (N_USERS - 1) + 1
    item = np.arange(1, 40) % (N_ITEMS - 1) + 1
    log = make_log(user, item, np.arange(39), weight=(100 * user + item).astype(np.float32))
    batch = make(log, source.catalogue, uniform_negatives=5)[2]
    expected = 100 * batch["user_row"] + batch["item_row"][:10]
    assert batch["weight"].dtype == np.float32
    assert batch["weight"].tolist() == expected.tolist()
    assert "weight" not in source[0]


def test_rows_that_are_no_items_are_never_drawn(source):
    ids = [*source.catalogue.ids]
    ids[1] = ids[2] = ids[9] = ""  # Two hash rows, and a free one.
    mixed = make(source.events.log, Catalogue(ids, ids, ()), uniform_negatives=40)
    drawn = np.concatenate([mixed[step]["item_row"][10:] for step in range(20)])
    assert set(drawn.tolist()) == set(range(1, N_ITEMS)) - {1, 2, 9}
    batch = mixed[3]
    items = np.asarray(source.events.log.item_row)
    drawn_share = {row: 0.0 if row in (1, 2, 9) else 1 / 16 for row in range(N_ITEMS)}
    share = [
        included(((items == row).mean(), 10), (drawn_share[row], 40)) for row in batch["item_row"]
    ]
    assert np.allclose(batch["log_q"], np.log(share), rtol=1e-6)


def test_a_batch_larger_than_the_data_names_the_setting(source):
    with pytest.raises(RecsysError, match=r"R320.*train\.batch_size.*103"):
        again(source, batch_size=104)


# --- against a slow loop, with and without events held back


@st.composite
def logs(draw):
    """A log of a few users and short times, so that many are tied, and what is held back."""
    n = draw(st.integers(2, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    user, item = rng.integers(0, N_USERS, n), rng.integers(0, N_ITEMS, n)
    log = make_log(user, item, rng.integers(0, draw(st.integers(1, 30)), n))
    border = draw(st.integers(0, 30))
    held = np.flatnonzero(np.asarray(log.timestamp) >= border)
    if draw(st.booleans()):  # Anywhere, as a random share is.
        held = np.flatnonzero(rng.random(n) < draw(st.floats(0.0, 1.0)))
    return log, held[: n - 1]


CATALOGUE = Catalogue(["", *(f"i{n}" for n in range(1, N_ITEMS))], [""] * N_ITEMS, ())


def slow_examples(log, held):
    """Each kept event's user, item, past, others and known, the newest first, by a loop."""
    kept = [place for place in range(len(log)) if place not in set(held.tolist())]
    times, items = np.asarray(log.timestamp), np.asarray(log.item_row)
    users = log.user_index(np.arange(len(log)))
    for place in kept:
        own = [other for other in kept[::-1] if users[other] == users[place]]
        past = [items[other] for other in own if times[other] < times[place]]
        asked = items[place]
        others = [i if (i := items[o]) != asked else 0 for o in own if o != place]
        known = [items[other] for other in own]
        yield (log.user_row[place], items[place]), past, others, known


def padded(rows, length):
    return tuple(int(row) for row in [*rows[:length], *[0] * (length - len(rows))])


@given(logs(), st.sampled_from(["past", "others"]), st.integers(1, 6), st.integers(1, 6))
def test_examples_are_those_of_a_slow_loop(log_and_held, history_of, history, known):
    log, held = log_and_held
    source = make(
        log,
        CATALOGUE,
        held,
        history_of=history_of,
        history=history,
        known_positives=known,
        batch_size=1,
        epochs=1,
    )
    read = [source[step] for step in range(len(source))]
    found = [
        (
            (*batch["user_row"], *batch["item_row"]),
            padded(batch["history"][0], history),
            padded(batch["known"][0], known),
        )
        for batch in read
    ]
    expected = [
        (pair, padded(past if history_of == "past" else others, history), padded(own, known))
        for pair, past, others, own in slow_examples(log, held)
    ]
    assert sorted(found) == sorted(expected)
    assert read[0]["known"].dtype == read[0]["history"].dtype == np.int32


@given(logs())
def test_what_is_held_back_is_in_no_count(log_and_held):
    log, held = log_and_held
    source = make(log, CATALOGUE, held, batch_size=1, uniform_negatives=2)
    items, users = np.asarray(log.item_row), np.asarray(log.user_row)
    kept = np.delete(np.arange(len(log)), held)
    assert source.events.item_counts(N_ITEMS).tolist() == (
        np.bincount(items[kept], minlength=N_ITEMS).tolist()
    )
    assert source.events.user_counts(N_USERS).tolist() == (
        np.bincount(users[kept], minlength=N_USERS).tolist()
    )
    assert source.events.n_users == len(np.unique(users[kept]))
    batch = source[0]
    drawn_share = np.where(np.arange(N_ITEMS) > 0, 1 / (N_ITEMS - 1), 0.0)
    share = [
        included(((items[kept] == row).mean(), 1), (drawn_share[row], 2))
        for row in batch["item_row"]
    ]
    with np.errstate(divide="ignore"):
        expected = np.log(share)
    assert np.allclose(batch["log_q"], expected, rtol=1e-6)


def test_known_positives_are_left_out_where_none_are_requested(source):
    assert "known" not in source[0]


def test_a_users_examples_weigh_less_the_more_there_are():
    source = again(small_source(), user_balance=0.5)
    n_events = np.bincount(np.asarray(source.events.log.user_row))
    for step in range(3):
        batch = source[step]
        assert batch["weight"] == pytest.approx(n_events[batch["user_row"]] ** -0.5)
    assert len(set(n_events[1:])) > 1


def test_an_example_weighs_half_after_as_many_newer_events():
    """Users in any order, events with weights, and without held-back events."""
    time = np.array([10, 30, 30, 70, 20, 40, 50, 60, 90, 80])
    user, item = np.repeat([1, 2], 5), np.arange(1, 11)
    held = np.array([8])
    log = make_log(user, item, time, weight=np.arange(1, 11))
    read = read_events(
        KeptEvents(log, held), np.arange(9), TwoTowerConfig(), TrainConfig(half_life=1 / 3)
    )
    times, weights = np.delete(log.timestamp[:], held), np.delete(log.weight[:], held)
    newer = (times[None, :] > times[:, None]).sum(axis=1)
    np.testing.assert_allclose(read["weight"], weights * 0.5 ** (newer / 3), rtol=1e-6)
    assert sorted(newer) == [0, 1, 2, 3, 4, 5, 5, 7, 8]


def test_of_many_events_a_sample_says_how_many_are_newer(monkeypatch):
    monkeypatch.setattr("recsys.data.hold_out._MOST_TIMES", 100)
    rng = np.random.default_rng(0)
    user, time = rng.integers(1, N_USERS, 2000), rng.integers(0, 10**9, 2000)
    events = KeptEvents(make_log(user, np.ones(2000, int), time))
    assert 100 <= len(events.times) <= 102
    at = rng.integers(0, 10**9, 200)
    exact = (time[None, :] > at[:, None]).mean(axis=1)
    assert np.abs(events.newer_share(at) - exact).max() < 0.2
    assert np.abs(events.newer_share(at) - exact).mean() < 0.06
