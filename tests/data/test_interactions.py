"""Raw columns become typed interactions; every row is counted once."""

import csv
import io
import unicodedata

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given
from reading import read_interactions

from recsys.config import CsvFormat, InteractionColumns, InteractionsConfig
from recsys.data.interactions import (
    BAD_ITEM,
    BAD_USER,
    NEGATIVE_WEIGHT,
    NO_EVENT,
    NO_ITEM,
    NO_RATING,
    NO_TIME,
    NO_USER,
    NO_WEIGHT,
    OUT_OF_TIME,
    drop_duplicates,
    interaction_columns,
    parse_interactions,
    suggest_unit,
)
from recsys.data.sources.csv_source import WRONG_WIDTH
from recsys.data.sources.pieces import plan_pieces, read_piece

COLUMNS = InteractionColumns(user="u", item="i", timestamp="t", rating="r")
NOW = 2_000_000_000


def parse(path, content, columns=COLUMNS, piece_bytes=1 << 20, **config):
    """Returns the good rows, and the dead letters as `(line, reason)`."""
    path.write_text(content)
    config = InteractionsConfig(files=str(path), columns=columns, **config)
    read = read_interactions(config, NOW, piece_bytes)
    return read.good, read.reasons()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (",2,1000000000,4", NO_USER),
        ("  ,2,1000000000,4", NO_USER),
        ("1,,1000000000,4", NO_ITEM),
        (f"{'é' * 513},2,1000000000,4", BAD_USER),
        (f"1,{'x' * 1025},1000000000,4", BAD_ITEM),
        ("1,2,,4", NO_TIME),
        ("1,2,yesterday,4", NO_TIME),
        ("1,2,0x3b9aca00,4", NO_TIME),
        ("1,2,2001-09-09,4", NO_TIME),
        ("1,2,99999999999999999999,4", NO_TIME),
        ("1,2,31535999,4", OUT_OF_TIME),
        ("1,2,-1000000000,4", OUT_OF_TIME),
        ("1,2,2000000001,4", OUT_OF_TIME),
        ("1,2,1000000000000,4", OUT_OF_TIME),
        ("1,2,1000000000,", NO_RATING),
        ("1,2,1000000000,good", NO_RATING),
        ("1,2,1000000000,nan", NO_RATING),
        ("1,2,1000000000,1e999", NO_RATING),
        ("1,2,1000000000,1e39", NO_RATING),
        ("1,2,1000000000", WRONG_WIDTH),
    ],
)
def test_a_row_that_breaks_a_rule_is_rejected_for_it(tmp_path, row, reason):
    good, letters = parse(tmp_path / "f.csv", f"u,i,t,r\n9,9,1000000000,5\n{row}\n")
    assert letters == [(3, reason)]
    assert good["user_id"].to_pylist() == ["9"]


@pytest.mark.parametrize("row", ["1,2,31536000,4", "1,2,2000000000,4"])
def test_the_ends_of_time_belong_to_it(tmp_path, row):
    assert parse(tmp_path / "f.csv", f"u,i,t,r\n{row}\n")[1] == []


@pytest.mark.parametrize(
    ("unit", "text", "seconds"),
    [
        ("seconds", "1600000000", 1_600_000_000),
        ("seconds", "1600000000.0", 1_600_000_000),
        ("seconds", "1600000000.999", 1_600_000_000),
        ("seconds", " +1600000000 ", 1_600_000_000),
        ("milliseconds", "1600000000999", 1_600_000_000),
        ("microseconds", "1600000000999999", 1_600_000_000),
        ("nanoseconds", "1600000000999999999", 1_600_000_000),
        ("iso8601", "2020-09-13T12:26:40Z", 1_600_000_000),
        ("iso8601", "2020-09-13 12:26:40.999", 1_600_000_000),
        ("iso8601", "2020-09-13T17:56:40+05:30", 1_600_000_000),
        ("iso8601", "2020-09-13 12:26:40 UTC", 1_600_000_000),
        ("iso8601", "20200913T122640Z", 1_600_000_000),
        ("iso8601", "2020-09-13", 1_599_955_200),
    ],
)
@pytest.mark.parametrize("other", ["", "x"], ids=["alone", "beside-damage"])
def test_a_time_is_read_in_its_unit(tmp_path, unit, text, seconds, other):
    content = f"u,i,t,r\n1,2,{text},4\n" + (f"1,2,{other},4\n" if other else "")
    good, letters = parse(tmp_path / "f.csv", content, timestamp_unit=unit)
    assert good["timestamp"].to_pylist() == [seconds]
    assert letters == ([(3, NO_TIME)] if other else [])


