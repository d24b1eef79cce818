"""An evaluation against plain Python, on three users whom one can count by hand."""

import json
import shutil

import numpy as np
import pytest
from evaluation_worlds import a_small_world, table

from benchmarks.stores import write_store
from recsys.config import (
    BlessConfig,
    EvaluateConfig,
    EvaluateStage,
)
from recsys.data.dataset import seal_inputs
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.evaluation.config import BASELINES
from recsys.evaluation.evaluation_file import evaluate

STAGE = EvaluateStage(
    evaluate=EvaluateConfig(k=(1, 3), resamples=100),
    bless=BlessConfig(
        metric="mrr", over={"popularity": 0.1}, over_strongest=0.0, sure_loss="allow"
    ),
    report_users=("ann", "zoe", "nobody"),
)
# (evaluation user, seen rows, positive row): Ann takes 3, then 4; Zoe, who is new, takes 2.
QUERIES = [(0, [1, 2], 3), (0, [1, 2, 3], 4), (1, [], 2)]


@pytest.fixture(autouse=True)
def two_users_are_enough(monkeypatch):
    monkeypatch.setattr("recsys.evaluation.figures._FEWEST_USERS", 2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return a_small_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def result(folders, tmp_path_factory):
    data, model, _ = folders
    return evaluate(STAGE, model, data, tmp_path_factory.mktemp("out"))


def lists(scores):
    """The list that each query shows: best first, without what the user has seen."""
    return [
        sorted(set(range(1, 7)) - set(seen), key=lambda row: -scores[query, row])
        for query, (_, seen, _) in enumerate(QUERIES)
    ]


def test_metrics_are_means_over_users_of_the_means_over_their_queries(folders, result):
    places = [
        order.index(positive) + 1
        for order, (_, _, positive) in zip(lists(folders[2]), QUERIES, strict=True)
    ]
    others = [6 - len(seen) - 1 for _, seen, _ in QUERIES]
    for name, value in {
        "recall@1": [place <= 1 for place in places],
        "recall@3": [place <= 3 for place in places],
        "precision@3": [(place <= 3) / 3 for place in places],
        "hit_rate@3": [place <= 3 for place in places],
        "ndcg@3": [1 / np.log2(1 + place) if place <= 3 else 0 for place in places],
        "map@3": [1 / place if place <= 3 else 0 for place in places],
        "mrr": [1 / place for place in places],
        "auc": [1 - (place - 1) / n for place, n in zip(places, others, strict=True)],
    }.items():
        expected = ((value[0] + value[1]) / 2 + value[2]) / 2
        assert result["metrics"][name] == pytest.approx(expected), name


def test_popularity_ranks_unseen_items_by_their_training_positives(result):
    # Among the remaining items Ann's next item is first, then second; Zoe's is fourth.
    popularity = result["baselines"]["popularity"]
    assert popularity["recall@1"] == 0.25
    assert popularity["mrr"] == ((1 + 1 / 2) / 2 + 1 / 4) / 2
    assert popularity["ndcg@3"] == pytest.approx((1 + 1 / np.log2(3)) / 2 / 2)


def test_at_cut_asks_each_user_once_and_wants_all_that_follows(result):
    at_cut = result["at_cut"]
    assert (at_cut["users"], at_cut["queries"], at_cut["positives"]) == (2, 2, 3)
    # One place holds one of Ann's two items, and not Zoe's.
    assert at_cut["baselines"]["popularity"]["recall@1"] == 0.25


def test_slices_part_the_queries_by_user_history_and_time(result):
    parts = {part["name"]: (part["users"], part["queries"]) for part in result["slices"]}
    assert parts == {
        "users known to training": (1, 2),
        "cold users": (1, 1),
        "no history": (1, 1),
        "1 to 5 events before": (1, 2),
        "back within an hour": (1, 2),
        "head": (1, 1),
        "torso": (1, 1),
        "tail": (1, 1),
    }
    known, new = (part["baselines"]["popularity"]["mrr"] for part in result["slices"][:2])
    assert (known, new) == (0.75, 0.25)
    assert all(part["is_small"] and part["interval"] is None for part in result["slices"])


def test_a_slice_of_positives_has_their_ranks_in_the_whole_list(result):
    # Item 3 is the most popular one, and the first of Ann's list; 4 follows, 2 is Zoe's.
    parts = {part["name"]: part["baselines"]["popularity"] for part in result["slices"]}
    assert parts["head"]["mrr"] == 1.0
    assert parts["torso"]["mrr"] == 1 / 2
    assert parts["tail"]["mrr"] == 1 / 4


def test_coverage_is_the_share_of_items_in_the_first_places(folders, result):
    firsts = {order[0] for order in lists(folders[2])}
    assert result["metrics"]["coverage@1"] == len(firsts) / 6


def test_exposure_counts_the_lists_that_items_are_in(folders, result):
    shown = {order[0] for order in lists(folders[2])}
    found, counts = result["exposure"], {1: 2, 2: 3, 3: 6, 4: 4, 5: 5, 6: 1}
    assert (found["k"], found["items"], found["never"]) == (1, 6, 6 - len(shown))
    bins = found["bins"]
    shares = [sum(n for n in counts.values() if b["from"] <= n <= b["to"]) / 21 for b in bins]
    assert [one["training_share"] for one in bins] == pytest.approx(shares)
    assert [(one["from"], one["to"], one["items"]) for one in bins] == [
        (1, 1, 1),
        (2, 3, 2),
        (4, 7, 3),
    ]
    assert sum(one["recommended_share"] for one in bins) == pytest.approx(1.0)


def test_every_baseline_is_measured_or_said_to_be_left_out(result):
    measured, left_out = set(result["baselines"]), set(result["baselines_left_out"])
    assert measured | left_out == set(BASELINES)
    assert not measured & left_out
    for figures in result["baselines"].values():
        assert figures.keys() >= {"recall@3", "auc", "coverage@3", "novelty@3", "diversity@3"}


def test_the_model_against_itself_is_as_good(folders, tmp_path):
    data, model, _ = folders
    bless = STAGE.bless.model_copy(update={"over": {"popularity": 0.001}, "over_blessed": 1.0})
    stage = STAGE.model_copy(update={"bless": bless})
    result = evaluate(stage, model, data, tmp_path, blessed=model)
    assert result["blessed_model"] == result["metrics"]
    differences = result["comparisons"]["blessed_model"].values()
    assert {one["relative"] for one in differences} <= {0.0, None}
    assert {one["difference"] for one in differences} == {0.0}
    assert result["verdict"]["blessed"]
    assert result["verdict"]["sentence"].startswith("±0 % mrr over the last blessed model")
    assert json.loads((tmp_path / "evaluation.json").read_text()) == result
    [ann, _] = result["examples"]
    assert ann["blessed_recommended"] == ann["recommended"]


def test_among_sampled_items_ranks_are_marked_and_bless_nothing(folders, tmp_path):
    data, model, _ = folders
    config = STAGE.evaluate.model_copy(update={"sampled_negatives": 1})
    result = evaluate(STAGE.model_copy(update={"evaluate": config}), model, data, tmp_path)
    assert result["sampled_negatives"] == 1
    # One positive beside one other: the rank is 1 or 2.
    assert result["metrics"]["recall@3"] == 1.0
    assert result["metrics"]["mrr"] >= 0.5
    assert "coverage@3" not in result["metrics"]
    assert not result["verdict"]["blessed"]


def test_what_was_seen_stays_in_the_list_where_the_config_says_so(folders, tmp_path):
    data, model, _ = folders
    result = evaluate(STAGE.model_copy(update={"repeats": "include"}), model, data, tmp_path)
    # Popularity: 3, 5, 4, 2, 1, 6 for everybody; Ann's answers are 3 and 4, Zoe's is 2.
    assert result["baselines"]["popularity"]["mrr"] == ((1 + 1 / 3) / 2 + 1 / 4) / 2


def test_an_example_shows_what_is_new_to_its_user_and_what_proved_right(folders, result):
    ann, zoe = result["examples"]
    assert ann["user_id"] == "ann"
    assert ann["history"] == [
        {"id": "i2", "title": "Title i2"},
        {"id": "i1", "title": "Title i1"},
    ]
    # Four of six items are left, fewer than the ten that there is room for.
    assert [item["id"] for item in ann["recommended"]] == [
        f"i{row}" for row in lists(folders[2])[0]
    ]
    assert {item["id"] for item in ann["recommended"] if item["held_out"]} == {"i3", "i4"}
    assert zoe["history"] == []
    assert result["unknown_report_users"] == ["nobody"]


def test_embeddings_that_are_no_numbers_stop_the_evaluation(folders, tmp_path, monkeypatch):
    data, model, _ = folders

    def broken(inference, inputs):
        return np.full((7, 4), np.nan, np.float32)

    monkeypatch.setattr("recsys.models.inference.Inference.catalogue", broken)
    with pytest.raises(RecsysError, match=r"R402.*7 of 7"):
        evaluate(STAGE, model, data, tmp_path)
    assert not (tmp_path / "evaluation.json").exists()


def held_out(tmp_path, folders, events):
    """A data folder like the one of `folders`, with other held-out events."""
    data = tmp_path / "data"
    shutil.copytree(folders[0], data)
    shutil.rmtree(data / "store")
    seen = [("ann", 1, row, row) for row in range(1, 6)]
    write_store(data / "store", 10, table(seen), table(events))
    return data


def test_a_user_who_has_seen_all_else_is_left_out_and_counted(folders, tmp_path):
    data = held_out(tmp_path, folders, [("ann", 1, 6, 10), ("zoe", 0, 2, 12)])
    result = evaluate(STAGE, folders[1], data, tmp_path / "out")
    assert (result["left_out_queries"], result["queries"], result["users"]) == (1, 1, 1)


def test_users_who_have_all_seen_all_else_are_an_error(folders, tmp_path):
    data = held_out(tmp_path, folders, [("ann", 1, 6, 10)])
    with pytest.raises(RecsysError, match=r"R408.*all 6 items.*repeats to include"):
        evaluate(STAGE, folders[1], data, tmp_path / "out")


def test_unknown_items_are_never_found_and_are_counted(folders, tmp_path):
    data = held_out(tmp_path, folders, [("zoe", 0, 0, 11), ("zoe", 0, 3, 12)])
    result = evaluate(STAGE, folders[1], data, tmp_path / "out")
    assert result["unknown_positives"] == 1
    assert result["baselines"]["popularity"]["mrr"] == (0 + 1) / 2


def test_held_out_events_of_nothing_but_unknown_items_are_an_error(folders, tmp_path):
    data = held_out(tmp_path, folders, [("zoe", 0, 0, 11)])
    with pytest.raises(RecsysError, match=r"R407.*all of unknown items"):
        evaluate(STAGE, folders[1], data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_was_trained_on_what_is_held_out_is_an_error(folders, tmp_path):
    data, model = folders[0], tmp_path / "model"
    shutil.copytree(folders[1], model)
    items = Vocabulary.load(model / "vocabulary" / "items.parquet")
    items.cut = 11
    items.save(model / "vocabulary" / "items.parquet")
    seal_inputs(model)
    with pytest.raises(RecsysError, match=r"R411.*1970.*bless\.over_blessed=0"):
        evaluate(STAGE, model, data, tmp_path / "out")


def test_nothing_held_out_is_an_error(folders, tmp_path):
    data = held_out(tmp_path, folders, [])
    with pytest.raises(RecsysError, match=r"R401.*data\.eval_share"):
        evaluate(STAGE, folders[1], data, tmp_path / "out")
