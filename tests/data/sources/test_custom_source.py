"""A source of one's own reads rows as the built-in ones do: pieces, columns, dead letters."""

import importlib.util
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from places import ROOT

from recsys.config import Config, SourceConfig
from recsys.config.load import load_config
from recsys.data.dead_letters import dead_letters
from recsys.data.ingest.spans import check_sources
from recsys.data.interactions import interaction_columns
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.text_source import TextSource
from recsys.errors import RecsysError
from recsys.registry import register_source

_PATH = ROOT / "examples" / "custom_source.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("custom_source_example", _PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Workers look the class up by its module.
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as shop:
        shop.execute("CREATE TABLE clicks (who TEXT, what INTEGER)")
        shop.executemany("INSERT INTO clicks VALUES (?, ?)", [(f"u{n}", n) for n in range(250)])
    return path


def batches_of(path, columns, **config):
    pieces = plan_pieces(SourceConfig(files=str(path), **config), "interactions", columns)
    return pieces, [batch for piece in pieces for batch in read_piece(piece)]


def test_a_table_is_read_in_pieces_with_the_numbers_of_its_rows(example, database, monkeypatch):
    monkeypatch.setattr(example, "ROWS", 100)
    config = {"format": {"type": "sqlite", "table": "clicks"}}
    pieces, batches = batches_of(database, ["what", "who"], **config)
    assert len(pieces) == 3
    assert np.concatenate([batch.position for batch in batches]).tolist() == list(range(1, 251))
    assert batches[2].columns.to_pylist()[0] == {"what": "200", "who": "u200"}
    letters = batches[2].reject(pa.array([True] + [False] * 49), ["bad"]).to_pylist()
    assert letters == [{"reason": "bad", "file": str(database), "line": 201,
                        "row": '{"what": "200", "who": "u200"}'}]  # fmt: skip


def test_a_column_that_it_lacks_and_an_option_that_it_has_not_are_refused(example, database):
    with pytest.raises(RecsysError, match=r"R203.*'when'.*'who', 'what'"):
        batches_of(database, ["when"], format={"type": "sqlite", "table": "clicks"})
    with pytest.raises(ValueError, match="view"):
        SourceConfig(files=str(database), format={"type": "sqlite", "view": "clicks"})
    with pytest.raises(ValueError, match="registered by a module in `plugins`"):
        SourceConfig(files=str(database), format="no_such_source")


def test_options_survive_the_config_of_a_stage(example):
    config = SourceConfig(files="x.db", format={"type": "sqlite", "table": "clicks"})
    assert SourceConfig.model_validate_json(config.model_dump_json()) == config


def test_csv_takes_its_options_in_either_place_and_not_in_both(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text("a;b\n1;2\n")
    for config in ({"format": {"type": "csv", "delimiter": ";"}}, {"csv": {"delimiter": ";"}}):
        _, (batch,) = batches_of(path, ["b"], **config)
        assert batch.columns.to_pylist() == [{"b": "2"}]
    with pytest.raises(ValueError, match="format or csv"):
        SourceConfig(files="x", format={"type": "csv", "quote": None}, csv={"delimiter": ";"})


@pytest.mark.pipeline
def test_ingest_reads_it_like_any_other(example):
    facts = example.main()
    assert facts["interactions"]["read"] == 1001
    assert facts["interactions"]["by_reason"] == {"empty user id": 1}


# --- a format of lines


@register_source("access_log")
class AccessLog(TextSource):
    """Web server logs in the common format."""

    title = "an access log"
    extensions = (".access",)

    def column_names(self, file):
        return ["host", "time", "path"]

    def parse(self, piece, rows):
        texts = [row.decode("utf-8", "replace") for row in rows.raw(np.arange(len(rows)))]
        lines = [re.match(r'(?P<host>\S+) \S+ \S+ \[(?P<time>.*?)\] "GET (?P<path>\S+)', text)
                 for text in texts]  # fmt: skip
        good = np.array([line is not None for line in lines])
        columns = [pa.array([line[name] for line in lines if line], pa.string())
                   for name in piece.columns]  # fmt: skip
        bad = rows.take(~good)
        letters = dead_letters(["no line of a log"] * len(bad), piece.file, bad.line,
                               bad.raw(np.arange(len(bad))))  # fmt: skip
        batch = pa.RecordBatch.from_arrays(columns, names=list(piece.columns))
        return RawBatch(piece.file, batch, rows.line[good], letters, rows.take(good).raw)


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_a_format_of_lines_needs_to_know_no_more_than_lines(tmp_path, piece_bytes):
    path = tmp_path / "web.access"
    line = 'h{0} - - [10/Oct/2023:13:55:36 +0000] "GET /item/{0} HTTP/1.1" 200 1'
    path.write_text("\n".join([line.format(1), "damage", line.format(2), ""]))
    pieces = plan_pieces(SourceConfig(files=str(path)), "interactions", ["path"], piece_bytes)
    batches = [batch for piece in pieces for batch in read_piece(piece)]
    assert [row["path"] for b in batches for row in b.columns.to_pylist()] == ["/item/1", "/item/2"]
    assert [number for batch in batches for number in batch.position.tolist()] == [1, 3]
    letters = [letter for batch in batches for letter in batch.rejected.to_pylist()]
    assert [(letter["line"], letter["row"]) for letter in letters] == [(2, "damage")]


# --- checks of a source


_GOOD = {"files/r.csv": "u,i,t\na,x,100000000\n", "files/i.csv": "i,title,genre\nx,X,g\n"}


def _config(folder: Path, files: dict[str, bytes]) -> Config:
    (folder / "files").mkdir()
    for name, content in {**{k: v.encode() for k, v in _GOOD.items()}, **files}.items():
        (folder / name).write_bytes(content)
    (folder / "c.yaml").write_text(
        """
name: tiny
root: root
data:
  interactions: {files: files/r.csv, columns: {user: u, item: i, timestamp: t}}
  items:
    files: files/i.csv
    columns: {item: i, title: title}
    features: [{name: genre, column: genre, kind: categories}]
"""
    )
    return load_config(folder / "c.yaml")


def test_good_sources_pass_and_a_rating_is_a_column_only_where_it_is_named(tmp_path: Path) -> None:
    config = _config(tmp_path, {})
    check_sources(config.data)
    assert interaction_columns(config.data.interactions) == ["u", "i", "t"]


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        ({"files/r.csv": b""}, "R202", "r.csv"),
        ({"files/r.csv": b"%PDF-1.4\n%\xe2\xe3\n"}, "R204", "a PDF file"),
        ({"files/r.csv": b"u,i\na,x\n"}, "R203", "'t'"),
        ({"files/i.csv": b"i,title\nx,X\n"}, "R203", "'genre'"),
        ({"files/i.csv": b"i,title,genre\n"}, "R202", "i.csv"),
    ],
)
def test_a_bad_source_is_reported(
    tmp_path: Path, files: dict[str, bytes], code: str, words: str
) -> None:
    config = _config(tmp_path, files)
    with pytest.raises(RecsysError) as raised:
        check_sources(config.data)
    assert raised.value.code == code
    assert words in str(raised.value)


def test_the_runner_reports_a_bad_source_before_it_imports_tfx(tmp_path: Path) -> None:
    _config(tmp_path, {"files/r.csv": b""})
    code = (
        "import sys; sys.modules['tfx'] = None; sys.argv[1:] = ['c.yaml']\n"
        "from pipelines.local_runner import main; sys.exit(main())"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr[:6]) == (1, "[R202]")
