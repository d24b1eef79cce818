"""Batches of a ranking model: their rows, negatives and labels, against NumPy and plain Python."""

import dataclasses

import numpy as np
import pytest
from row_worlds import LABELS, ingested, shown
from training_runs import train_here

from recsys.config import TrainConfig
from recsys.data.shuffle import BatchPart
from recsys.data.statistics import StatisticsState
from recsys.models.inputs import ModelInputs
from recsys.registry import Choice
from recsys.tasks.config import TrainStage
from recsys.tasks.ranking.calibration_file import load_calibration
from recsys.tasks.ranking.training.epoch_work import HeldBackRows
from recsys.tasks.ranking.training.side import RankingTraining

N = 32


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return ingested(tmp_path_factory.mktemp("rows"), shown(), sampled=None)


def side_of(data, model=None, **train):
    options = {"batch_size": N, "epochs": 3, "validation": None, **train}
    config = Choice("model").read({"type": "dcn_v2", "history": 4, **(model or {})})
    stage = TrainStage(model=config, train=TrainConfig.model_validate(options, strict=False))
    return RankingTraining(stage, data.store, ModelInputs.of_data(data))


def source_of(data, model=None, **train):
    side = side_of(data, model, **train)
    train = side.stage.train
    return side.source(side.events(train), train, 1, BatchPart((0,), 1))


PLAIN = {"id_dropout": 0.0, "attribute_dropout": 0.0, "new_user_share": 0.0}
CASES = {
    "all rows": {},
    "thinned": {"negative_share": 0.4, "user_balance": 0.5, "half_life": 0.3},
    "shard by shard": {"shuffle": {"kind": "shards", "buffer": 40}, "negative_share": 0.4},
    "impressions": {"loss": "listwise"},
    "held back": {"validation": {"share": 0.3}},
}


@pytest.mark.parametrize("case", CASES)
def test_an_epoch_takes_each_row_at_most_once(data, case):
    source = source_of(data, PLAIN, **CASES[case])
    events, rows = source.events, []
    for step in range(source.steps_per_epoch, 2 * source.steps_per_epoch):
        drawn = source._drawn(step)
        real = np.ones(N, bool) if drawn.group is None else drawn.group >= 0
        rows.append(drawn.rows[real])
        label = np.asarray(events.rows.labels["click"])[drawn.rows]
        assert source[step]["label.click"].tolist() == label.tolist()
        if case == "impressions":
            weight, group = source[step]["weight"], source[step]["group"]
            assert (weight > 0).tolist() == real.tolist()
            impression = np.asarray(events.rows.impression)[drawn.rows]
            user = events.rows.user_index(drawn.rows)
            pairs = list(zip(user[real], impression[real], strict=True))
            whole = {pair: pairs.count(pair) for pair in pairs}
            assert set(whole.values()) == {4}
            assert len(set(group[real])) == len(whole)
    rows = np.concatenate(rows)
    assert len(np.unique(rows)) == len(rows)
    assert not np.isin(rows, events.held).any()
    n_negative = int((np.asarray(events.rows.labels["click"])[rows] == 0).sum())
    share = CASES[case].get("negative_share", 1.0)
    assert n_negative <= round(share * events.negatives)
    assert len(rows) > source.rows_per_epoch - N
    if "negative_share" in CASES[case]:
        np.testing.assert_allclose(source[0]["log_rate"], np.log(0.4), rtol=1e-6)
        others = [source._thinned(epoch).tolist() for epoch in (0, 1)]
        assert others[0] != others[1]


@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (2, 2)])
@pytest.mark.parametrize("case", CASES)
def test_the_parts_together_are_the_batch(data, case, processes, devices):
    dropout = {"id_dropout": 0.3, "history_dropout": 0.2, "new_user_share": 0.3}
    source, n = source_of(data, dropout, **CASES[case]), processes * devices
    shards = [tuple(range(first, first + devices)) for first in range(0, n, devices)]
    parts = [dataclasses.replace(source, part=BatchPart(own, n)) for own in shards]
    for step in (0, len(source) - 1):
        whole, read = source[step], [part[step] for part in parts]
        for name, values in whole.items():
            together = np.concatenate([batch[name] for batch in read])
            np.testing.assert_array_equal(together, values)
    first, last = source.steps_per_epoch, 2 * source.steps_per_epoch
    for at, batch in zip(range(first, last), source.batches(first, last), strict=True):
        for name, values in source[at].items():
            np.testing.assert_array_equal(batch[name], values)


def test_drawn_negatives_are_corrected_for_their_probability(tmp_path):
    rows = [row for row in shown() if row.click]
    data = ingested(tmp_path, rows, sampled=None)
    source = source_of(data, PLAIN, negatives_per_row=3, negative_power=1.0, epochs=40)
    assert source.events.source == "sampled"
    batches = source.batches(0, source.steps_per_epoch)
    label, item = (
        np.concatenate([b[n] for b in batches]).reshape(-1, 4) for n in ("label.click", "id_row")
    )
    assert (label == [1, 0, 0, 0]).all()
    history = np.concatenate([b["history"] for b in batches]).reshape(-1, 4, 4)
    assert (history == history[:, :1]).all()
    drawn = np.concatenate(
        [source[step]["id_row"].reshape(-1, 4)[:, 1:] for step in range(len(source))]
    )
    n_rows, counts = source.inputs.catalogue.n_rows, source.inputs.items.row_counts
    expected = counts / counts.sum()
    found = np.bincount(drawn.ravel(), minlength=n_rows) / drawn.size
    np.testing.assert_allclose(found, expected, atol=4 / np.sqrt(drawn.size))
    rate = np.concatenate([b["log_rate"] for b in batches])
    np.testing.assert_allclose(rate, np.log(3 * expected[item.ravel()]), rtol=1e-5)
    # A calibration weighs drawn items as if each item were a negative of each row once.
    source = source_of(data, PLAIN, negatives_per_row=3, validation={"share": 0.3})
    held_back = HeldBackRows(source, 10**6)
    label, weight = held_back.labels["click"], held_back.weight
    assert (weight[label == 1] == 1).all()
    n_items = source.inputs.catalogue.is_item.sum()
    assert weight[label == 0].sum() / (label == 1).sum() == pytest.approx(n_items, rel=0.2)


