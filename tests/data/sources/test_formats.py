"""Parquet, JSON Lines and TFRecord give the rows that wrote them; damage costs its row."""

import bz2
import datetime as dt
import gzip
import json
import lzma
import struct
import unicodedata

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from reading import lines_of

from recsys.config import SourceConfig
from recsys.data.dead_letters import NOT_TEXT
from recsys.data.sources.jsonl_source import DUPLICATE_FIELD, NOT_JSON
from recsys.data.sources.pieces import open_source, plan_pieces, read_piece
from recsys.data.sources.source_files import SourceFile
from recsys.data.sources.tfrecord_source import TFRecordSource, masked_crc
from recsys.data.sources.values import to_ids
from recsys.errors import RecsysError


def read(path, columns=("a", "b"), piece_bytes=1 << 30, **config):
    """Returns the columns as lists, the rows' numbers, and the dead letters."""
    source = SourceConfig(files=str(path), **config)
    batches = [
        batch
        for piece in plan_pieces(source, "interactions", columns, piece_bytes)
        for batch in read_piece(piece)
    ]
    values = [[v for b in batches for v in b.columns.column(c).to_pylist()] for c in columns]
    numbers = [number for batch in batches for number in lines_of(batch)]
    letters = [letter for batch in batches for letter in batch.rejected.to_pylist()]
    return values, numbers, [(one["line"], one["reason"], one["row"]) for one in letters]


def ids(path, column="a", **config):
    source = SourceConfig(files=str(path), **config)
    return [
        value
        for piece in plan_pieces(source, "interactions", [column])
        for batch in read_piece(piece)
        for value in to_ids(batch.columns.column(0)).to_pylist()
    ]


# --- JSON Lines


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7, 8], ["7", "8"]),
        (["007", "7"], ["007", "7"]),
        ([12345678901234567890, 1], ["12345678901234567890", "1"]),
        ([9007199254740993, 1.5], ["9007199254740993", "1.5"]),
        ([1e17, 1.5], ["100000000000000000", "1.5"]),
        ([7, "x", None, True], ["7", "x", None, "true"]),
        (["2020-01-01", "2020-01-02T00:00:00Z"], ["2020-01-01", "2020-01-02T00:00:00Z"]),
        ([7.0, 8.0], ["7", "8"]),
        ([{"no": "id"}, "x"], [None, "x"]),
        (["e\u0301", "é"], ["é", "é"]),
        (["\ud83d", "x"], [None, "x"]),
    ],
    ids=str,
)
def test_ids_keep_their_digits_and_letters(tmp_path, values, expected):
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps({"a": value}) + "\n" for value in values))
    assert ids(path) == expected


@pytest.mark.parametrize("mate", [[[2]], [2], 2, "x", None, [], {"no": "id"}], ids=str)
def test_a_list_in_a_list_is_the_same_id_whatever_is_beside_it(tmp_path, mate):
    path = write_lines(tmp_path / "f.jsonl", [{"a": [[1]]}, {"a": mate}])
    assert ids(path)[0] == "[1]"


