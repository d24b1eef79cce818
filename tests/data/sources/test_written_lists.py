"""Lists as text: what Python, JSON, NumPy, Java and PostgreSQL write comes back as a list."""

import json

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from recsys.config import ItemColumns, ItemsConfig, ListOfEvents, SourceConfig
from recsys.data.entities import parse_entities, raw_columns
from recsys.data.features import CategoriesFeature
from recsys.data.sources.nested import explode
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import to_lists
from recsys.data.sources.written_lists import read_list


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("['a', 'b']", ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        (" [10, 9]\n", ["10", "9"]),
        ("[27]", ["27"]),
        ("[]", []),
        ("('Drama','Sci-Fi')", ["Drama", "Sci-Fi"]),
        ("('a',)", ["a"]),
        ("(1, 2)", ["1", "2"]),
        ('{"Sci Fi",Drama}', ["Sci Fi", "Drama"]),
        ("['a' 'b'\n 'c']", ["a", "b", "c"]),
        ("[ 1.5 -2. 3e4]", ["1.5", "-2.", "3e4"]),
        ("[Drama, Sci Fi]", ["Drama", "Sci Fi"]),
        ("[None, 'x', nan]", ["x"]),
        ("['a, b', \"it's\"]", ["a, b", "it's"]),
        (r'["caf\u00e9 \ud83d\ude00", "a\"b\\"]', ["café 😀", 'a"b\\']),
        ("(2009)", None),
        ("(500) Days of (Summer)", None),
        ("['a'", None),
        ("a|b", None),
        ("[1,,2]", None),
        ("[{'id': 3}]", None),
        ("", None),
    ],
)
def test_a_list_as_text_is_read(text, elements):
    assert read_list(text) == elements


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_what_json_writes_and_python_prints_is_read_back(elements):
    assert read_list(json.dumps(elements)) == elements
    assert read_list(json.dumps(elements, ensure_ascii=False)) == elements
    plain = [element for element in elements if element.isprintable()]
    assert read_list(repr(plain)) == plain


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=5))
def test_what_numpy_prints_is_read_back(numbers):
    assert read_list(str(np.array(numbers))) == [str(number) for number in numbers]


def test_lists_and_separated_text_of_one_column_are_distinguished_row_by_row():
    column = pa.array(["a|b", "['c', 'd|e']", None, "[]", "[[1]]", "", '{"x": 1}', "(2009)|f"])
    expected = [["a", "b"], ["c", "d|e"], [], [], None, [], None, ["(2009)", "f"]]
    assert to_lists(column, "|").to_pylist() == expected
    for at in range(len(column)):
        assert to_lists(column.slice(at, 1), "|").to_pylist() == expected[at : at + 1]


def test_objects_as_text_are_dead_letters(tmp_path):
    file = tmp_path / "items.csv"
    file.write_text("id,genres\n" + "1,\"['a', 'b']\"\n2,\"[{'id': 3, 'name': 'a'}]\"\n3,b|c\n")
    config = ItemsConfig(
        files=str(file),
        columns=ItemColumns(item="id"),
        features=(CategoriesFeature(name="genres", column="genres"),),
    )
    [piece] = plan_pieces(config, "items", raw_columns(config))
    [batch] = read_piece(piece)
    rows, letters = parse_entities(batch, config)
    assert rows.column("genres").to_pylist() == [["a", "b"], ["b", "c"]]
    assert letters.column("reason").to_pylist() == ["genres is no list of plain values"]
    assert letters.column("line").to_pylist() == [3]


@pytest.mark.parametrize("separator", [None, ","])
def test_events_may_be_a_list_as_text(tmp_path, separator):
    file = tmp_path / "e.csv"
    file.write_text('user,items\nu,"[3, 4]"\nv,"[""a""]"\nw,"[[1]]"\n')
    config = SourceConfig(files=str(file))
    [piece] = plan_pieces(config, "interactions", ["user", "items"])
    [batch] = read_piece(piece)
    events = list(explode(batch, ListOfEvents(column="items", separator=separator)))
    rows = [row for part in events for row in part.columns.to_pylist()]
    assert [(row["user"], row["items"]) for row in rows] == [("u", "3"), ("u", "4"), ("v", "a")]
    assert rejected(events) == [("no list of events", 4)]


def rejected(parts: list[RawBatch]) -> list[tuple[str, int]]:
    letters = [letter for part in parts for letter in part.rejected.to_pylist()]
    return [(letter["reason"], letter["line"]) for letter in letters]
