"""`recsys plan`: where rows come from, what is printed, and how it exits."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import keras  # noqa: F401  as other tests need it, before the command imports its own
import numpy as np
import pyarrow as pa
import pytest
from commands import run_main

import recsys.plan.plan
from benchmarks.stores import save_catalogue
from recsys.cli.plan import parse_bytes
from recsys.config.load import default_config_path, load_config
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError, UsageError
from recsys.plan.table_rows import count_raw, find_rows, parse_rows

ALL = ["--rows", "users=1e9", "--rows", "items=1e8", "--rows", "tags=1000"]


@pytest.fixture(autouse=True)
def no_width_of_a_terminal(monkeypatch):
    """The environment of the tests may set the width of the terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True, scope="module")
def equal_steps_compile_once():
    """Several tests plan the same step; what is printed of a plan doesn't change it."""
    make_plan, made = recsys.plan.plan.make_plan, {}

    def make_once(config, rows, devices):
        without_folders = re.sub(r'"/[^"]*/', '"', config.model_dump_json())
        key = (without_folders, repr(rows), devices)
        if key not in made:
            made[key] = make_plan(config, rows, devices)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.plan.plan.make_plan", make_once)
        yield


def plan(*arguments):
    """Runs the command in this process and returns its exit code."""
    return run_main("plan", *arguments)


@pytest.fixture
def config(tmp_path):
    """Returns the path of a config with small raw files."""
    (tmp_path / "events.csv").write_text(
        'u,i,t\nann,x,1\nbob,y,2\nann ,y,3\n"cy, d",z,4\n,x,5\nbob,new,6\ntorn\n'
    )
    (tmp_path / "items.csv").write_text(
        "i,name,tags\nx,The Cat,a|b\ny,the DOG!,b| c |\nz,,\nz,Cat,a\nunseen,cat-dog,\n"
    )
    path = tmp_path / "config.yaml"
    path.write_text(
        "name: small\n"
        "root: runs\n"
        "data:\n"
        "  interactions: {files: events.csv, columns: {user: u, item: i, timestamp: t}}\n"
        "  items:\n"
        "    files: items.csv\n"
        "    columns: {item: i, title: name}\n"
        "    features: [{name: tags, column: tags, kind: categories, max_tokens: 4}]\n"
        "model: {}\n"
        "train: {batch_size: 64, uniform_negatives: 64}\n"
    )
    return path


def test_a_config_without_a_model_is_planned_with_that_of_its_data(config, tmp_path, capsys):
    text = config.read_text().replace("model: {}\n", "")
    config.write_text(text)
    assert plan(str(config), "--json") == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    # Few events a user: no rows of users.
    assert {table["table"] for table in tables} == {"items", "tags"}
    config.write_text(text.replace(", timestamp: t", "") + "  # none\n")
    assert plan(str(config), "--set", "data.split=random", "--json") == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert {table["table"] for table in tables} == {"items", "item_bias", "tags"}


def write_data(folder, users=3, items=5, name="tags", rows=7, width=4):
    """Writes the parts of a data folder that a plan reads."""
    (folder / "vocabulary").mkdir(parents=True)
    for side, n in (("users", users), ("items", items)):
        ids = pa.array([str(i) for i in range(n)])
        Vocabulary(ids, np.ones(n, np.int64)).save(folder / "vocabulary" / f"{side}.parquet")
    bags = FeatureBags(name, rows, np.zeros((items + 1, width), np.int32))
    ids = [str(i) for i in range(items + 1)]
    save_catalogue(Catalogue(ids, ids, (bags,)), folder / "catalogue")
    return folder


# --- where rows come from


def test_rows_are_counted_in_the_raw_files_where_there_is_no_run(config):
    found = find_rows(load_config(config), {})
    # ann, bob, "cy, d"; x, y, z, new, unseen; a, b, c; each with row 0.
    assert dict(found.rows) == {"users": 4, "items": 6, "tags": 4}
    assert [(f.name, f.side, f.width) for f in found.features] == [("tags", "item", 4)]
    assert "counted in the raw files" in found.source


def test_words_count_from_their_least_number_on(config):
    text = config.read_text().replace("kind: categories", "kind: words, min_count: 2")
    config.write_text(text.replace("column: tags", "column: name"))
    # cat 3 times, the and dog twice; z, without a title, has its id.
    assert find_rows(load_config(config), {}).rows["tags"] == 4


def test_the_shipped_data_are_counted_as_python_counts_them():
    data = load_config(default_config_path()).data
    with Path(data.interactions.files).open(newline="") as file:
        events = list(csv.DictReader(file))
    with Path(data.items.files).open(newline="") as file:
        movies = list(csv.DictReader(file))
    words = Counter(w for m in movies for w in re.findall(r"\w+", m["title"].lower()))
    assert count_raw(data)[0] == {
        "users": len({e["userId"] for e in events}),
        "items": len({m["movieId"] for m in movies} | {e["movieId"] for e in events}),
        "genres": len({g for m in movies for g in m["genres"].split("|")}),
        "title_words": sum(n >= 3 for n in words.values()),
    }


