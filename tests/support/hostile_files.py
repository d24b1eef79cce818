"""Data files that are made to break a reader, and what must come of each.

`FILES` is the corpus: the tests read it, and so may a fuzzer, as a place to start from.
"""

from __future__ import annotations

import bz2
import dataclasses
import functools
import gzip
import json
import lzma
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.sources.tfrecord_source import FOOTER, HEADER, masked_crc

COLUMNS = {"user": "user", "item": "item", "timestamp": "time"}
N_GOOD = 50


@dataclasses.dataclass(frozen=True)
class HostileFile:
    """A file, and what must come of it.

    Attributes:
        name: What is wrong with it.
        write: Writes it into a folder; returns its path.
        code: The code of the error that a run must end with; empty: it reads the file.
        good: Rows that a run must read, if there is no error.
        letters: Dead letters that a run must write, by reason, if there is no error.
        csv: How the config says that rows of CSV are written.
        check: The codes that `recsys check` may end with; an empty one: it ends with a report.
    """

    name: str
    write: Callable[[Path], Path]
    code: str = ""
    good: int | None = N_GOOD
    letters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    csv: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    check: tuple[str, ...] = ("",)


def refused(name: str, write: Callable[[Path], Path], code: str) -> HostileFile:
    """Returns a file that a run and `recsys check` refuse with `code`."""
    return HostileFile(name, write, code, check=(code,))


def events(n: int = N_GOOD) -> list[tuple[str, str, int]]:
    """Returns good rows: user, item, time [seconds since 1970]."""
    return [(f"u{k % 7}", f"i{k % 11}", 1_600_000_000 + 3600 * k) for k in range(n)]


def csv_text(n: int = N_GOOD) -> str:
    """Returns good rows as CSV with a header."""
    return "user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in events(n))


