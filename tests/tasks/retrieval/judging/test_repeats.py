"""Held-out events that repeat an item: masked for all users, or for none.

The figures equal a plain evaluator's that is written here: a loop over users and moments, and a
sort, without `recsys.evaluation`.
"""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from data_folders import write_data, write_embeddings

from benchmarks.stores import write_store
from recsys.config import (
    BlessConfig,
    EvaluateConfig,
    EvaluateStage,
    TrainConfig,
    TrainStage,
    TwoTowerConfig,
    ValidationConfig,
)
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.evaluation.evaluation_file import evaluate
from recsys.models import ModelInputs, ModelSpec, TwoTower
from recsys.models.inference import embed_queries
from recsys.ragged import RaggedRows
from recsys.tasks.model_folder import save_model
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.scores import DotProducts
from recsys.tasks.retrieval.training.epoch_work import Validator
from recsys.tasks.training_side import training_events

USERS, ITEMS, CUT, LENGTH = 40, 25, 100, 4
PROTOCOLS = ("each_moment", "at_cut")
TRAINED = TrainStage(model=TwoTowerConfig(dim=8, history=LENGTH, widths=(8,)))
STAGE = EvaluateStage(
    evaluate=EvaluateConfig(k=(1, 5), resamples=100, baselines=("popularity",), small_slice=2),
    bless=BlessConfig(metric="recall@5", over={}, at_least=0.01),
)


def make_events(seed=0):
    """Events (user, item row, time): half of those from the cut on repeat an earlier item."""
    random = np.random.default_rng(seed)
    events = []
    for user in range(USERS):
        taken = []
        for time in [*range(90, 90 + random.integers(2, 8)), *range(CUT, CUT + 6)]:
            again = time >= CUT and random.random() < 0.5
            item = int(random.choice(taken) if again else random.integers(1, ITEMS + 1))
            taken.append(item)
            # Two events in one second are one query.
            events.append((user, item, time - (time == CUT + 3)))
    return events


EVENTS = make_events()


def table(events):
    columns = {
        "user_id": pa.array([f"u{user:02}" for user, _, _ in events], "string"),
        "user_row": pa.array([user + 1 for user, _, _ in events], "int32"),
        "item_row": pa.array([item for _, item, _ in events], "int32"),
        "timestamp": pa.array([time for _, _, time in events], "int64"),
    }
    return pa.table(columns)


