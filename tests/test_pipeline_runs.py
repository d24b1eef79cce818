"""The real pipeline on small data: first run, rerun, changed config, bad data, locked root."""

import json
import random
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

pytest.importorskip("tfx", reason="needs the extra `pipeline`")
pytestmark = [pytest.mark.pipeline, pytest.mark.slow]

DAY_S = 86_400
N_USERS, N_ITEMS, N_EVENTS = 40, 60, 2_000


def write_data(folder):
    """Writes ratings in two groups of taste, five of them bad and one twice."""
    folder.mkdir(parents=True)
    chance = random.Random(7)
    rows = set()
    while len(rows) < N_EVENTS:
        user = chance.randrange(N_USERS)
        item = chance.randrange(N_ITEMS // 2) + (user % 2) * (N_ITEMS // 2)
        rows.add(
            (
                f"u{user:02}",
                f"i{item:02}",
                chance.choice([3, 4, 5]),
                10**9 + chance.randrange(50 * DAY_S),
            )
        )
    lines = [",".join(map(str, row)) for row in sorted(rows)]
    bad = ["u1,i1,5", ",i1,5,1000000000", "u1,,5,1000000000", "u1,i1,x,1000000000", "u1,i1,5,1"]
    text = "\n".join(["user,item,rating,time", *lines, lines[0], *bad]) + "\n"
    (folder / "ratings.csv").write_text(text)
    # All with two genres: nothing may take that for a rule.
    titles = [
        f'i{i:02},"The Film, No. {i}",{"comedy" if i % 2 else "crime"}|drama'
        for i in range(N_ITEMS)
    ]
    (folder / "films.csv").write_text("\n".join(["id,name,genres", *titles]) + "\n")


def write_config(folder):
    """Writes a config."""
    config = {
        "name": "tiny",
        "root": "run",
        "data": {
            "interactions": {
                "files": "ratings.csv",
                "columns": {
                    "user": "user",
                    "item": "item",
                    "timestamp": "time",
                    "rating": "rating",
                },
                "positive_at_least": 4.0,
            },
            "items": {
                "files": "films.csv",
                "columns": {"item": "id", "title": "name"},
                "features": [
                    {"name": "genres", "column": "genres", "kind": "categories"},
                    {"name": "words", "column": "name", "kind": "words", "max_tokens": 4},
                ],
            },
            "eval_share": 0.2,
        },
        "model": {"dim": 8, "feature_dim": 4, "history": 5, "widths": [16]},
        "train": {"batch_size": 64, "epochs": 2},
        "evaluate": {"k": [5, 10]},
        "bless": {
            "metric": "auc",
            "at_least": 0.01,
            "over": {},
            "over_blessed": 0.0,
            "over_strongest": 0.0,
            "sure_loss": "allow",
        },
        "export": {"k": 10},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


class Runs:
    """Runs the pipeline in this process and keeps what it said."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.config = write_config(folder)
        self._monkeypatch = monkeypatch

    def __call__(self, *overrides):
        """Returns the exit code and the events of a run."""
        from pipelines import local_runner

        log = self.folder / "events.jsonl"
        log.unlink(missing_ok=True)
        self._monkeypatch.setenv("RECSYS_EVENTS", str(log))
        words = [word for one in overrides for word in ("--set", one)]
        self._monkeypatch.setattr("sys.argv", ["local_runner", str(self.config), *words])
        code = local_runner.main()
        return code, [json.loads(line) for line in log.read_text().splitlines()]

    def index(self):
        return (self.folder / "run/index.html").resolve()

    def served(self):
        return sorted(path.name for path in (self.folder / "run/serving/tiny").glob("[0-9]*"))


def steps(events):
    return {e["step"]: (e["state"], e["reason"]) for e in events if e["kind"] == "step_finished"}


ALWAYS = {
    ("ran", "it looks again in every run"),
    ("ran", "each run has a report of its own"),
}


def made(events):
    """The steps that make something: others look something up, or tell of the run."""
    done = {step: outcome for step, outcome in steps(events).items() if outcome not in ALWAYS}
    assert steps(events).keys() - done.keys() >= {
        "LatestBlessed",
        "PreviousVocabularies",
        "Reporter",
    }
    return done


def summary(events):
    return next(event["summary"] for event in events if event["kind"] == "finished")


def error(events):
    return next(event["error"] for event in events if event["kind"] == "error")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "data"
    write_data(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Runs(folder, monkeypatch)


@pytest.fixture(scope="module")
def first(runs):
    code, events = runs()
    assert code == 0, error(events)
    return events


@pytest.fixture(scope="module")
def rerun(runs, first):
    """The events of the same run again, right after the first."""
    code, events = runs()
    assert code == 0
    return events, records(runs)[-1]


@pytest.fixture(scope="module")
def changed(runs, rerun):
    """The events of a run with another config of the export."""
    code, events = runs("export.k=9")
    assert code == 0
    return events


def test_a_first_run_runs_every_step_and_publishes(runs, first):
    assert first[0]["kind"] == "run_started"
    assert list(steps(first)) == first[0]["steps"]
    assert set(made(first).values()) == {("ran", "first run")}
    result = summary(first)
    assert result["blessed"] is True
    assert result["bundle"] == str(runs.folder / "run/serving/tiny/1")
    assert set(result["metrics"]) >= {"recall@10", "ndcg@10", "mrr", "baselines"}
    assert (runs.folder / "run/serving/tiny/1/saved_model.pb").is_file()


def test_every_row_of_the_files_is_counted(runs, first):
    (folder,) = (runs.folder / "run/artifacts/InteractionGen/dead_letters").iterdir()
    counted = json.loads((folder / "summary.json").read_text())
    assert counted["read"] == N_EVENTS + 6
    assert (counted["good"], counted["rejected"], counted["duplicates"]) == (N_EVENTS, 5, 1)
    letters = pq.read_table(folder / "dead_letters")
    assert sorted(letters["line"].to_pylist()) == list(range(N_EVENTS + 3, N_EVENTS + 8))


def test_a_rerun_with_nothing_changed_is_cached_and_says_so(rerun, first):
    events, _ = rerun
    assert set(made(events).values()) == {("cached", "cached: nothing it depends on has changed")}
    now, before = dict(summary(events)), dict(summary(first))
    assert now.pop("report") != before.pop("report")
    tonight, then = now.pop("night"), before.pop("night")
    assert tonight["run"] != then["run"]
    assert tonight["metrics"] == then["metrics"]
    assert now == before


def records(runs):
    """The records of the runs so far, the oldest first: lines of steps, and the result."""
    folders = sorted((runs.folder / "run/runs").iterdir())
    return [
        (
            [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()],
            json.loads((folder / "run.json").read_text()),
        )
        for folder in folders
    ]


def test_each_run_leaves_a_record_and_its_report_tells_of_it(runs, rerun):
    events, ((head, *lines), result) = rerun
    assert head["steps"] == events[0]["steps"]
    assert {line["step"]: (line["state"], line["reason"]) for line in lines} == steps(events)
    assert result["state"] == "finished"
    assert result["rejected"] == {
        "interactions": {"read": N_EVENTS + 6, "rejected": 5, "duplicates": 1},
        "items": {"read": N_ITEMS, "rejected": 0, "duplicates": 0},
    }
    assert result["deciding"] == "auc"
    assert runs.folder / "run" / result["report"] == Path(summary(events)["report"])
    report = Path(summary(events)["report"]).read_text()
    assert f"{len(lines) - 1} steps in" in report
    assert re.search(r"cached</span>: nothing it depends on has changed", report)
    link = re.search(r'<a href="([^"]+)">all runs</a>', report)[1]
    assert (Path(summary(events)["report"]).parent / link).resolve() == runs.index()


def test_a_change_of_the_config_runs_what_depends_on_it(changed):
    done = steps(changed)
    assert done["Exporter"] == ("ran", "its config changed: export.k 10 → 9")
    assert done["Pusher"] == ("ran", "its input `bundle` changed (Exporter ran again)")
    ran = {step for step, (state, _) in made(changed).items() if state == "ran"}
    assert ran == {"Exporter", "Pusher"}
    assert summary(changed)["bundle"].endswith("tiny/2")


def test_a_deleted_version_is_published_again(runs, changed):
    shutil.rmtree(summary(changed)["bundle"])
    code, events = runs("export.k=9")
    assert code == 0
    assert {step for step, (state, _) in made(events).items() if state == "ran"} == {"Pusher"}
    assert (runs.folder / "run/serving/tiny" / runs.served()[-1] / "saved_model.pb").is_file()
    assert summary(events)["bundle"].endswith(runs.served()[-1])


@pytest.mark.thorough
def test_a_return_to_an_older_config_serves_its_model_again(runs, first):
    _, events = runs("train.epochs=3")
    assert steps(events)["Trainer"] == ("ran", "its config changed: train.epochs 2 → 3")
    code, events = runs()
    assert code == 0
    assert steps(events)["Trainer"] == ("cached", "cached: an earlier run did the same")
    assert summary(events)["bundle"].endswith(f"tiny/{runs.served()[-1]}")


def test_too_many_bad_rows_stop_the_run_and_what_is_served_stays(runs, first):
    served = runs.served()
    code, events = runs("data.gate.max_rejected_share=0.001")
    assert code == 1
    assert list(steps(events))[-1] == "DataGate"
    assert error(events)["code"] == "R241"
    assert "0.25% were (5 of 2006" in error(events)["rule"]
    assert runs.served() == served
    _, result = records(runs)[-1]
    assert (result["state"], result["step"]) == ("failed", "DataGate")
    assert result["rejected"]["interactions"]["rejected"] == 5
    newest = runs.index().read_text().partition("<tbody>")[2].partition("</tr>")[0]
    assert "failed" in newest
    assert "[R241]" in newest


def test_data_that_breaks_its_committed_schema_stop_the_run(runs, first, tmp_path):
    artifacts = runs.folder / "run/artifacts"
    for what in ("Interactions", "Items"):
        (schema,) = (artifacts / f"SchemaGen.{what}/schema").glob("*/schema.pbtxt")
        shutil.copy(schema, tmp_path / f"{what.lower()}.pbtxt")
    items = tmp_path / "items.pbtxt"
    assert items.read_text().count('value: "comedy"') == 1
    items.write_text(items.read_text().replace('value: "comedy"', 'value: "western"'))
    served = runs.served()
    code, events = runs(f"data.gate.schema_dir={tmp_path}")
    assert code == 1
    assert error(events)["code"] == "R242"
    assert "column 'genres'" in error(events)["rule"]
    assert "comedy" in error(events)["rule"]
    assert runs.served() == served


def test_a_second_run_on_a_locked_root_is_refused(runs, first):
    from recsys.runs.lock import run_lock

    with run_lock(runs.folder / "run"):
        code, events = runs()
    assert code == 75
    assert [event["kind"] for event in events] == ["error"]
    assert error(events)["code"] == "R601"


@pytest.mark.parametrize(
    ("override", "exit_code", "code"),
    [
        ("data.interactions.files=nowhere.csv", 1, "R201"),
        ("data.interactions.columns.user=userId", 1, "R203"),
        ("data.interactions.positive_at_least=9.0", 1, "R207"),
        ("data.gate.schema_dir=nowhere", 1, "R243"),
        ("train.epoch=3", 2, "R105"),
    ],
)
def test_a_wrong_input_gets_one_sentence(runs, first, override, exit_code, code, capsys):
    served = runs.served()
    got, events = runs(override)
    assert (got, error(events)["code"]) == (exit_code, code)
    assert len(capsys.readouterr().err.strip().splitlines()[-1]) > 20
    assert runs.served() == served
