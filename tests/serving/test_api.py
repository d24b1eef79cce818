"""The JSON API behind the page, with a model whose answers can be reckoned by hand."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
import httpx
import requesting
from serving import IDS, VECTORS, FakeRecommender, Running, make_catalogue, with_context

from recsys.errors import RecsysError


@pytest.fixture(scope="module")
def server():
    with Running(versions=(1, 2), kind=FakeRecommender) as running:
        yield running


def get(server, path, **parameters):
    answer = requesting.get(f"{server.url}/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def recommend(server, **wish):
    answer = requesting.post(f"{server.url}/api/recommend", json={"version": 1, "k": 4, **wish})
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(items):
    return [item["id"] for item in items]


def test_what_is_served_is_reported_the_newest_version_first(server):
    filters = {"only_genre": "genre"}
    about = {"name": "m", "versions": [2, 1], "most": 4, "filters": filters, "context": {}}
    assert get(server, "about") == {**about, "labels": []}


def test_context_and_attributes_reach_the_model():
    with Running(versions=(1,), kind=with_context) as running:
        assert get(running, "about")["context"] == {"device": "text"}
        items = [{"item": "i2", "device": "tv"}, "i1"]
        answer = recommend(running, items=items, context={"device": "phone"})
        asked = running.pool.model().asked[0]
        assert asked["context_device"] == [[b"phone"]]
        assert asked["history_device"] == [[b"tv", b""]]
        assert ids(answer["history"]) == ["i2", "i1"]
        wrong = {"user": "u1", "k": 4, "context": {"place": "home"}}
        refused = requesting.post(f"{running.url}/api/recommend", json=wrong)
        assert refused.status_code == 400
        assert "reads device" in refused.json()["error"]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("", ["u1", "u2", "ü1"]),
        ("u", ["u1", "u2"]),
        ("u2", ["u2"]),
        ("u\u0308", ["ü1"]),
        *((prefix, []) for prefix in ("x", "u1\x00", "\uffff", "~")),
    ],
    ids=ascii,
)
def test_users_are_found_by_the_beginning_of_their_ids(server, prefix, found):
    answer = get(server, "users", prefix=prefix)
    assert (ids(answer["users"]), answer["version"]) == (found, 2)
    assert answer["milliseconds"] >= 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sea", ["i2", "i1"]),  # That with the most events first.
        ("SEA red", ["i1"]),
        ("wolf", ["i5", "ü"]),
        ("über", ["ü"]),
        ("u\u0308ber", ["ü"]),
        ("i3", ["i3"]),
        ("<script>", ["i3"]),
        ("[a-z]", []),
        ("%", []),
        ("", ["i2", "i5", "ü", "i1", "i3", "i6"]),
    ],
    ids=ascii,
)
def test_items_are_found_by_all_words_of_their_titles(server, words, found):
    assert ids(get(server, "items", words=words)["items"]) == found
    assert ids(get(server, "items", words=words, n=1)["items"]) == found[:1]


def test_similar_items_are_those_of_the_largest_cosine(server):
    answer = get(server, "similar", item="i2", k=3)
    unit = VECTORS[1:] / np.linalg.norm(VECTORS[1:], axis=1, keepdims=True)
    cosines = dict(zip(IDS[1:], unit @ unit[1], strict=True))
    del cosines["i2"]
    best = sorted(cosines, key=cosines.get, reverse=True)[:3]
    assert ids(answer["items"]) == best
    scores = [item["score"] for item in answer["items"]]
    np.testing.assert_allclose(scores, [cosines[id_] for id_ in best], atol=1e-6)
    assert answer["item"]["title"] == "Blue Sea"


def test_an_unknown_item_has_no_similar_ones(server):
    answer = requesting.get(f"{server.url}/api/similar", params={"item": "no"})
    assert (answer.status_code, "[R567]" in answer.json()["error"]) == (404, True)


def test_a_user_gets_what_is_new_with_titles_and_what_was_done(server):
    answer = recommend(server, user="u1")
    assert ids(answer["history"]) == ["i1", "i2"]
    assert ids(answer["items"]) == ["i5", "i3", "i6", "ü"]  # By nearness to i1.
    assert answer["items"][0] == {
        "id": "i5", "title": "Red Wolf", "features": {"genre": ["sea", "noir"]},
        "score": pytest.approx(0.6), "scores": {},
    }  # fmt: skip
    assert (answer["known"], answer["version"], answer["source"]) == (True, 1, "user")


def test_a_taste_stands_in_place_of_a_user(server):
    answer = recommend(server, items=["ü", "nothing"], k=2)
    assert ids(answer["history"]) == ["ü"]
    assert answer["unknown_items"] == ["nothing"]
    assert answer["known"] is False
    assert "ü" not in ids(answer["items"])
    assert ids(recommend(server, items=["ü"], k=1, exclude_seen=False)["items"]) == ["ü"]
    assert ids(recommend(server, user="u1", items=["ü"])["history"]) == ["ü"]


def test_a_model_that_includes_repeats_recommends_them_unless_asked_not_to(server, monkeypatch):
    for model in server.pool.models:
        monkeypatch.setattr(model, "excludes_seen", False)
    assert ids(recommend(server, user="u1", k=1)["items"]) == ["i1"]
    assert ids(recommend(server, user="u1", k=1, exclude_seen=True)["items"]) == ["i5"]


def test_excluded_items_make_room_for_the_next(server):
    assert ids(recommend(server, user="u1", k=2)["items"]) == ["i5", "i3"]
    assert ids(recommend(server, user="u1", k=2, exclude=["i5"])["items"]) == ["i3", "i6"]


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ({"only_genre": ["noir"]}, ["i5", "ü"]),
        ({"only_genre": ["drama", "sea"]}, ["i5"]),  # i1 and i2 are what u1 did.
        ({"only_genre": []}, ["i5", "i3", "i6", "ü"]),
    ],
)
def test_items_of_a_category_alone_come_where_that_is_wished(server, only, found):
    assert ids(recommend(server, user="u1", only=only)["items"]) == found


@pytest.mark.parametrize(
    ("words", "found"), [("", ["noir", "drama", "sea"]), ("A", ["drama", "sea"]), ("?", [])]
)
def test_categories_are_found_those_of_the_most_items_first(server, words, found):
    answer = get(server, "tokens", filter="only_genre", words=words)
    assert ids(answer["tokens"]) == found
    assert ids(get(server, "tokens", filter="only_genre", words=words, n=1)["tokens"]) == found[:1]


@pytest.mark.parametrize("n_padding", [1, 3000], ids=["small", "large"])
def test_a_filter_value_that_no_item_has_is_refused_with_what_looks_like_it(server, n_padding):
    row = {
        "user_id": "u1", "history": [""], "exclude_seen": True, "country": [""],
        "exclude_ids": [""] * n_padding, "only_genre": ["Dramas"],
    }  # fmt: skip
    body = {"signature_name": "recommend_filtered", "instances": [row]}
    wish = {"k": 3, "only": {"only_genre": ["Dramas"]}}
    page = requesting.post(f"{server.url}/api/recommend", json=wish)
    for answer in (server.predict(body), page):
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error.startswith("[R537]")
        assert "'Dramas'" in error
        assert "such as 'drama'." in error
    row["only_genre"] = ["drama", ""]
    assert server.predict(body).status_code == 200


def test_two_versions_answer_side_by_side(server):
    one, two = (recommend(server, user="u1", version=version) for version in (1, 2))
    assert (one["version"], two["version"]) == (1, 2)
    assert ids(one["items"]) == ids(two["items"])[::-1]


def test_raw_columns_are_padding_so_that_stored_features_are_read(server):
    recommend(server, user="u1")
    asked = next(one for one in server.pool.models[0].asked[::-1] if "country" in one)
    assert asked["country"] == [[b""]]
    assert asked["history"] == [[b""]]


def test_ids_are_normalised_as_the_ingest_does(server):
    assert recommend(server, user="u\u03081")["known"] is True


@pytest.mark.parametrize(
    ("wish", "status"),
    [
        ({"k": 0}, 422),
        ({"k": -1}, 422),
        ({"k": 10**9}, 422),
        ({"k": 10**400}, 422),
        ({"k": 5}, 400),
        ({"k": "5"}, 422),
        ({"k": 1.5}, 422),
        ({"k": True}, 422),
        ({"user": 5}, 422),
        ({"user": None}, 422),
        ({"user": "x" * 1001}, 422),
        ({"user": "x" * 10**6}, 413),
        ({"items": "i1"}, 422),
        ({"items": [["i1"]]}, 422),
        ({"items": ["i1"] * 501}, 422),
        ({"items": [None]}, 422),
        ({"version": 9}, 404),
        ({"version": -1}, 422),
        ({"version": 2**64}, 422),
        ({"more": 1}, 422),
        ({"only": {"only_year": ["1999"]}}, 400),
        ({"only": {"only_genre": ["no"]}}, 400),
        ({"only": {"only_genre": ["noir", "no"]}}, 400),
        ({"only": {"only_genre": "noir"}}, 422),
        ({"only": ["noir"]}, 422),
        ({"only": {"only_genre": ["noir"] * 101}}, 422),
    ],
    ids=lambda wish: repr(wish)[:30],
)
def test_wrong_wishes_are_refused_with_a_sentence(server, wish, status):
    answer = requesting.post(f"{server.url}/api/recommend", json=wish)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("users?n=0", 422),
        ("users?n=101", 422),
        ("users?n=x", 422),
        ("users?version=9", 404),
        ("users?prefix=" + "x" * 1001, 422),
        ("users?prefix=%ff%00", 200),
        ("items?words=%ed%a0%80", 200),
        ("similar", 422),
        ("tokens", 422),
        ("tokens?filter=no", 400),
        ("similar?item=i1&k=-1", 422),
        ("similar?item=i1&n=3", 422),
        ("similar?item=i1&item=i2", 422),
        ("about?version=1", 422),
    ],
)
def test_wrong_parameters_are_refused_with_a_sentence(server, path, status):
    answer = requesting.get(f"{server.url}/api/{path}")
    assert answer.status_code == status
    assert status == 200 or set(answer.json()) == {"error"}


def test_the_page_allows_no_script_but_its_own(server):
    for path in ("/", "/static/page.css", "/static/page.js"):
        answer = requesting.get(server.url + path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "innerHTML" not in answer.text


@pytest.mark.parametrize(
    "path", ["/static/", "/static/../app.py", "/static/%2e%2e/app.py", "/static/x"]
)
def test_nothing_but_the_files_of_the_page_is_sent(server, path):
    answer = requesting.get(httpx.URL(server.url, raw_path=path.encode()))
    assert answer.status_code == 404


def test_until_a_version_is_loaded_a_sentence_says_why():
    with Running(versions=(), kind=FakeRecommender) as running:
        running.pool.loading = 7
        assert "Version 7" in get(running, "state")["sentence"]
        answer = requesting.get(f"{running.url}/api/about")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        running.pool.loading = None
        running.pool.failures = {7: RecsysError("R500", "It must be whole.", "Run again.")}
        assert "It must be whole. Run again." in get(running, "state")["sentence"]
        running.pool.models = (FakeRecommender(7),)
        assert get(running, "state") == {"name": "m", "ready": True, "sentence": ""}


def test_a_feature_that_repeats_the_titles_is_not_shown():
    names = make_catalogue()
    words = [title.lower().split() for title in names.titles.to_pylist()[1:]]
    features = {**names.features, "title_words": pa.array(words, pa.list_(pa.string()))}
    [item] = dataclasses.replace(names, features=features).shown([2])
    assert item["features"] == {"genre": ["drama", "noir"]}
