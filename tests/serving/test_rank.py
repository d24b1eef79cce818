"""Items ranked by predicted labels, from Python, over HTTP and over gRPC."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("tensorflow", reason="needs the extra `serve`")
import requesting
import rpc
from ranking_bundle import ITEMS, expected, write_ranking_bundle
from serving import FakeRecommender, Running

import recsys
from recsys.bundles.publishing import publish
from recsys.cli import main
from recsys.errors import UsageError
from recsys.serving.opening import open_bundle
from recsys.serving.rank_api import messages
from recsys.serving.requests import Limits

ALL = [*ITEMS, "new"]
HISTORY = [{"item": "i2", "device": "tv"}, {"item": "i1", "device": ""}]
QUERIES = [
    {"user": "u1"},
    {"user": "?", "context": {"device": "phone"}},
    {"user": "u2", "context": {"price": [4, 0.5, 0, None, 1], "device": "vr"}, "k": 3},
    {"user": "u1", "context": {"device": ["tv", "phone", "x", "tv", ""]}, "history": HISTORY},
    {"user": "", "features": {"country": ["DE"]}, "k": 1},
]
MISSING = [
    {"device": 1, "price": 1}, {"price": 1}, {"price": 1}, {"device": 1, "price": 1},
    {"device": 1, "price": 1},
]  # fmt: skip
UNKNOWN = [{}, {}, {"device": 1}, {"device": 1}, {}]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_ranking_bundle(tmp_path_factory.mktemp("ranking") / "1")


@pytest.fixture(scope="module")
def loaded(bundle):
    return recsys.load_bundle(bundle)


@pytest.fixture(scope="module")
def server(bundle):
    limits = Limits(items=50)
    with Running(limits, versions=(1,), kind=lambda _: open_bundle(bundle)) as running:
        yield running


def by_hand(query):
    """Returns ids and scores in order, from the closed form."""
    context = query.get("context", {})
    price = context.get("price", 0.0)
    scores = expected(
        query["user"],
        ALL,
        context.get("device", ""),
        [x or 0.0 for x in price] if isinstance(price, list) else price,
        query.get("history"),
        *query.get("features", {}).get("country", []),
    )
    order = np.argsort(-scores["click"], kind="stable")[: query.get("k")]
    return [ALL[place] for place in order], {name: x[order] for name, x in scores.items()}


def by_python(query, loaded, server):
    del server
    found = loaded.rank(items=ALL, **query)
    assert found.to_pandas()["id"].tolist() == [item.id for item in found]
    scores = {label: [item.scores[label] for item in found] for label in found.labels}
    ids, known = [item.id for item in found], [item.known for item in found]
    return ids, scores, known, found.known, found.missing, found.unknown


def by_rest(query, loaded, server):
    del loaded
    answer = server.predict({**query, "items": ALL}, "/v1/models/m:rank").json()
    assert set(answer) == {"version", "known", "labels", "items", "missing", "unknown"}
    items = answer["items"]
    scores = {label: [one["scores"][label] for one in items] for label in answer["labels"]}
    ids, known = [one["id"] for one in items], [one["known"] for one in items]
    return ids, scores, known, answer["known"], answer["missing"], answer["unknown"]


def by_grpc(query, loaded, server):
    del loaded
    request = messages("RankRequest")(model="m", user=query["user"], items=ALL, k=query.get("k", 0))
    for name, value in query.get("context", {}).items():
        values = value if isinstance(value, list) else [value]
        request.context[name].values.extend("" if one is None else str(one) for one in values)
    for name, values in query.get("features", {}).items():
        request.features[name].values.extend(values)
    for one in query.get("history", []):
        request.history.add(item=one["item"], attributes={"device": one["device"]})
    method = "/recsys.RankingService/Rank"
    answer = rpc.ask(server.grpc, method, request, messages("RankResponse"))
    scores = {x: list(one.values) for x, one in zip(answer.labels, answer.scores, strict=True)}
    counts = {**answer.missing}, {**answer.unknown}
    return list(answer.items), scores, list(answer.known_items), answer.known, *counts


@pytest.mark.parametrize("by", [by_python, by_rest, by_grpc])
@pytest.mark.parametrize("at", range(len(QUERIES)))
def test_items_have_the_probability_of_each_label_in_the_order_of_the_first(at, by, loaded, server):
    query = QUERIES[at]
    ids, scores, known, is_known, missing, unknown = by(query, loaded, server)
    right_ids, right = by_hand(query)
    assert ids == right_ids
    assert list(scores) == ["click", "buy"]
    for label, values in right.items():
        np.testing.assert_allclose(scores[label], values, rtol=1e-6)
    assert known == [id_ in ITEMS for id_ in ids]
    assert is_known == (query["user"] in ("u1", "u2"))
    assert (missing, unknown) == (MISSING[at], UNKNOWN[at])


BODY = {"user": "u1", "items": ["i1", "i2"]}


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"items": []}, 422, "body.items"),
        ({"items": ["i1", 1.5]}, 422, "body.items.1"),
        ({"items": ["i1"] * 51}, 413, "50 items"),
        ({"k": 0}, 422, "body.k"),
        ({"extra": 1}, 422, "body.extra"),
        ({"context": {"price": {"a": 1}}}, 422, "body.context.price"),
        ({"context": {"price": [1]}}, 400, "price must have one value"),
        ({"context": {"price": ["x", 1]}}, 400, "price must be a finite number"),
        ({"context": {"color": "red"}}, 400, "'color' of the context"),
        ({"history": [{"device": "tv"}]}, 400, "'item'"),
        ({"history": [{"item": "i1", "color": 1}]}, 400, "'color' of the history"),
        ({"features": {"age": "7"}}, 400, "'age' of the users"),
    ],
)
def test_an_error_names_the_field(server, change, status, said):
    answer = server.predict({**BODY, **change}, "/v1/models/m:rank")
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text


def test_defaults_of_the_context_are_counted(server):
    def count(reason):
        name = f'recsys_context_defaults_total{{column="device",reason="{reason}"}} '
        text = requesting.get(f"{server.url}/metrics").text
        return float(text.partition(name)[2].partition("\n")[0] or 0)

    before = count("unknown"), count("missing")
    body = {**BODY, "context": {"device": ["vr", "vr"], "price": 1}}
    server.predict(body, "/v1/models/m/versions/1:rank")
    server.predict({**BODY, "context": {"price": 1}}, "/v1/models/m:rank")
    assert (count("unknown") - before[0], count("missing") - before[1]) == (2, 1)


def test_the_bare_signature_is_that_of_tensorflow_serving(server):
    inputs = {name: [[""]] for name in ("history", "history_device", "context_device",
                                        "context_price", "country")}  # fmt: skip
    body = {"inputs": {**inputs, "user_id": ["u1"], "item_id": [["i1", "i2", "i4"]]}}
    outputs = server.predict({"signature_name": "rank", **body}).json()["outputs"]
    right = expected("u1", ["i1", "i2", "i4"])
    np.testing.assert_allclose(outputs["buy"], right["buy"][None], rtol=1e-6)


def test_what_predicts_no_labels_cannot_rank(loaded):
    with pytest.raises(UsageError, match="R545"):
        loaded.recommend("u1")
    with pytest.raises(UsageError, match="R545"):
        loaded.score(user_id=["u1"], item_id=["i1"])
    with pytest.raises(UsageError, match="R549"):
        loaded.rank("u1", ["i1"], price=1)


def test_columns_of_a_table_are_context_and_nan_is_missing(loaded):
    table = pd.DataFrame({"item": ["i1", "i2"], "price": [2.0, np.nan]})
    found = loaded.rank("u1", table["item"], context={"price": table["price"]})
    right = expected("u1", ["i2", "i1"], "", [0.0, 2.0])["click"]
    assert [item.score for item in found] == pytest.approx(right.tolist())
    assert found.missing == {"device": 1, "price": 1}


def test_what_answers_lists_cannot_rank():
    with Running(versions=(1,), kind=FakeRecommender) as running:
        answer = running.predict(BODY, "/v1/models/m:rank")
        assert (answer.status_code, "R545" in answer.json()["error"]) == (400, True)


def test_the_page_ranks_candidates_or_those_with_the_most_events(server):
    about = requesting.get(f"{server.url}/api/about").json()
    assert (about["labels"], about["filters"]) == (["click", "buy"], {})
    assert about["context"] == {"device": "text", "price": "number"}
    assert requesting.get(f"{server.url}/api/state").json()["ready"]
    wish = {"user": "u1", "context": {"device": "tv"}, "exclude": ["i4"]}
    post = f"{server.url}/api/recommend"
    popular = requesting.post(post, json=wish).json()
    assert [item["id"] for item in popular["items"]] == ["i2", "i1", "i3"]
    assert [item["title"] for item in popular["items"]] == ["Two", "One", "i3"]
    right = expected("u1", ["i2", "i1", "i3"], "tv")
    found = [item["scores"]["buy"] for item in popular["items"]]
    np.testing.assert_allclose(found, right["buy"], rtol=1e-6)
    assert popular["missing"] == {"price": 1}
    chosen = requesting.post(
        post, json={**wish, "candidates": ["new", "i3"], "items": ["i2"]}
    ).json()
    assert [(item["id"], item["title"]) for item in chosen["items"]] == [
        ("new", "new"),
        ("i3", "i3"),
    ]
    assert [item["id"] for item in chosen["history"]] == ["i2"]
    similar = requesting.get(f"{server.url}/api/similar?item=i1")
    assert (similar.status_code, "R545" in similar.json()["error"]) == (400, True)


def test_a_file_of_users_with_items_is_ranked(bundle, tmp_path, capsys):
    publish(bundle, tmp_path / "serving" / "sums", 1)
    rows = [
        {"who": "u1", "items": ["i1", "i2", "new"], "context_price": [1.5, 40, None]},
        {"who": "u2", "items": ["i3", "i1"], "context_price": [0, 0], "history": ["i2"]},
        {"who": "u1", "items": ["i1"], "context_price": [1, 2]},
        {"who": None, "items": ["i4"], "context_price": [2]},
    ]
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.parquet"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "no JSON\n")
    words = ["--out", out, "--root", tmp_path, "--context", "device=phone", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["rank", str(file), *map(str, words)])
    assert not ended.value.code
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["items"], told["unknown"], told["rejected"]) == (3, 6, 1, 2)
    letters = pq.read_table(told["rejected_file"]).to_pylist()
    assert [one["line"] for one in letters] == [5, 3]
    assert "context_price" in letters[1]["row"]
    assert "price must have one value" in letters[1]["reason"]
    found = pq.read_table(out).to_pylist()
    assert [one["item_ids"] for one in found] == [["i1", "new", "i2"], ["i1", "i3"], ["i4"]]
    right = expected("u1", ["i1", "new", "i2"], "phone", [1.5, 0.0, 40.0])
    np.testing.assert_allclose(found[0]["score_buy"], right["buy"], rtol=1e-6)
    history = [{"item": "i2", "device": ""}]
    right = expected("u2", ["i1", "i3"], "phone", 0.0, history)
    np.testing.assert_allclose(found[1]["score_click"], right["click"], rtol=1e-6)
