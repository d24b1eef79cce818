"""Files of data: what is read of them is compared with what is known of them."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from benchmarks.fuzz_case.case import Example, broken, require
from recsys.config import InteractionsConfig
from recsys.data.dead_letters import count_reasons
from recsys.data.interactions import drop_duplicates, interaction_columns, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.errors import RecsysError

FORMATS = ("csv", "jsonl", "parquet", "tfrecord")
_NOW = 1_700_000_000
_LARGEST_SEED = 200_000
"""Bytes of a file of the corpus that others are made from."""
_BOMBS = re.compile(r"bomb|million rows|page of 1 GB|header")
"""They take long to write, and longer when broken; the tests read them as they are."""


class Files:
    """Files of one format, read as a run reads them.

    Args:
        format: One of `FORMATS`.
    """

    def __init__(self, format: str) -> None:
        self._format = format

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns good files among whose rows are known bad ones, and broken files."""
        known = _known(self._format)
        corpus = [example for example in _corpus() if f".{self._format}" in example.name]
        seeds = st.sampled_from(corpus) | known
        return known | seeds.flatmap(_broken)

    def take(self, example: Example, path: Path) -> None:
        """Reads a file, and compares."""
        facts = example.facts
        try:
            reading = Reading(path, config_of(path, facts), facts["piece_bytes"], _NOW)
        except RecsysError as error:
            require("good" not in facts, f"refused a good file: {error}")
            return
        reading.require_sound()
        if "good" in facts:
            reading.require_equal(facts)
        elif example.name.endswith(".jsonl"):
            require(reading.n_good <= _n_objects(example.content), "a line that is no JSON is good")


def config_of(path: Path, facts: Mapping[str, Any]) -> InteractionsConfig:
    """Returns what reads a file of these facts."""
    return InteractionsConfig.model_validate_json(
        json.dumps({"files": str(path), "columns": facts["columns"], "csv": facts.get("csv", {})})
    )


class Reading:
    """What a run reads of a file.

    Args:
        path: The file.
        config: How it is written.
        piece_bytes: Bytes that one worker reads, about.
        now: The time [seconds since 1970].

    Raises:
        RecsysError: The file is refused.
    """

    def __init__(self, path: Path, config: InteractionsConfig, piece_bytes: int, now: int) -> None:
        self._path, self._now = path, now
        self.n_read, self.letters = 0, Counter[str]()
        tables = []
        for piece in plan_pieces(config, "interactions", interaction_columns(config), piece_bytes):
            for batch in read_piece(piece):
                good, letters = parse_interactions(batch, config, now, 0)
                tables.append(good)
                self.letters.update(count_reasons(letters))
                self.n_read += batch.n_read
        self._table = pa.Table.from_batches(tables) if tables else None
        self.n_good = self._table.num_rows if self._table else 0
        self.n_distinct = drop_duplicates(self._table)[0].num_rows if self._table else 0

    def require_sound(self) -> None:
        """Raises a finding where rows got lost, or where a good one breaks a rule."""
        rejected = sum(self.letters.values())
        require(
            self.n_read == self.n_good + rejected,
            f"read {self.n_read}, good {self.n_good}, rejected {rejected}",
        )
        for row in self._table.to_pylist() if self._table else ():
            for name in ("user_id", "item_id"):
                require(_is_id(row[name]), f"a good row has the {name} {row[name]!r:.80}")
            require(31_536_000 <= row["timestamp"] <= self._now, f"a good row at {row!r:.200}")
            for name in ("rating", "weight"):
                value = row.get(name)
                require(value is None or math.isfinite(value), f"a good row has {name} {value}")

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Raises a finding where the rows are other ones than are known."""
        good = Counter(tuple(row) for row in facts["good"])
        names = ("user_id", "item_id", "timestamp")
        rows = (
            Counter(zip(*(self._table[name].to_pylist() for name in names), strict=True))
            if self._table
            else Counter()
        )
        require(rows == good, f"good rows differ: {rows - good} {good - rows}"[:400])
        require(dict(self.letters) == facts["letters"], f"rejected {dict(self.letters)}")
        require(self.n_distinct == len(good), f"{self.n_distinct} rows are distinct")


def _is_id(text: str) -> bool:
    is_plain = text == unicodedata.normalize("NFC", text.strip()) and "\0" not in text
    return bool(text) and is_plain and len(text.encode()) <= 1024


def _n_objects(content: bytes) -> float:
    """Returns how many lines Python's own reader takes for an object; all where it can't say."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content[:4096]:
        return math.inf  # UTF-16 perhaps.
    return sum(_is_object(line) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode(), parse_int=str), dict)
    except (ValueError, RecursionError):
        return False


# --- inputs


