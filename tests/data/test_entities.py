"""Raw items and users to typed examples, there and back on the disk."""

import datetime as dt
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.config import ItemColumns, ItemsConfig, UserColumns, UsersConfig, read_feature
from recsys.data.dead_letters import SCHEMA
from recsys.data.entities import (
    example_columns,
    example_schema,
    id_column,
    keep_latest,
    parse_entities,
    raw_columns,
    to_dates,
)
from recsys.data.example_files import read_examples, write_examples
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import to_ranks
from recsys.errors import RecsysError


def feature(name, column, kind, **more):
    return read_feature({"name": name, "column": column, "kind": kind, **more})


def items_config(*features, title="name"):
    columns = ItemColumns(item="id", title=title)
    return ItemsConfig(files="x", columns=columns, features=features)


def users_config(*features):
    return UsersConfig(files="x", columns=UserColumns(user="uid"), features=features)


def batch_of(columns, types=None):
    arrays = {name: pa.array(v, (types or {}).get(name)) for name, v in columns.items()}
    record = pa.RecordBatch.from_pydict(arrays)
    rejected = pa.RecordBatch.from_pylist([], SCHEMA)
    return RawBatch("f.csv", record, np.arange(2, 2 + record.num_rows), rejected)


CONFIG = items_config(
    feature("words", "name", "words"),
    feature("genres", "genres", "categories"),
    feature("price", "price", "number"),
    feature("year", "year", "date"),
)
RAW = {
    "id": [" 7 ", "007", "", "e\u0301", "x", "y", "z" * 1025],
    "name": ["Heat ", "", "a", "Ame\u0301lie", "b", "c", "d"],
    "genres": ["Drama| Action ||", "", "a", "Sci-Fi", "x", "y", "z"],
    "price": ["1.5", "", "2", " 3 ", "cheap", "inf", "1"],
    "year": ["1995", "2001-02-03", "1999", "", "1999", "1999", "1999"],
}


def test_values_are_typed_and_bad_rows_are_rejected_with_a_reason():
    rows, letters = parse_entities(batch_of(RAW), CONFIG)
    assert rows.schema.names == ["item_id", "title", "genres", "price", "year", "position"]
    found = rows.to_pydict()
    assert found["item_id"] == ["7", "007", "\u00e9"]
    assert found["title"] == ["Heat", None, "Am\u00e9lie"]
    assert found["genres"] == [["Drama", "Action"], [], ["Sci-Fi"]]
    assert found["price"] == [1.5, None, 3.0]
    assert found["year"] == [seconds(1995), seconds(2001, 2, 3), None]
    reasons = dict(zip(letters["line"].to_pylist(), letters["reason"].to_pylist(), strict=True))
    assert reasons == {
        4: "empty item id",
        6: "price is no number",
        7: "price is no number",
        8: "item id over 1024 bytes, or with a NUL",
    }


def seconds(*day):
    return int(dt.datetime(*(*day, 1, 1)[:3], tzinfo=dt.UTC).timestamp())


def test_typed_columns_of_parquet_and_json_give_the_same_as_text():
    types = {"price": pa.float64(), "year": pa.timestamp("ms"), "genres": pa.list_(pa.string())}
    raw = {
        "id": [7, 8],
        "name": ["Heat", None],
        "genres": [["Drama|Action", " x "], None],
        "price": [1.5, float("nan")],
        "year": [dt.datetime(1995, 1, 1), None],
    }
    rows, letters = parse_entities(batch_of(raw, types), CONFIG)
    assert letters.num_rows == 0
    found = rows.to_pydict()
    assert found["item_id"] == ["7", "8"]
    # A list in the file stays the same list.
    assert found["genres"] == [["Drama|Action", "x"], []]
    assert found["price"] == [1.5, None]
    assert found["year"] == [seconds(1995), None]


