"""Packed sequences: what each example reads, with which probabilities, and in which order."""

import dataclasses

import numpy as np
import pytest
from batch_sources import N_ITEMS, N_USERS, PLAIN, make_log
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.config import RESERVED_FEATURE_NAMES, TrainConfig, TwoTowerConfig
from recsys.data.catalogue import Catalogue
from recsys.data.hold_out import KeptEvents
from recsys.errors import RecsysError
from recsys.models.config import SasRecConfig
from recsys.tasks.retrieval.training.sequences import NO_STATE, SequenceSource, _row_shares
from recsys.training.prefetch import read_ahead

NO_DROPOUT = {"history_dropout": 0.0}


def make(user, item, time, held=(), multiple=1, more=None, n_items=N_ITEMS, **changes):
    options = {"pooling": SasRecConfig(), **PLAIN, **changes}
    names = [name for name in options if name in TwoTowerConfig.model_fields]
    model = TwoTowerConfig(**{name: options.pop(name) for name in names})
    ids = ["", *(f"i{n}" for n in range(1, n_items))]
    log = make_log(user, item, time, **(more or {}))
    kept = KeptEvents(log, np.array(sorted(held), np.int64))
    return SequenceSource(
        kept, Catalogue(ids, ids, ()), model, TrainConfig(**options), multiple=multiple
    )


def some_events(n=103, seconds=200, seed=0):
    rng = np.random.default_rng(seed)
    columns = (rng.integers(1, N_USERS, n), rng.integers(1, N_ITEMS, n))
    return *columns, rng.integers(0, seconds, n)


def examples(batch):
    """Yields user row, item and visible history of each example, the newest first."""
    new = batch["at"].shape[1]
    for number, at in enumerate(batch["at"].ravel()):
        row = number // new
        visible = []
        if at != NO_STATE:
            mine = batch["segment"][row] == batch["segment"][row, at]
            visible = [i for i in batch["history"][row, at:][mine[at:]].tolist() if i]
        yield int(batch["user_row"][number]), int(batch["item_row"][number]), visible


def pasts(log, held, others=()):
    """The kept items of each user in earlier seconds, the newest first, by (user, time, item)."""
    places = [place for place in range(len(log)) if place not in held]
    columns = (log.user_row, log.timestamp, log.item_row)
    kept = [tuple(int(column[place]) for column in columns) for place in places]
    by_event, all_kept = {}, sorted([*kept, *others])
    for user, time, item in kept:
        before = [i for u, t, i in all_kept if u == user and t < time][::-1]
        by_event.setdefault((user, item), []).append(before)
    return by_event


@settings(max_examples=25, deadline=None)
@given(
    seconds=st.sampled_from([3, 20, 500]),
    history=st.integers(2, 9),
    overlap=st.sampled_from([0.0, 0.25, 0.8]),
    n_held=st.sampled_from([0, 20]),
    n_others=st.sampled_from([0, 40]),
    seed=st.integers(0, 10**6),
)
def test_an_example_sees_the_newest_items_of_its_own_past_and_nothing_else(
    seconds, history, overlap, n_held, n_others, seed
):
    user, item, time = some_events(seconds=seconds, seed=seed)
    held = set(np.random.default_rng(seed).choice(63, n_held, replace=False).tolist())
    more = {"positive": np.arange(103) >= n_others} if n_others else {}
    events = user, item, time
    source = make(*events, held, more=more, history=history, window_overlap=overlap, seed=seed)
    others = zip(*(x[:n_others].tolist() for x in (user, time, item)), strict=True)
    past = pasts(source.events.log, held, others)
    for step in range(len(source)):
        for user, item, visible in examples(source[step]):
            candidates = past[user, item]
            assert any(visible == before[: len(visible)] for before in candidates)


@pytest.mark.parametrize(
    ("others", "shape", "seen"), [(0, (4, 2), [8, 7, 6, 5]), (1, (2, 5), [8, 6])]
)
def test_a_row_of_one_user_sees_as_much_as_the_overlap_promises(others, shape, seen):
    n, options = 200 * (others + 1), {"history": 8, "window_overlap": 0.5}
    time = np.arange(n)
    options["more"] = {"positive": time % 2 == 0} if others else None
    source = make(np.ones(n, int), time % (N_ITEMS - 1) + 1, time, **options)
    assert (source.new, source.rows) == shape
    lengths = [
        len(visible) for step in range(len(source)) for _, _, visible in examples(source[step])
    ]
    rows = np.reshape(lengths, (-1, len(seen)))
    # All but those at the very beginning of the data.
    assert (rows == seen).all(axis=1).sum() >= len(rows) - 2 * source.epochs
    assert (np.diff(rows, axis=1) <= 0).all()


