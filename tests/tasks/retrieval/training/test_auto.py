"""The model that a config without `model` gets."""

import dataclasses
import json
from typing import get_args

import numpy as np
import pytest
from baseline_worlds import data_of, scores_of
from hypothesis import given
from hypothesis import strategies as st
from training_runs import train_here

from benchmarks.public_splits import Csr, write_data_folder
from recsys import TwoTower, for_data, load_model, open_data
from recsys.config import Config, Order, TrainStage
from recsys.config.load import load_stage
from recsys.data.split import SplitRule
from recsys.errors import UsageError
from recsys.losses.squares import LeastSquares
from recsys.models.config import (
    AttentionConfig,
    AutoConfig,
    EaseConfig,
    FoldInConfig,
    MeanConfig,
    SasRecConfig,
    TransitionsConfig,
    TwoTowerConfig,
)
from recsys.models.inference import embed_queries
from recsys.tasks.retrieval.judging.item_baselines import Ease, Transitions
from recsys.tasks.retrieval.training.auto import candidates, described, outgrown
from recsys.tasks.retrieval.training.sequences import packing
from recsys.tasks.training_side import DataShape

ORDERED = DataShape(events=200_000, users=20_000, items=9_000, order="time", has_features=True)
LONG = DataShape(events=200_000, users=2_000, items=9_000, order="time", has_features=True)
SETS = DataShape(events=800_000, users=30_000, items=9_000, order="none", has_features=False)

ORDERS = get_args(Order)


def stage_of(tmp_path, text):
    (tmp_path / "stage.yaml").write_text(text)
    return load_stage(tmp_path / "stage.yaml", TrainStage)


