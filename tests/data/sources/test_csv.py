"""CSV files are read as text, and damage costs the damaged row and no more."""

import contextlib
import csv
import gzip
import io
import itertools
import types

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from reading import lines_of

from recsys.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import NOT_TEXT
from recsys.data.inspect.layout import find_layout
from recsys.data.sources import text_source
from recsys.data.sources.csv_source import OPEN_QUOTE, WRONG_WIDTH
from recsys.data.sources.pieces import WHOLE_FILES, plan_pieces, read_piece
from recsys.data.sources.text_source import split_fields
from recsys.errors import RecsysError


def read(path, content, columns=("a", "b"), block_bytes=1 << 20):
    """Returns the rows, their lines, and the dead letters of a file with a header."""
    path.write_bytes(content)
    config = SourceConfig(files=str(path))
    (piece,) = plan_pieces(config, "interactions", columns, WHOLE_FILES)
    blocks = piece.source.blocks(piece, block_bytes)
    return collect(piece.source.parse(piece, rows) for rows in blocks)


def read_source(path, columns=("a", "b"), **config):
    """The same by a config, in as many pieces as it gives."""
    source = SourceConfig(files=str(path), **config)
    pieces = plan_pieces(source, "interactions", columns)
    return collect(batch for piece in pieces for batch in read_piece(piece))


def collect(batches):
    batches = list(batches)
    rows = [tuple(row.values()) for batch in batches for row in batch.columns.to_pylist()]
    lines = [line for batch in batches for line in lines_of(batch)]
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
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_a_row_is_read_as_it_stands(tmp_path, content, rows, lines, block_bytes):
    assert read(tmp_path / "f.csv", content, block_bytes=block_bytes) == (rows, lines, [])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"1", WRONG_WIDTH),
        (b"1,2,3", WRONG_WIDTH),
        (b"1,\xff", NOT_TEXT),
        (b'1,"open', OPEN_QUOTE),
        (b'5" disc,"open', OPEN_QUOTE),
    ],
    ids=["short", "long", "latin-1", "open-quote", "open-after-an-inch"],
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


def test_damage_that_makes_up_for_other_damage_is_distinguished(tmp_path):
    # Taken as one text these are three rows as well, of other fields.
    content = b'a,b\n5" disc,"open\nafter,"2"\nx\ry,2\n'
    rows, lines, letters = read(tmp_path / "f.csv", content)
    assert (rows, lines) == ([("after", "2")], [3])
    assert [letter[:2] for letter in letters] == [(2, OPEN_QUOTE), (4, WRONG_WIDTH)]


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
    "zip": (b"PK\x03\x04rest", "R204"),
    "old-mac": (b"a,b\r1,2\r", "R204"),
    "old-mac-with-a-last-line-feed": (b"a,b\r1,2\r\n", "R204"),
    "nul-bytes": (b"a,b\n\0\0\0", "R204"),
    "utf-16": ("a,b\n1,2\n".encode("utf-16"), "R204"),
}


@pytest.mark.parametrize(("content", "code"), _FILES.values(), ids=_FILES)
def test_a_file_that_is_no_such_csv_gets_one_sentence(tmp_path, content, code):
    path = tmp_path / "ratings.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecsysError) as caught:
        plan_pieces(SourceConfig(files=str(path)), "interactions", ["a", "b"])
    assert caught.value.code == code
    assert "ratings.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_is_named_as_one(tmp_path):
    path = tmp_path / "ratings.csv"
    pq.write_table(pa.table({"a": [1], "b": [2]}), path)
    with pytest.raises(RecsysError, match=r"R204.*CSV text.*a Parquet file"):
        plan_pieces(SourceConfig(files=str(path)), "interactions", ["a", "b"])


_ROWS = "user,item\n" + "ann,x\n" * 200
_OTHERS = {
    "r.csv": (_ROWS.encode("utf-32"), "'UTF-32 text'. Set csv.encoding: utf-32 "),
    "le.csv": (_ROWS.encode("utf-32-le"), "'UTF-32 text'. Set csv.encoding: utf-32-le "),
    "be.csv": (_ROWS.encode("utf-32-be"), "'UTF-32 text'. Set csv.encoding: utf-32-be "),
    "16.csv": (_ROWS.encode("utf-16-be"), "'UTF-16 text'. Set csv.encoding: utf-16-be "),
    "mac.csv": (_ROWS.replace("\n", "\r").encode(), "end in CR alone"),
    "mac.jsonl": (b'{"user": 1}\r{"user": 2}\r', "end in CR alone"),
    "a.zip": (b"PK\x03\x04rest", "'a zip file'. Unpack it"),
    "a.xlsx": (b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml", "'an Excel file'. Save"),
    "a.feather": (b"ARROW1\0\0" + bytes(90), "'an Arrow file'. Convert it"),
    "a.tar.gz": (gzip.compress(bytes(257) + b"ustar" + bytes(250)), "'a tar file'. Unpack it"),
}


@pytest.mark.parametrize("name", _OTHERS)
def test_what_no_source_reads_is_named_with_its_cure(tmp_path, name):
    content, words = _OTHERS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecsysError, match="R204") as caught:
        plan_pieces(SourceConfig(files=str(tmp_path / name)), "interactions", ["user"])
    assert words in str(caught.value)
    if "csv" not in name:
        assert "as its name says" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-32", "utf-32-le", "utf-32-be", "utf-16-le"])
