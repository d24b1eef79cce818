"""Pairs on held-out events: ranks against brute force, and the decision on the second stage."""

from collections import defaultdict
from types import SimpleNamespace

import jax
import keras
import numpy as np
import pyarrow as pa
import pytest
from pair_worlds import RANKER_CONFIG, impressions, make_data

import recsys
from recsys.config import BlessConfig, EvaluateConfig, EvaluateStage
from recsys.data.dataset import Data
from recsys.data.statistics import StatisticsState
from recsys.embedding import device_mesh
from recsys.evaluation.api import measured
from recsys.evaluation.evaluator import Evaluator
from recsys.kernels.rank_jobs import RankResults
from recsys.models.inputs import trained_rows
from recsys.pair.judging import PairJudging
from recsys.ragged import RaggedRows
from recsys.report.run_report import write_report
from recsys.tasks.model_folder import load_model
from recsys.tasks.ranking.calibration_file import load_calibration
from recsys.tasks.retrieval.judging.systems import System, SystemEmbeddings, reordered

N, K = RANKER_CONFIG["candidates"], 5


@pytest.fixture(scope="module")
def world(trained_pair, pair_data, tmp_path_factory):
    """A pair, its data, and later data with other rows, new users and new items."""
    rows, data = impressions(), Data(pair_data)
    other = [r._replace(user=f"late{r.user}", item=f"late{r.item}") for r in rows[-40:]]
    later = make_data(tmp_path_factory.mktemp("later"), [*other, *rows])
    assert data.items.fingerprint() != later.items.fingerprint()
    return SimpleNamespace(pair=trained_pair, data=(data, rows), later=(later, [*other, *rows]))


def stage(**bless):
    config = EvaluateConfig(k=(K, 30), resamples=200, baselines=("popularity",))
    metric = {"metric": f"ndcg@{K}", "over": {"popularity": 0.5}, "over_strongest": 0.0}
    return EvaluateStage(evaluate=config, bless=BlessConfig(**{**metric, **bless}))


@pytest.fixture(scope="module")
def judged(world):
    """Evaluations on both data; the last blessed pair is the same, served without its ranker."""
    own = measured(world.pair, world.data[0], world.pair, stage(), is_blessed_alone=True)
    return {"data": own, "later": measured(world.pair, world.later[0], None, stage())}


