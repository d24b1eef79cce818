"""Files of data: what is read of them is compared with what is known of them."""

from __future__ import annotations

import contextlib
import copy
import csv
import functools
import gzip
import http.client
import io
import json
import math
import random
import re
import socket
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema_rs
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import strategies as st

from benchmarks.fuzz_worker import CRASH, Example, Finding, broken, require, require_harmless
from recsys.cli import main
from recsys.config import Config, InteractionsConfig
from recsys.config.load import default_config_path, load_config
from recsys.data.dead_letters import count_reasons
from recsys.data.interactions import drop_duplicates, interaction_columns, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.errors import ConfigError, RecsysError

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
    damaged: dict[str, int] = {}
    if format == "csv" and draw(st.booleans()):
        csv_format = _write_dialect(path, rows, random.Random(seed))
    elif format == "csv":
        rows, damaged = rows_of.write_csv(path, rows, seed, with_open_quote=False)
    elif format == "jsonl":
        damaged = rows_of.write_jsonl(path, rows, seed)
    else:
        {"parquet": _write_parquet, "tfrecord": _write_tfrecord}[format](path, rows, seed)
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


def _write_parquet(path: Path, rows: Any, seed: int) -> None:
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate("uitrw")})
    compression = ("none", "snappy", "zstd", "gzip")[seed % 4]
    pq.write_table(table, path, row_group_size=1 + seed % 50, compression=compression)


def _write_tfrecord(path: Path, rows: Any, _: int) -> None:
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
        require(exit_code in (0, 1, 2), f"exit code {exit_code}: {errors}")
        require(bool(output or errors), "it said nothing")
        require(config.exists() or exit_code != 0, "exit code 0 and no config")
        if config.exists():
            config.unlink()
            _, output, _ = _run([*words, "--json"])
            _compare(json.loads(output), path, config)


def _compare(promised: dict[str, int], path: Path, config: Path) -> None:
    """Compares what was promised with what a run reads."""
    interactions = load_config(config).data.interactions
    try:
        reading = Reading(path, interactions, 64 << 20, int(time.time()))
    except RecsysError as error:
        require(False, f"a run refuses what `check` took: {error}")
        return
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
    if "[R900]" in err.getvalue():
        raise Finding(CRASH, err.getvalue().strip())
    return exit_code, out.getvalue(), err.getvalue()


# --- Configs: what the JSON schema refuses must be refused, and always by a sentence.


_VALUES: list[Any] = [
    None, True, 0, 1, -1, 3, 0.5, 1e308, math.inf, -math.inf, math.nan, 2**63, 10**30, "", "x", "1",
    "time", "\x1b[31m", [], {}, [1], ["a", "a"], [[]], {"a": 1}, {"": None}, "*" * 2000,
]  # fmt: skip
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
_TEXTS = [_BOMB, "[" * 5000, "{a: " * 2000, "a: !!int abc", "a: 2024-99-99", "name: &a [*a]", "\0"]


