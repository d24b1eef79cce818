"""An evaluation against plain Python, on three users whom one can count by hand."""

import numpy as np
import pyarrow as pa
import pytest

from recsys.config import BlessConfig, EvaluateConfig, EvaluateStage, ModelConfig, TrainStage
from recsys.data.catalogue import Catalogue
from recsys.data.store import write_store
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.evaluate import evaluate
from recsys.model import ModelSpec, TowerInputs, TwoTower, save_model
from recsys.model.inference import embed_catalogue, embed_queries

TRAINED = TrainStage(model=ModelConfig(dim=4, history=3, widths=(5,)))
STAGE = EvaluateStage(
    evaluate=EvaluateConfig(k=(1, 3)),
    bless=BlessConfig(metric="mrr", over_popularity=0.0),
    report_users=("ann", "zoe", "nobody"),
)
# (evaluation user, seen rows, positive row): Ann takes 3, then 4; Zoe, who is new, takes 2.
QUERIES = [(0, [1, 2], 3), (0, [1, 2, 3], 4), (1, [], 2)]


def table(events):
    """Events (user id, user row, item row, time)."""
    kinds = {"user_id": "string", "user_row": "int32", "item_row": "int32", "timestamp": "int64"}
    columns = zip(*events, strict=True)
    arrays = [pa.array(c, k) for c, k in zip(columns, kinds.values(), strict=True)]
    return pa.table(arrays, names=list(kinds))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A data folder with items 1 … 6, the third most popular, and an untrained model."""
    data, model_folder = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("model")
    train = table([("ann", 1, 1, 1), ("ann", 1, 2, 2), ("bob", 2, 1, 1)])
    held_out = table([("ann", 1, 3, 10), ("ann", 1, 4, 20), ("zoe", 0, 2, 12)])
    write_store(data / "store", 10, train, held_out)
    users = Vocabulary(pa.array(["ann", "bob"]), np.array([2, 1]))
    items = Vocabulary(pa.array([f"i{n}" for n in range(1, 7)]), np.array([2, 3, 6, 4, 5, 1]))
    (data / "vocabulary").mkdir()
    users.save(data / "vocabulary" / "users.parquet")
    items.save(data / "vocabulary" / "items.parquet")
    ids = items.names_of_rows()
    catalogue = Catalogue(ids, [f"Title {id_}" for id_ in ids], ())
    catalogue.save(data / "catalogue")
    model = TwoTower(ModelSpec.for_data(TRAINED.model, users.n_rows, catalogue), seed=1)
    model.build()
    save_model(model_folder, model, TRAINED, data)
    known = TowerInputs(users, items, catalogue)
    user_row, history = np.array([1, 1, 0]), np.array([[2, 1, 0], [3, 2, 1], [0, 0, 0]])
    query = embed_queries(model, user_row, history, known)
    np.savez(model_folder / "probe.npz", user_row=user_row, history=history, query=query)
    candidates = embed_catalogue(model, known)
    np.save(model_folder / "candidates.npy", candidates)
    return data, model_folder, query @ candidates.T


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
    for name, value in {
        "recall@1": [place <= 1 for place in places],
        "recall@3": [place <= 3 for place in places],
        "ndcg@3": [1 / np.log2(1 + place) if place <= 3 else 0 for place in places],
        "mrr": [1 / place for place in places],
    }.items():
        expected = ((value[0] + value[1]) / 2 + value[2]) / 2
        assert result["metrics"][name] == pytest.approx(expected), name


def test_popularity_ranks_unseen_items_by_their_training_positives(result):
    # Of what is left, Ann's next item is the first, then the second; Zoe's is the fourth.
    popularity = result["baselines"]["popularity"]
    assert popularity["recall@1"] == 0.25
    assert popularity["mrr"] == ((1 + 1 / 2) / 2 + 1 / 4) / 2
    assert popularity["ndcg@3"] == pytest.approx((1 + 1 / np.log2(3)) / 2 / 2)


def test_at_cut_asks_each_user_once_and_wants_all_that_follows(result):
    at_cut = result["at_cut"]
    assert (at_cut["users"], at_cut["queries"], at_cut["positives"]) == (2, 2, 3)
    # One place holds one of Ann's two items, and not Zoe's.
    assert at_cut["baselines"]["popularity"]["recall@1"] == 0.25


def test_slices_part_the_queries_by_user_and_by_history(result):
    parts = {part["name"]: (part["users"], part["queries"]) for part in result["slices"]}
    assert parts == {
        "users known to training": (1, 2),
        "users new since the cut": (1, 1),
        "queries without a history": (1, 1),
        "queries with a history of 1 to 5": (1, 2),
    }
    known, new = (part["baselines"]["popularity"]["mrr"] for part in result["slices"][:2])
    assert (known, new) == (0.75, 0.25)


def test_coverage_is_the_share_of_items_in_the_first_places(folders, result):
    assert result["coverage@1"] == len({order[0] for order in lists(folders[2])}) / 6


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

    def broken(model, inputs):
        return np.full((7, 4), np.nan, np.float32)

    monkeypatch.setattr("recsys.evaluate.embed_catalogue", broken)
    with pytest.raises(RecsysError, match=r"R402.*7 of 7"):
        evaluate(STAGE, model, data, tmp_path)
    assert not (tmp_path / "evaluation.json").exists()
