"""Training batches: every event once an epoch, the same again for the same seed."""

import numpy as np
import pytest

from recsys.data import batches
from recsys.data.batches import BatchSource, read_ahead
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.event_log import EventLog, EventShard
from recsys.errors import RecsysError

N_EVENTS, N_USERS, N_ITEMS = 103, 8, 20


@pytest.fixture
def source():
    rng = np.random.default_rng(0)
    user = rng.integers(1, N_USERS, N_EVENTS)
    # A time stands for one event, so that an event can be told from its neighbours.
    events = make_log(user, rng.integers(1, N_ITEMS, N_EVENTS), rng.permutation(N_EVENTS))
    bags = rng.integers(0, 5, (N_ITEMS, 3)).astype(np.int32)
    ids = ["", *(f"i{n}" for n in range(1, N_ITEMS))]
    catalogue = Catalogue(ids, ids, (FeatureBags("genres", 5, bags),))
    return make(events, catalogue)


def make_log(user, item, time, weight=None):
    """A log of two shards: the users below 4, and the others; user `u` has row `u`."""
    shards = []
    for first, end in ((0, 4), (4, N_USERS)):
        which = (first <= user) & (user < end)
        columns = [column[which] for column in (user, item, time)]
        weights = None if weight is None else weight[which]
        shards.append(EventShard.sort(user[which] - first, *columns, end - first, weights))
    return EventLog(tuple(shards))


def make(events, catalogue, **changes):
    settings = {
        "history": 4,
        "batch_size": 10,
        "uniform_negatives": 0,
        "epochs": 2,
        "id_dropout": 0.0,
        "new_user_share": 0.0,
        "seed": 3,
        **changes,
    }
    return BatchSource(events, catalogue, **settings)


def test_an_epoch_holds_every_event_at_most_once_and_leaves_out_only_the_partial_batch(source):
    assert source.steps_per_epoch == 10
    assert len(source) == 20
    for epoch in (0, 1):
        pairs = [
            pair
            for step in range(epoch * 10, epoch * 10 + 10)
            for pair in zip(source[step]["user_row"], source[step]["item_row"], strict=True)
        ]
        events = list(zip(source.events.user_row, source.events.item_row, strict=True))
        assert len(pairs) == 100
        for pair in set(pairs):
            assert pairs.count(pair) <= events.count(pair)


def test_epochs_differ_and_a_seed_repeats(source):
    again = make(source.events, source.catalogue)
    other = make(source.events, source.catalogue, seed=4)
    assert not np.array_equal(source[0]["item_row"], source[10]["item_row"])
    for name, values in source[7].items():
        assert np.array_equal(values, again[7][name])
    assert not np.array_equal(source[7]["item_row"], other[7]["item_row"])


def test_a_history_is_what_the_user_did_before_the_newest_first(source):
    events = source.events
    batch = source[0]
    for user, item, history in zip(
        batch["user_row"], batch["item_row"], batch["history"], strict=True
    ):
        own = events.item_row[events.offsets[user] : events.offsets[user + 1]].tolist()
        before = [own[:i][::-1][:4] for i, row in enumerate(own) if row == item]
        assert [row for row in history if row] in before


def test_log_q_is_the_log_of_the_share_of_events(source):
    batch = source[0]
    items = np.asarray(source.events.item_row)
    share = [(items == row).mean() for row in batch["item_row"]]
    assert np.allclose(batch["log_q"], np.log(share))


def test_uniform_negatives_come_from_the_whole_catalogue_and_log_q_is_the_mixture(source):
    mixed = make(source.events, source.catalogue, uniform_negatives=30)
    plain, items = source[3], np.asarray(source.events.item_row)
    drawn = np.concatenate([mixed[step]["item_row"][10:] for step in range(20)])
    assert set(drawn) == set(range(1, N_ITEMS))
    batch = mixed[3]
    assert len(batch["user_row"]) == 10
    assert np.array_equal(batch["item_row"][:10], plain["item_row"])
    # A quarter of a batch's items come from events, the rest from the 19 items evenly.
    share = [0.25 * (items == row).mean() + 0.75 / 19 for row in batch["item_row"]]
    assert np.allclose(batch["log_q"], np.log(share))
    bags = source.catalogue.features[0].bags
    assert np.array_equal(batch["genres"], bags[batch["item_row"]])


def test_a_drawn_item_without_events_has_no_row_of_its_own(source):
    columns = [source.events.user_row, source.events.item_row, source.events.timestamp]
    without = np.asarray(source.events.item_row) != 7
    log = make_log(*(np.asarray(column)[without] for column in columns))
    mixed = make(log, source.catalogue, uniform_negatives=30)
    batches = [mixed[step] for step in range(len(mixed))]
    item_row, id_row = (
        np.concatenate([batch[name] for batch in batches]) for name in ("item_row", "id_row")
    )
    assert (item_row == 7).sum() > 10
    assert not id_row[item_row == 7].any()
    assert np.array_equal(id_row[item_row != 7], item_row[item_row != 7])


def test_features_are_those_of_the_item(source):
    batch = source[0]
    bags = source.catalogue.features[0].bags
    assert np.array_equal(batch["genres"], bags[batch["item_row"]])


def test_dropout_hides_ids_and_never_the_item_that_the_loss_needs(source):
    hidden = make(source.events, source.catalogue, id_dropout=0.5)
    plain, dropped = source[0], hidden[0]
    assert np.array_equal(plain["item_row"], dropped["item_row"])
    for name, true in (("user_row", plain["user_row"]), ("id_row", plain["item_row"])):
        kept = dropped[name] != 0
        assert 0 < kept.sum() < len(kept)
        assert np.array_equal(dropped[name][kept], true[kept])


def test_a_new_user_has_neither_id_nor_history(source):
    all_new = make(source.events, source.catalogue, new_user_share=0.999)
    batch = all_new[0]
    assert not batch["user_row"].any()
    assert not batch["history"].any()


@pytest.mark.parametrize("first_step", [0, 3, 9, 10, 17, 19, 20])
@pytest.mark.parametrize("block", [10, 30, 70, 1000])
def test_grain_reads_the_same_batches_in_order_from_any_step(
    source, monkeypatch, first_step, block
):
    monkeypatch.setattr(batches, "_BLOCK_EXAMPLES", block)
    dropping = make(source.events, source.catalogue, id_dropout=0.3, new_user_share=0.3)
    read = [batch for (batch,) in read_ahead(dropping, first_step)]
    assert len(read) == 20 - first_step
    for step, batch in zip(range(first_step, 20), read, strict=True):
        alone = dropping[step]
        assert batch.keys() == alone.keys()
        for name, values in batch.items():
            assert np.array_equal(values, alone[name])
            assert values.dtype == alone[name].dtype


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
    catalogue = Catalogue(ids, ids, ())
    mixed = make(source.events, catalogue, uniform_negatives=40)
    drawn = np.concatenate([mixed[step]["item_row"][10:] for step in range(20)])
    assert set(drawn.tolist()) == set(range(1, N_ITEMS)) - {1, 2, 9}
    batch = mixed[3]
    items = np.asarray(source.events.item_row)
    # A fifth of a batch's items come from events, the rest from 16 items evenly.
    share = [
        0.2 * (items == row).mean() + (0.0 if row in (1, 2, 9) else 0.8 / 16)
        for row in batch["item_row"]
    ]
    assert np.allclose(batch["log_q"], np.log(share))


def test_a_batch_larger_than_the_data_names_the_setting(source):
    with pytest.raises(RecsysError, match=r"R320.*train\.batch_size.*103"):
        make(source.events, source.catalogue, batch_size=104)