def reference(pair, data, rows):
    """NDCG@K and recall@N of both stages: every item is scored, then the first N are reordered."""
    retriever, ranker = load_model(pair), load_model(pair / "ranker")
    catalogue = np.asarray(
        retriever.model.embed_candidate(
            retriever.inputs.candidate(np.arange(retriever.items.n_rows))
        )
    )
    statistics = StatisticsState.open(data.folder, "cut")
    maps = load_calibration(pair / "ranker", ranker.model.label_names)
    device = {one.name: one for one in retriever.inputs.event_features}["device"]
    user_rows = {one.name: one for one in data.event_features}["user_rows"]
    clicks = defaultdict(list)
    row_of = dict(zip(data.items.names_of_rows(), range(data.items.n_rows), strict=True))
    in_order = sorted(rows, key=lambda r: (r.time, row_of.get(r.item, 0)))
    for row in (r for r in in_order if r.click):
        clicks[row.user].append(row)
    items = [name for name in retriever.items.names_of_rows() if name]
    own, of_data = retriever.items.rows(items), data.items.rows(items)
    found = defaultdict(lambda: defaultdict(list))
    embed_query, predicted = jax.jit(retriever.model.embed_query), jax.jit(ranker.model)

    def query(model, user, past, asked):
        past = past[::-1][: model.model.spec.config.history]
        padding = model.model.spec.config.history - len(past)
        devices = device.encode(pa.array([r.device for r in [*past, asked]]))
        own_items = model.items.rows([r.item for r in past]) if past else np.zeros(0, np.int32)
        return {
            "user_row": trained_rows(model.users.rows([user]), model.users),
            "history": trained_rows(np.pad(own_items, (0, padding)), model.items)[None],
            "history.device": np.pad(devices[:-1], ((0, padding), (0, 0)))[None],
            "device": devices[-1:],
        }

    for user, events in clicks.items():
        for time in sorted({r.time for r in events if r.time >= data.store.cut}):
            past = [
                r for r in events if r.time < time and r.item in {*data.items.own_ids.to_pylist()}
            ]
            seen = {r.item for r in events if r.time < time}
            n_before = sum(r.user == user and r.time < time for r in rows)
            asked = [r for r in events if r.time == time]
            positives = {r.item for r in asked} - seen
            if not positives:
                continue
            embedded = np.asarray(embed_query(query(retriever, user, past, asked[0])))
            scores = (catalogue[own] @ embedded[0]).astype(np.float32)
            order = sorted(
                (n for n, item in enumerate(items) if item not in seen),
                key=lambda n: (-scores[n], of_data[n]),
            )
            top = np.array(order[:N])
            listed = scores[top].astype(np.float64)
            of_list = np.stack(
                [
                    1 - np.log(np.arange(1, len(top) + 1)) / np.log(N + 1),
                    np.clip((listed - listed.mean()) / listed.std(), -5, 5),
                    np.ones(len(top)),
                ],
                axis=1,
            ).astype(np.float32)
            user_row = np.repeat(data.users.rows([user]), len(top))
            inputs = {
                name: np.repeat(x, len(top), axis=0)
                for name, x in query(ranker, user, past, asked[0]).items()
            }
            inputs |= {
                "id_row": trained_rows(own[top], ranker.items),
                "retriever": of_list,
                **statistics.features(user_row, of_data[top], data.catalogue),
                # Of users as of the query.
                "user_rows": user_rows.encode(np.full((len(top), 1), n_before, np.float32)),
            }
            joint = ranker.model.joint_scores(predicted(inputs))
            click, buy = (maps[name].apply(np.asarray(joint[name])) for name in ("click", "buy"))
            new = top[np.argsort(-(click * buy**0.5), kind="stable")]
            for name, ranked in (("first", order), ("pair", [*new, *order[N:]])):
                places = [p for p, n in enumerate(ranked) if items[n] in positives]
                gain = sum(1 / np.log2(2 + p) for p in places if p < K)
                ideal = sum(1 / np.log2(2 + p) for p in range(min(K, len(positives))))
                found[name, "ndcg"][user].append(gain / ideal)
                found[name, "recall"][user].append(sum(p < N for p in places) / len(positives))
    return {
        key: np.mean([np.mean(values) for values in users.values()]) for key, users in found.items()
    }


@pytest.mark.parametrize("where", ["data", "later"])
def test_figures_are_those_of_all_items_scored_and_the_first_reordered(world, judged, where):
    data, rows = getattr(world, where)
    content = judged[where].content
    expected = reference(world.pair, data, rows)
    close = {"abs": 2e-6}
    other = "reranked" if content["pair"]["second_stage"] == "left_out" else "retriever"
    pair, first = ("metrics", "retriever") if other == "retriever" else ("reranked", "metrics")
    found = {
        name: content[key] if key == "metrics" else content[key]["metrics"]
        for name, key in (("pair", pair), ("first", first))
    }
    assert expected["pair", "ndcg"] != pytest.approx(expected["first", "ndcg"], **close)
    for name, figures in found.items():
        assert figures[f"ndcg@{K}"] == pytest.approx(expected[name, "ndcg"], **close)
    candidates = content["pair"]["funnel"][1]
    assert candidates["recall"] == pytest.approx(expected["first", "recall"], **close)
    assert (candidates["items"], content["pair"]["funnel"][0]["items"]) == (
        N,
        int(data.catalogue.is_item.sum()),
    )


class Order:
    """A second stage that orders the retriever's items by a function of their scores."""

    candidates, inputs = N, ()

    def __init__(self, of_scores):
        self.of_scores = of_scores

    def scores(self, user_ids, queries, lists, progress=None):
        return self.of_scores(lists.top_scores[:, :N])


def popular_system(data, second):
    """A retriever that knows how often items are held out, with a second stage."""
    counts = np.bincount(data.store.eval.item_row, minlength=data.items.n_rows)
    embeddings = SystemEmbeddings(
        data.items,
        counts[:, None].astype(np.float32),
        1,
        lambda ids, history, given=None: np.ones((len(ids), 1), np.float32),
    )
    return System("a system", embeddings, data, second)


