"""The weight of transitions: chosen on held-back events, and 0 where they say nothing."""

import numpy as np
import pytest
from baseline_worlds import log_of
from scipy import sparse

import recsys
from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import TrainConfig, TrainStage, TwoTowerConfig
from recsys.data.hold_out import KeptEvents
from recsys.data.split import SplitRule
from recsys.models.inputs import ModelInputs
from recsys.ragged import RaggedRows
from recsys.tasks.retrieval.judging.scores import DotProducts, PairedProducts
from recsys.tasks.retrieval.training.pair_weight import NewItems, choose_weight, without_a_few
from recsys.tasks.retrieval.training.side import RetrievalTraining

_N, _ITEMS = 400, 60


def chosen(share, seed=0, n=_N, new_share=None):
    """Returns the weight for summands of which a `share` are at the positives, of `n` queries.

    The vectors of items as if they had no event are their vectors.
    """
    rng = np.random.default_rng(seed)
    query, items = (rng.standard_normal((n, 4)).astype(np.float32) for n in (_N, _ITEMS))
    positives = rng.integers(1, _ITEMS, _N)
    at = np.where(rng.random(_N) < share, positives, 1 + positives % (_ITEMS - 1))
    summands = sparse.csr_array(
        (np.full(_N, 0.01, np.float32), (np.arange(_N), at)), shape=(_N, _ITEMS)
    )
    lists = RaggedRows(positives.astype(np.int32), np.arange(_N + 1))
    products = DotProducts(query[:n], items)
    zero, one = PairedProducts(products, None), PairedProducts(products, summands[:n])
    is_item = np.arange(_ITEMS) > 0
    new = None if new_share is None else NewItems(new_share, items)
    part, hidden = lists.part(slice(0, n)), RaggedRows.empty(n)
    return choose_weight(zero, one, part, hidden, np.arange(n), is_item, new)


def test_a_weight_is_as_large_as_the_summands_are_right():
    weights = [chosen(share) for share in (0.0, 0.2, 1.0)]
    assert 0 == weights[0] < weights[1] <= weights[2]
    assert chosen(1.0, n=99) == 0.0 < chosen(1.0, n=100)


def test_a_weight_is_lower_the_more_items_get_no_summand():
    # At 0.8, a fifth of the summands are in the way of an item that gets none.
    weights = [chosen(0.8, new_share=share) for share in (0.0, 0.9, 1.0)]
    assert weights[0] == chosen(0.8) >= weights[1] > weights[2] == 0


@pytest.mark.parametrize("split", ["time", "last_out", "random"])
def test_events_are_held_back_as_the_test_part(split):
    rng = np.random.default_rng(0)
    times = np.sort(rng.permutation(6000).reshape(600, 10), axis=1)
    log = log_of(rng.integers(1, 90, (600, 10)).tolist(), times.tolist())
    held = without_a_few(log, SplitRule(split)).held
    age = 9 - held % 10
    if split == "time":
        assert sorted(log.timestamp[held]) == list(range(5600, 6000))
    elif split == "last_out":
        assert len(held) == 120
        assert (age == 0).all()
    else:
        assert 320 < len(held) < 480
        assert 3.5 < age.mean() < 5.5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """4,200 users who walk through the items in the same order, from different starts."""
    folder, rng = tmp_path_factory.mktemp("walks") / "data", np.random.default_rng(0)
    walks = [(np.arange(8) + rng.integers(50)) % 50 for _ in range(4200)]
    write_data_folder(Csr.of_lists([walk.tolist() for walk in walks], 50), folder)
    return recsys.open_data(folder)


def test_items_as_if_new_read_no_row_of_their_own(data):
    inputs, rows = ModelInputs.of_data(data), np.arange(1, 51)
    new = inputs.with_new_items()
    np.testing.assert_array_equal(inputs.candidate(rows)["id_row"], rows)
    assert not new.candidate(rows)["id_row"].any()


@pytest.mark.parametrize("weight", [None, 0.25])
def test_training_sets_the_counts_and_the_weight(data, weight, tmp_path):
    config = TwoTowerConfig(
        dim=4, history=4, widths=None, terms=({"type": "transitions", "weight": weight},)
    )
    train = TrainConfig(epochs=1, batch_size=512, uniform_negatives=16)
    model = recsys.TwoTower.from_config(config, data.spec)
    result = recsys.Trainer(train, tmp_path / "checkpoints").fit(model, data)
    # 1,008 of 33,600 events chose the weight; then all were trained on with it.
    assert (result.refit is None) == (weight is not None)
    assert not len(result.events.held)
    assert model.spec.config.terms[0].weight == weight
    scores = model.transitions
    history = np.array([[7, 6, 5, 4]], np.int32)
    assert scores.of_histories(history).toarray().argmax() == 8
    found = float(model.terms["transitions"].weight.value)
    assert found == weight if weight else found > 0


def test_few_held_back_events_need_no_second_training(data):
    side = RetrievalTraining(TrainStage(), data.store, None)
    train, n = TrainConfig(), len(data.train) // 100
    assert not side.trains_again(KeptEvents(data.train, np.arange(n)), train)
    assert side.trains_again(KeptEvents(data.train, np.arange(n + 1)), train)


def test_the_weight_of_ease_is_chosen_with_that_of_transitions(data, tmp_path):
    terms = ({"type": "transitions"}, {"type": "ease", "rank": 8})
    config = TwoTowerConfig(dim=4, history=4, widths=None, terms=terms)
    model = recsys.TwoTower.from_config(config, data.spec)
    recsys.Trainer(TrainConfig(epochs=1, batch_size=512, uniform_negatives=16), tmp_path).fit(
        model, data
    )
    assert float(model.terms["transitions"].weight.value) > 0
    assert 0 < np.square(np.asarray(model.terms["ease"].vectors)).sum(axis=1).max() < 1