def write_spans(config, tmp_path, **files):
    """Makes the interactions files of spans, and returns the overrides that say so."""
    rows = Path(load_config(config).data.interactions.files).read_text().splitlines()
    for number, (day, text) in enumerate(files.items()):
        lines = rows if text == "whole" else [rows[0]] if text == "empty" else [text]
        if text == "part":
            lines = [rows[0], rows[1 + number]]
        (tmp_path / f"2026-01-{day[1:]}.csv").write_text("\n".join(lines) + "\n")
    return [f"data.interactions.files={tmp_path}/{{YYYY}}-{{MM}}-{{DD}}.csv"]


def test_empty_and_broken_spans_count_as_in_a_run(config, tmp_path):
    whole, n_rows, _ = count_raw(load_config(config).data)
    spans = write_spans(config, tmp_path, _01="whole", _02="empty", _03="a,b", _04="part")
    with pytest.raises(RecsysError, match=r"R203.*2026-01-03"):
        count_raw(load_config(config, spans).data)
    spans += ["data.interactions.bad_spans=set_aside"]
    assert count_raw(load_config(config, spans).data) == (
        whole,
        n_rows + 1,  # That of the part is there twice.
        ["2026-01-03"],
    )
    assert (
        "the broken spans 2026-01-03 are left out"
        in find_rows(load_config(config, spans), {}).source
    )


def test_spans_that_hold_nothing_at_all_are_an_error(config, tmp_path):
    spans = write_spans(config, tmp_path, _01="empty", _02="a,b")
    spans += ["data.interactions.bad_spans=set_aside"]
    with pytest.raises(RecsysError, match=r"R203.*2026-01-02"):
        count_raw(load_config(config, spans).data)


def test_a_data_folder_goes_before_the_last_run_and_that_before_the_raw_files(config, tmp_path):
    runs = tmp_path / "runs" / "artifacts" / "InteractionEncoder" / "data"
    write_data(runs / "9", users=8)
    newest = write_data(runs / "10", users=20, items=30, rows=40)
    found = find_rows(load_config(config), {})
    assert dict(found.rows) == {"users": 21, "items": 31, "tags": 40}
    assert found.source == f"from the last run, {newest}"
    own = write_data(tmp_path / "own", users=100)
    found = find_rows(load_config(config), {"items": 77}, own)
    assert dict(found.rows) == {"users": 101, "items": 77, "tags": 7}
    assert found.source == f"items as given; others from {own}"


def test_a_run_that_was_stopped_or_had_other_features_is_passed_over(config, tmp_path):
    runs = tmp_path / "runs" / "artifacts" / "InteractionEncoder" / "data"
    write_data(runs / "1", users=8)
    (write_data(runs / "2") / "catalogue" / "features.json").unlink()
    write_data(runs / "3", name="other")
    write_data(runs / "4", width=9)
    known = find_rows(load_config(config), {})
    assert known.rows["users"] == 9
    assert {side: len(counts) for side, counts in known.counts.items()} == {
        side: known.rows[side] for side in ("users", "items")
    }
    shutil.rmtree(runs / "1")
    assert "raw files" in find_rows(load_config(config), {}).source


def test_nothing_is_read_where_all_rows_are_given(config, tmp_path):
    (tmp_path / "events.csv").unlink()
    found = find_rows(load_config(config), {"tags": 1, "items": 2, "users": 3})
    assert list(found.rows.items()) == [("users", 3), ("items", 2), ("tags", 1)]
    assert found.source == "as given"


def test_without_files_the_error_says_that_rows_can_be_given(config, tmp_path):
    (tmp_path / "events.csv").unlink()
    with pytest.raises(RecsysError, match=r"\[R201\] .*no such file.* --rows users=N"):
        find_rows(load_config(config), {"users": 3})


def test_what_a_query_returns_is_not_counted(config):
    query = "{type: sql, driver: sqlite, query: SELECT 1}"
    asked = ["data.interactions.files=[]", f"data.interactions.format={query}"]
    with pytest.raises(RecsysError, match=r"\[R257\] .* --rows users=N"):
        find_rows(load_config(config, asked), {})


def test_a_folder_that_holds_no_data_is_refused(config, tmp_path):
    with pytest.raises(RecsysError, match="R372"):
        find_rows(load_config(config), {}, tmp_path)
    damaged = write_data(tmp_path / "damaged")
    (damaged / "vocabulary" / "users.parquet").write_bytes(b"PAR1")
    with pytest.raises(RecsysError, match="R372"):
        find_rows(load_config(config), {}, damaged)


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ([], {}),
        (["users=1e8", "items=20"], {"users": 10**8, "items": 20}),
        (["users=1_000", "users=5"], {"users": 5}),
        (["users=2147483647"], {"users": 2**31 - 1}),
    ],
)
def test_rows_are_whole_numbers_in_any_form(words, rows):
    assert parse_rows(words) == rows


@pytest.mark.parametrize(
    "word",
    ["users", "=5", "users=", "users=x", "users=0", "users=1.5", "users=2147483648", "users=nan"],
)
def test_other_rows_are_refused(word):
    with pytest.raises(UsageError, match="R371"):
        parse_rows([word])