SECOND = {"reversed": np.negative, "equal": np.zeros_like, "same": np.positive}


@pytest.mark.parametrize("sure_loss", ["refuse", "allow"])
@pytest.mark.parametrize("order", SECOND)
def test_a_second_stage_that_is_surely_worse_is_left_out(world, order, sure_loss):
    data, config = world.data[0], stage(sure_loss=sure_loss)
    judging = PairJudging(config, data)
    systems = [popular_system(data, second) for second in (Order(SECOND[order]), None)]
    content, alone = (Evaluator(config, judging).run({"model": one}) for one in systems)
    is_left_out = (order, sure_loss) == ("reversed", "refuse")
    assert content["pair"]["second_stage"] == ("left_out" if is_left_out else "kept")
    assert ("reranked" in content, "retriever" in content) == (is_left_out, not is_left_out)
    is_served_alone = is_left_out or order != "reversed"
    is_same = content["metrics"].items() >= alone["metrics"].items()
    assert is_same == is_served_alone
    assert (content["verdict"]["rules"] == alone["verdict"]["rules"]) == is_served_alone
    assert ("retriever alone" in content["verdict"]["sentence"]) == is_left_out
    low, high = content["pair"]["difference_interval"]
    assert (high < 0) == (order == "reversed")
    assert ((low, high) == (0, 0)) == (order != "reversed")
    assert "pair" not in alone
    with_lists = content["examples"][0]["retrieved"]
    assert (with_lists is None) == is_left_out


def test_ties_stay_in_order_and_other_ranks_are_kept():
    top = np.array([[5, 3, 9, 7], [2, 4, 0, 0]], np.int32)
    scores = np.array([[9, 8, 7, 6], [3, 1, -np.inf, -np.inf]], np.float32)
    # The second query ranks two items; item 8 is in neither list.
    first = RankResults(
        np.array([2, 1, 4, 3, 2]), np.array([6, 2]), top, scores, np.full(2, -1, np.int32)
    )
    positives = RaggedRows.of([np.array([3, 5, 7]), np.array([8, 4])])
    second = np.array([[1, 1, 2], [0, 0, -np.inf]], np.float32)
    last = reordered(first, second, positives)
    assert last.top.tolist() == [[9, 5, 3, 7], [2, 4, 0, 0]]
    assert last.ranks.tolist() == [3, 2, 4, 3, 2]
    with pytest.raises(recsys.RecsysError, match=r"R405.*query 1, item row 4"):
        reordered(first, np.where(second == 0, [[0, np.nan, 0]], second), positives)


def test_the_last_blessed_pair_is_measured_as_it_is_served(judged):
    content = judged["data"].content
    assert content["blessed_model"].items() <= content["retriever"]["metrics"].items()
    assert content["blessed_model"] != content["metrics"]


def test_the_report_and_the_table_have_both_stages(world, judged, tmp_path):
    result = judged["data"]
    result.save(tmp_path)
    folders = {"data": world.data[0].folder, "model": world.pair, "evaluation": tmp_path}
    more = {"config": {}, "dead_letters": {}, "bundle": None, "pushed": None}
    page = write_report(tmp_path, **folders, **more).read_text()
    for words in ("Funnel", "The retriever alone", "Calibration of buy", "Training of the ranker"):
        assert words in page
    assert "can't be shown" not in page
    assert result.content["pair"]["sentence"] in repr(result)
    own = recsys.evaluate(world.pair / "ranker", world.data[0], baselines=[], progress=False)
    assert result.content["ranker"]["metrics"] == pytest.approx(own.metrics)


def test_a_mesh_gives_the_figures_of_one_process(world, judged):
    alone = judged["later"]
    try:
        mesh = device_mesh(devices=2)
        split = measured(world.pair, world.later[0], None, stage(), mesh=mesh)
    finally:
        keras.distribution.set_distribution(None)
    for key, value in alone.metrics.items():
        assert split.metrics[key] == pytest.approx(value, rel=1e-5), key
    assert split.content["pair"]["funnel"] == alone.content["pair"]["funnel"]