def json_lines(n: int = N_GOOD) -> str:
    """Returns good rows as JSON Lines."""
    rows = [{"user": u, "item": i, "time": t} for u, i, t in events(n)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(name: str, content: bytes | str) -> Callable[[Path], Path]:
    """Returns what writes a content under a name."""

    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def table_of(n: int, **columns: Any) -> pa.Table:
    """Returns good rows as a table, with further columns."""
    users, items, times = zip(*events(n), strict=True)
    return pa.table({"user": users, "item": items, "time": times, **columns})


# --- JSON Lines


def nested(n_deep: int, opening: str = "[", closing: str = "]", *, is_closed: bool = True) -> str:
    """Returns an object with something nested inside."""
    inner = opening * n_deep + "1" + closing * (n_deep if is_closed else 0)
    return f'{{"user": "u1", "item": "i1", "time": 1600000000, "x": {inner}}}\n'


def _objects_of_their_own(n_objects: int) -> str:
    user, item, time = next(iter(events(1)))
    row = {"user": user, "item": item, "time": time}
    row["list"] = [{f"k{at}": at} for at in range(n_objects)]
    return json.dumps(row) + "\n"


def _many_keys(n_rows: int, n_keys: int) -> str:
    rows = [
        {"user": u, "item": i, "time": t, **{f"k{at}_{k}": k for k in range(n_keys)}}
        for at, (u, i, t) in enumerate(events(n_rows))
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


_TOO_DEEP = "nested more than 64 deep"
_DEEP = {
    "nested 100,000 deep": nested(100_000),
    "nested 500 deep": nested(500),
    "objects nested 100,000 deep": nested(100_000, '{"a":', "}"),
    "nested deep behind empty lists": nested(5000, '[[],{"a":', "}]"),
    "nested deep and never closed": nested(100_000, is_closed=False),
}
_LONG_TEXT = '{"user": "u1", "item": "' + "[" * 600 + '", "time": 1600000000}\n'
_JSON_FILES = [
    *(
        HostileFile(
            f"JSON {name}", written("deep.jsonl", json_lines() + line), letters={_TOO_DEEP: 1}
        )
        for name, line in _DEEP.items()
    ),
    HostileFile(
        "JSON nested deep in every row",
        written("all.jsonl", nested(100_000) * 20),
        good=0,
        code="R204",
        check=("", "R204"),
    ),
    HostileFile(
        "brackets in a text are no depth",
        written("brackets.jsonl", json_lines() + _LONG_TEXT),
        good=N_GOOD + 1,
    ),
    HostileFile(
        "a long flat list is no depth",
        written("flat.jsonl", json_lines() + nested(1, "[" + "[1]," * 5000)),
        good=N_GOOD + 1,
    ),
    HostileFile(
        "surrogates in JSON names and values",
        written("surrogates.jsonl", json_lines() + r'{"user": "\ud800", "\udfff": 1}' + "\n"),
        letters={"empty user id": 1},
    ),
    HostileFile(
        "a surrogate in a JSON name of every row",
        written(
            "names.jsonl",
            "".join(
                json.dumps({"user": u, "item": i, "time": t, "\ud800": 1, "\x1b[31m\u202e": 2})
                + "\n"
                for u, i, t in events()
            ),
        ),
    ),
    HostileFile(
        "300 rows of 50 keys of their own",
        written("keys.jsonl", _many_keys(300, 50)),
        good=300,
    ),
    HostileFile(
        "a list of 50,000 objects with a key of their own",
        written("objects.jsonl", json_lines() + _objects_of_their_own(50_000)),
        good=N_GOOD + 1,
    ),
    HostileFile(
        "JSON Lines in UTF-16, not said",
        written("wide.jsonl", json_lines().encode("utf-16")),
        code="R204",
    ),
    HostileFile(
        "JSON Lines in UTF-16",
        written("wide_said.jsonl", json_lines().encode("utf-16-le")),
        csv={"encoding": "utf-16-le"},
    ),
    refused("a mark alone as JSON Lines", written("mark.jsonl", b"\xef\xbb\xbf"), "R202"),
]

# --- CSV


def _wide_header(folder: Path) -> Path:
    path = folder / "header.csv"
    with path.open("w") as file:
        for _ in range(50):
            file.write("column,names" * 83_886)
    return path


def _long_line(folder: Path) -> Path:
    path = folder / "line.csv"
    with path.open("w") as file:
        file.write(csv_text())
        for _ in range(150):
            file.write("x" * (1 << 20))
    return path


def _open_quotes(folder: Path) -> Path:
    return written("quotes.csv", csv_text() + 'u1,"q","\n' * 100_000)(folder)


def _growing_quote(folder: Path) -> Path:
    line = '"q","' + "x" * 70_000 + "\n"
    return written("open.csv", csv_text() + 'u1,"' + line * 1500)(folder)


_CSV_FILES = [
    refused("a header line of 50 MB", _wide_header, "R280"),
    refused(
        "a header line of 50 MB of one name",
        written("name.csv", "x" * (50 << 20) + "\n" + csv_text()),
        "R280",
    ),
    refused("a line of 150 MB", _long_line, "R280"),
    HostileFile(
        "quotes that stay open over every line",
        _open_quotes,
        good=None,
        check=("", "R208"),
    ),
    HostileFile("an open quote before long lines", _growing_quote, good=None, check=("", "R208")),
    refused("a mark alone as CSV", written("mark.csv", b"\xef\xbb\xbf"), "R202"),
    HostileFile(
        "a mark of UTF-16 alone",
        written("mark16.csv", b"\xff\xfe"),
        code="R202",
        csv={"encoding": "utf-16"},
        check=("R202",),
    ),
    refused("a mark and a line end", written("mark2.csv", b"\xef\xbb\xbf\r\n"), "R202"),
    refused("NUL bytes alone", written("nul.csv", b"\0" * 5000), "R204"),
    HostileFile(
        "UTF-16 with a mark, not said",
        written("marked.csv", csv_text().encode("utf-16")),
        code="R204",
    ),
    HostileFile(
        "UTF-16 without a mark, not said",
        written("le.csv", csv_text().encode("utf-16-le")),
        code="R204",
    ),
    HostileFile(
        "UTF-16 of the other order without a mark, not said",
        written("be.csv", csv_text().encode("utf-16-be")),
        code="R204",
    ),
    HostileFile(
        "UTF-16 without a mark",
        written("le_said.csv", csv_text().encode("utf-16-le")),
        csv={"encoding": "utf-16-le"},
    ),
    HostileFile(
        "UTF-16 of the other order without a mark",
        written("be_said.csv", csv_text().encode("utf-16-be")),
        csv={"encoding": "utf-16-be"},
    ),
    HostileFile(
        "UTF-16 without a mark, said to have one",
        written("le_16.csv", csv_text().encode("utf-16-be")),
        csv={"encoding": "utf-16"},
        code="R204",
    ),
    HostileFile(
        "half a character of UTF-16 at the end",
        written("half.csv", csv_text().encode("utf-16")[:-1]),
        csv={"encoding": "utf-16"},
        good=None,
    ),
    HostileFile(
        "control characters in names of columns",
        written(
            "names.csv",
            csv_text().replace("\n", ",a\n").replace(",a\n", ",\x1b[31mred\x1b]0;owned\x07\n", 1),
        ),
    ),
]

# --- compressed


def _packed_lines(opened: Callable[[Path], Any], name: str) -> Callable[[Path], Path]:
    """Returns what writes a good start and then a gigabyte of one line, compressed."""

    def write(folder: Path) -> Path:
        path = folder / name
        with opened(path) as file:
            file.write(csv_text().encode())
            for _ in range(200):
                file.write(b"0" * (5 << 20))
        return path

    return write


def _packed_rows(folder: Path) -> Path:
    """Writes 1.2 GB of good rows in some kilobytes."""
    path = folder / "rows.csv.bz2"
    block = bz2.compress(b"u1,i1,1600000000\n" * 2_000_000)
    path.write_bytes(bz2.compress(csv_text().encode()) + block * 36)
    return path


def _zstd(folder: Path) -> Path:
    path = folder / "bomb.csv.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(csv_text().encode())
        for _ in range(200):
            file.write(b"0" * (5 << 20))
    return path


_PACKED_FILES = [
    refused(
        "a gzip bomb of one line",
        _packed_lines(lambda path: gzip.GzipFile(path, "wb", 1), "bomb.csv.gz"),
        "R280",
    ),
    refused("a zstd bomb of one line", _zstd, "R281"),
    refused(
        "an xz bomb of one line",
        _packed_lines(functools.partial(lzma.LZMAFile, mode="wb", preset=0), "bomb.csv.xz"),
        "R280",
    ),
    # `check` reads a sample, which ends before the limit.
    HostileFile("a bz2 bomb of good rows", _packed_rows, "R281", check=("", "R281")),
    refused(
        "a mark alone, compressed", written("mark.csv.gz", gzip.compress(b"\xef\xbb\xbf")), "R202"
    ),
]

# --- TFRecord


def _frame(data: bytes, length: int | None = None) -> bytes:
    header = (len(data) if length is None else length).to_bytes(8, "little")
    crc = FOOTER.pack(masked_crc(header))
    return header + crc + data + FOOTER.pack(masked_crc(data))


assert HEADER.size == 12  # What `_frame` writes.
_LENGTHS = {"little": 100, "large": 1 << 33, "largest": (1 << 64) - 1, "signed": 1 << 63}
_TFRECORD_FILES = [
    refused(
        f"a {name} wrong length in a {'compressed ' if packed else ''}TFRecord",
        written(
            f"{name}.tfrecord{'.gz' if packed else ''}",
            (gzip.compress if packed else bytes)(_frame(b"x" * 30, length)),
        ),
        "R253",
    )
    for name, length in _LENGTHS.items()
    for packed in (False, True)
]

# --- Parquet


def _parquet(name: str, table: pa.Table, **options: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        pq.write_table(table, folder / name, **options)
        return folder / name

    return write


def _long_dictionary(folder: Path) -> Path:
    """Writes 131,072 rows whose user is one text of 48 KB: 6 GB in memory, 1 KB on disk."""
    n = 1 << 17
    indices = pa.array([0] * n, pa.int32())
    table = pa.table(
        {
            "user": pa.DictionaryArray.from_arrays(indices, pa.array(["u" * 48_000])),
            "item": pa.DictionaryArray.from_arrays(indices, pa.array(["i1"])),
            "time": pa.array([1_600_000_000] * n, pa.int64()),
        }
    )
    return _parquet("dictionary.parquet", table, compression="zstd", store_schema=False)(folder)


def _many_rows(folder: Path) -> Path:
    """Writes 200 million rows in some kilobytes."""
    path = folder / "rows.parquet"
    n = 1 << 24
    table = pa.table(
        {
            "user": pa.DictionaryArray.from_arrays(
                pa.array(memoryview(bytes(4 * n)).cast("i")), pa.array(["u1"])
            ),
        }
    )
    table = table.append_column("item", table["user"]).append_column(
        "time", pa.array(memoryview(bytes(8 * n)).cast("q"))
    )
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
        for _ in range(12):
            writer.write_table(table, row_group_size=n)
    return path


def _large_page(folder: Path) -> Path:
    """Writes a text of 1 GB in a page of some kilobytes."""
    users = pa.array(["x" * (1 << 30), "a", "b"])
    options = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    table = table_of(3).set_column(0, "user", users)
    return _parquet("page.parquet", table, compression="zstd", **options)(folder)


def _deep_parquet(folder: Path) -> Path:
    column: pa.Array = pa.array([1] * N_GOOD)
    for _ in range(300):
        column = pa.StructArray.from_arrays([column], ["a"])
    return _parquet("deep.parquet", table_of(N_GOOD, deep=column), store_schema=False)(folder)


def _thrift_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def _nested_footer(folder: Path) -> Path:
    """Writes a footer whose schema is 200,000 groups inside of each other."""
    n = 200_000
    group = b"\x35\x02" + b"\x18\x01a" + b"\x15\x02\x00"  # OPTIONAL, "a", one child
    leaf = b"\x15\x02\x25\x02\x18\x01a\x00"
    schema = b"\x19\xfc" + _thrift_varint(n + 1) + group * n + leaf
    footer = b"\x15\x02" + schema + b"\x16\x00" + b"\x19\x0c" + b"\x00"
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    return written("footer.parquet", content)(folder)


def _named(names: list[str]) -> pa.Table:
    table = table_of(N_GOOD)
    for name in names:
        table = table.append_column(name, pa.array([1] * N_GOOD))
    return table


_PARQUET_FILES = [
    refused("1 KB of Parquet that takes 6 GB", _long_dictionary, "R281"),
    refused("200 million rows in 1 KB of Parquet", _many_rows, "R281"),
    refused("a page of 1 GB in Parquet", _large_page, "R281"),
    refused("Parquet nested 300 deep", _deep_parquet, "R253"),
    refused("a footer nested 200,000 deep", _nested_footer, "R253"),
    HostileFile(
        "control characters in names of Parquet columns",
        _parquet("names.parquet", _named(["\x1b]0;owned\x07", "a\nb", "\u202eevil", ""])),
    ),
    HostileFile(
        "2,000 columns of Parquet",
        _parquet("wide.parquet", _named([f"c{k}" for k in range(2000)])),
    ),
]

# --- no files


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo.csv")
    return folder / "fifo.csv"


def _socket(folder: Path) -> Path:
    path = folder / "s.csv"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def _linked(name: str, target: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).symlink_to(target)
        return folder / name

    return write


def _no_text_name(folder: Path) -> Path:
    path = os.fsencode(folder) + b"/caf\xe9.csv"
    with open(path, "wb") as file:  # noqa: PTH123 - a path of bytes
        file.write(csv_text().encode())
    return Path(os.fsdecode(path))


_OTHER_FILES = [
    refused("a FIFO", _fifo, "R205"),
    refused("a socket", _socket, "R205"),
    refused("an endless device", _linked("zero.csv", "/dev/zero"), "R205"),
    HostileFile("a folder", _linked("folder.csv", "/tmp"), code="R201",  # noqa: S108
                check=("R201",)),
    HostileFile("a link to itself", _linked("loop.csv", "loop.csv"), code="R205",
                check=("R201", "R205")),
    refused("a name that isn't UTF-8", _no_text_name, "R205"),
    HostileFile("a name with control characters", written("\x1b[31m\n\u202e.csv", csv_text())),
]  # fmt: skip

FILES = {
    file.name: file
    for file in (
        *_JSON_FILES,
        *_CSV_FILES,
        *_PACKED_FILES,
        *_TFRECORD_FILES,
        *_PARQUET_FILES,
        *_OTHER_FILES,
    )
}
