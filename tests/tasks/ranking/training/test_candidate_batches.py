"""Batches of rows with negatives from a retriever's lists, against NumPy."""

import dataclasses

import numpy as np
import pytest
from row_worlds import ingested, shown
from scipy.optimize import minimize

from recsys.config import TrainConfig
from recsys.data.candidates import ARRAYS, Candidates, seal
from recsys.data.shuffle import BatchPart
from recsys.errors import RecsysError
from recsys.models.inputs import ModelInputs
from recsys.registry import Choice
from recsys.tasks.config import TrainStage
from recsys.tasks.ranking.training.candidate_batches import list_prior
from recsys.tasks.ranking.training.epoch_work import HeldBackRows
from recsys.tasks.ranking.training.side import RankingTraining

N, K = 32, 3
PLAIN = {"type": "dcn_v2", "history": 4, "id_dropout": 0.0, "stage_one": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return ingested(tmp_path_factory.mktemp("rows"), shown(), sampled=None)


def label_of(data):
    return np.asarray(data.store.train_rows.labels["click"])


def drawn_for(folder, data, share, k=K):
    """Writes made-up candidates for the newest rows; returns them as arrays."""
    log, rng = data.store.train_rows, np.random.default_rng(1)
    time = np.asarray(log.timestamp)
    is_drawn = (time > np.quantile(time, 1 - share)) & ((k == 0) | (label_of(data) == 1))
    rows = np.flatnonzero(is_drawn)
    shape = len(rows), 1 + k
    item_row = rng.integers(1, data.catalogue.n_rows, shape)
    item_row[:, 0] = np.asarray(log.item_row)[rows]
    retriever, log_rate = rng.normal(size=(*shape, 3)), rng.normal(size=shape)
    arrays = {"rows": rows, "item_row": item_row, "retriever": retriever, "log_rate": log_rate}
    arrays = {name: x.astype(ARRAYS[name]) for name, x in arrays.items()}
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    seal(folder, {})
    return arrays


def source_of(data, folder, **train):
    options = {"batch_size": N, "epochs": 3, "loss": "binary", "validation": None, **train}
    train = TrainConfig.model_validate(options, strict=False)
    stage = TrainStage(model=Choice("model").read(PLAIN), train=train)
    data.store.candidates = Candidates.open(folder)
    side = RankingTraining(stage, data.store, ModelInputs.of_data(data))
    events = side.events(train)
    side.check(events, train, 1)
    return side.source(events, train, 1, BatchPart((0,), 1))


def test_rows_are_followed_by_their_candidates_or_by_random_items(data, tmp_path):
    arrays = drawn_for(tmp_path / "drawn", data, 0.4)
    source = source_of(data, tmp_path / "drawn")
    log, n_items = data.store.train_rows, int(data.catalogue.is_item.sum())
    place_of, seen, random = {row: i for i, row in enumerate(arrays["rows"])}, set(), []
    for step in range(source.steps_per_epoch):
        batch, rows = source[step], source._drawn(step).rows
        for at, row in enumerate(rows):
            column, label = at % (1 + K), batch["label.click"][at]
            own = int(log.item_row[row])
            assert label == (column == 0)
            assert np.isnan(batch["label.buy"][at]) or not column
            if row in place_of:
                there = place_of[row], column
                assert batch["id_row"][at] == arrays["item_row"][there]
                assert batch["retriever"][at].tolist() == arrays["retriever"][there].tolist()
                assert batch["log_rate"][at] == arrays["log_rate"][there]
                continue
            assert not batch["retriever"][at].any()
            assert batch["log_rate"][at] == pytest.approx(np.log(K / n_items))
            random += [batch["id_row"][at]] if column else []
            assert column or batch["id_row"][at] == own
        seen |= {*rows.tolist()}
    assert len(seen) == source.steps_per_epoch * N // (1 + K)
    assert len({*random}) == n_items
    assert all(label_of(data)[row] == 1 for row in seen)
    assert source.steps_per_epoch == (label_of(data) == 1).sum() * (1 + K) // N
    source = source_of(data, tmp_path / "drawn", loss="pairwise")
    assert source[1]["group"].tolist() == (np.arange(N) // (1 + K)).tolist()
    parts = [dataclasses.replace(source, part=BatchPart((i,), 2)) for i in range(2)]
    for name, values in source[1].items():
        both = np.concatenate([part[1][name] for part in parts])
        np.testing.assert_array_equal(both, values)


def test_the_prior_is_the_logistic_regression_on_lists(data, tmp_path):
    arrays = drawn_for(tmp_path / "drawn", data, 0.4)
    source = source_of(data, tmp_path / "drawn", validation={"share": 0.2})
    held = np.isin(arrays["rows"], source.events.validation)
    label = np.zeros(arrays["item_row"].shape)
    label[:, 0] = 1
    label, rate = label[~held].ravel(), arrays["log_rate"][~held].ravel()
    columns = np.concatenate(
        [arrays["retriever"][~held].reshape(-1, 3), np.ones((len(rate), 1))], 1
    )
    n_yes, n_no = label.sum(), (1 - label).sum()
    target = np.where(label == 1, (n_yes + 1) / (n_yes + 2), 1 / (n_no + 2))

    def loss(coefficients):
        logit = columns @ coefficients - rate
        return (np.logaddexp(0, logit) - target * logit).sum()

    best = minimize(loss, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9})
    np.testing.assert_allclose(list_prior(source.events), best.x, atol=1e-4)


def test_held_back_rows_have_the_same_negatives(data, tmp_path):
    arrays = drawn_for(tmp_path / "drawn", data, 0.4)
    source = source_of(data, tmp_path / "drawn", validation={"share": 0.2})
    held = HeldBackRows(source, 10**6)
    rows = source.events.validation
    assert held.rows.tolist() == np.repeat(rows, 1 + K).tolist()
    at = np.searchsorted(arrays["rows"], rows)
    expected = np.concatenate([np.ones((len(rows), 1)), np.zeros((len(rows), K))], axis=1)
    np.testing.assert_array_equal(held.labels["click"].reshape(-1, 1 + K), expected)
    assert held._read["item_row"].tolist() == arrays["item_row"][at].ravel().tolist()
    np.testing.assert_array_equal(held._read["retriever"], arrays["retriever"][at].reshape(-1, 3))
    weight = np.exp(-arrays["log_rate"][at].astype(float))
    weight[:, 0] = 1  # A row of the data counts once, whatever its label.
    np.testing.assert_allclose(held.weight, weight.ravel())


def test_impressions_have_what_the_retriever_says_of_them(data, tmp_path):
    arrays = drawn_for(tmp_path / "drawn", data, 0.4, k=0)
    source = source_of(data, tmp_path / "drawn", validation={"share": 0.2})
    batch, rows = source[0], source._drawn(0).rows
    is_there = np.isin(rows, arrays["rows"])
    assert 0 < is_there.sum() < N
    at = np.searchsorted(arrays["rows"], rows[is_there])
    np.testing.assert_array_equal(batch["retriever"][is_there], arrays["retriever"][at, 0])
    assert not batch["retriever"][~is_there].any()
    assert "log_rate" not in batch
    held = HeldBackRows(source, 10**6)
    at = np.searchsorted(arrays["rows"], held.rows)
    np.testing.assert_array_equal(held._read["retriever"], arrays["retriever"][at, 0])
    (tmp_path / "drawn" / "log_rate.npy").write_bytes(b"")
    with pytest.raises(RecsysError, match="R221"):
        Candidates.open(tmp_path / "drawn")