# --- memory


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 80 * 2**30),
        ("512MB", 512 * 10**6),
        ("1.5 tib", 3 * 2**39),
        ("16G", 16 * 10**9),
        ("1000", 1000),
        ("7B", 7),
    ],
)
def test_memory_has_a_unit_or_is_bytes(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "80XB", "80iB", "1e999", "nan"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="R370"):
        parse_bytes(text)


# --- the command


def test_what_does_not_fit_is_printed_and_exits_with_1(config, capsys):
    words = [str(config), "--devices", "4", "--memory", "80GB", *ALL]
    assert plan(*words) == 1
    printed = capsys.readouterr()
    assert re.search(r"^fits +no$", printed.out, re.MULTILINE)
    assert re.search(r"^--devices 8 +\S+ GB +\S+ GB +yes *$", printed.out, re.MULTILINE)
    [sentence] = printed.err.splitlines()
    assert sentence.startswith("[R373] A device needs 140.8 GB")
    assert "it has 80.0 GB. Changes that fit: --devices 8; or " in sentence
    assert plan(*words, "--json") == 1
    [line] = capsys.readouterr().out.splitlines()
    summary = json.loads(line)
    assert (summary["devices"], summary["fits"]) == (4, False)
    assert [error["code"] for error in summary["errors"]] == ["R373"]
    assert summary["changes"][0]["words"] == "--devices 8"
    state = sum(t["bytes_per_device"] + t["slot_bytes_per_device"] for t in summary["tables"])
    step = summary["step"]
    assert state + summary["other_bytes_per_device"] == step["state_bytes"]
    assert summary["bytes_per_device"] == step["state_bytes"] + step["temporary_bytes"]


def test_a_pair_has_a_plan_for_each_training(config, capsys):
    labels = "data.interactions.labels={like: {column: t, at_least: 2}}"
    ranker = "ranker={model: {type: dcn_v2, dim: 8}, labels: {like: 1}}"
    pair = [str(config), "--set", labels, "--set", ranker, "--memory", "200GB", *ALL]
    assert plan(*pair, "--json") == 1
    both = json.loads(capsys.readouterr().out)
    assert plan(*pair, "--set", "ranker=null", "--json") == 1
    alone = json.loads(capsys.readouterr().out)
    second, errors = both.pop("ranker"), both.pop("errors")
    assert [*both.items()] == [pair for pair in alone.items() if pair[0] != "errors"]
    users = {table["table"]: table for table in second["tables"]}["users"]
    assert (users["rows"], users["dim"]) == (10**9, 8)
    assert [error["code"] for error in errors] == ["R373"]
    assert (second["fits"], both["fits"]) == (True, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--devices", "0"],
        ["--devices", "5000"],
        ["--devices", "6"],
        ["--memory", "much"],
        ["--link", "fast"],
        ["--devices-per-host", "8"],
        ["--hosts", "2", "--devices", "3"],
        ["--hosts", "2", "--devices-per-host", "4", "--mesh", "data=4,model=4"],
        ["--hosts", "2", "--devices-per-host", "2", "--set", "train.node_devices=4"],
        ["--rows", "users"],
        ["--rows", "genre=5"],
        ["--set", "train.epochs=0"],
    ],
    ids=" ".join,
)
def test_invalid_options_exit_with_2(config, arguments, capsys):
    assert plan(str(config), *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err


def test_hosts_report_memory_traffic_and_checkpoints(config, capsys):
    words = [str(config), "--hosts", "2", "--devices-per-host", "4", "--fabric", "10GB", *ALL]
    assert plan(*words) == 0
    assert re.search(r"^leaving time +\S+ [µm]s$", capsys.readouterr().out, re.MULTILINE)
    assert plan(*words, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    hosts = summary["hosts"]
    assert (summary["devices"], hosts["hosts"], hosts["devices_per_host"]) == (8, 2, 4)
    assert hosts["bytes_per_host"] == 4 * summary["bytes_per_device"]
    sent = sum(collective["sent_bytes"] for collective in summary["sent"])
    assert hosts["within_bytes"] + hosts["leaving_bytes"] == sent
    assert hosts["leaving_s"] == hosts["leaving_bytes"] / 10**10
    of_tables = sum(feature["leaving_bytes"] for feature in summary["traffic"])
    assert 0 < of_tables < hosts["leaving_bytes"]
    assert plan(str(config), "--devices", "8", "--json", *ALL) == 0
    assert json.loads(capsys.readouterr().out)["hosts"] is None


def test_devices_are_simulated_and_neither_tfx_nor_tensorflow_imported(config):
    program = (
        "import sys\n"
        "from recsys.cli import main\n"
        "try: main(['plan', *sys.argv[1:]])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = 'tensorflow', 'tfx', 'apache_beam', 'torch'\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    words = [str(config), "--devices", "16", "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *words],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    summary, heavy = done.stdout.splitlines()
    assert json.loads(summary)["mesh"] == {"batch_parts": 16, "table_shards": 16}
    assert heavy == "[]", done.stderr
