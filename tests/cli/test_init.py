"""`recsys init`: a folder to start from."""

import filecmp
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from recsys.cli import main
from recsys.cli.files import write_start
from recsys.config.load import default_config_path, load_config
from recsys.errors import RecsysError, UsageError


def test_the_config_is_the_shipped_one_with_its_paths_in_the_folder(tmp_path):
    write_start(tmp_path / "new")
    ours = load_config(tmp_path / "new" / "recsys.yaml").model_dump(mode="json")
    shipped = load_config(ROOT / "configs" / "movielens_small.yaml").model_dump(mode="json")
    gates = [part["data"].pop("gate") for part in (ours, shipped)]
    for first, second in (gates, [ours["data"]["interactions"], shipped["data"]["interactions"]]):
        assert first.keys() == second.keys()
    text = json.dumps(ours).replace(str(tmp_path / "new"), str(ROOT))
    assert json.loads(text) == shipped
    schemas = Path(gates[0]["schema_dir"])
    assert filecmp.cmpfiles(
        schemas, gates[1]["schema_dir"], ["items.pbtxt", "interactions.pbtxt"], shallow=False
    ) == (["items.pbtxt", "interactions.pbtxt"], [], [])
    assert json.loads((tmp_path / "new" / "schema.json").read_text())["title"] == "Config"


def test_the_data_come_with_their_licence(tmp_path):
    write_start(tmp_path)
    folder = tmp_path / "data" / "ml-latest-small"
    assert "may redistribute the data set" in (folder / "README.txt").read_text()
    assert not filecmp.dircmp(folder, ROOT / "data" / "ml-latest-small").left_only


@pytest.mark.parametrize("taken", ["recsys.yaml", "schema.json", "data", "data/ml-latest-small/x"])
def test_nothing_is_overwritten(tmp_path, taken):
    path = tmp_path / taken
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="R111"):
        write_start(tmp_path)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]
    assert path.read_text() == "mine"


@pytest.mark.parametrize("limit", [100, 100_000], ids=["of-the-config", "of-the-data"])
def test_what_cannot_be_written_whole_is_taken_away_again(tmp_path, limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # As a full disk.
    try:
        with pytest.raises((OSError, RecsysError), match="File too large"):
            write_start(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    write_start(tmp_path)


def test_a_command_without_a_config_takes_that_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "movielens_small.yaml").touch()
    assert default_config_path() == Path("configs/movielens_small.yaml")
    write_start(Path())
    assert default_config_path() == Path("recsys.yaml")


_COMMANDS = [
    "run",
    "train --data d --out o",
    "export --model m --data d --out o",
    "tune --data d",
    "runs",
    "clean",
    "forget somebody",
    "plan --devices 2",
    "serve",
    "freeze-schema --out o",
    "simulate-nights --out o",
]


@pytest.mark.parametrize("words", _COMMANDS)
def test_a_folder_without_a_config_has_none(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert re.search(r"R101.*tmp.*Name a config.*recsys init", capsys.readouterr().err, re.DOTALL)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_comes_next(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "recsys", "init", "mine"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].endswith("cd mine && recsys run")
    assert (tmp_path / "mine" / "recsys.yaml").exists()
