"""A served pair: its lists, and what it does if the ranker is late."""

import json
import threading

import grpc
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
import requesting
import rpc
from pair_graph import N_USERS, by_hand, candidates, make_pair
from serving import FakeRecommender, Running

from recsys.config import InteractionColumns, InteractionsConfig, LabelConfig
from recsys.data.served_log import log_files
from recsys.errors import RecsysError, UsageError
from recsys.serving.rank_api import messages
from recsys.serving.recommendations import LoadedBundle
from recsys.serving.requests import Limits
from recsys.serving.served_log import ServedLog


def ids(answer):
    return [item.id for item in answer]


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"diversity": 0.4},
        {"max_per_value": {"genre": 3}},
        {"diversity": 0.7, "max_per_value": {"genre": 2}, "only": {"stock": ["yes"]}},
    ],
    ids=["plain", "diverse", "capped", "all"],
)
def test_lists_equal_those_by_hand(rules):
    loaded = LoadedBundle(make_pair(**rules))
    named = {"diversity": rules.get("diversity", 0.0), "caps": rules.get("max_per_value")}
    named["only"] = rules.get("only", {}).get("stock")
    for user in range(N_USERS):
        asked = {"context": {"device": "phone"}, "k": 12}
        assert ids(loaded.recommend(f"u{user}", **asked)) == by_hand(user, 12, 1.5, **named)
    answers = loaded.recommend(users=[f"u{n}" for n in range(N_USERS)], k=9)
    assert [ids(answer) for answer in answers] == [by_hand(n, 9, **named) for n in range(N_USERS)]
    assert all(answer.stage == "ranker" for answer in answers)
    assert list(answers[0][0].scores) == ["retriever", "click", "like"]


def test_a_request_can_only_narrow_a_rule():
    loaded = LoadedBundle(make_pair(only={"stock": ["yes"]}))
    assert ids(loaded.recommend("u1", filters={"stock": ["yes", "no"]})) == by_hand(
        1, 10, only=["yes"]
    )
    assert not loaded.recommend("u1", filters={"stock": "no"})


def test_stages_answer_alone():
    loaded = LoadedBundle(make_pair(diversity=0.5))
    rows, scores = candidates(2)
    first = loaded.retrieve("u2", k=25)
    assert ids(first) == [f"i{row}" for row in rows]
    np.testing.assert_allclose([item.score for item in first], scores, rtol=1e-5)
    ranking = loaded.rank("u2", ["i9", "i3", "x"], context={"device": "vr"})
    assert ranking.labels == ("score", "click", "like")
    assert [item.score for item in ranking] == sorted([i.score for i in ranking], reverse=True)
    with pytest.raises(UsageError, match="R549"):
        loaded.recommend("u2", context={"color": "red"})


@pytest.fixture
def server():
    def kind(version):
        return make_pair(version) if version > 1 else FakeRecommender(version)

    with Running(Limits(), versions=(1, 2), kind=kind) as running:
        running.model.count = running.metrics.pair_lists
        yield running


def n_lists(server, order):
    text = requesting.get(f"{server.url}/metrics").text
    name = f'recsys_pair_lists_total{{order="{order}"}} '
    return float(text.partition(name)[2].partition("\n")[0] or 0)


def recommended(server, **wish):
    return requesting.post(f"{server.url}/api/recommend", json={"user": "u1", **wish}).json()


def predicted(server, signature):
    columns = {"user_id": "u1", "history": [""], "exclude_seen": True}
    if signature == "retrieve":
        columns |= {"exclude_ids": [""], "only_genre": [""], "only_stock": [""]}
    return server.predict({"signature_name": signature, "instances": [columns]}).json()


@pytest.mark.parametrize("reason", ["late", "failed"])
def test_without_the_ranker_in_time_the_retriever_answers_and_is_counted(server, reason):
    graph = server.model._graph
    first = [f"i{row}" for row in candidates(1)[0][:10]]
    answer = recommended(server)
    assert [item["id"] for item in answer["items"]] == by_hand(1, 10)
    assert (answer["stage"], n_lists(server, "ranker")) == ("ranker", 1)
    assert [*answer["items"][0]["scores"]] == ["retriever", "click", "like"]
    if reason == "late":
        graph.delay_s = 4.0
    else:
        graph.error = RecsysError("R561", "A response must fit.", "Request fewer rows.")
    answer = recommended(server)
    assert [item["id"] for item in answer["items"]] == first
    assert (answer["stage"], n_lists(server, reason)) == ("retriever", 1)
    [row] = predicted(server, "recommend")["predictions"]
    assert (row["candidate_ids"][:10], row["stage"]) == (first, "retriever")
    assert n_lists(server, reason) == 2


