"""Ids inside the graph, against a dict."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.errors import RecsysError

tf = pytest.importorskip("tensorflow")
from recsys.savedmodel import inputs  # noqa: E402
from recsys.savedmodel.inputs import IdTable  # noqa: E402

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(known=st.lists(_TEXT, unique=True, max_size=30), asked=st.lists(_TEXT, max_size=10))
def test_every_id_has_its_number_and_others_have_0(known, asked):
    numbers = np.arange(1, len(known) + 1)[::-1]
    table = IdTable(pa.array(known, pa.large_string()), numbers)
    expected = dict(zip(known, numbers.tolist(), strict=True))
    questions = [*known, *asked]
    found = table.lookup(tf.constant(questions, tf.string)).numpy()
    assert found.tolist() == [expected.get(id_, 0) for id_ in questions]


def test_ids_of_any_shape_are_looked_up():
    table = IdTable(["a", "b\nc", "ü\0"], np.array([7, 8, 9]))
    found = table.lookup(tf.constant([["ü\0", "", "a"], ["a ", "b\nc", "A"]]))
    assert found.numpy().tolist() == [[9, 0, 7], [0, 8, 0]]
    assert table.lookup(tf.zeros([0, 3], tf.string)).shape == (0, 3)
    assert found.dtype == tf.int32


def test_an_id_of_the_same_first_fingerprint_is_not_taken_for_a_known_one(monkeypatch):
    # All ids share two fingerprints: only the second one distinguishes them.
    monkeypatch.setattr(inputs, "_FIRST_BUCKETS", 1)
    table = IdTable(["known"], np.array([5]))
    found = table.lookup(tf.constant(["known", "other"]))
    assert found.numpy().tolist() == [5, 0]


def test_known_ids_that_share_a_fingerprint_get_another_key(monkeypatch):
    # With 64 fingerprints, five ids differ only under some keys.
    monkeypatch.setattr(inputs, "_FIRST_BUCKETS", 64)
    ids = next(ids for n in range(1000) if _has_twins(ids := [f"{n} {m}" for m in range(5)]))
    table = IdTable(ids, np.arange(1, 6))
    assert table.lookup(tf.constant(ids)).numpy().tolist() == [1, 2, 3, 4, 5]


def _has_twins(ids):
    hashes = tf.strings.to_hash_bucket_strong(tf.constant(ids), 64, (0, 0)).numpy()
    return len(set(hashes.tolist())) < len(ids)


def test_an_id_that_is_there_twice_is_refused():
    with pytest.raises(RecsysError, match=r"R527.*'b'"):
        IdTable(["a", "b", "c", "b"], np.arange(1, 5))
