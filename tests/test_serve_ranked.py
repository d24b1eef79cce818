"""Recommendations ranked outside of the graph, against all scores reckoned by hand."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.serving.ranker import Ranker
from recsys.serving.server.catalogue_search import ItemFilters, Names
from recsys.serving.server.ranked import NO_SCORE, RankedAnswers
from recsys.serving.server.tensors import Input, Signature

sys.path.append(str(Path(__file__).parent / "test_serve_scripts"))

_N, _DIM, _K = 40, 8, 5
_RNG = np.random.default_rng(1)
ITEMS = _RNG.standard_normal((_N + 1, _DIM)).astype(np.float32)
QUERIES = {f"u{n}".encode(): _RNG.standard_normal(_DIM).astype(np.float32) for n in range(4)}
SEEN = {b"u0": [1, 2, 3], b"u1": [], b"u2": list(range(1, 39)), b"u3": [7]}
GENRES = [["drama"], ["drama", "noir"], [], ["noir"]]  # Of row 1, 2, 3, 4, 5, …
YEARS = [["1999"], ["2000"]]


def genres(row):
    return GENRES[(row - 1) % 4]


def years(row):
    return YEARS[(row - 1) % 2]


FILTERS = ItemFilters({}, _N + 1)


class Graph:
    """What a SavedModel would answer."""

    def __init__(self):
        self.asked = []

    def __call__(self, signature, inputs):
        self.asked.append((signature, {name: x.tolist() for name, x in inputs.items()}))
        users = inputs["user_id"].tolist()
        known = np.array([user in QUERIES for user in users])
        source = np.array([b"user" if one else b"popularity" for one in known], object)
        if signature != "prepare_query":
            ids = np.array([[b"i9", b"i8", b"i7", b"", b""]] * len(users), object)
            scores = np.tile(np.float32([0.5, 0.25, 0.125, NO_SCORE, NO_SCORE]), (len(users), 1))
            return {"candidate_ids": ids, "scores": scores, "known": known, "source": source}
        flags = zip(users, inputs["exclude_seen"], strict=True)
        seen = [SEEN.get(user, []) if is_wished else [] for user, is_wished in flags]
        zero = np.zeros(_DIM, np.float32)
        return {
            "embedding": np.stack([QUERIES.get(user, zero) for user in users]),
            "known": known,
            "source": source,
            "seen_rows": np.array([row for rows in seen for row in rows], np.int32),
            "seen_offsets": np.cumsum([0, *map(len, seen)]),
        }


def make_names():
    ids = [f"i{row}" for row in range(1, _N + 1)]
    blank = pa.array([""] * (_N + 1), pa.large_string())
    features = {
        "genres": pa.array([genres(row) for row in range(1, _N + 1)], pa.list_(pa.string())),
        "year": pa.array([years(row) for row in range(1, _N + 1)], pa.list_(pa.string())),
    }
    items = Vocabulary(pa.array(ids), np.ones(_N, int))
    return Names(pa.array([], pa.large_string()), items, blank, blank, ITEMS, features)


@pytest.fixture
def graph():
    return Graph()


@pytest.fixture
def answers(graph):
    names = make_names()
    filters = ItemFilters(names.features, _N + 1)
    inputs = ("user_id", "history", "exclude_seen")
    return RankedAnswers(graph, Ranker(ITEMS, names.items.has_id()), names, filters, inputs, _K)


def texts(*rows):
    width = max(map(len, rows), default=1)
    padded = [[one.encode() for one in row] + [b""] * (width - len(row)) for row in rows]
    return np.array(padded, object)


def inputs(*users, is_new_only=True, **more):
    return {
        "user_id": np.array([user.encode() for user in users], object),
        "history": np.full((len(users), 1), b"", object),
        "exclude_seen": np.full(len(users), is_new_only),
        **more,
    }


def by_hand(user, hidden=(), allowed=lambda _: True):
    rows = [row for row in range(1, _N + 1) if row not in hidden and allowed(row)]
    best = sorted(rows, key=lambda row: -float(ITEMS[row] @ QUERIES[user.encode()]))[:_K]
    return [f"i{row}".encode() for row in best] + [b""] * (_K - len(best))


def test_answers_are_the_best_unseen_items_with_exact_scores(answers):
    found = answers.answer("recommend", inputs("u0", "u1", "u2"))
    assert found["candidate_ids"].tolist() == [
        by_hand("u0", SEEN[b"u0"]), by_hand("u1"), by_hand("u2", SEEN[b"u2"]),
    ]  # fmt: skip
    row = int(found["candidate_ids"][1][0][1:])
    assert found["scores"][1, 0] == pytest.approx(float(ITEMS[row] @ QUERIES[b"u1"]), abs=1e-5)
    # Two are left of 40.
    assert found["scores"][2, 2:].tolist() == [NO_SCORE] * 3
    assert {name: x.dtype.kind for name, x in found.items()} == {
        "candidate_ids": "O", "scores": "f", "known": "b", "source": "O",
    }  # fmt: skip
    assert found["scores"].dtype == np.float32
    again = answers.answer("recommend", inputs("u0", is_new_only=False))
    assert again["candidate_ids"].tolist() == [by_hand("u0")]


def test_popular_rows_are_those_of_the_model_itself(answers, graph):
    found = answers.answer("recommend", inputs("u1", "nobody", "u0", "who"))
    assert found["candidate_ids"][1].tolist() == [b"i9", b"i8", b"i7", b"", b""]
    assert found["candidate_ids"][2].tolist() == by_hand("u0", SEEN[b"u0"])
    assert found["source"].tolist() == [b"user", b"popularity", b"user", b"popularity"]
    assert found["known"].tolist() == [True, False, True, False]
    signature, asked = graph.asked[-1]
    assert (signature, asked["user_id"]) == ("recommend", [b"nobody", b"who"])


def test_excluded_ids_are_left_out_whatever_they_are(answers):
    first = by_hand("u3", SEEN[b"u3"])[0].decode()
    excluded = np.array([[first.encode(), b"\xff", b"no"], [b"", b"", b""]], object)
    nothing = {"only_genres": texts([], []), "only_year": texts([], [])}
    asked = inputs("u3", "u1", exclude_ids=excluded, **nothing)
    found = answers.answer("recommend_filtered", asked)
    assert found["candidate_ids"].tolist() == [
        by_hand("u3", [*SEEN[b"u3"], int(first[1:])]), by_hand("u1"),
    ]  # fmt: skip


WISHES = {
    "none": ([], [], lambda _: True),
    "one": (["noir"], [], lambda row: "noir" in genres(row)),
    "any-of-two": (["noir", "drama"], [], lambda row: genres(row)),
    "all-features": (["noir"], ["2000"], lambda row: "noir" in genres(row) and row % 2 == 0),
    "unknown-adds-nothing": (["noir", "?"], [], lambda row: "noir" in genres(row)),
    "unknown-alone": (["?"], [], lambda _: False),
}  # fmt: skip


@pytest.mark.parametrize("wish", WISHES)
def test_filters_hold_exactly(answers, wish):
    genre, year, allowed = WISHES[wish]
    asked = inputs(
        "u0", "u1",
        exclude_ids=texts([], []), only_genres=texts(genre, []), only_year=texts(year, []),
    )  # fmt: skip
    found = answers.answer("recommend_filtered", asked)
    assert found["candidate_ids"][0].tolist() == by_hand("u0", SEEN[b"u0"], allowed)
    assert found["candidate_ids"][1].tolist() == by_hand("u1")  # Each row has its own filter.


def test_tokens_come_with_those_of_the_most_items_first():
    filters = ItemFilters({"genres": pa.array([["b"], ["a", "b"], ["a", "b"]])}, 4)
    assert filters.feature_of == {"only_genres": "genres"}
    assert filters.tokens("only_genres", "", 9) == ["b", "a"]
    assert filters.tokens("only_genres", "", 1) == ["b"]
    assert filters.tokens("only_genres", "A", 9) == ["a"]


def test_an_index_without_a_way_to_ask_is_refused(tmp_path, graph):
    (tmp_path / "index").mkdir()
    signatures = {"recommend": Signature({"user_id": Input("DT_STRING", (-1,))})}
    with pytest.raises(RecsysError, match=r"\[R583\].*prepare_query"):
        RankedAnswers.open(tmp_path, graph, signatures, make_names(), FILTERS, _K)
    (tmp_path / "index").rmdir()
    assert RankedAnswers.open(tmp_path, graph, signatures, make_names(), FILTERS, _K) is None