def test_drawn_items_have_statistics_of_the_moment(tmp_path):
    features = [
        {"name": "item_rows", "kind": "count", "by": "item", "as": "dense"},
        {"name": "user_rows", "kind": "count", "by": "user", "as": "dense"},
    ]
    rows = [row for row in shown() if row.click]
    data = ingested(tmp_path, rows, sampled=None, features=features)
    source = source_of(data, PLAIN, negatives_per_row=3, validation={"share": 0.3})
    log, ids = data.store.train_rows, data.items.ids_of_rows.to_pylist()
    users = data.store.train_users.ids.to_pylist()
    encode = {one.name: one.encode for one in data.event_features}

    def check(drawn, found):
        now, user = log.timestamp[drawn.rows], log.user_index(drawn.rows)
        for name, of, own in (
            ("item_rows", "item", [ids[row] for row in drawn.item_row]),
            ("user_rows", "user", [users[one] for one in user]),
        ):
            n = [
                sum(row.time < t and getattr(row, of) == id_ for row in rows)
                for t, id_ in zip(now, own, strict=True)
            ]
            np.testing.assert_array_equal(found[name], encode[name](np.float32(n)[:, None]))

    check(source._drawn(0), source[0])
    held_back = HeldBackRows(source, 20)
    check(held_back._drawn, held_back._read)
    model = {"type": "dcn_v2", "dim": 4, "history": 4, "widths": [8]}
    train = {"batch_size": 64, "epochs": 2, "validation": {}, "calibration": "temperature"}
    train_here({"model": model, "train": train}, data.folder, tmp_path / "model")
    assert load_calibration(tmp_path / "model", data.labels)["click"].kind == "temperature"


@pytest.mark.parametrize(("loss", "n"), [("squared", 1), ("binary", 0)])
def test_a_loss_of_amounts_for_yes_no_labels_is_remarked(data, loss, n):
    side = side_of(data, loss=loss)
    remarks = side.check(side.events(side.stage.train), side.stage.train, 1)
    assert ["of click, buy with 0 and 1" in remark for remark in remarks] == [True] * n


def test_rows_that_the_source_thinned_are_weighted_or_corrected(tmp_path):
    data = ingested(tmp_path, shown(), labels={**LABELS, "depth": {"column": "position"}})
    source = source_of(data, {**PLAIN, "labels": ["depth"]})
    click = np.asarray(source.events.rows.labels["click"])[source._drawn(0).rows]
    own = source.rows.read(source._drawn(0).rows)["weight"]
    assert source[0]["weight"].tolist() == (own * np.where(click == 0, 2, 1)).tolist()
    thinned = source_of(data, {**PLAIN, "labels": ["click"]}, negative_share=0.4)[0]
    np.testing.assert_allclose(thinned["log_rate"], np.log(0.5 * 0.4), rtol=1e-6)


def test_dropout_hides_ids_histories_and_context(data):
    dropout = {"id_dropout": 0.5, "history_dropout": 0.3, "attribute_dropout": 0.4}
    hidden = source_of(data, {**dropout, "new_user_share": 0.2}, batch_size=512)[0]
    whole = source_of(data, {**PLAIN, "history_dropout": 0.0}, batch_size=512)[0]
    for name, share in {"user_row": 0.6, "id_row": 0.5, "device": 0.4}.items():
        was, now = (batch[name].reshape(512, -1).max(axis=1) for batch in (whole, hidden))
        assert np.isin(now, [0]).mean() == pytest.approx(share, abs=0.08)
        assert (now[now > 0] == was[now > 0]).all()
    is_there = whole["history"] > 0
    assert (hidden["history"][is_there] == 0).mean() == pytest.approx(1 - 0.8 * 0.7, abs=0.08)
    gone = (hidden["history"] == 0) & is_there
    assert (hidden["history.device"][gone] == 0).all()


def test_a_hidden_user_has_the_statistics_of_a_stranger(tmp_path):
    features = [
        {"name": "rate", "kind": "mean", "label": "click", "by": "user", "as": "dense"},
        {"name": "last", "kind": "last", "label": "click"},
        {"name": "item_rows", "kind": "count", "by": "item"},
    ]
    data = ingested(tmp_path, shown(), sampled=None, features=features)
    source = source_of(data, {**PLAIN, "new_user_share": 0.5}, batch_size=256)
    whole = source_of(data, PLAIN, batch_size=256)[0]
    batch, rows = source[0], source._drawn(0).rows
    is_new = batch["user_row"] == 0
    assert 0.3 < is_new.mean() < 0.7
    # As the bundle's: no state has the key of the unknown user.
    state = StatisticsState.open(data.folder, "newest")
    items = np.asarray(source.events.rows.item_row)[rows]
    of_strangers = state.features(np.zeros_like(items), items, data.catalogue)
    for name in ("rate", "last", "item_rows"):
        np.testing.assert_array_equal(batch[name][~is_new], whole[name][~is_new])
    for name in ("rate", "last"):
        np.testing.assert_array_equal(batch[name][is_new], of_strangers[name][is_new])
        assert (whole[name][is_new] != of_strangers[name][is_new]).any()
    np.testing.assert_array_equal(batch["item_rows"], whole["item_rows"])
