"""Values as people write them: dates in words, decimal commas, lines above a header, JSON."""

import datetime as dt
import json

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from reading import read_interactions

from recsys.config import InteractionsConfig, ItemColumns, ItemsConfig, ListOfEvents, SourceConfig
from recsys.data.entities import parse_entities, raw_columns
from recsys.data.features import CategoriesFeature
from recsys.data.sources.nested import explode
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import read_list, to_lists, to_times
from recsys.errors import RecsysError


def times(texts, format_):
    found = to_times(pa.array(texts, pa.string()), "seconds", format_).to_pylist()
    return [
        None if time is None else f"{dt.datetime.fromtimestamp(time, dt.UTC):%Y-%m-%d %H:%M:%S}"
        for time in found
    ]


@pytest.mark.parametrize(
    ("format_", "text", "expected"),
    [
        ("%d/%m/%Y %H:%M", "31/12/2023 10:00", "2023-12-31 10:00:00"),
        ("%d/%m/%Y %H:%M", " 1/2/2024  9:05 ", "2024-02-01 09:05:00"),
        ("%B %d, %Y", "March 3, 2024", "2024-03-03 00:00:00"),
        ("%B %d, %Y", "sep 03, 1969", "1969-09-03 00:00:00"),
        ("%d-%b-%Y", "01-Jan-1995", "1995-01-01 00:00:00"),
        ("%m/%d/%y %I:%M:%S %p", "12/31/69 12:00:05 AM", "1969-12-31 00:00:05"),
        ("%m/%d/%y %I:%M:%S %p", "12/31/68 12:00:05 p.m.", "2068-12-31 12:00:05"),
        ("%a, %d %b %Y %H:%M:%S %z", "Tue, 31 Dec 2023 01:00:00 +0230", "2023-12-30 22:30:00"),
        ("%a %b %d %H:%M:%S %Y", "Mon Mar  4 08:00:01 2024", "2024-03-04 08:00:01"),
        ("%a %b %d %H:%M:%S %Z %Y", "Mon Mar  4 08:00:01 PDT 2024", "2024-03-04 15:00:01"),
        ("%Y-%m-%d %H:%M:%S %Z", "2024-03-04 00:30:00 cest", "2024-03-03 22:30:00"),
        ("%Y-%m-%d %H:%M %Z", "2024-03-04 10:00 UTC", "2024-03-04 10:00:00"),
        ("%Y-%m-%d %H:%M:%S.%f", "2024-02-29 01:02:03.999", "2024-02-29 01:02:03"),
        ("%Y%m%d", "20231231", "2023-12-31 00:00:00"),
        ("100%% %d.%m.%Y", "100% 31.12.2023", "2023-12-31 00:00:00"),
    ],
)
def test_text_of_times_is_read_as_its_format_says(format_, text, expected):
    assert times([text, None, "", f"{text}x", "x"], format_) == [expected, None, None, None, None]


@pytest.mark.parametrize("text", ["31/02/2023", "29/02/2023", "00/01/2023", "12/31/2023", "1/1/23"])
def test_a_day_that_no_calendar_has_is_no_time(text):
    assert times([text, "28/02/2023"], "%d/%m/%Y") == [None, "2023-02-28 00:00:00"]


@pytest.mark.parametrize("zone", ["IST", "XYZ", "PM"])
def test_an_ambiguous_or_unknown_zone_is_no_time(zone):
    assert times([f"2024-03-04 10:00 {zone}"], "%Y-%m-%d %H:%M %Z") == [None]


_FORMATS = ["%d/%m/%Y %H:%M:%S", "%B %d, %Y %I:%M:%S %p", "%a %d %b %Y, %H.%M.%S", "%Y%m%d%H%M%S"]


@given(st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 1, 1)), st.sampled_from(_FORMATS))
def test_what_python_writes_is_read_back(moment, format_):
    moment = moment.replace(microsecond=0)
    text = pa.array([moment.strftime(format_)])
    expected = int(moment.replace(tzinfo=dt.UTC).timestamp())
    assert to_times(text, "seconds", format_).to_pylist() == [expected]


@pytest.mark.parametrize("format_", ["%Y", "%d/%m", "%Q/%d/%m/%Y", "%d/%m/%Y %d", "%", "d/m/Y"])
def test_a_format_that_makes_no_time_is_a_mistake_in_the_config(format_):
    columns = {"user": "u", "item": "i", "timestamp": "t"}
    raw = {"files": "f.csv", "columns": columns, "timestamp_format": format_}
    with pytest.raises(ValueError, match="timestamp_format"):
        InteractionsConfig.model_validate(raw)


def read(path, content, **config):
    path.write_bytes(content.encode(config.get("csv", {}).get("encoding", "utf-8")))
    raw = {"files": str(path), **config}
    source = InteractionsConfig.model_validate(raw, strict=False)
    found = read_interactions(source, 1_900_000_000, 1 << 20)
    return found.good, found.reasons()