def test_one_bad_line_costs_one_row(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(
        b'{"a": 1, "b": "x"}\n{"a": 2\n\n[1]\n{"a": 3, "b": "\xff"}\n{"a": 4}{"a": 5}\n'
        b'{"a": 6, "b": "y"}\r\n  \n"text"\n{"a": 7}'
    )
    values, lines, letters = read(path)
    assert [str(value) for value in values[0]] == ["1", "6", "7"]
    assert values[1] == ["x", "y", None]
    assert lines == [1, 7, 10]
    assert [(line, reason) for line, reason, _ in letters] == [
        (2, NOT_JSON), (4, NOT_JSON), (5, NOT_TEXT), (6, NOT_JSON), (9, NOT_JSON),
    ]  # fmt: skip


@pytest.mark.parametrize("n_good", [0, 4], ids=["line-by-line", "by-arrow-before"])
@pytest.mark.parametrize(
    ("line", "is_rejected"),
    [
        (b'{"a": 1, "a": 3}', True),
        (b'{"a": 1, "\\u0061": null}', True),
        (b'{"a": 1, "u": {"id": 2, "id": 2}}', True),
        (b'{"a": 1, "u": {"id": 2}, "u": {}}', True),
        (b'{"a": 1, "u": [{"id": 2}, {"id": 3, "id": 4}]}', True),
        (b'{"a": 1, "u": {"id": 2, "x": 1, "x": 2}}', False),
        (b'{"a": 1, "other": 1, "other": 2}', False),
    ],
)
def test_a_line_that_gives_a_column_twice_is_a_dead_letter(tmp_path, line, is_rejected, n_good):
    good = b'{"a": 1, "u": {"id": 2}}\n'
    (tmp_path / "f.jsonl").write_bytes(good * n_good + line + b"\n" + good)
    _, lines, letters = read(tmp_path / "f.jsonl", ("a", "u.id"))
    assert len(lines) == n_good + 2 - is_rejected
    assert [letter[:2] for letter in letters] == [(n_good + 1, DUPLICATE_FIELD)] * is_rejected


def test_nested_fields_and_names_with_dots_are_columns(tmp_path):
    rows = [{"u": {"id": 1}, "x.y": "flat", "x": {"y": "deep"}, "l": ["p", "q"]}, {"u": {}}]
    path = write_lines(tmp_path / "f.jsonl", rows)
    values, _, _ = read(path, ("u.id", "x.y", "l"))
    assert values == [[1, None], ["flat", None], [["p", "q"], None]]


# Invisible characters, which ids lose, have tests of their own.
_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cf"]), max_size=5)
_VALUE = st.one_of(st.none(), st.integers(), _TEXT, st.booleans())


@given(st.lists(st.tuples(_VALUE, _VALUE), min_size=1, max_size=30), st.integers(1, 400))
def test_pieces_of_json_lines_give_the_ids_of_python(tmp_path_factory, rows, piece_bytes):
    path = tmp_path_factory.mktemp("json") / "f.jsonl"
    first = {"a": "first", "b": {"c": "first"}}
    made = [first, *({"a": a, "b": {"c": c}} for a, c in rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    source = SourceConfig(files=str(path))
    found = []
    for piece in plan_pieces(source, "items", ["a", "b.c"], piece_bytes):
        for batch in read_piece(piece):
            pair = [to_ids(batch.columns.column(name)).to_pylist() for name in ("a", "b.c")]
            found += zip(lines_of(batch), *pair, strict=True)
    expected = [(at, _id(r["a"]), _id(r["b"]["c"])) for at, r in enumerate(made, start=1)]
    assert found == expected


def _id(value):
    if value is None:
        return None
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return unicodedata.normalize("NFC", text.strip()) or None


# --- Parquet


def test_parquet_gives_its_types_by_row_groups(tmp_path):
    path = tmp_path / "f.parquet"
    n = 1000
    table = pa.table({"a": pa.array([f"u{k % 7}" for k in range(n)]).dictionary_encode(),
                      "s": pa.array([{"b": k} for k in range(n)])})  # fmt: skip
    pq.write_table(table, path, row_group_size=130)
    whole = read(path, ("a", "s.b"))
    assert whole[0] == [[f"u{k % 7}" for k in range(n)], list(range(n))]
    assert whole[1] == list(range(1, n + 1))
    assert read(path, ("a", "s.b"), piece_bytes=1) == whole
    source = SourceConfig(files=str(path))
    assert len(plan_pieces(source, "items", ["a"], 1)) == 8


def test_text_in_parquet_that_is_no_utf8_costs_its_row(tmp_path):
    bad = pa.array([b"x", b"\xff", b"z"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"a": bad, "b": [1, 2, 3]}), tmp_path / "f.parquet")
    values, numbers, letters = read(tmp_path / "f.parquet")
    assert (values, numbers) == ([["x", "z"], [1, 3]], [1, 3])
    assert letters == [(2, NOT_TEXT, '{"a": "�", "b": 2}')]


def test_lists_with_text_that_is_no_utf8_cost_their_row(tmp_path):
    bad = pa.array([b"x", b"\xff", b"z"], pa.binary()).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), bad)
    pq.write_table(pa.table({"a": lists}), tmp_path / "f.parquet")
    values, numbers, letters = read(tmp_path / "f.parquet", ("a",))
    assert (values, numbers) == ([[["x"]]], [1])
    assert letters == [(2, NOT_TEXT, '{"a": ["�", "z"]}')]