def test_check_finds_the_encoding_of_wide_text(tmp_path, encoding):
    (tmp_path / "r.csv").write_bytes(_ROWS.encode(encoding))
    assert find_layout([str(tmp_path / "r.csv")], "interactions").source.csv.encoding == encoding


def test_a_carriage_return_in_quotes_is_text(tmp_path):
    content = b'a,"b\rc"\n1,"x\ry"\n'
    got, _, letters = read(tmp_path / "f.csv", content, ("a", "b\rc"))
    assert (got, letters) == ([("1", "x\ry")], [])


def test_ids_lose_their_point_zero_in_rows_with_unusual_quotes_too(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b'a,b\n13.0,x\n14.0,5" disc\n')
    (piece,) = plan_pieces(SourceConfig(files=str(path)), "items", ["a", "b"], ids=["a"])
    assert collect(read_piece(piece))[0] == [("13", "x"), ("14", '5" disc')]


# --- dialects


@pytest.mark.parametrize(
    ("content", "csv_", "rows"),
    [
        (b"a;b\n1,5;x\n", {"delimiter": ";"}, [("1,5", "x")]),
        (b"a\tb\n1\tx\n", {"delimiter": "\t"}, [("1", "x")]),
        (b"a::b\n1::x\n2::y:z\n", {"delimiter": "::"}, [("1", "x"), ("2", "y:z")]),
        (b'a::b\n"1::2"::x\n3::y\n', {"delimiter": "::"}, [("1::2", "x"), ("3", "y")]),
        ("1§x\n".encode(), {"delimiter": "§", "names": ("a", "b")}, [("1", "x")]),
        (b"1::\x1f\x1ex\n", {"delimiter": "::", "names": ("a", "b")}, [("1", "\x1f\x1ex")]),
        (b'a,b\n"1,x"\n', {"quote": None}, [('"1', 'x"')]),
        (b"a,b\n'1,2',x\n", {"quote": "'"}, [("1,2", "x")]),
        ("a,b\nÉ,x\n".encode("latin-1"), {"encoding": "latin-1"}, [("É", "x")]),
        ("a,b\n日本,x\n".encode("utf-16"), {"encoding": "utf-16"}, [("日本", "x")]),
        ("\ufeffa,b\n日本,x\n".encode("utf-16-le"), {"encoding": "utf-16-le"}, [("日本", "x")]),
        ("a,b\n日本,x\n".encode("shift_jis"), {"encoding": "shift_jis"}, [("日本", "x")]),
    ],
)  # fmt: skip
def test_a_dialect_is_read_as_it_is_written(tmp_path, content, csv_, rows):
    (tmp_path / "f.csv").write_bytes(content)
    assert read_source(tmp_path / "f.csv", csv=CsvFormat(**csv_))[0] == rows


def test_a_character_that_its_encoding_lacks_costs_its_row(tmp_path):
    content = "a,b\n1,x\n".encode("shift_jis") + b"2,\x81\n3,\xff\xff\n4,y\n"
    (tmp_path / "f.csv").write_bytes(content)
    rows, _, letters = read_source(tmp_path / "f.csv", csv=CsvFormat(encoding="shift_jis"))
    assert ("1", "x") in rows
    assert ("4", "y") in rows
    assert {reason for _, reason, _ in letters} == {NOT_TEXT}


@pytest.mark.parametrize(
    "csv_",
    [{"encoding": "rot13"}, {"encoding": "klingon"}, {"delimiter": "\n"}, {"quote": "«"},
     {"delimiter": '"'}],
)  # fmt: skip
def test_a_dialect_that_cannot_be_is_refused(tmp_path, csv_):
    (tmp_path / "f.csv").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(RecsysError, match="R256"):
        read_source(tmp_path / "f.csv", csv=CsvFormat(**csv_))


def test_names_that_are_too_few_are_reported_with_the_row(tmp_path):
    (tmp_path / "f.dat").write_bytes(b"1::2::3\n")
    csv_ = CsvFormat(delimiter="::", names=("a", "b"))
    with pytest.raises(RecsysError, match=r"R254.*2 fields.*3 fields: 1::2::3"):
        read_source(tmp_path / "f.dat", csv=csv_)


_SIGNS = st.text(st.sampled_from('ab,"\n\r'), max_size=12)


@given(_SIGNS)
def test_fields_are_those_of_pythons_csv(row):
    rows = list(csv.reader(io.StringIO(row, newline="")))
    python = rows[0] if len(rows) == 1 else []
    fields, is_open = split_fields(row, CsvFormat())
    if row and (is_open or not row.endswith(("\r", "\n"))):
        assert fields == python


