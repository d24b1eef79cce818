"""The cases of tests/project/test_fuzz.py: what is made, and what must come of it.

A case has `strategy()`, which returns the inputs, and `take(example, path)`, which gives an
input to the program: the example, and its file, alone in a folder. It fails where the program
takes it wrongly.
"""

from __future__ import annotations

import bz2
import contextlib
import copy
import csv
import dataclasses
import functools
import gzip
import http.client
import io
import itertools
import json
import lzma
import math
import random
import re
import socket
import time
import unicodedata
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import damaged_rows
import hostile_files
import jax
import jsonschema_rs
import kernel_calls
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import strategies as st

from recsys.cli import main
from recsys.config import Config, InteractionsConfig
from recsys.config.load import load_config
from recsys.data.dead_letters import count_reasons
from recsys.data.interactions import drop_duplicates, interaction_columns, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.streams import START_BYTES, compression_of, open_bytes
from recsys.errors import ConfigError, RecsysError

_SHIPPED = Path(__file__).resolve().parents[2] / "configs" / "movielens_small.yaml"
_FACTS = "facts.json"


@dataclasses.dataclass(frozen=True)
class Example:
    """One input.

    Attributes:
        name: Its file name.
        content: Its bytes.
        facts: How it is taken, and what is known to be good of it; plain JSON.
    """

    name: str
    content: bytes
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes the input into an own folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / self.name).write_bytes(self.content)
        (folder / _FACTS).write_text(json.dumps(dict(self.facts), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Example:
        """Returns the input that `save` wrote."""
        [path] = [path for path in folder.iterdir() if path.name != _FACTS]
        return cls(path.name, path.read_bytes(), json.loads((folder / _FACTS).read_text()))


def require(holds: bool, text: str) -> None:
    """Fails where the program took what it must refuse, or says what isn't so."""
    assert holds, text


_TERMINAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


def require_harmless(text: str) -> None:
    """Fails where a text would steer a terminal."""
    match = _TERMINAL.search(text)
    require(match is None, f"printed a control character: {match}")


_TOKENS = [
    b"", b"\0", b"\n", b"\r", b"\r\n", b'"', b'""', b",", b";", b"\t", b"|", b"\\", b"'",
    b"\\u0000", b"\\ud800", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80",
    b"\xe2\x80\xae", b"\x1b[31m", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8", b"[", b"]", b"{", b"}",
    b"[" * 100, b"{" * 5000, b'{"a":' * 70, b"null", b"NaN", b"Infinity", b"-", b"1e999",
    b"-0", b"9" * 400, b"0x10", b"1_000", b"2024-99-99", b": ", b"- ", b"&a [", b"*a", b"<<: *a",
    b"!!int ", b"#",
    b"!!python/name:os.system", b"---\n", b"|\n", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0",
    b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PAR1", b"\x7f\xff\xff\xff\xff\xff\xff\xff",
]  # fmt: skip


@st.composite
def broken(draw: st.DrawFn, content: bytes) -> bytes:
    """Returns a content with some of its bytes changed, cut, doubled or replaced."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.sampled_from([0, 1, 2, 7, 60, 1000])))
        part = bytes(data[start:stop])
        tokens = st.sampled_from(_TOKENS) | st.binary(max_size=8)
        changed = [b"", part * 2, part * 40, bytes(byte ^ 0x80 for byte in part)]
        data[start:stop] = draw(st.sampled_from(changed) | tokens | tokens)
    return bytes(data)


# --- Files of data: what is read of them is compared with what is known of them.


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
        raw = {"files": str(path), "columns": facts["columns"], "csv": facts.get("csv", {})}
        config = InteractionsConfig.model_validate_json(json.dumps(raw))
        try:
            reading = Reading(config, facts["piece_bytes"], _NOW)
        except RecsysError as error:
            require("good" not in facts, f"refused a good file: {error}")
            return
        reading.require_sound()
        if "good" in facts:
            reading.require_equal(facts)
        elif example.name.endswith(".jsonl"):
            require(reading.n_good <= _n_objects(example.content), "a line that is no JSON is good")


class Reading:
    """The rows that a run reads from a file.

    Args:
        config: The file, and how it is written.
        piece_bytes: Bytes that one worker reads, about.
        now: The time [seconds since 1970].

    Raises:
        RecsysError: The file is refused.
    """

    def __init__(self, config: InteractionsConfig, piece_bytes: int, now: int) -> None:
        self._now, self.n_read, self.letters, tables = now, 0, Counter[str](), []
        for piece in plan_pieces(config, "interactions", interaction_columns(config), piece_bytes):
            for batch in read_piece(piece):
                good, letters = parse_interactions(batch, config, now, 0)
                tables.append(good)
                self.letters.update(count_reasons(letters))
                self.n_read += batch.n_read
        table = pa.Table.from_batches(tables) if tables else None
        self._rows = table.to_pylist() if table else []
        self.n_good = len(self._rows)
        self.n_distinct = drop_duplicates(table)[0].num_rows if table else 0

    def require_sound(self) -> None:
        """Fails where rows got lost, or where a good one breaks a rule."""
        counts = f"read {self.n_read}, good {self.n_good}, rejected {self.letters}"
        require(self.n_read == self.n_good + sum(self.letters.values()), counts)
        for row in self._rows:
            numbers = (row.get(name) for name in ("rating", "weight"))
            is_good = _is_id(row["user_id"]) and _is_id(row["item_id"])
            is_good &= 31_536_000 <= row["timestamp"] <= self._now
            is_good &= all(number is None or math.isfinite(number) for number in numbers)
            require(is_good, f"this row is good: {row!r:.300}")

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Fails where the rows are other ones than are known."""
        good = Counter(tuple(row) for row in facts["good"])
        rows = Counter((row["user_id"], row["item_id"], row["timestamp"]) for row in self._rows)
        require(rows == good, f"good rows differ: {rows - good} {good - rows}"[:400])
        require(dict(self.letters) == facts["letters"], f"rejected {dict(self.letters)}")
        require(self.n_distinct == len(good), f"{self.n_distinct} rows are distinct")


def _is_id(text: str) -> bool:
    is_plain = text == unicodedata.normalize("NFC", text.strip()) and "\0" not in text
    is_plain = is_plain and not any(unicodedata.category(character) == "Cf" for character in text)
    return bool(text) and is_plain and len(text.encode()) <= 1024


def _n_objects(content: bytes) -> float:
    """Returns how many lines Python's own reader takes for an object; all where it can't say."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content[:4096]:
        return math.inf  # UTF-16 perhaps.
    # Files that were joined have a mark inside.
    return sum(_is_object(line.removeprefix(b"\xef\xbb\xbf")) for line in content.split(b"\n"))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode(), parse_int=str), dict)
    except (ValueError, RecursionError):
        return False


# --- inputs


@st.composite
def _known(draw: st.DrawFn, format: str) -> Example:
    """Returns a file whose rows, good and bad, are known."""
    seed = draw(st.integers(0, 2**32))
    rows = damaged_rows.generate(draw(st.integers(1, 120)), seed)
    path, csv_format, damaged = Path(f"known.{format}"), dict[str, Any](), dict[str, int]()
    if format == "csv" and draw(st.booleans()):
        csv_format = _write_dialect(path, rows, random.Random(seed))
    elif format == "csv":
        rows, damaged = damaged_rows.write_csv(path, rows, seed, with_open_quote=False)
    elif format == "jsonl":
        damaged = damaged_rows.write_jsonl(path, rows, seed)
    else:
        {"parquet": _write_parquet, "tfrecord": _write_tfrecord}[format](path, rows, seed)
    content = path.read_bytes()
    good, reasons = damaged_rows.expected(rows)
    columns = damaged_rows.NESTED if format == "jsonl" else damaged_rows.COLUMNS
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
    examples = []
    files = [file for file in hostile_files.FILES.values() if not _BOMBS.search(file.name)]
    for at, file in enumerate(files):
        folder = Path("corpus") / str(at)
        folder.mkdir(parents=True)
        path = file.write(folder)
        is_plain = path.is_file() and not path.is_symlink() and path.name.isascii()
        if is_plain and path.stat().st_size <= _LARGEST_SEED:
            facts = {
                "columns": hostile_files.COLUMNS,
                "csv": dict(file.csv),
                "piece_bytes": 64 << 20,
            }
            examples.append(Example(path.name, path.read_bytes(), facts))
    return examples


def _write_dialect(path: Path, rows: Any, chance: random.Random) -> dict[str, Any]:
    """Writes rows as other programs write CSV; returns how the config says so."""
    delimiter, encoding = chance.choice(",;\t|"), chance.choice(["utf-8", "utf-16"])
    decimal, skip_rows = "." if delimiter == "," else chance.choice(".,"), chance.choice([0, 3])
    with path.open("w", encoding=encoding, newline="") as file:
        file.write("made by hand\n" * skip_rows)
        # A carriage return in a field is one only where lines end with both.
        dialect = chance.choice(["excel", "unix"])  # Quotes where needed, and everywhere.
        writer = csv.writer(file, dialect, delimiter=delimiter, lineterminator="\r\n")
        writer.writerow("uitrw")
        for user, item, time, *numbers in rows:
            writer.writerow([user, item, time, *(text.replace(".", decimal) for text in numbers)])
    names = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding}
    return {**names, "skip_rows": skip_rows}


def _write_parquet(path: Path, rows: Any, seed: int) -> None:
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate("uitrw")})
    compression = ("none", "snappy", "zstd", "gzip")[seed % 4]
    pq.write_table(table, path, row_group_size=1 + seed % 50, compression=compression)


def _write_tfrecord(path: Path, rows: Any, _: int) -> None:
    from tensorflow.core.example import example_pb2

    with path.open("wb") as file:
        for row in rows:
            example = example_pb2.Example()
            for name, text in zip("uitrw", row, strict=True):
                example.features.feature[name].bytes_list.value.append(text.encode())
            file.write(hostile_files._frame(example.SerializeToString()))


# --- Compressed streams one after the other: all is read, or it is said up to where it is good.


_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda text: bytes(pa.Codec("zstd").compress(text)),
}
_STREAM_DAMAGE = ("none", "flipped", "cut", "zeros", "inserted")


class Streams:
    """Files of up to four compressed streams, whole, padded or damaged."""

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns files with what may be read of them, and how much of it is surely good."""
        return _streams()

    def take(self, example: Example, path: Path) -> None:
        """Reads a file to its end."""
        size, allowed = path.stat().st_size, example.facts["allowed"]
        try:
            compression = compression_of(str(path), path.read_bytes()[:START_BYTES])
            text = open_bytes(str(path), 0, size, compression).read().decode("latin-1")
        except RecsysError as error:
            require(example.facts["is_damaged"], f"refused a good file: {error}")
            if (match := re.search(r"good up to byte ([\d,]+)", error.cure)) is not None:
                n_good = int(match[1].replace(",", ""))
                require(n_good >= example.facts["n_good"], f"more is good: {error}")
            return
        require(text in allowed, f"read {len(text)} of {[*map(len, allowed)]} bytes")


@st.composite
def _streams(draw: st.DrawFn) -> Example:
    ending, damage = draw(st.sampled_from(list(_PACKERS))), draw(st.sampled_from(_STREAM_DAMAGE))
    chance = random.Random(draw(st.integers(0, 2**32)))
    texts = [
        chance.randbytes(size) if chance.random() < 0.5 else b"1,x\n" * size
        for size in draw(
            st.lists(st.sampled_from([0, 1, 50, 3000, 90_000]), min_size=1, max_size=4)
        )
    ]
    streams = [_PACKERS[ending](text) for text in texts]
    stops = list(itertools.accumulate(map(len, streams)))
    content, whole, at = bytearray(b"".join(streams)), b"".join(texts), 0
    allowed = [whole]
    if damage == "flipped":
        starts = [0, *stops[:-1]]
        # A frame of zstd that Arrow writes has no checksum of its content.
        at = (
            chance.choice(starts) + chance.randrange(4)
            if ending == "zst"
            else chance.randrange(len(content))
        )
        content[at] ^= 1 << chance.randrange(8)
    elif damage == "cut":
        at = chance.choice([*stops, chance.randrange(1, len(content) + 1)])
        del content[at:]
        allowed = [b"".join(texts[: 1 + stops.index(at)])] if at in stops else []
    elif damage in ("zeros", "inserted"):
        at, n_bytes = chance.choice(stops), chance.randrange(1, 20)
        is_last = at == len(content)
        inserted = bytes(n_bytes) if damage == "zeros" else b"#" + chance.randbytes(n_bytes - 1)
        content[at:at] = inserted
        is_padding = (ending == "xz" and n_bytes % 4 == 0) or (ending == "gz" and is_last)
        allowed = [whole] if damage == "zeros" and is_padding else []
    facts = {
        "allowed": [text.decode("latin-1") for text in allowed],
        "is_damaged": damage == "flipped" or not allowed,
        "n_good": sum(len(text) for text, stop in zip(texts, stops, strict=True) if stop <= at),
    }
    return Example(f"streams.csv.{ending}", bytes(content), facts)


# --- `recsys check` on files: it promises what a run reads, and prints nothing that steers.


class Checks:
    """Files of all formats, as a person has them looked at."""

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns files."""
        return st.one_of([Files(format).strategy() for format in FORMATS])

    def take(self, example: Example, path: Path) -> None:
        """Looks at a file, and reads it with the config that was written."""
        config = path.parent / "written.yaml"
        words = ["check", str(path), "--out", str(config), "--force"]
        exit_code, output, errors = _run(words)
        require_harmless(output + errors)
        is_said = bool(output or errors) and (config.exists() or exit_code != 0)
        require(exit_code in (0, 1, 2) and is_said, f"exit code {exit_code}: {errors}")
        if not config.exists():
            return
        config.unlink()
        promised = json.loads(_run([*words, "--json"])[1])
        interactions = load_config(config).data.interactions
        try:
            reading = Reading(interactions, 64 << 20, int(time.time()))
        except RecsysError as error:
            raise AssertionError("a run refuses what `check` took") from error
        read = {"rows": reading.n_read, "good": reading.n_distinct}
        counts = {name: promised[name] for name in read}
        require(counts == read, f"promised {counts}, a run reads {read} of them")
        reading.require_sound()


def _run(words: list[str]) -> tuple[int, str, str]:
    """Returns the exit code, stdout and stderr of a command; a bug is a crash."""
    out, err = io.StringIO(), io.StringIO()
    exit_code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            exit_code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    require("[R900]" not in err.getvalue(), err.getvalue().strip())
    return exit_code, out.getvalue(), err.getvalue()


# --- Configs: what the JSON schema refuses must be refused, and always by a sentence.


_VALUES: list[Any] = [
    None, True, 0, 1, -1, 3, 0.5, 1e308, math.inf, -math.inf, math.nan, 2**63, 10**30, "", "x", "1",
    "time", "\x1b[31m", [], {}, [1], ["a", "a"], [[]], {"a": 1}, {"": None}, "*" * 2000,
]  # fmt: skip
_KEYS = ["unknown", "Name", "name ", "__class__", "\x1b[31m"]
_TEXTS = ["[" * 5000, "{a: " * 2000, "a: !!int abc", "a: 2024-99-99", "name: &a [*a]", "\0"]


class Configs:
    """Configs with known mistakes, and broken texts."""

    def __init__(self) -> None:
        self._whole = load_config(_SHIPPED).model_dump(mode="json")
        self._text = _SHIPPED.read_text()
        self._schema = jsonschema_rs.validator_for(Config.model_json_schema())

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns config files."""
        texts = st.sampled_from([self._text, yaml.safe_dump(self._whole), *_TEXTS])
        content = texts.flatmap(lambda text: broken(text.encode()))
        wrong = edited(self._whole, st.sampled_from(_VALUES), _KEYS).map(self._known)
        return wrong | content.map(lambda content: Example("config.yaml", content))

    def _known(self, values: Any) -> Example:
        """Returns a config that the schema may refuse; what it takes may be wrong for all that."""
        is_right = _is_finite(values) and self._schema.is_valid(json.loads(json.dumps(values)))
        content = yaml.safe_dump(values, allow_unicode=True).encode()
        return Example("config.yaml", content, {} if is_right else {"is_wrong": True})

    def take(self, example: Example, path: Path) -> None:
        """Loads a config; one that is taken must fit the schema, and its edits too."""
        try:
            config = load_config(path)
        except ConfigError as error:
            require_harmless(str(error))
            return
        require("is_wrong" not in example.facts, "took a config that is wrong")
        values = config.model_dump(mode="json")
        require(_is_finite(values), "took a number that is not finite")
        require(self._schema.is_valid(values), "took what the schema refuses")


@st.composite
def edited(draw: st.DrawFn, good: Any, values: st.SearchStrategy[Any], names: list[str]) -> Any:
    """Returns maps and lists of which one to three values or keys are others, or gone."""
    made = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        place, key = draw(st.sampled_from(list(_places(made)) or [({}, "")]))
        if isinstance(place, dict):
            key = draw(st.sampled_from([key] * 4 + [draw(st.sampled_from(names))]))
        if isinstance(place, dict) and draw(st.integers(0, 5)) == 0:
            place.pop(key, None)
        else:
            place[key] = copy.deepcopy(draw(values))
    return made


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every map or list with each of its keys or indices."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _is_finite(values: Any) -> bool:
    try:
        json.dumps(values, allow_nan=False)
    except ValueError:
        return False
    return True


# --- Requests of a server whose models are stand-ins.


_TIMEOUT_S = 60.0
_RECOMMEND = "/api/recommend"
_STRINGS = ["", "u1", "noir", "recommend_filtered", "total", "x" * 2000, "\x1b[31m", "AAAA", "\0"]
_NAMES = ["x", "b64", "inputs", "exclude_ids", "only_genre", "genre", "self", "signature", "", "\0"]
_PREDICT = "/v1/models/m:predict"
_PATHS = """/v1/models/m/versions/1:predict /v1/models/m/versions/9:predict /v1/models/x:predict /
/v1/models/m/versions/99999999999999999999:predict /v1/models/m/metadata /api/about /healthz
/metrics /api/users /api/items /api/similar /api/tokens /static/page.js /openapi.json"""
_GOOD = [
    (_PREDICT, {"signature_name": "recommend", "instances": [
        {"user_id": "u1", "history": [""], "exclude_seen": True, "country": [""]}]}),
    (_RECOMMEND, {"user": "u1", "k": 3, "only": {"genre": ["noir"]}, "exclude": ["i1"]}),
    (_RECOMMEND, {"items": ["i1", "i2"], "exclude_seen": False, "version": 1}),
]  # fmt: skip


servers = contextlib.ExitStack()
"""Servers that cases have started."""


class Server:
    """Hand-made requests with unexpected names, bytes, depths and lengths."""

    def __init__(self) -> None:
        import serving

        started = [
            servers.enter_context(serving.Running(versions=(1, 2), kind=kind))
            for kind in (serving.FakeRecommender, serving.FakeModel)
        ]
        self._addresses = [server.address for server in started]
        page = json.loads(self._ask(0, b"GET /openapi.json HTTP/1.1\r\n", b"")[1])
        content = page["paths"][_RECOMMEND]["post"]["requestBody"]["content"]["application/json"]
        schema = {**content["schema"], "components": page["components"]}
        self._wish = jsonschema_rs.validator_for(schema)

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns requests: the first line and headers, and the body."""
        values = st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(_STRINGS),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(_NAMES), inner),
            max_leaves=12,
        )
        near = [st.tuples(st.just(path), edited(body, values, _NAMES)) for path, body in _GOOD]
        anywhere = st.tuples(st.sampled_from(_PATHS.split()), values)
        return (st.one_of(near) | anywhere).flatmap(lambda pair: _request(*pair))

    def take(self, example: Example, path: Path) -> None:
        """Sends a request, and judges the answer."""
        head = example.facts["head"].encode("latin-1")
        status, text = self._ask(example.facts["server"], head, example.content)
        require(status in (*range(200, 500), 503), f"{status} {text[:400]!r}")
        if status >= 400 and head.startswith(b"POST"):
            require(set(json.loads(text)) == {"error"}, f"{status} without a sentence: {text!r}")
        if status == 200 and _RECOMMEND in example.facts["head"]:
            body = json.loads(example.content)
            require(self._wish.is_valid(body), "took a wish that the OpenAPI page refuses")

    def _ask(self, server: int, head: bytes, body: bytes) -> tuple[int, bytes]:
        length = f"Host: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(self._addresses[server], timeout=_TIMEOUT_S) as connection:
            with contextlib.suppress(ConnectionError):  # It may answer before it has read all.
                connection.sendall(head + length.encode() + body)
            answer = http.client.HTTPResponse(connection, method=head.split()[0].decode())
            answer.begin()
            return answer.status, answer.read()


@st.composite
def _request(draw: st.DrawFn, path: str, body: Any) -> Example:
    content = draw(st.just(json.dumps(body).encode()) | broken(json.dumps(body).encode()))
    method = draw(st.sampled_from(["POST"] * 4 + ["GET", "PUT", "HEAD", "OPTIONS"]))
    if method == "GET":
        names = st.sampled_from(["prefix", "words", "item", "filter", "version", "k", "limit"])
        query = draw(st.dictionaries(names, st.text(max_size=8) | st.sampled_from(_STRINGS)))
        path, content = f"{path}?{urllib.parse.urlencode(query)}", b""
    kinds = ["application/json"] * 4 + ["text/plain", "", "application/json; charset=utf-16", "é"]
    more = ["", "", "Content-Encoding: gzip\r\n", "Range: bytes=0-1\r\n", f"X-A: {'x' * 500}\r\n"]
    kind, header = draw(st.sampled_from(kinds)), draw(st.sampled_from(more))
    head = f"{method} {path} HTTP/1.1\r\nContent-Type: {kind}\r\n{header}"
    server = 0 if "/api/" in path else draw(st.integers(0, 1))
    return Example("body", content, {"head": head, "server": server})


# --- Kernels: a call of wrong shapes or types is refused, and a right one is taken.


class Kernels:
    """Calls of the kernels through XLA, with arrays that may not fit each other."""

    _n_taken = 0

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns calls, right ones and ones with some arrays changed."""
        return _kernel_calls().map(
            lambda call: Example("call.json", json.dumps(call, indent=1).encode())
        )

    def take(self, example: Example, path: Path) -> None:
        """Calls a kernel, and compares with what is right."""
        self._n_taken += 1
        if self._n_taken % 100 == 0:
            jax.clear_caches()  # Each shape is a program, which JAX keeps.
        call = json.loads(example.content)
        error = kernel_calls.error_of(call)
        is_right = kernel_calls.is_right(call)
        require(error is None or "recsys: " in error, f"another error: {error}")
        if not any(math.prod(shape) for _, shape in call["results"]):
            return  # XLA leaves out a call without results.
        require((error is None) == is_right, f"right: {is_right}, but the kernel says {error}")


@st.composite
def _kernel_calls(draw: st.DrawFn) -> kernel_calls.Call:
    size = st.sampled_from([0, 1, 2, 3, 7, 16, 33, 100])
    sizes = {letter: draw(size) for letter in "RDBbNPn"}
    sizes["N"] += sizes["b"]
    for letter, whole in (("m", "n"), ("w", "n"), ("q", "N")):
        sizes[letter] = sizes[whole] if draw(st.booleans()) else 0
    table = draw(st.sampled_from(["float32", "bfloat16"]))
    call = kernel_calls.right_call(draw(st.sampled_from(kernel_calls.VARIANTS)), sizes, table)
    call["seed"] = draw(st.integers(0, 2**32))
    for _ in range(draw(st.integers(0, 2))):
        arrays = call[draw(st.sampled_from(["arguments", "arguments", "results"]))]
        at = draw(st.integers(0, len(arrays) - 1))
        kind = draw(st.sampled_from(["size", "size", "size", "type", "axes", "number"]))
        shape = arrays[at][1]
        if kind == "type":
            arrays[at][0] = draw(st.sampled_from(kernel_calls.TYPES))
        elif kind == "number" and len(arrays) > 1:
            arrays[:] = draw(st.sampled_from([arrays[:-1], [*arrays, arrays[at]]]))
        elif kind == "axes" or not shape:
            arrays[at][1] = draw(st.sampled_from([[], shape[:-1], [*shape, 1], shape[::-1]]))
        else:
            shape[draw(st.integers(0, len(shape) - 1))] = draw(size | st.just(1025))
    return call


CASES: dict[str, Callable[[], Any]] = {
    **{format: functools.partial(Files, format) for format in FORMATS},
    "check": Checks,
    "config": Configs,
    "kernels": Kernels,
    "server": Server,
    "streams": Streams,
}