def write_world(folder, rule, n_users=60, n_items=40, of_a_user=12):
    """Users take items of one of four tastes, one after the other."""
    random = np.random.default_rng(0)
    lists = [
        (4 * random.permutation(n_items // 4)[:of_a_user] + user % 4).tolist()
        for user in range(n_users)
    ]
    tokens = {"colour": [[f"c{i % 4}"] for i in range(n_items)]}
    write_data_folder(Csr.of_lists(lists, n_items), folder, tokens, rule=rule)
    return folder


@pytest.mark.parametrize("text", ["{}", "model: auto", "model: {type: auto}"])
def test_a_config_that_names_no_model_leaves_it_to_the_data(text, tmp_path):
    stage = stage_of(tmp_path, text)
    assert isinstance(stage.model, AutoConfig)
    short, long, sets = (for_data(stage, shape) for shape in (ORDERED, LONG, SETS))
    assert isinstance(short.model.encoder, SasRecConfig)
    assert isinstance(long.model.encoder, AttentionConfig)
    assert short.model.history_tower
    assert long.model.history_tower
    assert isinstance(sets.model.encoder, MeanConfig)
    assert sets.model.widths is None
    assert for_data(short, SETS) == short


@pytest.mark.parametrize("text", ["model: {}", "model: {dim: 32}", "model: two_tower"])
def test_a_config_that_names_one_keeps_it(text, tmp_path):
    stage = stage_of(tmp_path, text)
    assert isinstance(stage.model, TwoTowerConfig)
    assert for_data(stage, ORDERED) == stage == for_data(stage, SETS)


def test_what_the_config_names_stays_also_when_it_was_written_and_read(tmp_path):
    text = (
        "model: {type: auto, table_placement: row, dim: 64, user_id: true}\n"
        "train: {batch_size: 256, epochs: 2}"
    )
    stage = stage_of(tmp_path, text)
    again = TrainStage.model_validate_json(stage.model_dump_json())
    assert again == stage
    chosen = for_data(again, ORDERED)
    # The default value too, once it is named.
    assert (chosen.model.dim, chosen.model.user_id) == (64, True)
    plain = for_data(TrainStage(), ORDERED).model
    assert (plain.dim, plain.user_id) == (128, False)
    assert chosen.model.table_placement == "row"
    assert (chosen.train.batch_size, chosen.train.epochs) == (256, 2)
    assert (
        chosen.train.table_learning_rate
        == for_data(TrainStage(), ORDERED).train.table_learning_rate
    )


def test_what_continues_from_an_earlier_model_keeps_its_choice():
    earlier = for_data(TrainStage(train={"batch_size": 64}), ORDERED)
    night = for_data(TrainStage(train={"epochs": 3}), LONG, base=earlier)
    assert night.model == earlier.model
    stage = TrainStage(model={"type": "auto", "table_placement": "row"})
    assert for_data(stage, LONG, base=earlier).model == earlier.model.model_copy(
        update={"table_placement": "row"}
    )
    assert night.train.epochs == 3
    assert night.train.table_learning_rate == earlier.train.table_learning_rate
    assert outgrown(TrainStage(), ORDERED, earlier) is None
    assert outgrown(TrainStage(), LONG, earlier) == described(for_data(TrainStage(), LONG))


@pytest.mark.parametrize("shape", [ORDERED, LONG, SETS, dataclasses.replace(SETS, users=9_000)])
def test_the_first_candidate_is_the_rules_and_all_differ(shape):
    config = TrainStage(model={"type": "auto", "table_placement": "row"}, train={"epochs": 3})
    known = candidates(config, shape)
    assert next(iter(known.values())) == for_data(config, shape)
    assert len(known) == 5
    for n, stage in enumerate(known.values()):
        assert stage not in [*known.values()][:n]
        assert (stage.model.table_placement, stage.train.epochs) == ("row", 3)
        has_transitions = any(isinstance(term, TransitionsConfig) for term in stage.model.terms)
        assert not has_transitions or shape.order != "none"


def test_candidates_that_the_config_rules_out_are_left_out():
    odd = TrainStage(model={"type": "auto", "dim": 65})
    assert [*candidates(odd, LONG)] == [
        "attention",
        "mean and transitions",
        "mean with user rows and transitions",
        "transitions",
    ]
    new = dataclasses.replace(LONG, new_items=1_000)
    assert "transitions" not in candidates(TrainStage(), new)
    assert {"ease", "ials"} <= {*candidates(TrainStage(), SETS)}
    assert "ease" not in candidates(TrainStage(), dataclasses.replace(SETS, items=20_001))


def test_features_are_read_wherever_there_are_any():
    for order in ORDERS:
        shape = DataShape(10_000, 1_000, 500, order, has_features=True)
        assert for_data(TrainStage(), shape).model.widths is not None


def test_items_without_events_count_if_they_have_features():
    sets = dataclasses.replace(SETS, has_features=True)
    for shape, share in ((ORDERED, 0.3), (sets, 0.5)):
        few, many = (dataclasses.replace(shape, new_items=n) for n in (90, 91))
        assert for_data(TrainStage(), few) == for_data(TrainStage(), shape)
        chosen = for_data(TrainStage(), many)
        assert (chosen.train.cold_negatives, chosen.model.item_id_dropout) == (0.0, share)
        # The night's choice stays, though its new items are old by now.
        night = for_data(TrainStage(), shape, base=chosen)
        assert (night.model, night.train) == (chosen.model, chosen.train)
        named = TrainStage(train={"cold_negatives": 0.5})
        assert for_data(named, many).train.cold_negatives == 0.5
    large = dataclasses.replace(sets, events=100 * sets.users, new_items=5_000)
    assert for_data(TrainStage(), large).model.item_id_dropout == 0.3
    long = dataclasses.replace(LONG, new_items=5_000)
    assert for_data(TrainStage(), long) == for_data(TrainStage(), LONG)


def test_new_items_are_those_of_the_catalogue_without_events(tmp_path):
    lists = [[0, 1, 2], [1, 2, 4]]
    for name, tokens in (("with", {"colour": [["red"]] * 6}), ("without", {})):
        write_data_folder(Csr.of_lists(lists, 6), tmp_path / name, tokens)
    with_features, without = (DataShape.of(open_data(tmp_path / x)) for x in ("with", "without"))
    assert (with_features.new_items, without.new_items) == (2, 0)


@pytest.mark.parametrize("of_a_user", [6, 25])
def test_a_random_test_part_makes_histories_sets_despite_an_order(tmp_path, of_a_user):
    for split, is_set in (("random", True), ("last_out", False)):
        folder = write_world(
            tmp_path / split, SplitRule(split, "time"), n_items=100, of_a_user=of_a_user
        )
        chosen = for_data(TrainStage(), open_data(folder)).model
        assert isinstance(chosen.encoder, MeanConfig) == is_set
        assert (chosen.history_of == "others") == is_set


def test_the_newest_events_count_most_where_events_have_times_and_users_many():
    by_file = dataclasses.replace(LONG, order="file")
    half_lives = [for_data(TrainStage(), x).train.half_life for x in (LONG, by_file, ORDERED, SETS)]
    assert half_lives == [0.3, None, None, None]
    assert for_data(TrainStage(train={"half_life": None}), LONG).train.half_life is None


def test_neighbours_are_left_out_where_every_device_would_hold_too_many():
    few, many = (dataclasses.replace(SETS, items=n) for n in (10**6, 10**6 + 1))
    assert for_data(TrainStage(), few).model.item_neighbours == 16
    assert for_data(TrainStage(), many).model.item_neighbours == 0
    asked = TrainStage(model={"type": "auto", "item_neighbours": 8})
    assert for_data(asked, many).model.item_neighbours == 8


def test_ease_is_added_for_sets_of_few_items():
    many = dataclasses.replace(SETS, items=20_001)
    assert for_data(TrainStage(), SETS).model.terms == (EaseConfig(),)
    assert for_data(TrainStage(), many).model.terms == ()
    assert EaseConfig() not in for_data(TrainStage(), ORDERED).model.terms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("ease", {"terms": [{"type": "ease", "regularisation": 5.0, "weight": 10_000.0}]}),
        ("transitions", {}),
    ],
)
def test_a_baseline_as_a_model_ranks_as_the_baseline(model, options, tmp_path):
    n, of_a_user = 60, 5
    rule = SplitRule("random", "none") if model == "ease" else SplitRule("last_out", "file")
    folder = write_world(tmp_path / "data", rule, n_users=n, of_a_user=of_a_user)
    train_here({"model": {"type": model, **options}}, folder, tmp_path / "model")
    data, saved = open_data(folder), load_model(tmp_path / "model")
    assert isinstance(saved.model.config, TwoTowerConfig)
    lists = np.concatenate([part.item_row for part in data.train.shards]).reshape(n, of_a_user)
    baseline = Ease(regularisation=5.0) if model == "ease" else Transitions()
    expected = scores_of(baseline.fit(data_of(lists, 41, log=data.train)), lists)
    history = np.zeros((n, saved.model.config.history), np.int32)
    history[:, :of_a_user] = lists[:, ::-1]
    query = embed_queries(saved.model, np.zeros(n, np.int32), history, saved.inputs)
    found = query @ np.load(tmp_path / "model" / "candidates.npy").T
    if (pairs := saved.model.transitions) is not None:
        found += pairs.of_histories(history).toarray()
    n_apart = 0
    for user, own in enumerate(lists):
        others = np.setdiff1d(np.flatnonzero(expected[user] > 0), own)
        best = others[np.argsort(-expected[user, others], kind="stable")]
        is_apart = -np.diff(expected[user, best]) > 1e-3
        assert (np.diff(found[user, best])[is_apart] < 0).all()
        n_apart += is_apart.sum()
    assert n_apart > n