@pytest.mark.parametrize("is_list", [False, True])
def test_a_dictionary_with_a_value_that_is_no_utf8_costs_the_rows_that_have_it(tmp_path, is_list):
    bad = pa.array([b"x", b"\xff", b"z"], pa.binary()).view(pa.string())
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2, 0], pa.int32()), bad)
    if is_list:
        column = pa.ListArray.from_arrays(pa.array(range(6), pa.int32()), column)
    pq.write_table(pa.table({"a": column}), tmp_path / "f.parquet")
    values, numbers, letters = read(tmp_path / "f.parquet", ("a",))
    expected = [["x"], [None], ["z"], ["x"]] if is_list else ["x", None, "z", "x"]
    assert (values, numbers) == ([expected], [1, 3, 4, 5])
    shown = '{"a": ["�"]}' if is_list else '{"a": "�"}'
    assert letters == [(2, NOT_TEXT, shown)]
    assert ids(tmp_path / "f.parquet") == ["x", None, "z", "x"]


def test_a_column_that_occurs_twice_in_parquet_is_named_and_an_unused_one_is_not(tmp_path):
    columns = [pa.array([1]), pa.array([2]), pa.array([3])]
    path = tmp_path / "f.parquet"
    pq.write_table(pa.Table.from_arrays(columns, names=["a", "b", "a"]), path)
    with pytest.raises(RecsysError, match=r"R203.*f\.parquet.*the column 'a' only once"):
        read(path)
    assert read(path, ("b",)) == ([[2]], [1], [])


def test_a_struct_is_no_column(tmp_path):
    pq.write_table(pa.table({"a": [{"b": 1}]}), tmp_path / "f.parquet")
    with pytest.raises(RecsysError, match=r"R254.*'a'.*a\.FIELD"):
        read(tmp_path / "f.parquet", ("a",))


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_parquet_file_is_named(tmp_path, kept):
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": list(range(10_000))}), path)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(RecsysError, match=r"R253.*f\.parquet.*not found in footer"):
        read(path, ("a",))


def test_a_parquet_file_with_a_damaged_page_is_named(tmp_path):
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": [f"{k}" for k in range(10_000)]}), path)
    content = bytearray(path.read_bytes())
    content[100:2000] = bytes(1900)
    path.write_bytes(content)
    with pytest.raises(RecsysError, match=r"R253.*f\.parquet"):
        read(path, ("a",))


# --- compression


_PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress,
         "zst": lambda data: bytes(pa.Codec("zstd").compress(data))}  # fmt: skip


@pytest.mark.parametrize("ending", _PACK)
@pytest.mark.parametrize("name", ["f.csv.{}", "plain"])
def test_compressed_text_is_read(tmp_path, ending, name):
    path = tmp_path / name.format(ending)
    path.write_bytes(_PACK[ending](b"a,b\n" + b"1,x\n" * 50_000))
    assert len(read(path)[1]) == 50_000


@pytest.mark.parametrize("ending", _PACK)
def test_truncated_compressed_text_is_named_with_how_far_it_was_good(tmp_path, ending):
    path = tmp_path / f"f.csv.{ending}"
    rows = np.random.default_rng(0).integers(0, 10**9, (30_000, 2))
    text = b"a,b\n" + b"".join(b"%d,%d\n" % (a, b) for a, b in rows.tolist())
    packed = _PACK[ending](text)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(RecsysError, match=rf"R253.*f\.csv\.{ending}.*good up to byte"):
        read(path)


def two_streams(ending):
    """Returns a header with 200 rows and 200 rows more, each compressed, and the first text."""
    first, second = b"a,b\n" + b"1,x\n" * 200, b"2,y\n" * 200
    return _PACK[ending](first), _PACK[ending](second), first


_PADDING = [("gz", b""), ("bz2", b""), ("xz", b""), ("zst", b""), ("gz", bytes(7)),
            ("xz", bytes(8))]  # fmt: skip


