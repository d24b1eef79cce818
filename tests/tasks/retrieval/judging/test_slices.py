"""The slices of an evaluation, on queries that one can look through."""

import numpy as np
import pytest

from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.ragged import RaggedRows
from recsys.tasks.retrieval.judging.case import make_slices
from recsys.tasks.retrieval.judging.queries import Queries

HOUR, DAY = 3600, 24 * 3600
# Training positives of items 1 … 6, 16 in all; item 6 is cold, row 0 is no item.
COUNTS = np.array([9, 6, 4, 3, 2, 1, 0])
GENRES = FeatureBags(
    "genres", 4, np.array([[0, 0], [1, 2], [1, 0], [3, 0], [0, 0], [2, 0], [3, 1]])
)
PLAN = FeatureBags("plan", 3, np.array([[0], [1], [2]]))
CATALOGUE = Catalogue(["", *"abcdef"], ["", *"ABCDEF"], (GENRES,))


def lists(*rows):
    return RaggedRows.of([np.array(one, np.int32) for one in rows])


QUERIES = Queries(
    user=np.array([0, 0, 1, 2]),
    user_row=np.array([1, 1, 2, 0]),
    seen=lists([1], [1] * 6, [1] * 150, []),
    positives=lists([1, 5], [6], [0, 3], [2]),
    idle_s=np.array([5, 2 * DAY, 90 * DAY, -1]),
)


@pytest.fixture(scope="module")
def found():
    is_trained, is_repeated = (
        np.array([True, True, True, False]),
        np.zeros(len(QUERIES.positives.rows), bool),
    )
    parts = make_slices(
        QUERIES, is_trained, is_repeated, COUNTS, CATALOGUE, (PLAN,), ("genres", "plan")
    )
    return {part.name: part for part in parts}


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("users known to training", [True, True, True, False]),
        ("cold users", [False, False, False, True]),
        ("no history", [False, False, False, True]),
        ("1 to 5 events before", [True, False, False, False]),
        ("6 to 20 events before", [False, True, False, False]),
        ("more than 100 events before", [False, False, True, False]),
        ("back within an hour", [True, False, False, False]),
        ("back within a week", [False, True, False, False]),
        ("back after more than 30 days", [False, False, True, False]),
        ("plan: value 1", [True, True, False, False]),
        ("plan: value 2", [False, False, True, False]),
    ],
)
def test_slices_of_queries(found, name, which):
    assert found[name].of == "queries"
    assert found[name].which.tolist() == which


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("head", {1}),  # 6 of 16 come first, and reach over a third.
        ("torso", {2, 3}),
        ("tail", {4, 5}),
        ("cold items", {6}),
        ("genres: value 1", {1, 2, 6}),
        ("genres: value 3", {3, 6}),
    ],
)
def test_slices_of_positives(found, name, rows):
    assert found[name].of == "positives"
    assert found[name].which.tolist() == [row in rows for row in QUERIES.positives.rows.tolist()]


def test_the_thirds_name_their_items(found):
    assert found["head"].note == "1 item with 6 to 6 training events"


def test_empty_slices_are_left_out(found):
    assert "21 to 100 events before" not in found
    assert "back within a day" not in found


def test_only_the_most_frequent_values_are_slices():
    n = 30
    feature = FeatureBags("tag", n + 1, np.arange(n + 1)[:, None])
    ids = ["", *(str(i) for i in range(n))]
    rows = np.repeat(np.arange(1, n + 1), np.arange(1, n + 1))
    queries = Queries(
        np.zeros(1, int), np.zeros(1, int), lists([]), RaggedRows(rows, np.array([0, len(rows)]))
    )
    catalogue, is_repeated = Catalogue(ids, ids, (feature,)), np.zeros(len(rows), bool)
    parts = make_slices(
        queries, np.array([True]), is_repeated, np.ones(n + 1), catalogue, names=("tag",)
    )
    tags = [part.name for part in parts if part.kind == "tag"]
    assert tags == [f"tag: value {value}" for value in range(30, 18, -1)]