def test_a_baseline_as_a_model_keeps_the_keys_of_the_config():
    stage = TrainStage(model={"type": "ials", "dim": 32}, train={"epochs": 2})
    for shape in (ORDERED, SETS):
        chosen = for_data(TrainStage.model_validate_json(stage.model_dump_json()), shape)
        assert isinstance(chosen.model.encoder, FoldInConfig)
        assert isinstance(chosen.train.loss, LeastSquares)
        assert (chosen.model.dim, chosen.train.epochs) == (32, 2)
        chosen.model.check(chosen.train)


@given(
    st.one_of(st.integers(0, 200), st.integers(0, 10**11)),
    *[st.integers(0, 10**9)] * 2,
    st.sampled_from(ORDERS),
    st.booleans(),
)
def test_any_shape_gets_a_whole_config(events, users, items, order, has_features):
    shape = DataShape(events, users, items, order, has_features)
    chosen = for_data(TrainStage(), shape)
    assert TrainStage.model_validate_json(chosen.model_dump_json()) == chosen
    assert chosen.train.epochs >= 2
    assert chosen.train.batch_size <= (events or 32)
    assert chosen.train.batch_size & (chosen.train.batch_size - 1) == 0
    if events > 1 and chosen.model.over_positions:
        rows, new = packing(chosen.model, chosen.train)
        assert rows * new <= events - new + 1  # Where its first row may begin.