def write_world_data(folder, events):
    parts = [[one for one in events if (one[2] >= CUT) == late] for late in (False, True)]
    users = Vocabulary(pa.array([f"u{user:02}" for user in range(USERS)]), np.ones(USERS, int))
    counts = np.bincount([item for _, item, _ in parts[0]], minlength=ITEMS + 1)[1:]
    items = Vocabulary(pa.array([f"i{row}" for row in range(1, ITEMS + 1)]), counts)
    return write_data(folder, CUT, *map(table, parts), users, items)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A data folder, an untrained model, and what that model scores."""
    data, folder = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("model")
    known = write_world_data(data, EVENTS)
    model = TwoTower(ModelSpec.for_data(TRAINED.model, known.users.n_rows, known.catalogue), seed=1)
    model.build()
    save_model(folder, model, TRAINED, data)
    user_row, history = np.array([1, 2]), np.array([[2, 1, 0, 0], [3, 2, 1, 4]])
    _, candidates = write_embeddings(folder, model, known, user_row, history)

    asked = [(user, tuple(seen)) for kind in PROTOCOLS for user, seen, _ in questions(kind)]
    newest = [[*seen[::-1][:LENGTH], *[0] * LENGTH][:LENGTH] for _, seen in asked]
    rows = np.array([user + 1 for user, _ in asked])
    embedded = embed_queries(model, rows, np.array(newest), known)
    scores = dict(zip(asked, embedded @ candidates.T, strict=True))
    return data, folder, lambda user, seen: scores[user, tuple(seen)]


@pytest.fixture(scope="module")
def results(world, tmp_path_factory):
    """The evaluation where repeats are excluded, and where they are included."""
    return {
        repeats: run(world, tmp_path_factory.mktemp("out"), repeats)
        for repeats in ("exclude", "include")
    }


def questions(kind):
    """Yields user, all that the user did before, and what was taken then."""
    for user in range(USERS):
        own = [(time, item) for one, item, time in EVENTS if one == user]
        times = sorted({time for time, _ in own if time >= CUT})
        for moment in times if kind == "each_moment" else [CUT]:
            seen = [item for time, item in own if time < moment]
            last = moment if kind == "each_moment" else 10**9
            taken = {item for time, item in own if moment <= time <= last}
            yield user, seen, taken


def plainly(kind, score, repeats, only=None):
    """Returns recall@1, recall@5, ndcg@5 and mrr, and how many positives there are."""
    of_user, n_positives = {}, 0
    for user, seen, taken in questions(kind):
        hidden = set(seen) if repeats == "exclude" else set()
        wanted = taken - hidden
        if only is not None:
            wanted = {item for item in wanted if (item in seen) == (only == "again")}
        if not wanted:
            continue
        scores = score(user, seen)
        rows = [row for row in range(1, ITEMS + 1) if row not in hidden]
        order = sorted(rows, key=lambda row: (-scores[row], row))
        places = [order.index(item) + 1 for item in wanted]
        gains = sum(1 / np.log2(1 + place) for place in places if place <= 5)
        best = sum(1 / np.log2(1 + place) for place in range(1, min(5, len(wanted)) + 1))
        row = [np.mean([place <= k for place in places]) for k in (1, 5)]
        of_user.setdefault(user, []).append([*row, gains / best, 1 / min(places)])
        n_positives += len(wanted)
    means = np.mean([np.mean(rows, axis=0) for rows in of_user.values()], axis=0)
    return dict(zip(("recall@1", "recall@5", "ndcg@5", "mrr"), means, strict=True)), n_positives


def popularity(user, seen):
    del user, seen
    return np.bincount([item for _, item, time in EVENTS if time < CUT], minlength=ITEMS + 1)


def run(world, out, repeats="exclude", **more):
    config = STAGE.evaluate.model_copy(update=more)
    stage = STAGE.model_copy(update={"repeats": repeats, "evaluate": config})
    return evaluate(stage, world[1], world[0], out)


def assert_equal(figures, expected):
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def assert_plain(world, result, repeats):
    """Asserts that the figures of both protocols, model and baseline, are the plain ones."""
    for kind, part in ("each_moment", result), ("at_cut", result["at_cut"]):
        for score, figures in (
            (world[2], part["metrics"]),
            (popularity, part["baselines"]["popularity"]),
        ):
            expected, n_positives = plainly(kind, score, repeats)
            assert_equal(figures, expected)
            assert part["positives"] == n_positives
    assert result["repeats"] == repeats


@pytest.mark.parametrize("repeats", ["exclude", "include"])
def test_figures_are_those_of_a_plain_evaluator(world, results, repeats):
    assert_plain(world, results[repeats], repeats)


def test_figures_of_jax_alone_are_those_of_a_plain_evaluator(world, tmp_path, monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "0")
    assert_plain(world, run(world, tmp_path), "exclude")


def test_repeats_are_counted_whether_they_are_answers_or_not(results):
    asked = list(questions("each_moment"))
    n_again = sum(len(taken & set(seen)) for _, seen, taken in asked)
    n_all = sum(len(taken) for _, _, taken in asked)
    n_only = sum(taken <= set(seen) for _, seen, taken in asked)
    assert n_again > 50
    for repeats, kept in ("exclude", n_all - n_again), ("include", n_all):
        result = results[repeats]
        assert result["repeated_positives"] == n_again
        assert result["repeated_share"] == pytest.approx(n_again / n_all)
        assert result["positives"] == kept
        assert result["queries"] == len(asked) - (n_only if repeats == "exclude" else 0)
        assert result["repeat_only_queries"] == (n_only if repeats == "exclude" else 0)


def test_repeats_are_a_separate_slice(world, results):
    excluded = {one["name"]: one for one in results["exclude"]["slices"]}
    assert excluded["again"]["kind"] == "repeats"
    assert set(excluded["again"]["metrics"].values()) == {0.0}
    assert set(excluded["again"]["baselines"]["popularity"].values()) == {0.0}
    parts = {one["name"]: one for one in results["include"]["slices"] if one["kind"] == "repeats"}
    assert excluded["again"]["positives"] == parts["again"]["positives"]
    for name in ("first time", "again"):
        expected, n_positives = plainly("each_moment", world[2], "include", name)
        assert parts[name]["positives"] == n_positives
        # A slice counts only its own positives of a query: mrr and recall agree.
        assert_equal(parts[name]["metrics"], {k: expected[k] for k in ("recall@5", "mrr")})


@pytest.mark.parametrize("repeats", ["exclude", "include"])
def test_among_as_many_sampled_items_as_there_are_the_ranks_are_the_same(world, tmp_path, repeats):
    result = run(world, tmp_path, repeats, sampled_negatives=ITEMS)
    assert_equal(result["metrics"], plainly("each_moment", world[2], repeats)[0])


def test_examples_show_what_the_served_model_would(results):
    for repeats, result in results.items():
        both = [
            {item["id"] for item in one["history"]} & {item["id"] for item in one["recommended"]}
            for one in result["examples"]
        ]
        assert any(both) == (repeats == "include")


@pytest.mark.parametrize("native", ["1", "0"], ids=["kernel", "jax"])
def test_a_mean_of_the_history_finds_no_repeats_that_are_masked(monkeypatch, native):
    """This model returns the items of the history, which can't be found if they are masked."""
    monkeypatch.setenv("RECSYS_NATIVE", native)
    items = np.vstack([np.zeros(ITEMS), np.eye(ITEMS)]).astype(np.float32)
    asked = [
        (seen, sorted(taken & set(seen)))
        for _, seen, taken in questions("each_moment")
        if taken & set(seen)
    ]
    query = np.array([items[seen].mean(axis=0) for seen, _ in asked], np.float32)
    lists = [RaggedRows.of(map(np.array, part)) for part in zip(*asked, strict=True)]
    scorer, is_item = DotProducts(query, items), np.arange(ITEMS + 1) > 0
    free = rank(scorer, lists[1], RaggedRows.empty(len(asked)), is_item, 1)
    masked = rank(scorer, lists[1], lists[0], is_item, 1)
    assert (free.ranks == 1).mean() > 0.2
    assert (masked.ranks == masked.n_ranked[lists[1].owner()] + 1).all()