@pytest.mark.parametrize(("ending", "padding"), _PADDING)
def test_streams_one_after_the_other_are_read_whole_with_their_padding(tmp_path, ending, padding):
    first, second, _ = two_streams(ending)
    between = b"" if ending == "gz" else padding
    (tmp_path / "f").write_bytes(first + between + second + padding)
    assert len(read(tmp_path / "f")[1]) == 400


@pytest.mark.parametrize("damage", ["first byte", "cut off", "text behind", "zeros behind"])
@pytest.mark.parametrize("ending", _PACK)
def test_what_follows_a_stream_and_is_no_stream_is_an_error(tmp_path, ending, damage):
    first, second, text = two_streams(ending)
    second = {
        "first byte": bytes([second[0] ^ 1]) + second[1:],
        "cut off": second[:2],
        "text behind": b"2,y\n" * 200,
        "zeros behind": bytes(3) + second,
    }[damage]
    (tmp_path / "f").write_bytes(first + second)
    good = "0" if ending == "zst" else f"{len(text):,}"
    with pytest.raises(RecsysError, match=rf"R253.*good up to byte {good} of") as raised:
        read(tmp_path / "f")
    offset = len(first) + 3 * (damage == "zeros behind" and ending in ("gz", "xz"))
    assert ending == "zst" or f"byte {offset:,} of the file" in raised.value.received


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz"])
def test_an_empty_stream_is_an_empty_file(tmp_path, ending):
    (tmp_path / f"f.csv.{ending}").write_bytes(_PACK[ending](b""))
    with pytest.raises(RecsysError, match=r"R202.*an empty file"):
        read(tmp_path / f"f.csv.{ending}")


def test_a_name_that_says_gzip_and_bytes_that_do_not_are_an_error(tmp_path):
    (tmp_path / "f.csv.gz").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(RecsysError, match=r"R204.*gzip"):
        read(tmp_path / "f.csv.gz")


@pytest.mark.parametrize(
    ("stated", "content"),
    [("parquet", b"a,b\n1,2\n"), ("jsonl", b"a,b\n1,2\n"), ("tfrecord", b"a,b\n1,2\n"),
     ("csv", b"PAR1....PAR1")],
)  # fmt: skip
def test_a_stated_format_that_the_bytes_are_not_is_an_error(tmp_path, stated, content):
    (tmp_path / "f.csv").write_bytes(content)
    with pytest.raises(RecsysError, match=r"R204.*as the config says"):
        read(tmp_path / "f.csv", format=stated)


# --- TFRecord


def frame(data, crc=None):
    length = struct.pack("<Q", len(data))
    checksum = masked_crc(data) if crc is None else crc
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", checksum)


def example(**features):
    """Returns a serialized tf.Example, by TensorFlow's own protocol buffers."""
    import tensorflow as tf

    made = {}
    for name, values in features.items():
        if isinstance(values[0], bytes):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif isinstance(values[0], int):
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def test_the_checksum_is_that_of_tfrecord():
    # RFC 3720, B.4: 32 bytes of zeros have the CRC-32C 8a9136aa.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
    assert TFRecordSource.detects(frame(b"x"))
    assert not TFRecordSource.detects(b"user,item,timestamp\n")


@pytest.mark.pipeline
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_what_tensorflow_writes_is_read(tmp_path, ending):
    tf = pytest.importorskip("tensorflow")
    path = tmp_path / f"f.tfrecord{ending}"
    options = tf.io.TFRecordOptions(compression_type="GZIP" if ending else "")
    with tf.io.TFRecordWriter(str(path), options) as writer:
        writer.write(example(a=["Ü".encode()], b=[7], l=[b"p", b"q"]))
        writer.write(example(b=[8]))
    values, numbers, letters = read(path, ("a", "b", "l"))
    assert values == [["Ü", None], [7, 8], [["p", "q"], []]]
    assert (numbers, letters) == ([1, 2], [])