class Configs:
    """Configs with one known mistake, and broken texts."""

    def __init__(self) -> None:
        self._whole = load_config(default_config_path()).model_dump(mode="json")
        self._text = default_config_path().read_text()
        self._schema = jsonschema_rs.validator_for(Config.model_json_schema())

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns config files."""
        texts = st.sampled_from([self._text, yaml.safe_dump(self._whole), *_TEXTS])
        return _edited(self._whole, self._schema) | texts.flatmap(
            lambda text: broken(text.encode())
        ).map(lambda content: Example("config.yaml", content))

    def take(self, example: Example, path: Path) -> None:
        """Loads a config; one that is taken must fit the schema, and its edits too."""
        try:
            config = load_config(path)
        except ConfigError as error:
            require_harmless(str(error))
            return
        require("is_wrong" not in example.facts, "took a config that is wrong")
        values = config.model_dump(mode="json")
        require(all(map(math.isfinite, _numbers(values))), "took a number that is not finite")
        require(self._schema.is_valid(values), "took what the schema refuses")


@st.composite
def _edited(draw: st.DrawFn, whole: dict[str, Any], schema: Any) -> Example:
    """Returns a config with values and keys that are other ones, and whether it is wrong."""
    edited = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = draw(st.sampled_from(list(_places(edited))))
        key = draw(st.sampled_from(_keys(place)))
        if isinstance(place, dict) and draw(st.integers(0, 3)) == 0:
            key = draw(st.sampled_from(["unknown", "Name", "name ", "__class__", "\x1b[31m"]))
        if isinstance(place, dict) and draw(st.integers(0, 5)) == 0:
            place.pop(key, None)
        else:
            place[key] = copy.deepcopy(draw(st.sampled_from(_VALUES)))
    # What the schema takes may break a rule between keys: only the other half is known.
    facts = {} if _is_valid(schema, edited) else {"is_wrong": True}
    return Example("config.yaml", yaml.safe_dump(edited, allow_unicode=True).encode(), facts)


def _is_valid(schema: Any, values: Any) -> bool:
    if not all(map(math.isfinite, _numbers(values))):
        return False
    return bool(schema.is_valid(json.loads(json.dumps(values))))


def _places(value: Any) -> Iterator[Any]:
    """Yields every map and list that holds something."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _places(inner)


def _keys(place: Any) -> list[Any]:
    return list(place) if isinstance(place, dict) else list(range(len(place)))


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, float):
        yield value


# --- Requests of a server whose models are stand-ins: as bytes, and by its OpenAPI page.


_TIMEOUT_S = 60.0
_RECOMMEND = "/api/recommend"
_NAMES = [
    "instances", "inputs", "signature_name", "x", "b64", "user_id", "history", "exclude_seen",
    "exclude_ids", "only_genre", "country", "user", "items", "exclude", "only", "genre", "k",
    "version", "self", "signature", "__class__", "", "\ud83d\ude00", "\0",
]  # fmt: skip
_TEXTS = ["", "u1", "i1", "noir", "recommend", "recommend_filtered", "serving_default", "total",
          "named", "x" * 2000, "\x1b[31m", "AAAA", "\0", "%00"]  # fmt: skip
_PATHS = [
    "/v1/models/m:predict", "/v1/models/m/versions/1:predict", "/v1/models/m/versions/9:predict",
    "/v1/models/x:predict", "/v1/models/m/versions/99999999999999999999:predict",
    "/v1/models/m", "/v1/models/m/metadata", _RECOMMEND, "/api/about", "/healthz", "/metrics",
    "/api/users", "/api/items", "/api/similar", "/api/tokens", "/", "/static/page.js",
    "/openapi.json",
]  # fmt: skip
_GOOD = [
    (_PATHS[0], {"signature_name": "recommend", "instances": [
        {"user_id": "u1", "history": [""], "exclude_seen": True, "country": [""]}]}),
    (_RECOMMEND, {"user": "u1", "k": 3, "only": {"genre": ["noir"]}, "exclude": ["i1"]}),
    (_RECOMMEND, {"items": ["i1", "i2"], "exclude_seen": False, "version": 1}),
]  # fmt: skip


