"""The command line: what is quick, what goes where, and how it exits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from commands import run_main, small_config
from places import ROOT

from recsys import __version__, cli
from recsys.cli.serving import serving_folder
from recsys.config.load import load_config
from recsys.errors import UsageError

HEAVY = [
    "apache_beam", "grain", "jax", "keras", "numpy", "pandas", "pyarrow",
    "pydantic", "tensorflow", "tfx", "yaml",
]  # fmt: skip


def python(program, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    # Typer itself takes pydantic for the options of a command.
    [(["--help"], []), (["--version"], ["pydantic"]), (["run", "--help"], ["pydantic"])],
)
def test_the_command_line_answers_without_a_heavy_import(arguments, allowed):
    done = python(
        "import sys\n"
        "from recsys.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules and m not in {allowed!r}])",
        *arguments,
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


@pytest.mark.parametrize(
    "words", [("s3://b/x", "--out", "v"), ("--out", "gs://b/x")], ids=["argument", "option"]
)
def test_a_path_on_the_command_line_is_no_url(words, capsys):
    assert run_main("publish-vectors", *words) == 2
    assert "[R625]" in capsys.readouterr().err


def test_both_ways_in_print_the_version():
    script = Path(sys.executable).with_name("recsys")
    for words in ([str(script)], [sys.executable, "-m", "recsys"]):
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"{__version__}\n"


def test_help_lists_the_commands_of_the_page(capsys):
    assert run_main("--help") == 0
    listed = re.findall(r"^│ (\w[\w-]*) {2,}", capsys.readouterr().out, flags=re.MULTILINE)
    page = (ROOT / "docs" / "cli.md").read_text()
    assert listed == re.findall(r"^## recsys ([\w-]+)$", page, flags=re.MULTILINE)


def test_the_page_names_every_option():
    page = (ROOT / "docs" / "cli.md").read_text()
    sections = dict(
        re.findall(r"^## recsys ([\w-]+)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    )
    for command in typer.main.get_command(cli.app).commands.values():
        for parameter in command.params:
            for name in parameter.opts:
                if name.startswith("-"):
                    assert f"`{name}" in sections[command.name], f"{command.name} {name}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["run", "--bogus"],
        ["recommend"],
        ["recommend", "--user", "1", "-k", "0"],
        ["synth", "--users", "x"],
        ["run", "no-such-file.yaml"],
        ["run", "--set", "train.epochs=0"],
        ["train", "--data", "x", "--out", "y", "--set", "nonsense"],
    ],
    ids=" ".join,
)
def test_invalid_options_exit_with_2_and_print_only_on_stderr(arguments, capsys):
    assert run_main(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip()
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("url", ["hdfs://host/a", "file:///tmp/a", "s3://"])
@pytest.mark.parametrize(
    "command",
    [
        ("run", "CONFIG", "--set", "root={}"),
        ("clean", "CONFIG", "--set", "root={}"),
        ("tune", "CONFIG", "--data", "none", "--set", "root={}"),
        ("runs", "--root", "{}"),
        ("rollback", "--root", "{}"),
    ],
    ids=lambda words: words[0],
)
def test_a_root_that_is_a_url_is_refused_and_no_folder_is_made(
    command, url, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    config = str(ROOT / "configs" / "movielens_small.yaml")
    assert run_main(*(word.replace("CONFIG", config).format(url) for word in command)) == 2
    assert "[R112]" in (told := capsys.readouterr().err)
    assert url in told
    assert not [*tmp_path.iterdir()]


def test_an_unforeseen_error_is_one_sentence_and_its_traceback_a_file(capsys, monkeypatch):
    def boom(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("recsys.config.Config.model_json_schema", boom)
    assert run_main("schema") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("[R900] ")
    assert "planted" in line
    log = Path(re.search(r"(/\S+\.log)", line)[1])
    assert "Traceback" in log.read_text()
    assert "ZeroDivisionError: planted" in log.read_text()
    log.unlink()


def test_synth_writes_data_with_a_config_that_loads(capsys, tmp_path):
    out = tmp_path / "data"
    sizes = ["--users", "50", "--items", "60", "--interactions", "200"]
    assert run_main("synth", *sizes, "--out", str(out)) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["n_interactions"] == 200
    config = load_config(Path(summary["config"]))
    assert config.data.interactions.files == summary["interactions"]


def test_a_stage_that_fails_ends_the_command_with_its_own_error(capfd, tmp_path):
    config = small_config(tmp_path)
    folders = ["--data", str(tmp_path / "nothing"), "--out", str(tmp_path / "model")]
    assert run_main("train", "--config", str(config), *folders) == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    log, sentence = printed.err.splitlines()
    assert log.startswith("Log: ")
    assert sentence.startswith("[R220] ")
    Path(log.removeprefix("Log: ")).unlink()


def test_a_folder_that_cannot_be_made_is_reported_in_one_sentence(capfd, tmp_path):
    sizes = ["--users", "50", "--items", "60", "--interactions", "200"]
    (tmp_path / "file").touch()
    assert run_main("synth", *sizes, "--out", str(tmp_path / "file" / "x")) == 1
    [sentence] = capfd.readouterr().err.splitlines()
    assert sentence.startswith("[R603] ")


def test_the_stages_run_under_the_backend_that_they_need(monkeypatch, capsys, tmp_path):
    started, tunes = [], []
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)

    def record(module, arguments, environment, log):
        config = load_config(Path(arguments[arguments.index("--config") + 1]))
        started.append((module, environment["KERAS_BACKEND"], config.train.epochs))
        tunes.append("MALLOC_TRIM_THRESHOLD_" in environment)
        return {"out": "x"}

    monkeypatch.setattr("recsys.system.process.run_stage", record)
    common = ["--config", str(small_config(tmp_path)), "--set", "train.epochs=3", "--out", "o"]
    assert run_main("train", "--data", "d", *common) == 0
    assert run_main("export", "--data", "d", "--model", "m", *common) == 0
    assert started == [
        ("recsys.stages.train", "jax", 3),
        ("recsys.stages.export", "tensorflow", 3),
    ]
    assert tunes == [True, False]
    assert capsys.readouterr().out == '{"out": "x"}\n' * 2


def test_recommend_looks_under_the_root_of_the_config_or_the_given_one(tmp_path):
    config = small_config(tmp_path)
    assert serving_folder(config, None) == tmp_path / "runs" / "serving" / "small"
    assert serving_folder(config, tmp_path / "r") == tmp_path / "r" / "serving" / "small"


def test_a_root_without_a_model_name_must_hold_one_model(tmp_path):
    with pytest.raises(UsageError, match="R904"):
        serving_folder(None, tmp_path)
    (tmp_path / "serving" / "one").mkdir(parents=True)
    (tmp_path / "serving" / ".hidden").mkdir()
    assert serving_folder(None, tmp_path) == tmp_path / "serving" / "one"
    (tmp_path / "serving" / "two").mkdir()
    with pytest.raises(UsageError, match="'one', 'two'"):
        serving_folder(None, tmp_path)


def test_the_process_that_starts_others_imports_neither_jax_nor_keras(tmp_path):
    config = small_config(tmp_path)
    (tmp_path / "plugin.py").write_text("import os\nprint(os.environ['KERAS_BACKEND'])\n")
    config.write_text(f"{config.read_text()}plugins: [plugin]\n")
    done = python(
        "import os, sys\n"
        "del os.environ['KERAS_BACKEND']\n"  # A plugin that imports Keras gets JAX even so.
        "from recsys.distributed import local\n"
        "local.launch = lambda *words: print(words[0], words[2], words[3]) or {}\n"
        "from recsys.stages.train import main\n"
        "main(sys.argv[1:])\n"
        "print([m for m in ('jax', 'keras', 'tensorflow') if m in sys.modules])",
        *("--config", str(config), "--data", "d", "--out", "o", "--processes", "3"),
        KERAS_BACKEND="",
        PYTHONPATH=str(tmp_path),
    )
    launched = f"recsys.stages.train 3 {Path.cwd() / 'checkpoints'}"
    assert done.stdout.splitlines() == ["jax", launched, "[]"]


def test_the_core_imports_neither_tensorflow_nor_tfx():
    done = python(
        "import sys, recsys.config, recsys.data.store, recsys.data.catalogue, recsys.stages.train,"
        " recsys.stages.evaluate\n"
        "print([m for m in ('tensorflow', 'tfx', 'apache_beam') if m in sys.modules])",
        KERAS_BACKEND="jax",
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_stage_that_is_stopped_before_it_can_save_says_so(tmp_path):
    module = tmp_path / "sleeper.py"
    module.write_text("import time\nprint('started', flush=True)\ntime.sleep(60)\n")
    script = (
        "from recsys.system.process import run_stage\n"
        "from recsys.errors import RecsysError\n"
        "import os, signal, threading, time\n"
        "def stop():\n    time.sleep(1)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=stop).start()\n"
        "try:\n    run_stage('sleeper', [], {})\n"
        "except RecsysError as error:\n    print(error.code, error.received)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["R611", "'SIGTERM'"]