def test_ratings_and_weights_may_have_a_decimal_comma(tmp_path):
    columns = {"user": "u", "item": "i", "rating": "r", "weight": "w"}
    content = "u;i;r;w\n1;2;7,5;0,25\n1;3;8;1\n1;4;7.5;1\n1;5;1.234,5;1\n"
    csv = {"delimiter": ";", "decimal": ","}
    rows, letters = read(tmp_path / "f.csv", content, columns=columns, csv=csv)
    assert rows["rating"].to_pylist() == [7.5, 8.0]
    assert rows["weight"].to_pylist() == [0.25, 1.0]
    assert [line for line, _ in letters] == [4, 5]


def test_a_weight_may_be_the_logarithm_of_a_count(tmp_path):
    columns = {"user": "u", "item": "i", "weight": "plays"}
    content = "u,i,plays\n1,2,0\n1,3,1\n1,4,352698\n1,5,-1\n"
    rows, letters = read(tmp_path / "f.csv", content, columns=columns, weight_scale="log")
    assert rows["weight"].to_pylist() == pytest.approx([0.0, 0.6931, 12.7734], abs=1e-4)
    assert rows["label"].to_pylist() == [0, 1, 1]
    assert letters == [(5, "weight is negative")]


@pytest.mark.parametrize("above", ["Purchases of 2020\n\n", '"left open\nby "X",\n', "a,b\nc,d\n"])
@pytest.mark.parametrize("names", [[], ["u", "i"]])
def test_lines_above_the_table_are_left_out_and_lines_keep_their_numbers(tmp_path, above, names):
    header = "" if names else "u,i\n"
    content = f"{above}{header}1,2\nbad\n1,3\n"
    csv = {"skip_rows": 2, "names": names}
    rows, letters = read(tmp_path / "f.csv", content, columns={"user": "u", "item": "i"}, csv=csv)
    assert rows["item_id"].to_pylist() == ["2", "3"]
    assert letters == [(4 + (not names), "wrong number of fields")]


def test_lines_above_a_table_are_left_out_of_a_file_that_is_cut(tmp_path):
    n_rows = 300_000
    content = "made, by, us\nu,i\n" + "".join(f"{k % 99},{k}\n" for k in range(n_rows))
    csv = {"skip_rows": 1}
    rows, letters = read(tmp_path / "f.csv", content, columns={"user": "u", "item": "i"}, csv=csv)
    assert (rows.num_rows, letters) == (n_rows, [])


def test_dates_and_numbers_of_items_are_read_as_they_are_written(tmp_path):
    content = "id;released;price\n1;01-Jan-1995;7,5\n2;;\n3;1995;8\n4;02-Feb-1996;x\n"
    (tmp_path / "f.csv").write_text(content)
    features = [
        {"name": "released", "column": "released", "kind": "date", "format": "%d-%b-%Y"},
        {"name": "price", "column": "price", "kind": "number"},
    ]
    raw = {"files": str(tmp_path / "f.csv"), "columns": {"item": "id"}, "features": features}
    csv = {"delimiter": ";", "decimal": ","}
    config = ItemsConfig.model_validate({**raw, "csv": csv}, strict=False)
    (piece,) = plan_pieces(config, "items", raw_columns(config))
    (batch,) = read_piece(piece)
    rows, letters = parse_entities(batch, config)
    assert rows.column("released").to_pylist() == [788_918_400, None]
    assert rows.column("price").to_pylist() == [7.5, None]
    reasons = [letter["reason"] for letter in letters.to_pylist()]
    assert reasons == ["released is no date", "price is no number"]


@pytest.mark.parametrize(
    ("content", "filter_", "what"),
    [
        ('[\n  {\n    "user": 1\n  }\n]\n', "jq -c '.[]'", "a JSON array of all rows"),
        ('[{"user": 1}, {"user": 2}]', "jq -c '.[]'", "a JSON array of all rows"),
        ('{\n  "user": 1,\n  "item": 2\n}\n', "jq -c '.'", "pretty-printed JSON"),
        ('{\n  "rows": [\n    {\n      "user": 1\n', "jq -c '.rows[]'", "a JSON array of all rows"),
    ],
)
@pytest.mark.parametrize("name", ["f.json", "f.jsonl", "f.log"])
def test_json_over_many_lines_is_named_with_what_makes_lines_of_it(
    tmp_path, content, filter_, what, name
):
    (tmp_path / name).write_text(content)
    with pytest.raises(RecsysError) as refused:
        plan_pieces(SourceConfig(files=str(tmp_path / name)), "interactions", ["user"])
    assert refused.value.code == "R204"
    assert filter_ in str(refused.value)
    assert what in str(refused.value)


def test_rows_that_are_all_too_deep_are_not_called_pretty_printed(tmp_path):
    (tmp_path / "f.jsonl").write_text('{"user": ' + "[" * 200 + "]" * 200 + "}\n")
    with pytest.raises(RecsysError, match=r"R204.*nested at most 64 deep"):
        plan_pieces(SourceConfig(files=str(tmp_path / "f.jsonl")), "interactions", ["user"])


# --- written lists


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