def test_an_epoch_has_each_event_once_but_for_those_left_out_at_its_ends():
    user, item, _ = some_events()
    source = make(user, item, np.arange(103), history=6)
    for epoch in range(source.epochs):
        steps = range(epoch * source.steps_per_epoch, (epoch + 1) * source.steps_per_epoch)
        seen = [(u, i, tuple(v)) for step in steps for u, i, v in examples(source[step])]
        assert len(seen) == source.steps_per_epoch * source.batch_size
        pairs, counts = np.unique([pair[:2] for pair in seen], axis=0, return_counts=True)
        of_all = {}
        for pair in zip(user.tolist(), item.tolist(), strict=True):
            of_all[pair] = of_all.get(pair, 0) + 1
        assert all(n <= of_all[tuple(p)] for p, n in zip(pairs.tolist(), counts, strict=True))


def test_the_first_event_of_a_user_reads_no_state_and_dropped_items_are_passed_over():
    n = 60
    user = np.repeat(np.arange(1, 7), 10)
    source = make(user, np.arange(n) % 19 + 1, np.arange(n), history=5, history_dropout=0.4)
    kinds = set()
    for step in range(len(source)):
        batch = source[step]
        at, new = batch["at"], batch["at"].shape[1]
        for row in range(len(at)):
            for column in at[row][at[row] != NO_STATE]:
                assert batch["history"][row, column] > 0
        kinds |= {bool(a == NO_STATE) for a in at.ravel()}
        assert batch["history"].shape == (source.rows, 5)
        assert at.shape == (source.rows, new)
    assert kinds == {True, False}


def test_batches_are_the_same_read_alone_in_blocks_and_ahead():
    source = make(*some_events(), history=6, uniform_negatives=4, id_dropout=0.2, epochs=3)
    ahead = [batch for (batch,) in read_ahead(source, 2)]
    assert len(ahead) == len(source) - 2
    for step, batch in enumerate(ahead, start=2):
        alone = source[step]
        assert alone.keys() == batch.keys()
        for name in alone:
            np.testing.assert_array_equal(alone[name], batch[name])
    changed = make(*some_events(), history=6, uniform_negatives=4, id_dropout=0.2, seed=9)
    assert not np.array_equal(source[0]["item_row"], changed[0]["item_row"])


def test_a_state_is_never_that_of_another_user_though_all_own_items_were_dropped():
    n = 60
    user = np.repeat(np.arange(1, 7), 10)
    source = make(user, np.arange(n) % 19 + 1, np.arange(n), history=8, history_dropout=0.7)
    n_dropped = 0
    for step in range(len(source)):
        batch = source[step]
        at, segment = batch["at"], batch["segment"]
        kept = dataclasses.replace(source, model=source.model.model_copy(update=NO_DROPOUT))
        before = kept[step]["at"]
        for row, column in zip(*np.nonzero(at != NO_STATE), strict=True):
            own = segment[row, before[row, column]]
            assert segment[row, at[row, column]] == own
        n_dropped += int(((at == NO_STATE) & (before != NO_STATE)).sum())
        assert (at >= before)[at != NO_STATE].all()
    assert n_dropped > 0


def test_each_epoch_cuts_its_rows_elsewhere():
    user, item, _ = some_events()
    source = make(user, item, np.arange(103), history=8, epochs=8, batch_size=48)
    last_items = set()
    for epoch in range(source.epochs):
        steps = range(epoch * source.steps_per_epoch, (epoch + 1) * source.steps_per_epoch)
        rows = [tuple(row) for step in steps for row in source[step]["history"]]
        last_items.add(tuple(sorted(rows)))
    assert len(last_items) > 2