@pytest.mark.pipeline
def test_a_damaged_record_is_a_dead_letter_and_a_lost_frame_an_error(tmp_path):
    pytest.importorskip("tfx_bsl")
    good = [frame(example(a=[b"x%d" % k], b=[k])) for k in range(4)]
    bad_sum = frame(example(a=[b"bad"], b=[9]), crc=1)
    no_example = frame(b"\xff\xff\xff")
    not_text = frame(example(a=[b"\xff"], b=[9]))
    path = tmp_path / "f.tfrecord"
    path.write_bytes(good[0] + bad_sum + good[1] + no_example + not_text + good[2])
    values, numbers, letters = read(path)
    assert (values, numbers) == ([["x0", "x1", "x2"], [0, 1, 2]], [1, 3, 6])
    assert sorted((line, reason.split(":")[0]) for line, reason, _ in letters) == [
        (2, "damaged record"), (4, "not a tf.Example"), (5, NOT_TEXT),
    ]  # fmt: skip
    path.write_bytes(good[0] + good[1][:-3])
    with pytest.raises(RecsysError, match=rf"R253.*at byte {len(good[0])}.*cut off"):
        read(path)
    lost = bytearray(good[0] + good[1])
    lost[len(good[0])] ^= 1
    path.write_bytes(lost)
    with pytest.raises(RecsysError, match=rf"R253.*at byte {len(good[0])}.*damaged length"):
        read(path)


@pytest.mark.pipeline
def test_a_feature_of_two_types_is_text(tmp_path):
    pytest.importorskip("tfx_bsl")
    made = [example(a=[b"x"], b=[1]), example(a=[5], b=[2]), example(b=[3]),
            example(a=[2.0], b=[4, 5]), b"\xff\xff\xff", example(a=["Ü".encode()], b=[6]),
            example(a=[b"\xff"], b=[7])]  # fmt: skip
    path = tmp_path / "f.tfrecord"
    path.write_bytes(b"".join(map(frame, made)))
    values, numbers, letters = read(path)
    assert values == [["x", "5", None, "2", "Ü"], [[1], [2], [3], [4, 5], [6]]]
    assert numbers == [1, 2, 3, 4, 6]
    assert [letter[:2] for letter in letters] == [(5, "not a tf.Example"), (7, NOT_TEXT)]
    whole = open_source(SourceFile(str(path), path.stat().st_size), SourceConfig(files=str(path)))
    assert sorted(whole.source.column_names(whole)) == ["a", "b"]


@pytest.mark.pipeline
def test_a_feature_of_lists_of_two_types_is_lists_of_text(tmp_path):
    pytest.importorskip("tfx_bsl")
    made = [example(a=[b"x", b"y"]), example(a=[5]), example(b=[1]), example(a=[b"\xff", b"y"])]
    path = tmp_path / "f.tfrecord"
    path.write_bytes(b"".join(map(frame, made)))
    values, numbers, letters = read(path, ("a",))
    assert (values, numbers) == ([[["x", "y"], ["5"], []]], [1, 2, 3])
    assert letters == [(4, NOT_TEXT, '{"a": ["�", "y"]}')]


@pytest.mark.pipeline
@pytest.mark.parametrize(
    ("content", "reason"),
    [(frame(b"x", crc=1), "damaged record: its checksum is wrong"),
     (frame(b"\xff\xff\xff"), "not a tf.Example")],
    ids=["damaged", "junk"],
)  # fmt: skip
def test_a_file_without_a_whole_record_gives_dead_letters(tmp_path, content, reason):
    pytest.importorskip("tfx_bsl")
    path = tmp_path / "f.tfrecord"
    path.write_bytes(content * 2)
    values, numbers, letters = read(path)
    assert (values, numbers) == ([[], []], [])
    assert [letter[:2] for letter in letters] == [(1, reason), (2, reason)]


def test_times_of_parquet_need_no_unit(tmp_path):
    from recsys.data.sources.values import to_times

    moment = dt.datetime(2020, 9, 13, 12, 26, 40, tzinfo=dt.UTC)
    for kind in (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ms", "Asia/Tokyo")):
        column = pa.array([int(moment.timestamp())], pa.timestamp("s", "UTC"))
        column = column.cast(pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp(kind.unit))
        column = column.cast(pa.int64()).cast(kind)
        assert to_times(column, "milliseconds").to_pylist() == [1_600_000_000]
    assert to_times(pa.array([dt.date(1970, 1, 2)]), "seconds").to_pylist() == [86_400]