@pytest.mark.parametrize(
    ("kind", "values", "type_", "expected"),
    [
        ("category", ["a", None, "b"], pa.dictionary(pa.int32(), pa.string()), ["a", None, "b"]),
        ("category", [[b"a"], [], None], pa.list_(pa.binary()), ["a", None, None]),
        ("category", [3, None, 0], pa.int64(), ["3", None, "0"]),
        ("number", [[1.0], [], None], pa.list_(pa.float32()), [1.0, None, None]),
        ("number", [True, False, None], pa.bool_(), [1.0, 0.0, None]),
        ("words", [None, None, None], pa.null(), [None, None, None]),
    ],
)
def test_a_single_value_may_be_a_list_of_one_or_from_a_dictionary(kind, values, type_, expected):
    config = users_config(feature("f", "c", kind))
    rows, letters = parse_entities(
        batch_of({"uid": ["a", "b", "c"], "c": values}, {"c": type_}), config
    )
    assert letters.num_rows == 0
    assert rows["c"].to_pylist() == expected
    assert rows["user_id"].to_pylist() == ["a", "b", "c"]


NAN = float("nan")
WIDTH, FINITE = "c has {}, not 2", "c holds a value that is no finite number"


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([[0.5, 1], [], None, [1, 2, 3], [NAN, 1], [1], [1, None]], pa.list_(pa.float64())),
        ([[0.5, 1], [], None, [1, 2, 3], [NAN, 1], [1], [1, None]], pa.large_list(pa.float32())),
        (["[0.5, 1]", "", None, "[1 2 3]", "nan,1", "(1)", "1;a"], pa.string()),
        ([" 0.5 1 ", "[]", None, "1|2|3", "[inf, 1]", "1", "1 x"], pa.string()),
        ([["0.5", "1"], [], None, ["1", "2", "3"], ["a", "1"], ["1"], ["", "1"]], None),
    ],
    ids=["lists", "large", "text", "plain", "texts"],
)
def test_a_vector_of_another_width_or_without_a_number_is_rejected(values, type_):
    config = users_config(feature("f", "c", "vector", width=2))
    batch = batch_of({"uid": list("abcdefg"), "c": values}, {"c": type_})
    rows, letters = parse_entities(batch, config)
    assert rows["c"].to_pylist() == [[0.5, 1.0], None, None]
    assert rows.schema.field("c").type == pa.list_(pa.float32())
    assert letters["reason"].to_pylist() == [
        WIDTH.format("3 numbers"),
        FINITE,
        WIDTH.format("1 number"),
        FINITE,
    ]
    fixed = batch_of({"uid": ["a", "b"], "c": [[1, 2], None]}, {"c": pa.list_(pa.float32(), 2)})
    assert parse_entities(fixed, config)[0]["c"].to_pylist() == [[1.0, 2.0], None]


def test_text_that_is_not_utf8_is_rejected():
    config = users_config(feature("f", "c", "category"))
    batch = batch_of({"uid": ["a", "b"], "c": [b"\xff", b"ok"]})
    rows, letters = parse_entities(batch, config)
    assert rows["c"].to_pylist() == ["ok"]
    assert letters["reason"].to_pylist() == ["c is no text"]


@pytest.mark.parametrize("type_", [pa.list_(pa.string()), pa.struct([("a", pa.string())])])
def test_many_values_where_one_is_taken_are_refused(type_):
    config = users_config(feature("f", "c", "category"))
    value = {"a": "x"} if pa.types.is_struct(type_) else ["x", "y"]
    with pytest.raises(RecsysError, match=r"R260.*'c'.*kind categories"):
        parse_entities(batch_of({"uid": ["a"], "c": [value]}, {"c": type_}), config)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1000", seconds(1000)),
        ("3000", seconds(3000)),
        ("1995.0", seconds(1995)),
        ("100000000", 100_000_000),
        ("1700000000", 1_700_000_000),
        ("-5", None),
        ("0", None),
        ("999", None),
        ("3001", None),
        ("19991231", None),
        ("99999999", None),
        ("1700000000000", None),
        ("1969-12-31T23:59:59Z", -1),
        ("2020-02-30", None),
        ("soon", None),
        ("", None),
    ],
)
def test_what_a_date_may_be_is_not_guessed(value, expected):
    assert to_dates(pa.array([value])).to_pylist() == [expected]
    if value.isdecimal():
        assert to_dates(pa.array([int(value)])).to_pylist() == [expected]
        assert to_dates(pa.array([float(value)])).to_pylist() == [expected]