def test_validation_in_training_goes_by_the_same_rule(world):
    validation = ValidationConfig(share=0.3)
    log = InteractionStore.open(world[0] / "store").train
    events = training_events(log, TrainConfig(validation=validation))
    known, user = ModelInputs.open(world[0]), log.user_index(events.held)
    n_again, n_all = 0, 0
    for place, one in zip(events.held.tolist(), user.tolist(), strict=True):
        own = slice(*log.offsets[one : one + 2].tolist())
        earlier = np.asarray(log.timestamp[own]) < log.timestamp[place]
        n_again += log.item_row[place] in log.item_row[own][earlier]
        n_all += 1
    assert n_again > 0
    for repeats, expected in ("exclude", n_all - n_again), ("include", n_all):
        asked = Validator(events, known, TRAINED.model, validation, repeats=repeats)
        assert len(asked.queries.positives.rows) == expected


def test_users_of_repeats_alone_are_asked_but_not_counted(world, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(world[0], data)
    shutil.rmtree(data / "store")
    train = [one for one in EVENTS if one[2] < CUT]
    known = {item for user, item, _ in train if user == 1}
    new = next(item for item in range(1, ITEMS + 1) if item not in known)
    held_out = table([(0, train[0][1], CUT), (1, new, CUT)])
    write_store(data / "store", CUT, table(train), held_out)
    result = evaluate(STAGE, world[1], data, tmp_path / "out")
    for part in (result, result["at_cut"]):
        names = ("users", "users_chosen", "users_held_out", "repeat_only_queries")
        assert [part[name] for name in names] == [1, 2, 2, 1]


def test_nothing_but_repeats_is_an_error_with_a_cure(world, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(world[0], data)
    shutil.rmtree(data / "store")
    train = [one for one in EVENTS if one[2] < CUT]
    write_store(data / "store", CUT, table(train), table([(0, train[0][1], CUT)]))
    with pytest.raises(RecsysError, match=r"R412.*1 of 1 held-out.*repeats: include"):
        evaluate(STAGE, world[1], data, tmp_path / "out")
    stage = STAGE.model_copy(update={"repeats": "include"})
    assert evaluate(stage, world[1], data, tmp_path / "out")["positives"] == 1
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["repeats"] == "include"