@pytest.mark.parametrize(
    ("texts", "unit", "suggested"),
    [
        (["1600000000000"], "seconds", "milliseconds"),
        (["1600000000"], "milliseconds", "seconds"),
        (["1600000000000000"], "seconds", "microseconds"),
        (["2020-09-13"], "seconds", "iso8601"),
        (["1600000000"], "iso8601", "seconds"),
        (["5"], "seconds", None),
        (["1600000000"], "seconds", None),
    ],
)
def test_a_wrong_unit_is_reported_with_the_one_that_fits(tmp_path, texts, unit, suggested):
    (tmp_path / "f.csv").write_text("u,i,t,r\n" + "".join(f"1,2,{text},4\n" for text in texts))
    path = str(tmp_path / "f.csv")
    config = InteractionsConfig(files=path, columns=COLUMNS, timestamp_unit=unit)
    piece = plan_pieces(config, "interactions", interaction_columns(config))[0]
    assert suggest_unit(next(read_piece(piece)), config, NOW) == suggested


def test_ids_stay_text_and_numbers_may_have_a_point(tmp_path):
    good, _ = parse(tmp_path / "f.csv", "u,i,t,r\n007, x ,1000000000.0,.5\n", positive_at_least=4.0)
    assert good.drop_columns(["position"]).to_pylist() == [
        {"user_id": "007", "item_id": "x", "timestamp": 1_000_000_000, "rating": 0.5, "label": 0}
    ]


@pytest.mark.parametrize(
    "text",
    [
        "😀",
        "../../etc/passwd",
        "<b>x</b>",
        "=1+1",
        "\x1b[31m",
        "NULL",
        "nan",
        "None",
        "1e3",
        "0x10",
    ],
)
def test_an_id_may_be_any_text(tmp_path, text):
    good, letters = parse(tmp_path / "f.csv", f"u,i,t,r\n{text},{text},1000000000,4\n")
    assert (good["user_id"].to_pylist(), letters) == ([text], [])


def test_twins_of_unicode_are_one_id(tmp_path):
    names = ["é", "e\u0301", "Å", "\u212b"]
    assert len({unicodedata.normalize("NFC", name) for name in names}) == 2
    content = "u,i,t,r\n" + "".join(f"{name},x,1000000000,4\n" for name in names)
    good, _ = parse(tmp_path / "f.csv", content)
    assert good["user_id"].to_pylist() == ["é", "é", "Å", "Å"]
    assert drop_duplicates(good)[1] == 2


@pytest.mark.parametrize(
    ("rating", "positive_at_least", "label"),
    [("4.0", 4.0, 1), ("3.9", 4.0, 0), ("4.1", 4.1, 1), ("0.5", None, 1)],
)
def test_ratings_from_the_threshold_up_are_positives(tmp_path, rating, positive_at_least, label):
    content = f"u,i,t,r\n1,2,1000000000,{rating}\n"
    good, _ = parse(tmp_path / "f.csv", content, positive_at_least=positive_at_least)
    assert good["label"].to_pylist() == [label]


_ALL = InteractionColumns(user="u", item="i", timestamp="t", rating="r", weight="w", event="e")


