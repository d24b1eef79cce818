"""Raw text becomes typed interactions; every row is counted once."""

import csv
import io

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from recsys.config import InteractionColumns
from recsys.config_file import default_config_path
from recsys.data.csv_columns import WRONG_WIDTH
from recsys.data.csv_source import read_batches
from recsys.data.interactions import (
    NO_ITEM,
    NO_RATING,
    NO_TIME,
    NO_USER,
    OUT_OF_TIME,
    drop_duplicates,
    parse_interactions,
)

COLUMNS = InteractionColumns(user="u", item="i", timestamp="t", rating="r")
NOW = 2_000_000_000


def parse(path, content, positive_at_least=4.0, columns=COLUMNS, block_bytes=1 << 20):
    """Returns the good rows, and the dead letters as `(line, reason)`."""
    path.write_text(content)
    names = [columns.user, columns.item, columns.timestamp]
    names += [columns.rating] if columns.rating else []
    good, letters = [], []
    for batch in read_batches(str(path), names, block_bytes):
        typed, rejected = parse_interactions(batch, columns, positive_at_least, NOW)
        good.append(typed)
        letters += [(letter["line"], letter["reason"]) for letter in rejected.to_pylist()]
    return pa.Table.from_batches(good), letters


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (",2,1000000000,4", NO_USER),
        ("  ,2,1000000000,4", NO_USER),
        ("1,,1000000000,4", NO_ITEM),
        ("1,2,,4", NO_TIME),
        ("1,2,yesterday,4", NO_TIME),
        ("1,2,1000000000.5,4", NO_TIME),
        ("1,2,99999999999999999999,4", NO_TIME),
        ("1,2,31535999,4", OUT_OF_TIME),
        ("1,2,-1000000000,4", OUT_OF_TIME),
        ("1,2,2000000001,4", OUT_OF_TIME),
        ("1,2,1000000000,", NO_RATING),
        ("1,2,1000000000,good", NO_RATING),
        ("1,2,1000000000,nan", NO_RATING),
        ("1,2,1000000000,1e999", NO_RATING),
        ("1,2,1000000000", WRONG_WIDTH),
    ],
)
def test_a_row_that_breaks_a_rule_is_rejected_for_it(tmp_path, row, reason):
    good, letters = parse(tmp_path / "f.csv", f"u,i,t,r\n9,9,1000000000,5\n{row}\n")
    assert letters == [(3, reason)]
    assert good["user_id"].to_pylist() == ["9"]


@pytest.mark.parametrize("row", ["1,2,31536000,4", "1,2,2000000000,4", "007, 2 ,1e3,4"][:2])
def test_the_ends_of_time_belong_to_it(tmp_path, row):
    assert parse(tmp_path / "f.csv", f"u,i,t,r\n{row}\n")[1] == []


def test_ids_stay_text_and_numbers_may_have_a_point(tmp_path):
    good, _ = parse(tmp_path / "f.csv", "u,i,t,r\n007, x ,1000000000.0,.5\n")
    assert good.drop_columns(["position"]).to_pylist() == [
        {"user_id": "007", "item_id": "x", "timestamp": 1_000_000_000, "rating": 0.5, "label": 0}
    ]


@pytest.mark.parametrize(
    ("rating", "positive_at_least", "label"),
    [("4.0", 4.0, 1), ("3.9", 4.0, 0), ("4.1", 4.1, 1), ("0.5", None, 1)],
)
def test_ratings_from_the_threshold_up_are_positives(tmp_path, rating, positive_at_least, label):
    content = f"u,i,t,r\n1,2,1000000000,{rating}\n"
    good, _ = parse(tmp_path / "f.csv", content, positive_at_least)
    assert good["label"].to_pylist() == [label]


def test_without_a_rating_column_every_row_is_a_positive(tmp_path):
    columns = InteractionColumns(user="u", item="i", timestamp="t")
    good, _ = parse(tmp_path / "f.csv", "u,i,t\n1,2,1000000000\n", None, columns)
    assert good["label"].to_pylist() == [1]


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


_FIELD = st.sampled_from(["1", "2", "", "1000000000", "1000000001", "x", "nan", "4", "-5", '"'])


@given(
    st.lists(st.lists(_FIELD, min_size=2, max_size=5), min_size=1, max_size=40), st.integers(8, 99)
)
def test_read_is_good_and_rejected_and_duplicate(tmp_path_factory, rows, block_bytes):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([("u", "i", "t", "r"), *rows])
    path = tmp_path_factory.mktemp("rows") / "f.csv"
    typed, letters = parse(path, text.getvalue(), block_bytes=block_bytes)
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


def test_the_one_damaged_row_of_movielens_is_found(tmp_path):
    folder = default_config_path().parent.parent / "data" / "ml-latest-small"
    columns = InteractionColumns(
        user="userId", item="movieId", timestamp="timestamp", rating="rating"
    )
    n_good, letters = 0, []
    names = ["userId", "movieId", "timestamp", "rating"]
    for batch in read_batches(str(folder / "ratings.csv"), names):
        typed, rejected = parse_interactions(batch, columns, 4.0, NOW)
        n_good += typed.num_rows
        letters += rejected.to_pylist()
    assert n_good == 100_835
    assert [(letter["line"], letter["reason"]) for letter in letters] == [(522, NO_TIME)]
    assert letters[0]["row"].startswith("5,39,3.0,84743496 https://files")
