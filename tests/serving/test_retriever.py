"""The retriever and a loaded bundle, against all scores computed by hand."""

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError, UsageError
from recsys.index.search import Ranker
from recsys.savedmodel.event_columns import Column, EventColumns
from recsys.savedmodel.signatures import NO_SCORE, SignatureInput
from recsys.serving.catalogue_search import CatalogueSearch
from recsys.serving.recommendations import LoadedBundle
from recsys.serving.served_model import Retriever

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


_TEXT, _TEXTS = SignatureInput("DT_STRING", (-1,)), SignatureInput("DT_STRING", (-1, -1))
_INPUTS = {"user_id": _TEXT, "history": _TEXTS, "exclude_seen": SignatureInput("DT_BOOL", (-1,))}
_FILTERS = dict.fromkeys(["exclude_ids", "only_genres", "only_year"], _TEXTS)


class Graph:
    """The answers of a SavedModel."""

    def __init__(self):
        self.asked = []
        self.signatures = {
            "recommend": {**_INPUTS, "country": _TEXTS},
            "recommend_filtered": {**_INPUTS, **_FILTERS, "country": _TEXTS},
            "prepare_query": {**_INPUTS, "country": _TEXTS},
            "stored_history": {"user_id": _TEXT},
        }

    def ask(self, signature, inputs):
        if signature == "stored_history":
            rows = [[f"i{row}".encode() for row in SEEN.get(x, [])] for x in inputs["user_id"]]
            width = max(map(len, rows)) + 1
            return {"item_ids": np.array([x + [b""] * (width - len(x)) for x in rows], object)}
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


def make_catalogue():
    ids = [f"i{row}" for row in range(1, _N + 1)]
    features = {
        "genres": pa.array([genres(row) for row in range(1, _N + 1)], pa.list_(pa.string())),
        "year": pa.array([years(row) for row in range(1, _N + 1)], pa.list_(pa.string())),
    }
    items = Vocabulary(pa.array(ids), np.ones(_N, int))
    titles = pa.array(["", *(f"Item <{row}>" for row in range(1, _N + 1))], pa.large_string())
    users = pa.array(["u0", "u1"], pa.large_string())
    return CatalogueSearch(users, items, titles, ITEMS, items.has_id(), features)


@pytest.fixture
def graph():
    return Graph()


@pytest.fixture
def retriever(graph):
    catalogue = make_catalogue()
    return Retriever(graph, catalogue, _K, Ranker(ITEMS, catalogue.items.has_id()))


@pytest.fixture
def bundle(retriever):
    return LoadedBundle(retriever)


def texts(*rows):
    width = max(map(len, rows), default=1)
    padded = [[one.encode() for one in row] + [b""] * (width - len(row)) for row in rows]
    return np.array(padded, object)


def inputs(*users, is_new_only=True, **more):
    return {
        "user_id": np.array([user.encode() for user in users], object),
        "history": np.full((len(users), 1), b"", object),
        "exclude_seen": np.full(len(users), is_new_only),
        "country": np.full((len(users), 1), b"", object),
        **more,
    }


def by_hand(user, hidden=(), allowed=lambda _: True):
    rows = [row for row in range(1, _N + 1) if row not in hidden and allowed(row)]
    best = sorted(rows, key=lambda row: -float(ITEMS[row] @ QUERIES[user.encode()]))[:_K]
    return [f"i{row}".encode() for row in best] + [b""] * (_K - len(best))


def test_answers_are_the_best_unseen_items_with_exact_scores(retriever):
    found = retriever.ask("recommend", inputs("u0", "u1", "u2"))
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
    again = retriever.ask("recommend", inputs("u0", is_new_only=False))
    assert again["candidate_ids"].tolist() == [by_hand("u0")]


def test_popular_rows_are_those_of_the_model_itself(retriever, graph):
    found = retriever.ask("recommend", inputs("u1", "nobody", "u0", "who"))
    assert found["candidate_ids"][1].tolist() == [b"i9", b"i8", b"i7", b"", b""]
    assert found["candidate_ids"][2].tolist() == by_hand("u0", SEEN[b"u0"])
    assert found["source"].tolist() == [b"user", b"popularity", b"user", b"popularity"]
    assert found["known"].tolist() == [True, False, True, False]
    signature, asked = graph.asked[-1]
    # Who has seen nothing gets one answer.
    assert (signature, asked["user_id"]) == ("recommend", [b"nobody"])