@pytest.mark.parametrize(
    ("rating", "weight", "event", "label"),
    [("4", "1", "buy", 1), ("3", "1", "buy", 0), ("4", "0", "buy", 0), ("4", "-0.0", "buy", 0),
     ("4", "1", "view", 0), ("5", "0.1", " cart ", 1), ("4", "1", "BUY", 0)],
)  # fmt: skip
def test_a_positive_must_be_one_by_all_rules(tmp_path, rating, weight, event, label):
    good, letters = parse(
        tmp_path / "f.csv",
        f"u,i,t,r,w,e\n1,2,1000000000,{rating},{weight},{event}\n",
        _ALL,
        positive_at_least=4.0,
        positive_events=("buy", "cart"),
    )
    assert (good["label"].to_pylist(), letters) == ([label], [])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [("4,,buy", NO_WEIGHT), ("4,nan,buy", NO_WEIGHT), ("4,-1,buy", NEGATIVE_WEIGHT),
     ("4,1,", NO_EVENT), ("4,1,  ", NO_EVENT)],
)  # fmt: skip
def test_weights_and_kinds_have_their_rules(tmp_path, fields, reason):
    letters = parse(tmp_path / "f.csv", f"u,i,t,r,w,e\n1,2,1000000000,{fields}\n", _ALL)[1]
    assert letters == [(2, reason)]


def test_without_a_rating_column_every_row_is_a_positive(tmp_path):
    columns = InteractionColumns(user="u", item="i", timestamp="t")
    good, _ = parse(tmp_path / "f.csv", "u,i,t\n1,2,1000000000\n", columns)
    assert good["label"].to_pylist() == [1]
    assert "rating" not in good.column_names


def test_a_dead_letter_keeps_its_row_up_to_65536_characters(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text(f"u,i,t,r\n1,{'é' * 500_000},1000000000,4\n")
    config = InteractionsConfig(files=str(path), columns=COLUMNS, csv=CsvFormat())
    piece = plan_pieces(config, "interactions", interaction_columns(config))[0]
    _, letters = parse_interactions(next(read_piece(piece)), config, NOW)
    assert letters["row"][0].as_py() == "1," + "é" * 65_534
    assert letters["file"][0].as_py() == str(path)


def test_of_equal_rows_the_first_stays():
    table = pa.table(
        {
            "user_id": ["b", "a", "a", "a", "a"],
            "item_id": ["x", "x", "x", "y", "x"],
            "timestamp": [5, 5, 5, 5, 6],
            "rating": pa.array([1, 2, 3, 4, 5], pa.float32()),
            "label": [0, 0, 0, 0, 0],
            "position": [40, 30, 20, 10, 50],
        }
    )
    kept, n_dropped = drop_duplicates(table)
    assert (kept["rating"].to_pylist(), n_dropped) == ([4, 3, 1, 5], 1)


def test_another_kind_of_event_at_the_same_moment_is_no_duplicate():
    table = pa.table(
        {"user_id": ["a"] * 3, "item_id": ["x"] * 3, "timestamp": [5] * 3,
         "event": ["view", "buy", "view"], "label": [1] * 3, "position": [1, 2, 3]}
    )  # fmt: skip
    kept, n_dropped = drop_duplicates(table)
    assert (kept["event"].to_pylist(), n_dropped) == (["view", "buy"], 1)


_FIELD = st.sampled_from(["1", "2", "", "1000000000", "1000000001", "x", "nan", "4", "-5", '"'])


@given(
    st.lists(st.lists(_FIELD, min_size=2, max_size=5), min_size=1, max_size=40), st.integers(8, 99)
)
def test_read_is_good_and_rejected_and_duplicate(tmp_path_factory, rows, piece_bytes):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([("u", "i", "t", "r"), *rows])
    path = tmp_path_factory.mktemp("rows") / "f.csv"
    typed, letters = parse(path, text.getvalue(), piece_bytes=piece_bytes)
    if typed.num_rows == 0:
        assert len(letters) == len(rows)
        return
    good, n_duplicates = drop_duplicates(typed)
    assert len(rows) == good.num_rows + len(letters) + n_duplicates
    keys = {(u.strip(), i.strip(), t) for u, i, t in (r[:3] for r in rows if is_good(r))}
    assert good.num_rows == len(keys)


def is_good(row):
    """The rules again, one row at a time."""
    if len(row) != 4:
        return False
    user, item, timestamp, rating = row
    in_time = timestamp.isdigit() and 31_536_000 <= int(timestamp) <= NOW
    return bool(user) and bool(item) and in_time and rating in {"1", "2", "4", "-5", *_BIG}


_BIG = ("1000000000", "1000000001")