@given(st.lists(st.text(st.sampled_from('ab:"'), max_size=5), min_size=1, max_size=5))
def test_fields_between_two_colons_are_those_that_were_quoted(fields):
    row = "::".join('"' + field.replace('"', '""') + '"' for field in fields)
    assert split_fields(row, CsvFormat(delimiter="::")) == (fields, False)


# --- pieces

_ROW = st.one_of(
    st.binary(min_size=0, max_size=6).map(lambda b: b.replace(b"\n", b"")),
    st.sampled_from([b"1,2", b'"x', b'y"', b'"a,b",c', b'"p\nq",r', b"", b"\r", b"1,2,3"]),
    st.just(b"\xff,1"),
)


@given(
    st.lists(_ROW | st.just(b'x,"y'), min_size=1, max_size=60), st.integers(1, 300), st.booleans()
)
def test_pieces_of_any_size_give_the_rows_of_the_whole(tmp_path_factory, rows, piece_bytes, ends):
    path = tmp_path_factory.mktemp("pieces") / "f.csv"
    filler = b"1,2\n" * 100  # A file full of NUL bytes is no text.
    path.write_bytes(b"a,b\n" + filler + b"\n".join(rows) + b"\n" * ends)
    with short_reaches():
        assert pieced(path, 20 + piece_bytes) == pieced(path, 1 << 30)


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
@given(rows=st.lists(_ROW | st.just(b'x,"y'), min_size=1, max_size=40), ends=st.booleans())
def test_the_next_row_is_found_from_any_byte(tmp_path_factory, encoding, rows, ends):
    path = tmp_path_factory.mktemp("pieces") / "f.csv"
    text = b'"a","b"\n' + b"1,2\n" * 20 + b"\n".join(rows) + b"\n" * ends
    path.write_bytes(text.replace(b"\0", b"x"))
    config = SourceConfig(files=str(path), csv=CsvFormat(encoding=encoding))
    (whole,) = plan_pieces(config, "interactions", ["a", "b"], WHOLE_FILES)
    ends_of_lines = itertools.accumulate(len(line) + 1 for line in text.split(b"\n"))
    line_starts, row_starts = [0, *ends_of_lines], [len(text)]
    with short_reaches():
        for rows in whole.source.blocks(whole):
            row_starts += [line_starts[line - 1] for line in rows.line]
        for offset in range(whole.body, len(text)):
            found = whole.source.row_start(whole, offset)
            assert found >= offset
            assert found in {len(text), *line_starts}
            # Blank lines may start a piece, although they are no rows.
            assert not text[found : min(s for s in row_starts if s >= offset)].strip(b"\r\n")


def short_reaches():
    """Makes rows and the text around a cut short, so that small files have what large ones have."""
    patch = pytest.MonkeyPatch()
    patch.setattr(text_source, "_REACHES", (8, 32, 1 << 20))
    patch.setattr(text_source, "_ROW_LIMIT_LINES", 4)
    return contextlib.closing(types.SimpleNamespace(close=patch.undo))


@pytest.mark.parametrize("piece_bytes", [400, 3000, 50_000])
def test_pieces_are_cut_between_quotes_that_span_many_lines(tmp_path, piece_bytes):
    path = tmp_path / "f.csv"
    lines = []
    for at in range(12_000):
        lines.append(b'%d,"on\nfive\nlines\nit\nstands"' % at if at % 1700 == 0 else b"%d,x" % at)
        if at in (1900, 8700):
            lines.append(b'%d,"open' % at)
    path.write_bytes(b"a,b\n" + b"\n".join(lines) + b"\n")
    whole = pieced(path, 1 << 30)
    assert len(whole[0]) == 12_000
    assert [reason for _, reason, _ in whole[2]] == [OPEN_QUOTE] * 2
    assert pieced(path, piece_bytes) == whole
    source = SourceConfig(files=str(path))
    assert len(plan_pieces(source, "interactions", ["a"], piece_bytes)) > 1


def test_a_piece_that_is_read_alone_knows_the_lines_of_its_dead_letters(tmp_path):
    path = tmp_path / "f.csv"
    lines = [b"1,2,3" if at % 500 == 0 else b"" if at % 7 == 0 else b"1,2" for at in range(5000)]
    path.write_bytes(b"a,b\n" + b"\n".join(lines))
    pieces = plan_pieces(SourceConfig(files=str(path)), "interactions", ["a", "b"], 2000)
    for piece in reversed(pieces):
        text_source._known_lines.cache_clear()
        _, _, letters = collect(read_piece(piece))
        assert letters == [(line, WRONG_WIDTH, "1,2,3") for line, _, _ in letters]
        assert all(lines[line - 2] == b"1,2,3" for line, _, _ in letters)
    assert len(pieced(path, 2000)[2]) == 10


def pieced(path, piece_bytes):
    source = SourceConfig(files=str(path))
    pieces = plan_pieces(source, "interactions", ["a", "b"], piece_bytes)
    assert [p.start for p in pieces[1:]] == [p.stop for p in pieces[:-1]]
    rows, lines, letters = collect(batch for piece in pieces for batch in read_piece(piece))
    return rows, lines, sorted(letters)