def test_a_plan_without_a_number_of_events_has_batches_of_more_than_a_few():
    chosen = for_data(TrainStage(), DataShape(0, 10**6, 10**5, "time", has_features=False))
    assert (chosen.train.batch_size, chosen.model.history) == (32, 50)


def test_a_whole_config_gets_one_too():
    data = {"interactions": {"files": "x.csv", "columns": {"user": "u", "item": "i"}}}
    config = Config.model_validate({"name": "x", "root": "r", "data": data | {"split": "random"}})
    assert for_data(config, SETS).model.history_of == "others"


def test_a_model_isnt_made_before_the_choice(tmp_path):
    data = open_data(write_world(tmp_path / "data", SplitRule("last_out", "file")))
    with pytest.raises(UsageError, match="R349"):
        TwoTower.from_config(TrainStage(), data)
    model = TwoTower.from_config(for_data(TrainStage(), data), data)
    assert isinstance(model.config.encoder, SasRecConfig)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["file", pytest.param("none", marks=pytest.mark.thorough)])
def test_the_defaults_learn_what_users_like(order, tmp_path):
    rule = SplitRule("last_out" if order == "file" else "random", order)
    folder = write_world(tmp_path / "data", rule)
    train_here({}, folder, tmp_path / "model")
    saved = load_model(tmp_path / "model")
    stage = json.loads((tmp_path / "model" / "model.json").read_text())["stage"]
    assert stage["model"]["type"] == "two_tower"
    assert isinstance(saved.model.config.encoder, SasRecConfig if order == "file" else MeanConfig)
    items = np.load(tmp_path / "model" / "candidates.npy")[1:]
    taste = np.arange(len(items)) % 4
    close = items @ items.T
    same = taste[:, None] == taste
    assert close[same].mean() > close[~same].mean() + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("order", [pytest.param("file", marks=pytest.mark.thorough), "none"])
def test_items_without_events_are_found_by_their_features(order, tmp_path):
    n_users, n_items, n_tastes, of_a_user = 400, 420, 10, 9
    random, warm = np.random.default_rng(0), n_items - 2 * n_tastes
    taste_of_user, taste = np.arange(n_users) % n_tastes, np.arange(n_items) % n_tastes
    lists = [
        (n_tastes * random.permutation(warm // n_tastes)[:of_a_user] + t).tolist()
        for t in taste_of_user
    ]
    # New items have new makers, so that a model could recognise them as new.
    makers = [[f"m{i // 4}"] for i in range(n_items)]
    tokens = {"colour": [[f"c{t}"] for t in taste], "maker": makers}
    rule = SplitRule("last_out" if order == "file" else "random", order)
    write_data_folder(Csr.of_lists(lists, n_items), tmp_path / "data", tokens, rule=rule)
    train_here({}, tmp_path / "data", tmp_path / "model")
    saved = load_model(tmp_path / "model")

    newest_first = np.zeros((n_users, saved.model.config.history), np.int32)
    newest_first[:, :of_a_user] = np.array(lists)[:, ::-1] + 1
    users = embed_queries(
        saved.model, np.arange(1, n_users + 1, dtype=np.int32), newest_first, saved.inputs
    )
    scores = users @ np.load(tmp_path / "model" / "candidates.npy")[1:].T
    np.put_along_axis(scores, np.array(lists), -np.inf, axis=1)
    is_liked = taste == taste_of_user[:, None]
    is_new = np.arange(n_items) >= warm
    # Among new items the two of the taste: by chance a tenth would be.
    best_new = warm + np.argsort(-scores[:, is_new], axis=1)[:, :2]
    assert np.take_along_axis(is_liked, best_new, axis=1).mean() > 0.9
    # Of all items 31 + 2 of the taste are left. Taken alike, a third of the new ones is in a list
    # of 11; by chance .03.
    best = np.argsort(-scores, axis=1)[:, :11]
    assert is_new[best].sum(axis=1).mean() / 2 > 0.15
    assert np.take_along_axis(is_liked, best, axis=1).mean() > 0.9
