"""The raw files of a config are looked at before the work starts."""

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from recsys.config import Config
from recsys.config.load import load_config
from recsys.data.ingest.window import check_sources
from recsys.data.interactions import interaction_columns
from recsys.errors import RecsysError

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