@st.composite
def _known(draw: st.DrawFn, format: str) -> Example:
    """Returns a file whose rows, good and bad, are known."""
    rows_of = import_module("damaged_rows")
    seed = draw(st.integers(0, 2**32))
    rows = rows_of.generate(draw(st.integers(1, 120)), seed)
    path = Path(f"known.{format}")
    csv_format: dict[str, Any] = {}
    if format == "csv" and draw(st.booleans()):
        damaged: dict[str, int] = {}
        csv_format = _write_dialect(path, rows, random.Random(seed))
    else:
        rows, damaged = _WRITERS[format](path, rows, seed)
    content = path.read_bytes()
    good, reasons = rows_of.expected(rows)
    columns = rows_of.NESTED if format == "jsonl" else rows_of.COLUMNS
    facts = {
        "columns": columns.model_dump(mode="json"),
        "csv": csv_format,
        "piece_bytes": draw(st.sampled_from([500, 3000, 64 << 20])),
        "good": good,
        "letters": dict(Counter(reasons) + Counter(damaged)),
    }
    if format != "parquet" and draw(st.booleans()):
        return Example(f"{path}.gz", gzip.compress(content), facts)
    return Example(str(path), content, facts)


@st.composite
def _broken(draw: st.DrawFn, example: Example) -> Example:
    """Returns a file of which is known only what holds for any."""
    facts = {key: value for key, value in example.facts.items() if key not in ("good", "letters")}
    return Example(example.name, draw(broken(example.content)), facts)


@functools.cache
def _corpus() -> list[Example]:
    """Returns the files of the tests that were made to break a reader."""
    hostile = import_module("hostile_files")
    examples = []
    for at, file in enumerate(hostile.FILES.values()):
        if _BOMBS.search(file.name):
            continue
        folder = Path("corpus") / str(at)
        folder.mkdir(parents=True)
        path = file.write(folder)
        is_plain = path.is_file() and not path.is_symlink() and path.name.isascii()
        if is_plain and path.stat().st_size <= _LARGEST_SEED:
            facts = {"columns": hostile.COLUMNS, "csv": dict(file.csv), "piece_bytes": 64 << 20}
            examples.append(Example(path.name, path.read_bytes(), facts))
    return examples


def _write_dialect(path: Path, rows: Any, chance: random.Random) -> dict[str, Any]:
    """Writes rows as other programs write CSV; returns how the config says so."""
    delimiter = chance.choice(",;\t|")
    decimal = "." if delimiter == "," else chance.choice(".,")
    encoding = chance.choice(["utf-8", "utf-8-sig", "utf-16"])
    dialect = chance.choice(["excel", "unix"])  # Quotes where needed, and everywhere.
    skip_rows = chance.choice([0, 0, 3])
    with path.open("w", encoding=encoding, newline="") as file:
        file.write("made by hand\n" * skip_rows)
        # A carriage return in a field is one only where lines end with both.
        writer = csv.writer(file, dialect, delimiter=delimiter, lineterminator="\r\n")
        writer.writerow("uitrw")
        for user, item, time, *numbers in rows:
            writer.writerow([user, item, time, *(text.replace(".", decimal) for text in numbers)])
    is_utf16 = encoding == "utf-16"
    return {
        "delimiter": delimiter,
        "decimal": decimal,
        "encoding": encoding if is_utf16 else "utf-8",
        "skip_rows": skip_rows,
    }


def _write_csv(path: Path, rows: Any, seed: int) -> tuple[Any, dict[str, int]]:
    written: tuple[Any, dict[str, int]] = import_module("damaged_rows").write_csv(
        path, rows, seed, with_open_quote=False
    )
    return written


def _write_jsonl(path: Path, rows: Any, seed: int) -> tuple[Any, dict[str, int]]:
    return rows, import_module("damaged_rows").write_jsonl(path, rows, seed)


def _write_parquet(path: Path, rows: Any, seed: int) -> tuple[Any, dict[str, int]]:
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate("uitrw")})
    compression = ("none", "snappy", "zstd", "gzip")[seed % 4]
    pq.write_table(table, path, row_group_size=1 + seed % 50, compression=compression)
    return rows, {}


def _write_tfrecord(path: Path, rows: Any, seed: int) -> tuple[Any, dict[str, int]]:
    from tensorflow.core.example import example_pb2

    framing = import_module("recsys.data.sources.tfrecord_source")
    with path.open("wb") as file:
        for row in rows:
            example = example_pb2.Example()
            for name, text in zip("uitrw", row, strict=True):
                example.features.feature[name].bytes_list.value.append(text.encode())
            data = example.SerializeToString()
            length = len(data).to_bytes(8, "little")
            for part in (length, data):
                file.write(part + framing.masked_crc(part).to_bytes(4, "little"))
    return rows, {}


_WRITERS = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "tfrecord": _write_tfrecord,
}