def test_columns_of_one_name_read_in_two_ways_get_two_names():
    config = items_config(
        feature("a", "year", "number"),
        feature("b", "year", "date"),
        feature("c", "tags", "categories"),
        feature("d", "tags", "categories", separator=","),
        feature("e", "tags", "categories", hash_buckets=9),
        feature("f", "item_id", "category"),
        feature("g", "history", "category"),
        feature("h", "name", "words"),
    )
    assert raw_columns(config) == ["id", "name", "year", "tags", "item_id", "history"]
    assert example_columns(config) == {
        "a": "year",
        "b": "raw_year",
        "c": "tags",
        "d": "raw_tags",
        "e": "tags",
        "f": "raw_item_id",
        "g": "raw_history",
        "h": "title",
    }
    names = example_schema(config).names
    assert len(names) == len(set(names)) == 8
    assert id_column(config) == "item_id"


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@given(
    st.lists(
        st.tuples(
            st.none() | texts,
            st.none() | st.lists(texts, max_size=3),
            st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.none() | st.integers(-(2**63), 2**63 - 1),
        )
    )
)
def test_examples_come_back_from_the_disk_as_they_went(rows):
    columns = list(zip(*rows, strict=True)) or [[], [], [], []]
    types = (pa.string(), pa.list_(pa.string()), pa.float32(), pa.int64())
    arrays = [pa.array(values, type_) for values, type_ in zip(columns, types, strict=True)]
    table = pa.table(arrays, names=["text", "many", "number", "time"])
    sink = io.BytesIO()
    write_examples(table, sink)
    sink.seek(0)
    found = pa.concat_tables(read_examples(sink, table.column_names)).to_pydict()
    expected = table.to_pydict()
    # A missing list is an empty one.
    expected["many"] = [values or [] for values in expected["many"]]
    assert found == expected


VERSIONS = {
    "id": ["a", "b", "a", "a", "b", "c", "b", "d"],
    "name": ["a0", "b0", "a1", "a0", "b1", "c0", "b2", "d0"],
    "updated": ["2024-01-02", "", "2024-01-03T00:00:01Z", "2024-01-03", "7", "", "7.0", "soon"],
}


@pytest.mark.parametrize(
    ("latest", "names", "letters"),
    [
        (None, ["a0", "b0", "c0", "d0"], []),
        ("updated", ["a1", "b1", "c0"], ["updated is neither a number nor a time"]),
    ],
)
def test_of_rows_of_one_item_the_first_or_the_latest_is_kept(latest, names, letters):
    config = items_config().model_copy(update={"latest": latest})
    rows, rejected = parse_entities(batch_of(VERSIONS), config)
    kept, n_dropped, n_conflicts = keep_latest(pa.Table.from_batches([rows]), "item_id")
    assert rejected["reason"].to_pylist() == letters
    assert sorted(kept["title"].to_pylist()) == names
    assert kept.schema == example_schema(config)
    # a0 comes again as it was; b1, b2 and a1 are other rows of their items.
    assert (n_dropped, n_conflicts) == (4, 3)


def test_values_of_every_type_make_a_conflict():
    raw = {"id": ["a"] * 5, "name": ["n"] * 5, "genres": ["x|y", "x", "x|y", "x|y", "x|y"]}
    raw |= {"price": ["1", "1", "2", "1", "1"], "year": ["1999", "1999", "1999", "2000", "1999"]}
    rows, _ = parse_entities(batch_of(raw), CONFIG)
    assert keep_latest(pa.Table.from_batches([rows]), "item_id")[1:] == (4, 3)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3, 10, None], pa.int32()),
        pa.array([dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2), None]),
        pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2), None]),
        pa.array(["9", "10", ""]),
        pa.array(["2024-01-09", "2024-01-10 00:00:00+00:00", " "]),
    ],
)
def test_the_latest_is_the_highest_number_or_time_of_any_type(column):
    ranks = to_ranks(column).to_pylist()
    assert ranks[0] < ranks[1]
    assert ranks[2] is None
