"""Columns of any type become ids, numbers, texts and lists as plain Python would make them."""

import datetime as dt
import decimal
import math
import unicodedata

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from recsys.data.sources.values import to_ids, to_lists, to_numbers, to_text, to_times
from recsys.serving.served_model import normal_id

# Characters that show nothing are left out of ids, which Python's strip doesn't do.
_SHOWN = st.characters(exclude_categories=["Cs", "Cf"])
_TEXT = st.text(_SHOWN, max_size=6) | st.sampled_from(
    ["\x1ca\x1f", "\u3000", "e\u0301", "é", " 7 ", "\x85x"]
)


@given(st.lists(st.none() | _TEXT, max_size=20))
def test_ids_are_stripped_and_normalised_as_python_does(texts):
    def expected(text):
        return None if text is None else unicodedata.normalize("NFC", text.strip()) or None

    assert to_ids(pa.array(texts, pa.string())).to_pylist() == [expected(t) for t in texts]


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("0396\u200b", "0396"),
        ("\ufeff42", "42"),
        ("ca\u00adfé\u200e", "café"),
        (" \u200d7\u2060 \u200b", "7"),
        ("\u200b", None),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d🚀", "👩\u200d🚀"),
    ],
)
def test_ids_lose_what_cannot_be_seen_and_keep_joiners_inside(text, id_):
    assert to_ids(pa.array([text, "é"])).to_pylist() == [id_, "é"]
    if id_ is not None:
        assert normal_id(text.strip()).strip() == id_


@given(st.lists(_TEXT, max_size=20), st.integers(0, 5))
def test_slices_large_text_bytes_and_dictionaries_give_the_same_ids(texts, start):
    plain = pa.array(texts, pa.string())
    ids = to_ids(plain).to_pylist()
    assert to_ids(plain.slice(start)).to_pylist() == ids[start:]
    assert to_ids(plain.cast(pa.large_string())).to_pylist() == ids
    assert to_ids(plain.cast(pa.binary())).to_pylist() == ids
    assert to_ids(plain.dictionary_encode()).to_pylist() == ids
    assert to_ids(pa.array([[text] for text in texts], pa.list_(pa.string()))).to_pylist() == ids


_LONG = "12345678901234567890"


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (pa.array([7, -7, None]), ["7", "-7", None]),
        (pa.array([7.0, 1e15, 0.5]), ["7", "1000000000000000", "0.5"]),
        (pa.array([math.nan, math.inf]), [None, None]),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([b"\xff", b"x"]), [None, "x"]),
        (pa.array([[7], [12345678901234567890]], pa.list_(pa.uint64())), ["7", _LONG]),
        (pa.array([7, 12345678901234567890], pa.uint64()), ["7", _LONG]),
        (pa.array([[1, 2], [3], [], None]), [None, "3", None, None]),
        (pa.array([{"a": 1}]), [None]),
        (pa.nulls(2), [None, None]),
        (pa.array([decimal.Decimal("7.10"), decimal.Decimal("100.00")]), ["7.1", "100"]),
        (pa.array([decimal.Decimal("0E-9"), decimal.Decimal("1E-7")]), ["0", "0.0000001"]),
        (pa.array([decimal.Decimal(1200)], pa.decimal128(10, -2)), ["1200"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_ids_of_other_types_are_written_as_people_do(column, ids):
    assert to_ids(column).to_pylist() == ids


_NUMBER = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.sampled_from(["", " 1 ", "+1", "1.", ".5", ".", "1_0", "0x10", "1e5", "1e", "nan", "-inf"]),
    st.text("0123456789.eE+- x", max_size=6),
)


@given(st.lists(st.none() | _NUMBER, max_size=12))
def test_numbers_are_those_of_python_in_float32(texts):
    def expected(text):
        try:
            if text is None or "_" in text or not math.isfinite(float(text)):
                return None
            with np.errstate(over="ignore"):
                number = np.float32(float(text))
        except ValueError:
            return None
        return float(number) if np.isfinite(number) else None

    assert to_numbers(pa.array(texts, pa.string())).to_pylist() == [expected(t) for t in texts]


@pytest.mark.parametrize(
    "column",
    [pa.array([1, 2], pa.int8()), pa.array([1.0, 2.0]), pa.array(["1", " 2 "]),
     pa.array([[1], [2]]), pa.array([1, 2], pa.uint64()),
     pa.array([decimal.Decimal("1.0"), decimal.Decimal("2.0")])],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_numbers_of_any_type_are_numbers(column):
    assert to_numbers(column).to_pylist() == [1.0, 2.0]


@given(st.lists(st.integers(-(2**62), 2**62), max_size=9), st.sampled_from([0, 3, 6, 9]))
def test_whole_times_are_floored_to_seconds(numbers, power):
    unit = {0: "seconds", 3: "milliseconds", 6: "microseconds", 9: "nanoseconds"}[power]
    expected = [number // 10**power for number in numbers]
    assert to_times(pa.array(numbers, pa.int64()), unit).to_pylist() == expected
    assert to_times(pa.array([str(n) for n in numbers], pa.string()), unit).to_pylist() == expected


@given(st.lists(st.datetimes(), min_size=1, max_size=9), st.booleans(), st.booleans())
def test_iso_times_are_those_of_python(moments, has_zone, has_damage):
    aware = [moment.replace(tzinfo=dt.UTC) for moment in moments]
    texts = [(moment if has_zone else moment.replace(tzinfo=None)).isoformat() for moment in aware]
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    seconds = [(moment - epoch) // dt.timedelta(seconds=1) for moment in aware]
    column = pa.array([*texts, *(["2020-13-45"] if has_damage else [])])
    assert to_times(column, "iso8601").to_pylist() == seconds + [None] * has_damage


@given(st.lists(st.none() | st.text("ab| é", max_size=9), max_size=9))
def test_lists_are_the_parts_without_blanks_and_empty_ones(texts):
    def parts(text):
        return [part.strip() for part in (text or "").split("|") if part.strip()]

    expected = [parts(text) for text in texts]
    assert to_lists(pa.array(texts, pa.string()), "|").to_pylist() == expected
    split = [None if text is None else text.split("|") for text in texts]
    column = pa.array(split, pa.list_(pa.string()))
    assert to_lists(column, ",").to_pylist() == expected
    assert (
        to_lists(pa.concat_arrays([column, column]).slice(len(texts)), ",").to_pylist() == expected
    )


def test_text_keeps_its_blanks_and_its_nulls():
    column = pa.array([" e\u0301 ", None, ""])
    assert to_text(column).to_pylist() == [" é ", None, ""]
    assert to_text(pa.array([1.5, 2.0])).to_pylist() == ["1.5", "2"]


def test_a_date_with_a_time_of_day_is_that_time():
    milliseconds = pa.array([86_400_000 + 3_600_500, -500, None], pa.int64())
    assert to_times(milliseconds.view(pa.date64()), "seconds").to_pylist() == [90_000, -1, None]