class Server:
    """Requests that are made by hand: names, bytes, depths and lengths that nobody expects."""

    def __init__(self) -> None:
        serving = import_module("serving")
        stack = contextlib.ExitStack()
        running = [
            stack.enter_context(serving.Running(versions=(1, 2), kind=kind))
            for kind in (serving.FakeRecommender, serving.FakeModel)
        ]
        self._stack = stack
        self._addresses = [server.address for server in running]
        page = json.loads(self._ask(0, b"GET /openapi.json HTTP/1.1\r\n", b"")[1])
        self._wish = jsonschema_rs.validator_for(_schema_of(page, _RECOMMEND))

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns requests: the first line and headers, and the body."""
        values = st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(_TEXTS),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4)
            ),
            max_leaves=12,
        )
        bodies = st.dictionaries(st.sampled_from(_NAMES), values, max_size=5)
        made = st.tuples(st.sampled_from(_PATHS), bodies) | _near(values)
        return made.flatmap(lambda pair: _request(*pair))

    def take(self, example: Example, path: Path) -> None:
        """Sends a request, and judges the answer."""
        head = example.facts["head"].encode("latin-1")
        status, text = self._ask(example.facts["server"], head, example.content)
        if status == 500 or status not in (*range(200, 500), 503):
            raise Finding(CRASH, f"{status} {text[:400]!r}")
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


def _schema_of(page: dict[str, Any], path: str) -> dict[str, Any]:
    content = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return {**content["schema"], "components": page["components"]}


@st.composite
def _near(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[str, Any]:
    """Returns a good request, one of whose values is another."""
    path, body = draw(st.sampled_from(_GOOD))
    body = json.loads(json.dumps(body))
    inner = body["instances"][0] if "instances" in body else body
    inner[draw(st.sampled_from([*inner, *_NAMES]))] = draw(values)
    return path, body


@st.composite
def _request(draw: st.DrawFn, path: str, body: Any) -> Example:
    content = json.dumps(body).encode()
    if draw(st.integers(0, 2)) == 0:
        content = draw(broken(content))
    method = draw(st.sampled_from(["POST"] * 4 + ["GET", "PUT", "HEAD", "OPTIONS"]))
    if method == "GET":
        names = st.sampled_from(["prefix", "words", "item", "filter", "version", "k", "limit"])
        texts = st.text("aiu1%+&=é\0\x7f", max_size=8) | st.sampled_from(_TEXTS)
        query = draw(st.dictionaries(names, texts, max_size=3))
        path += "?" + "&".join(f"{name}={_quoted(text)}" for name, text in query.items())
        content = b""
    kinds = ["application/json"] * 4 + ["text/plain", "", "application/json; charset=utf-16", "é"]
    head = f"{method} {path} HTTP/1.1\r\nContent-Type: {draw(st.sampled_from(kinds))}\r\n"
    if draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(["Content-Encoding", "Accept", "Origin", "X-A", "Range"]))
        head += f"{name}: {draw(st.sampled_from(['gzip', 'x' * 500, 'é', '', 'bytes=0-1']))}\r\n"
    server = 0 if "/api/" in path else draw(st.integers(0, 1))
    return Example("body", content, {"head": head, "server": server})


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


class Api:
    """Requests that schemathesis makes of the OpenAPI page: fitting ones, and ones that don't."""

    def __init__(self) -> None:
        import schemathesis
        from schemathesis.checks import CHECKS

        serving = import_module("serving")
        self._stack = contextlib.ExitStack()
        running = self._stack.enter_context(
            serving.Running(versions=(1, 2), kind=serving.FakeRecommender)
        )
        self._page = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
        self._modes = list(schemathesis.GenerationMode)
        # The page can't say what a signature takes: valid requests may be refused.
        self._without = CHECKS.get_by_names(["positive_data_acceptance"])

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns requests of every route."""
        routes: list[Any] = [result.ok() for result in self._page.get_all_operations()]  # type: ignore[union-attr]
        cases: list[st.SearchStrategy[Any]] = [
            route.as_strategy(generation_mode=mode) for route in routes for mode in self._modes
        ]
        return st.one_of(cases).map(lambda case: Example("request.txt", _curl(case), {}, case))

    def take(self, example: Example, path: Path) -> None:
        """Sends a request, and holds the answer to the page."""
        from schemathesis.core.failures import Failure, FailureGroup

        try:
            answer = example.live.call(timeout=_TIMEOUT_S)
            example.live.validate_response(answer, excluded_checks=self._without)
        except (Failure, FailureGroup) as failure:
            failures = getattr(failure, "exceptions", [failure])
            texts = [f"{failed.title}: {failed.message}" for failed in failures]
            is_crash = any("server error" in text.lower() for text in texts)
            require(is_crash, "; ".join(texts))
            raise Finding(CRASH, "; ".join(texts)) from None


def _curl(case: Any) -> bytes:
    try:
        return str(case.as_curl_command()).encode("utf-8", "replace")
    except ValueError as error:
        return f"{case!r} {error}".encode("utf-8", "replace")
