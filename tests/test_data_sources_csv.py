"""CSV files are read as text, and damage costs the damaged row and no more."""

import csv
import gzip
import io

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from recsys.data.csv_columns import NOT_TEXT, OPEN_QUOTE, WRONG_WIDTH
from recsys.data.csv_source import check_files, match_files, read_batches
from recsys.errors import RecsysError


def read(path, content, columns=("a", "b"), block_bytes=1 << 20):
    path.write_bytes(content)
    batches = list(read_batches(str(path), columns, block_bytes))
    rows = [tuple(row.values()) for batch in batches for row in batch.columns.to_pylist()]
    lines = [line for batch in batches for line in batch.line.tolist()]
    letters = [letter for batch in batches for letter in batch.rejected.to_pylist()]
    return rows, lines, [(letter["line"], letter["reason"], letter["row"]) for letter in letters]


@pytest.mark.parametrize(
    ("content", "rows", "lines"),
    [
        (b"a,b\n1,x\n2,y\n", [("1", "x"), ("2", "y")], [2, 3]),
        (b"a,b\r\n1,x\r\n2,y\r\n", [("1", "x"), ("2", "y")], [2, 3]),
        (b"a,b\n1,x\n\n\n2,y", [("1", "x"), ("2", "y")], [2, 5]),
        (b"\xef\xbb\xbfa,b\n1,x\n", [("1", "x")], [2]),
        (b"b,other,a\nx,?,1\n", [("1", "x")], [2]),
        (b'a,b\n1,"x, ""y"""\n2,z\n', [("1", 'x, "y"'), ("2", "z")], [2, 3]),
        (b'a,b\n1,"two\nlines"\n2,z\n', [("1", "two\nlines"), ("2", "z")], [2, 4]),
        (
            b'a,b\n1,5" disc\n2,z\n3,7" disc\n',
            [("1", '5" disc'), ("2", "z"), ("3", '7" disc')],
            [2, 3, 4],
        ),
        (b"a,b\n007,1.0\n,\n", [("007", "1.0"), ("", "")], [2, 3]),
        ("a,b\nÜ,日本\n".encode(), [("Ü", "日本")], [2]),
    ],
    ids=[
        "plain",
        "crlf",
        "blank-lines",
        "bom",
        "other-order",
        "quoted",
        "line-end-in-quotes",
        "quote-inside",
        "text-stays-text",
        "unicode",
    ],
)
def test_a_row_is_read_as_it_stands(tmp_path, content, rows, lines):
    assert read(tmp_path / "f.csv", content) == (rows, lines, [])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"1", WRONG_WIDTH),
        (b"1,2,3", WRONG_WIDTH),
        (b"1,\xff", NOT_TEXT),
        (b'1,"open', OPEN_QUOTE),
    ],
    ids=["short", "long", "latin-1", "open-quote"],
)
@pytest.mark.parametrize("block_bytes", [8, 1 << 20])
def test_a_damaged_row_is_a_dead_letter_and_its_neighbours_are_read(
    tmp_path, bad, reason, block_bytes
):
    rows, lines, letters = read(
        tmp_path / "f.csv", b"a,b\nbefore,1\n" + bad + b"\nafter,2\n", block_bytes=block_bytes
    )
    assert rows == [("before", "1"), ("after", "2")]
    assert lines == [2, 4]
    assert letters == [(3, reason, bad.decode("utf-8", "replace"))]


def test_a_nul_byte_far_into_a_file_costs_its_row(tmp_path):
    filler = b"1,x\n" * 20_000
    rows, _, letters = read(tmp_path / "f.csv", b"a,b\n" + filler + b"2,\0\n3,y\n")
    assert len(rows) == 20_001
    assert letters == [(20_002, NOT_TEXT, "2,\0")]


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=8)


@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), _TEXT), min_size=1, max_size=30),
    st.integers(8, 200),
)
def test_what_pythons_csv_writes_is_read_back(tmp_path_factory, rows, block_bytes):
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([("a", "b"), *rows])
    path = tmp_path_factory.mktemp("csv") / "f.csv"
    got, _, letters = read(path, text.getvalue().encode(), block_bytes=block_bytes)
    assert (got, letters) == (rows, [])


_FILES = {
    "missing": (None, "R201"),
    "empty": (b"", "R202"),
    "header-alone": (b"a,b\n", "R202"),
    "missing-column": (b"a,c\n1,2\n", "R203"),
    "repeated-column": (b"a,b,b\n1,2,3\n", "R203"),
    "semicolons": (b"a;b\n1;2\n", "R203"),
    "gzip": (gzip.compress(b"a,b\n1,2\n"), "R204"),
    "nul-bytes": (b"a,b\n\0\0\0", "R204"),
    "utf-16": ("a,b\n1,2\n".encode("utf-16"), "R204"),
}


@pytest.mark.parametrize(("content", "code"), _FILES.values(), ids=_FILES)
def test_a_file_that_is_no_such_csv_gets_one_sentence(tmp_path, content, code):
    path = tmp_path / "ratings.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecsysError) as caught:
        check_files(str(path), "interactions", ["a", "b"])
    assert caught.value.code == code
    assert "ratings.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_is_named_as_one(tmp_path):
    path = tmp_path / "ratings.csv"
    pq.write_table(pa.table({"a": [1], "b": [2]}), path)
    with pytest.raises(RecsysError, match=r"R204.*columns a, b.*a Parquet file"):
        check_files(str(path), "interactions", ["a", "b"])


def test_a_glob_names_its_files_in_order_and_must_match(tmp_path):
    for name in ("2.csv", "1.csv", "3.txt"):
        (tmp_path / name).write_bytes(b"a\n1\n")
    found = match_files(str(tmp_path / "*.csv"), "items")
    assert found == [str(tmp_path / "1.csv"), str(tmp_path / "2.csv")]
    with pytest.raises(RecsysError, match=r"R201.*no file matches.*data\.items\.files"):
        match_files(str(tmp_path / "*.parquet"), "items")