def test_signatures_of_a_pair_are_served(server):
    [row] = predicted(server, "recommend")["predictions"]
    assert row["candidate_ids"][:20] == by_hand(1, 20)
    assert row["stage"] == "ranker"
    [row] = predicted(server, "retrieve")["predictions"]
    assert row["candidate_ids"][:25] == [f"i{row}" for row in candidates(1)[0]]
    body = {"user": "u1", "items": ["i9", "i3"], "context": {"device": "radio"}}
    answer = server.predict(body, "/v1/models/m:rank").json()
    assert answer["labels"] == ["score", "click", "like"]


def test_recommend_takes_raw_ids_and_columns(server):
    body = {"user": "u1", "k": 5, "context": {"device": "tv"}, "filters": {"stock": ["yes"]}}
    answer = server.predict(body, "/v1/models/m:recommend").json()
    assert [item["id"] for item in answer["items"]] == by_hand(1, 5, -1.0, only=["yes"])
    assert (answer["version"], answer["stage"], answer["missing"]) == (2, "ranker", {})
    assert [*answer["items"][0]["scores"]] == ["retriever", "click", "like"]
    for change, status, said in (({"k": 0}, 422, "body.k"), ({"context": {"x": 1}}, 400, "'x'")):
        answer = server.predict({**body, **change}, "/v1/models/m:recommend")
        assert (answer.status_code, said in answer.json()["error"]) == (status, True)


def test_recommend_over_grpc_answers_as_over_rest(server):
    body = {"user": "u1", "k": 5, "exclude": ["i3"], "filters": {"stock": ["yes"]}}
    body |= {"history": [{"item": "i9"}, {"item": "i7"}], "exclude_seen": False}
    right = server.predict(body | {"context": {"device": "tv"}}, "/v1/models/m:recommend").json()
    body["filters"] = {"stock": {"values": ["yes"]}}
    request = messages("RecommendRequest")(model="m", context={"device": "tv"}, **body)
    method = "/recsys.RankingService/Recommend"
    answer = rpc.ask(server.grpc, method, request, messages("RecommendResponse"))
    request.context["color"] = "red"
    with pytest.raises(grpc.RpcError, match=r"INVALID_ARGUMENT.*'color' of the context"):
        rpc.ask(server.grpc, method, request, messages("RecommendResponse"))
    assert answer.items[0].score == pytest.approx(right["items"][0]["score"])
    assert [(x.id, x.title) for x in answer.items] == [
        (x["id"], x["title"]) for x in right["items"]
    ]
    for one, by_rest in zip(answer.items, right["items"], strict=True):
        assert dict(one.scores) == pytest.approx(by_rest["scores"])
    names = ("version", "known", "source", "stage", "missing", "unknown")
    assert [getattr(answer, name) for name in names] == [right[name] for name in names]


def test_lists_are_logged_with_the_scores_of_both_stages(tmp_path):
    names = {"user": "who", "item": "what", "timestamp": "at", "impression": "shown"}
    columns = InteractionColumns(**names, position="slot")
    labels = {"click": LabelConfig(column="click", at_least=1.0)}
    config = InteractionsConfig(files="none", columns=columns, labels=labels)
    body = {"user": "u1", "k": 3, "context": {"device": "tv"}, "impression": "mine"}

    def log(metrics):
        return ServedLog(tmp_path, config, 1, 1, metrics)

    with Running(versions=(2,), kind=make_pair, log=log) as running:
        answer = running.predict(body, "/v1/models/m:recommend").json()
        running.log.close()
    rows = [json.loads(line) for line in log_files(tmp_path)[0].read_text().splitlines()]
    found = [(row["what"], row["shown"], row["slot"], row["device"]) for row in rows]
    items = [item["id"] for item in answer["items"]]
    assert found == [(id_, "mine", place, "tv") for place, id_ in enumerate(items)]
    for row, item in zip(rows, answer["items"], strict=True):
        assert row["served_scores"] == pytest.approx(
            {"score": item["score"], **item["scores"]}, abs=1e-6
        )


def test_older_bundles_are_served_beside_a_pair(server):
    about = requesting.get(f"{server.url}/api/about").json()
    assert (about["versions"], about["context"]) == ([2, 1], {"device": "text"})
    assert recommended(server, version=1, k=4)["stage"] == "retriever"
    assert recommended(server, context={"device": "radio"})["version"] == 2
    assert recommended(server)["missing"] == {"device": 1}


def test_a_swap_of_pairs_fails_no_request(server):
    failed, is_over = [], threading.Event()

    def ask():
        while not is_over.is_set():
            answer = requesting.post(f"{server.url}/api/recommend", json={"user": "u1"})
            if answer.status_code != 200 or not answer.json()["items"]:
                failed.append(answer.text)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for version in range(3, 23):
        server.pool.models = (make_pair(version),)
        recommended(server)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not failed