@pytest.mark.parametrize("n_held", [0, 9])
@pytest.mark.parametrize("at_once", [7, 1 << 22])
def test_the_share_of_rows_with_an_item_is_that_of_all_beginnings(n_held, at_once, monkeypatch):
    monkeypatch.setattr("recsys.tasks.retrieval.training.sequences._EVENTS_AT_ONCE", at_once)
    user, _, time = some_events()
    item = np.minimum(np.random.default_rng(2).zipf(1.3, 103), N_ITEMS - 1)
    source = make(user, item, time, held=range(40, 40 + n_held), history=8, batch_size=48)
    items, new = np.asarray(source.events.items(np.arange(103 - n_held))), source.new
    hits = np.zeros(N_ITEMS)
    for phase in range(new):
        for row in range(source._n_rows):
            hits[np.unique(items[phase + row * new :][:new])] += 1
    shares = _row_shares(source.events, source._n_rows, new, N_ITEMS)
    np.testing.assert_allclose(shares, hits / (new * source._n_rows), rtol=1e-12)


def test_the_items_of_rows_are_counted_once_a_training():
    options = {"history": 6, "uniform_negatives": 4, "epochs": 2}
    source = make(*some_events(), **options)
    _row_shares.cache_clear()
    batches = source[0], source[source.steps_per_epoch]
    assert _row_shares.cache_info().misses == 1
    for batch in batches:
        np.testing.assert_array_equal(batch["log_q"], source._log_q[batch["item_row"]])


@pytest.mark.parametrize("groups", [1, 2])
def test_log_q_is_the_log_of_how_often_an_item_is_among_the_candidates(groups):
    user, _, time = some_events(400, seconds=10**6)
    item = np.minimum(np.random.default_rng(1).zipf(1.6, 400), N_ITEMS - 1)
    settings = {"history": 8, "batch_size": 16, "uniform_negatives": 2, "epochs": 4000}
    source = make(user, item, time, negative_groups=groups, **settings)
    assert source.rows == 2
    hits = np.zeros(N_ITEMS)
    steps = range(0, len(source), source.steps_per_epoch)
    for step in steps:
        for group in np.split(source[step]["item_row"], groups):
            hits[np.unique(group)] += 1 / groups
    n, p = len(steps), np.exp(source._log_q[1:])
    # Rows are drawn without replacement, a share of them too small to matter here.
    assert np.abs(hits[1:] / n - p).max() < 5 * np.sqrt(0.25 / n) + 0.02


def test_weights_and_known_items_are_those_of_the_examples():
    user, item, time = some_events()
    weight = np.arange(103, dtype=np.float32) + 1
    source = make(user, item, time, more={"weight": weight}, history=6, known_positives=3)
    log, batch = source.events.log, source[0]
    by_event = {}
    for place in range(len(log)):
        key = int(log.user_row[place]), int(log.item_row[place])
        by_event.setdefault(key, set()).add(float(log.weight[place]))
    for number, (u, i, _) in enumerate(examples(batch)):
        assert float(batch["weight"][number]) in by_event[u, i]
        of_user = set(log.item_row[np.array(log.user_row) == u].tolist())
        assert set(batch["known"][number].tolist()) - {0} <= of_user


@pytest.mark.parametrize(("multiple", "groups"), [(4, 1), (1, 4), (2, 4), (4, 2)])
def test_rows_divide_among_the_devices_and_the_groups(multiple, groups):
    settings = {"history": 6, "batch_size": 40, "negative_groups": groups}
    source = make(*some_events(), multiple=multiple, **settings)
    assert source.rows % 4 == 0
    assert source.batch_size == source.rows * source.new <= 40


def test_events_without_an_order_are_refused():
    with pytest.raises(RecsysError, match=r"R336.*Leave model\.history_of out"):
        make(*some_events(), history=6, history_of="others")


def test_fewer_events_than_a_batch_are_refused():
    with pytest.raises(RecsysError, match="R320"):
        make(*some_events(20), history=6, batch_size=64)


def test_a_history_that_no_batch_can_fill_names_one_that_fits():
    with pytest.raises(RecsysError, match=r"R320.*Lower model\.history to at most 10\."):
        make(*some_events(20), history=50, batch_size=8)
    assert make(*some_events(20), history=10, batch_size=8).steps_per_epoch >= 1


def test_no_feature_may_have_the_name_of_an_input():
    more = {"weight": np.ones(103, np.float32)}
    source = make(*some_events(), more=more, history=6)
    names = {"segment", "at", "weight"}
    assert names < {*source[0]} <= RESERVED_FEATURE_NAMES
