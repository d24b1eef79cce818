"""Files, globs, spans and versions; files that grow, shrink, or aren't there."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import s3, s3_address

from recsys.config import (
    CsvFormat,
    InteractionColumns,
    InteractionsConfig,
    ItemColumns,
    ItemsConfig,
    SourceConfig,
)
from recsys.data.sources import text_source
from recsys.data.sources.csv_source import OPEN_QUOTE, WRONG_WIDTH
from recsys.data.sources.pieces import plan_pieces, read_all, read_piece
from recsys.data.sources.source_files import (
    SourceFile,
    content_digest,
    files_digest,
    is_skipped,
    match_files,
    span_pattern,
)
from recsys.data.sources.text_source import UNFINISHED
from recsys.errors import RecsysError, UsageError
from recsys.storage.bucket import Bucket

__all__ = ["s3", "s3_address"]

COLUMNS = InteractionColumns(user="a", item="b", timestamp="c")


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"a,b\n1,2\n")


def matched(folder, patterns, kind=InteractionsConfig, **config):
    patterns = [f"{folder}/{pattern}" for pattern in patterns]
    columns = COLUMNS if kind is InteractionsConfig else ItemColumns(item="b")
    source = kind(files=tuple(patterns), columns=columns, **config)
    what = "interactions" if kind is InteractionsConfig else "items"
    return [file.path.removeprefix(f"{folder}/") for file in match_files(source, what)]


def test_patterns_name_their_files_in_order_and_a_file_given_twice_occurs_twice(tmp_path):
    write(tmp_path, "2.csv", "1.csv", "3.txt", "deep/er/4.csv")
    assert matched(tmp_path, ["*.csv"]) == ["1.csv", "2.csv"]
    assert matched(tmp_path, ["**/*.csv"]) == ["1.csv", "2.csv", "deep/er/4.csv"]
    assert matched(tmp_path, ["3.txt", "1.csv", "*.csv"]) == ["3.txt", "1.csv", "1.csv", "2.csv"]


@pytest.mark.parametrize(
    ("name", "found"),
    [("*.parquet", "no file matches"), ("absent.csv", "no such file"), ("deep", "a folder")],
)
def test_a_pattern_without_files_is_reported(tmp_path, name, found):
    write(tmp_path, "deep/1.csv")
    with pytest.raises(RecsysError, match=rf"R201.*{found}"):
        matched(tmp_path, [name])


_SPANS = ["span-1/v1/a.csv", "span-1/v2/a.csv", "span-2/v1/a.csv", "span-2/v1/b.csv",
          "span-10/v3/a.csv", "span-10/v12/a.csv", "span-x/v1/a.csv"]  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        (None, ["span-1/v2/a.csv", "span-2/v1/a.csv", "span-2/v1/b.csv", "span-10/v12/a.csv"]),
        (2, ["span-2/v1/a.csv", "span-2/v1/b.csv", "span-10/v12/a.csv"]),
        (1, ["span-10/v12/a.csv"]),
    ],
)
def test_the_newest_version_of_the_newest_spans_is_read(tmp_path, spans, expected):
    write(tmp_path, *_SPANS)
    assert matched(tmp_path, ["span-{SPAN}/v{VERSION}/*.csv"], spans=spans) == expected


def test_versions_count_within_what_stands_before_them(tmp_path):
    write(tmp_path, "eu/1/v1.csv", "eu/1/v2.csv", "us/1/v1.csv", "us/2/v1.csv")
    found = matched(tmp_path, ["*/{SPAN}/v{VERSION}.csv"])
    assert sorted(found) == ["eu/1/v2.csv", "us/1/v1.csv", "us/2/v1.csv"]


def test_of_a_catalogue_the_newest_span_is_read(tmp_path):
    write(tmp_path, "items-1.csv", "items-2.csv")
    assert matched(tmp_path, ["items-{SPAN}.csv"], ItemsConfig) == ["items-2.csv"]


def test_dates_are_spans_and_those_that_are_none_are_passed_over(tmp_path):
    write(tmp_path, "2024-02-29/a.csv", "2024-03-01/a.csv", "2023-12-31/a.csv", "2023-02-30/a.csv")
    found = matched(tmp_path, ["{YYYY}-{MM}-{DD}/a.csv"], spans=2)
    assert found == ["2024-02-29/a.csv", "2024-03-01/a.csv"]
    spans = span_pattern("{YYYY}-{MM}-{DD}/a.csv")
    assert spans.span_of("1970-01-11/a.csv") == (10, 0)


def test_a_width_is_a_number_of_digits(tmp_path):
    write(tmp_path, "s01.csv", "s2.csv", "s003.csv")
    assert matched(tmp_path, ["s{SPAN:2}.csv"]) == ["s01.csv"]


@pytest.mark.parametrize(
    "pattern",
    ["{VERSION}.csv", "{YYYY}-{MM}.csv", "{SPAN}/{SPAN}.csv", "{SPAN}/{YYYY}{MM}{DD}.csv",
     "{SPANS}.csv", "{SPAN:x}.csv"],
)  # fmt: skip
def test_a_span_that_cannot_be_is_refused(tmp_path, pattern):
    with pytest.raises(UsageError, match="R251"):
        matched(tmp_path, [pattern])


def test_the_parts_of_a_glob_around_a_span_match_as_the_glob_does():
    spans = span_pattern("/d/**/x[!ab]?-{SPAN}.csv")
    assert spans.span_of("/d/p/q/xc.-7.csv") == (7, 0)
    assert spans.span_of("/d/xc.-7.csv") == (7, 0)


def test_the_digest_knows_contents_and_names_not_folders(tmp_path):
    write(tmp_path, "p/1.csv", "q/1.csv", "q/2.csv")
    digests = [
        files_digest(match_files(SourceConfig(files=str(tmp_path / name)), "items"))
        for name in ("p/1.csv", "q/1.csv", "q/2.csv")
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_column_that_one_file_of_many_lacks_is_reported_before_the_work(tmp_path):
    write(tmp_path, "1.csv", "3.csv")
    (tmp_path / "2.csv").write_bytes(b"a,other\n1,2\n")
    with pytest.raises(RecsysError, match=r"R203.*2\.csv.*'b'"):
        plan_pieces(SourceConfig(files=str(tmp_path / "*.csv")), "items", ["a", "b"])


def test_one_of_many_files_may_have_a_header_alone_but_not_all(tmp_path):
    write(tmp_path, "1.csv")
    (tmp_path / "2.csv").write_bytes(b"a,b\n\n")
    source = SourceConfig(files=str(tmp_path / "*.csv"))
    assert len(plan_pieces(source, "items", ["a"])) == 1
    (tmp_path / "1.csv").unlink()
    with pytest.raises(RecsysError, match="R202"):
        plan_pieces(source, "items", ["a"])


_LONG = b"w" * (65 << 20)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("f.csv", b"a,b\n1,x\n2," + _LONG + b"\n3,y\n", 3),
        ("f.jsonl", b'{"a": 1, "b": 2}\n' * 3 + b'{"a": "' + _LONG + b'"}\n', 4),
        ("f.jsonl", b'{"a": "' + _LONG + b'", "b": 1}\n{"a": 1, "b": 2}\n', 1),
    ],
    ids=["csv", "jsonl", "first-of-jsonl"],
)
def test_a_line_over_64_mib_is_refused_wherever_it_ends(tmp_path, name, content, line):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecsysError, match=rf"R280.*at most 64 MiB; line {line} is longer"):
        list(read_all(SourceConfig(files=str(tmp_path / name)), "items", ["a", "b"]))


# --- files that change


def rows_of(pieces):
    batches = [batch for piece in pieces for batch in read_piece(piece)]
    rows = [tuple(row.values()) for batch in batches for row in batch.columns.to_pylist()]
    letters = [letter for batch in batches for letter in batch.rejected.to_pylist()]
    return rows, [(one["line"], one["reason"], one["row"]) for one in letters]


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_of_a_file_that_grows_no_more_is_read_than_was_planned(tmp_path, piece_bytes):
    path = tmp_path / "f.csv"
    path.write_bytes(b"a,b\n1,x\n2,y\n3,zz")
    pieces = plan_pieces(SourceConfig(files=str(path)), "items", ["a", "b"], piece_bytes)
    with path.open("ab") as file:
        file.write(b"z\n4,w\n")
    rows, letters = rows_of(pieces)
    assert rows == [("1", "x"), ("2", "y")]
    assert letters == [(4, UNFINISHED, "3,zz")]


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    "new", [b"a,b\n9,x\n2,y\n", b"a,b\n1,x\n1,z\n2,y\n", b"a,b\n1,x\n2,z\n3,w\n"]
)
def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path, new, piece_bytes):
    path = tmp_path / "f.csv"
    path.write_bytes(b"a,b\n1,x\n2,y\n")
    pieces = plan_pieces(SourceConfig(files=str(path)), "items", ["a", "b"], piece_bytes)
    (tmp_path / "new").write_bytes(new)
    (tmp_path / "new").replace(path)
    with pytest.raises(RecsysError, match=r"R250.*replaced"):
        rows_of(pieces)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    ("last", "rows_then", "letters_then"),
    [
        ("2,Ċ\n", [("1", "x"), ("2", "Ċ")], []),
        ("2,Ċ", [("1", "x")], [(3, UNFINISHED, "2,Ċ")]),
    ],
    ids=["whole", "unfinished"],
)
def test_lines_of_wide_characters_are_cut_between_characters(
    tmp_path, encoding, last, rows_then, letters_then
):
    # Ċ is U+010A: a byte of it equals a line end.
    path = tmp_path / "f.csv"
    path.write_bytes(("a,b\n1,x\n" + last).encode(encoding))
    source = SourceConfig(files=str(path), csv=CsvFormat(encoding=encoding))
    pieces = plan_pieces(source, "items", ["a", "b"])
    with path.open("ab") as file:
        file.write("3,z\n".encode(encoding.removesuffix("-le").removesuffix("-be") + "-le"))
    assert rows_of(pieces) == (rows_then, letters_then)


def test_a_last_line_without_an_end_is_a_row_where_the_file_did_not_grow(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b"a,b\n1,x\n2,y")
    pieces = plan_pieces(SourceConfig(files=str(path)), "items", ["a", "b"])
    assert rows_of(pieces) == ([("1", "x"), ("2", "y")], [])


@pytest.mark.parametrize("name", ["f.csv", "f.jsonl"])
def test_a_file_that_got_shorter_is_an_error(tmp_path, name):
    path = tmp_path / name
    text = "a,b\n1,x\n2,y\n" if name == "f.csv" else '{"a": 1, "b": 2}\n' * 3
    path.write_text(text)
    pieces = plan_pieces(SourceConfig(files=str(path)), "items", ["a", "b"])
    path.write_text(text[:-4])
    with pytest.raises(RecsysError, match=rf"R250.*{re.escape(name)}.*{len(text) - 4} bytes"):
        rows_of(pieces)


def test_a_file_that_is_gone_is_an_error(tmp_path):
    write(tmp_path, "f.csv")
    pieces = plan_pieces(SourceConfig(files=str(tmp_path / "f.csv")), "items", ["a"])
    (tmp_path / "f.csv").unlink()
    with pytest.raises(RecsysError, match=r"R205.*f\.csv"):
        rows_of(pieces)


def test_an_open_quote_at_the_end_of_a_piece_is_a_dead_letter(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b'a,b\n1,x\n2,"y\n')
    pieces = plan_pieces(SourceConfig(files=str(path)), "items", ["a", "b"], 1)
    assert rows_of(pieces) == ([("1", "x")], [(3, OPEN_QUOTE, '2,"y')])


# --- remote files


def test_a_remote_parquet_file_is_read_and_a_remote_text_in_pieces(s3, tmp_path):
    pq.write_table(pa.table({"a": ["x", "y"], "b": [1, 2]}), tmp_path / "f.parquet")
    bucket, content = Bucket(s3), b"a,b\n" + b"1,2\n" * 99 + b"1\n1,2\n"
    bucket.write("f.parquet", tmp_path / "f.parquet")
    bucket.write("f.csv", content)
    parquet = SourceConfig(files=f"{s3}/f.parquet")
    assert rows_of(plan_pieces(parquet, "items", ["a", "b"]))[0] == [("x", 1), ("y", 2)]
    text = SourceConfig(files=f"{s3}/f.csv")
    pieces = plan_pieces(text, "items", ["a", "b"], 100)
    assert len(pieces) == 5
    assert rows_of(pieces) == ([("1", "2")] * 100, [(101, WRONG_WIDTH, "1")])
    text_source._known_lines.cache_clear()  # As in another worker.
    assert rows_of(pieces[-1:])[1] == [(101, WRONG_WIDTH, "1")]
    before = content_digest(f"{s3}/f.csv")
    bucket.write("f.csv", content.replace(b"1,2", b"3,4"))
    assert content_digest(f"{s3}/f.csv") != before
    with pytest.raises(RecsysError, match="R250"):
        rows_of(pieces[:1])


def test_globs_of_objects_match_like_those_of_files(s3):
    names = ["2.csv", "1.csv", "deep/er/4.csv", "deep/_SUCCESS", "span-1/v1/a", "span-1/v2/a"]
    for name in (*names, "x[1].csv"):
        Bucket(s3).write(name, b"a,b\n1,2\n")
    assert matched(s3, ["*.csv"]) == ["1.csv", "2.csv", "x[1].csv"]
    assert matched(s3, ["**/[!2-9].csv"]) == ["1.csv"]
    assert matched(s3, ["deep/**"]) == ["deep/er/4.csv"]
    assert matched(s3, ["span-{SPAN}/v{VERSION}/*", "2.csv"]) == ["2.csv", "span-1/v2/a"]
    with pytest.raises(RecsysError, match=r"R201.*no such file"):
        matched(s3, ["none.csv"])


def test_columns_in_names_of_folders_are_in_the_digest_and_other_folders_are_not(tmp_path):
    digests = []
    for folder in ("dt=1", "dt=2", "a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part").write_text("x")
        digests.append(files_digest([SourceFile(str(tmp_path / folder / "part"), 1)]))
    assert digests[0] != digests[1]
    assert digests[2] == digests[3]


@pytest.mark.parametrize(
    ("pattern", "path", "is_none"),
    [
        ("a/*", "a/_SUCCESS", True),
        ("a/*", "a/part-0", False),
        ("a/**/*.csv", "a/_temporary/0/x.csv", True),
        ("a/**/*.csv", "a/_day=1/x.csv", False),
        ("_a/.b/*.csv", "_a/.b/x.csv", False),
        ("a/_*", "a/_x.csv", False),
        ("a/*/_b/*.csv", "a/c/_b/x.csv", False),
        ("s3://a/*", "s3://a/_SUCCESS", True),
    ],
)
def test_markers_are_no_data_unless_the_glob_asks_for_them(pattern, path, is_none):
    assert is_skipped(path, pattern) == is_none