def test_excluded_ids_are_left_out_whatever_they_are(retriever):
    first = by_hand("u3", SEEN[b"u3"])[0].decode()
    excluded = np.array([[first.encode(), b"\xff", b"no"], [b"", b"", b""]], object)
    nothing = {"only_genres": texts([], []), "only_year": texts([], [])}
    asked = inputs("u3", "u1", exclude_ids=excluded, **nothing)
    found = retriever.ask("recommend_filtered", asked)
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
def test_filters_hold_exactly(retriever, wish):
    genre, year, allowed = WISHES[wish]
    asked = inputs(
        "u0", "u1",
        exclude_ids=texts([], []), only_genres=texts(genre, []), only_year=texts(year, []),
    )  # fmt: skip
    found = retriever.ask("recommend_filtered", asked)
    assert found["candidate_ids"][0].tolist() == by_hand("u0", SEEN[b"u0"], allowed)
    assert found["candidate_ids"][1].tolist() == by_hand("u1")  # Each row has its own filter.


def ids(answer):
    return [item.id.encode() for item in answer]


def test_a_user_is_recommended_what_is_best_and_new(bundle):
    answer = bundle.recommend(user="u0", k=3)
    assert ids(answer) == by_hand("u0", SEEN[b"u0"])[:3]
    assert (answer.user_id, answer.known, answer.source) == ("u0", True, "user")
    assert [item.id for item in answer.history] == ["i1", "i2", "i3"]
    assert answer[0].title == f"Item <{answer[0].id[1:]}>"
    assert ids(bundle.recommend("u0", k=3, exclude_seen=False)) == by_hand("u0")[:3]
    first = answer[0].id
    assert first not in [x.id for x in bundle.recommend("u0", k=3, exclude=[first])]
    only = bundle.recommend("u0", filters={"genres": ["noir"]}, k=4)
    assert ids(only) == by_hand("u0", SEEN[b"u0"], lambda row: "noir" in genres(row))[:4]


def test_a_filter_value_that_no_item_has_is_an_error(bundle):
    with pytest.raises(UsageError, match=r"R537.*'genres'.*'Noir'.*'noir'"):
        bundle.recommend("u0", filters={"genres": ["noir", "Noir"]})
    with pytest.raises(UsageError, match=r"R537.*'\?'"):
        bundle.recommend(users=["u0", "u1"], filters={"genres": "?"})


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"history": "i12"}, {"history": ["i12"]}),
        ({"history": np.array(["i12", "i7"])}, {"history": ["i12", "i7"]}),
        ({"history": [" i12"], "exclude": "i9 "}, {"history": ["i12"], "exclude": ["i9"]}),
        ({"history": [12, 7.0]}, {"history": ["12", "7"]}),
        ({"filters": {"genres": "noir"}}, {"filters": {"genres": ["noir"]}}),
        ({"features": {"country": 7}}, {"features": {"country": ["7"]}}),
    ],
)
def test_one_alone_is_a_list_of_one_and_ids_are_read_as_the_ingest_reads_them(
    bundle, graph, options, same
):
    answers = [ids(bundle.recommend("u1", k=3, **asked)) for asked in (options, same)]
    assert answers[0] == answers[1]
    assert graph.asked[0] == graph.asked[1]
    [answer] = bundle.recommend(users="u0", k=3)
    assert answer.user_id == "u0"
    assert bundle.recommend(user=np.float64(7), k=3).user_id == "7"


def test_several_users_are_answered_as_each_alone(bundle):
    answers = bundle.recommend(users=["u0", "u1", "nobody", "u2", "who"], k=4)
    alone = [bundle.recommend(user, k=4) for user in ("u0", "u1", "nobody", "u2", "who")]
    assert [ids(one) for one in answers] == [ids(one) for one in alone]
    assert [one.source for one in answers] == ["user", "user", "popularity", "user", "popularity"]
    assert [one.id for one in answers[2]] == ["i9", "i8", "i7"]
    assert [len(one) for one in answers] == [4, 4, 3, 2, 3]  # Two are left of 40 for u2.
    assert len(bundle.recommend(users=[])) == 0


def test_answers_show_themselves(bundle):
    pd = pytest.importorskip("pandas")
    answer = bundle.recommend("u1", k=2)
    assert repr(answer).splitlines()[0] == "2 items for user 'u1' (source: user)"
    alone = repr(bundle.recommend(history=["i1"], k=1)).splitlines()[0]
    assert alone.startswith("1 item (source: ")
    assert "Item &lt;" in answer._repr_html_()
    assert "<Item" not in answer._repr_html_()
    frame = answer.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == ["rank", "id", "title", "score"]
    assert frame["rank"].tolist() == [1, 2]
    frame = bundle.recommend(users=["u1", "nobody"], k=2).to_pandas()
    assert frame["user_id"].tolist() == ["u1", "u1", "nobody", "nobody"]
    assert "not in the data" in repr(bundle.recommend("nobody", k=1))
    assert "2 users, 40 items" in repr(bundle)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"user": "u\udc80"}, "R540"),
        ({"user": "u1", "k": 6}, "R541"),
        ({"user": "u1", "k": 0}, "R541"),
        ({"user": "u1", "k": 3.0}, "R541"),
        ({"user": None}, "R540"),
        ({"user": b"u1"}, "R540"),
        ({"user": float("nan")}, "R540"),
        ({"history": [True]}, "R540"),
        ({"user": "u1", "users": ["u2"]}, "R540.*not both"),
        ({"user": "u1", "filters": {"hashed": ["x"]}}, "R549.*genres, year"),
        ({"user": "u1", "features": {"age": "7"}}, "R549.*country"),
    ],
)
def test_what_a_bundle_cannot_answer_is_refused(bundle, options, code):
    with pytest.raises(UsageError, match=code):
        bundle.recommend(**{"k": 3, **options})


def test_similar_items_come_by_cosine(bundle):
    scores = ITEMS[1:] @ ITEMS[1] / np.linalg.norm(ITEMS[1:], axis=1) / np.linalg.norm(ITEMS[1])
    assert [item.id for item in bundle.similar("i1", 3)] == [
        f"i{row + 1}" for row in np.argsort(-scores)[1:4]
    ]
    with pytest.raises(UsageError, match="R567"):
        bundle.similar("nothing")
    with pytest.raises(UsageError, match="R541"):
        bundle.similar("i1", -1)


def test_a_bundle_without_its_catalogue_is_refused(tmp_path):
    with pytest.raises(RecsysError) as caught:
        CatalogueSearch.open(tmp_path)
    assert caught.value.code == "R544"


EVENTS = EventColumns(
    {"at": Column("context_at", "time"), "a b": Column("context_a_b", "text")},
    {
        "s": Column("history_s", "number"),
        "v": Column("history_v", "vector"),
        "at": Column("history_at", "time"),
    },
)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-5", "2016", "1448280000.0", "2016-02-01", "2016-02-01T18:00",
     "2016-02-01 18:00:00.5+01:00"],
)  # fmt: skip
def test_raw_values_are_passed_to_the_input_of_their_column(text):
    assert EVENTS.of_context({"at": [text]}) == {"context_at": [text]}
    assert EVENTS.of_context({"a b": ["any"]}) == {"context_a_b": ["any"]}
    asked = {"s": ["1e3", " 8 "], "v": ["1 -2.5", ""], "at": [text]}
    found = EVENTS.of_history(asked, 2)
    assert found == {f"history_{name}": values for name, values in asked.items()}


@pytest.mark.parametrize(
    ("context", "history", "rule"),
    [
        ({"c": ["5"]}, {}, "R549.*must read the column 'c' of the context.*reads at, a b"),
        ({}, {"c": ["5"]}, "R549.*must read the column 'c' of the history"),
        *(
            ({"at": [text]}, {}, "R549.*seconds since 1970.*ISO 8601")
            for text in ("soon", "1.5", "2016-13-01", "1" * 20, "True")
        ),
        ({}, {"s": ["1", "2", "3"]}, "R549.*s must have at most one value per item"),
        ({}, {"s": ["inf"]}, "R549.*s must be a finite number"),
        ({}, {"v": ["1 much"]}, "R549.*v must be finite numbers separated by blanks"),
    ],
)
def test_raw_values_that_no_input_reads_or_that_cant_be_parsed_are_refused(context, history, rule):
    with pytest.raises(UsageError, match=rule):
        EVENTS.of_context(context) | EVENTS.of_history(history, 2)
