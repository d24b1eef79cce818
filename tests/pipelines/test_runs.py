"""The real pipeline on small data: first run, rerun, changed config, bad data, locked root."""

import csv
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from report_run import text_of

pytest.importorskip("tfx", reason="needs the extra `pipeline`")
pytestmark = [pytest.mark.pipeline, pytest.mark.slow]

BAD = 4  # A row of the shipped ratings has no time, and `write_part` adds three.


class Runs:
    """Runs the pipeline in this process and keeps what it said."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.config = folder / "config.yaml"
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
        return sorted(path.name for path in (self.folder / "run/serving/part").glob("[0-9]*"))


def steps(events):
    return {e["step"]: (e["state"], e["reason"]) for e in events if e["kind"] == "step_finished"}


ALWAYS = {("ran", "it runs every time"), ("ran", "each run has its report")}


def made(outcomes):
    """The steps with outputs; the others resolve artifacts or report."""
    done = {step: outcome for step, outcome in outcomes.items() if outcome not in ALWAYS}
    assert outcomes.keys() - done.keys() >= {"LatestBlessed", "PreviousVocabularies", "Reporter"}
    return done


def summary(events):
    return next(event["summary"] for event in events if event["kind"] == "finished")


def error(events):
    return next(event["error"] for event in events if event["kind"] == "error")


@pytest.fixture(scope="module")
def runs(part_run):
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Runs(part_run / "first", monkeypatch)


@pytest.fixture(scope="module")
def first(runs):
    """The output of the first `recsys run`."""
    return json.loads((runs.folder / "result.json").read_text())


@pytest.fixture(scope="module")
def n_rows(runs):
    """Rows of the files: interactions, with those that are bad, and items."""
    counts = []
    for name in ("ratings.csv", "movies.csv"):
        with (runs.folder / name).open(newline="") as file:
            counts.append(len(list(csv.DictReader(file))))
    return counts


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
    (head, *lines), _ = records(runs)[0]
    outcomes = {line["step"]: (line["state"], line["reason"]) for line in lines}
    assert list(outcomes) == head["steps"]
    assert set(made(outcomes).values()) == {("ran", "first run")}
    assert first["blessed"] is True
    assert first["bundle"] == str(runs.folder / "run/serving/part/1")
    assert set(first["metrics"]) >= {"recall@10", "ndcg@10", "mrr", "baselines"}
    assert (runs.folder / "run/serving/part/1/saved_model.pb").is_file()


def test_every_row_of_the_files_is_counted(runs, n_rows):
    (folder,) = (runs.folder / "run/artifacts/InteractionGen/dead_letters").iterdir()
    counted = json.loads((folder / "summary.json").read_text())
    read = n_rows[0]
    assert counted["read"] == read
    assert (counted["good"], counted["rejected"], counted["duplicates"]) == (read - BAD - 1, BAD, 1)
    letters = pq.read_table(folder / "dead_letters")
    assert sorted(letters["line"].to_pylist())[-3:] == [read - 1, read, read + 1]
    assert letters.num_rows == BAD


def test_a_rerun_with_nothing_changed_is_cached_and_says_so(rerun, first):
    events, _ = rerun
    cached = ("cached", "cached: nothing changed")
    assert set(made(steps(events)).values()) == {cached}
    before = {name: value for name, value in first.items() if name != "seconds"}
    now = {name: value for name, value in summary(events).items() if name in before}
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


def test_each_run_leaves_a_record_and_its_report_shows_it(runs, rerun, n_rows):
    events, ((head, *lines), result) = rerun
    assert head["steps"] == events[0]["steps"]
    assert {line["step"]: (line["state"], line["reason"]) for line in lines} == steps(events)
    assert result["state"] == "finished"
    assert result["rejected"] == {
        "interactions": {"read": n_rows[0], "rejected": BAD, "duplicates": 1},
        "items": {"read": n_rows[1], "rejected": 0, "duplicates": 0},
    }
    assert result["deciding"] == "auc"
    assert runs.folder / "run" / result["report"] == Path(summary(events)["report"])
    report = Path(summary(events)["report"]).read_text()
    assert "cached: nothing changed" in text_of(report)
    link = re.search(r'<a href="([^"]+)">all runs</a>', report)[1]
    assert (Path(summary(events)["report"]).parent / link).resolve() == runs.index()


def test_a_change_of_the_config_runs_what_depends_on_it(changed):
    done = steps(changed)
    assert done["Exporter"] == ("ran", "its config changed: export.k 20 → 9")
    assert done["Pusher"] == ("ran", "its input `bundle` changed (Exporter ran again)")
    ran = {step for step, (state, _) in made(steps(changed)).items() if state == "ran"}
    assert ran == {"Exporter", "Pusher"}
    assert summary(changed)["bundle"].endswith("part/2")


def test_a_deleted_version_is_published_again(runs, changed):
    shutil.rmtree(summary(changed)["bundle"])
    code, events = runs("export.k=9")
    assert code == 0
    assert {step for step, (state, _) in made(steps(events)).items() if state == "ran"} == {
        "Pusher"
    }
    assert (runs.folder / "run/serving/part" / runs.served()[-1] / "saved_model.pb").is_file()
    assert summary(events)["bundle"].endswith(runs.served()[-1])


@pytest.mark.thorough
def test_a_return_to_an_older_config_serves_its_model_again(runs, first):
    _, events = runs("train.epochs=2")
    assert steps(events)["Trainer"] == ("ran", "its config changed: train.epochs 3 → 2")
    code, events = runs()
    assert code == 0
    assert steps(events)["Trainer"] == ("cached", "cached: an earlier run did the same")
    assert summary(events)["bundle"].endswith(f"part/{runs.served()[-1]}")


def test_too_many_bad_rows_stop_the_run_and_what_is_served_stays(runs, first, n_rows):
    served = runs.served()
    code, events = runs("data.gate.max_rejected_share=0.0001")
    assert code == 1
    assert list(steps(events))[-1] == "DataGate"
    assert error(events)["code"] == "R241"
    assert f"({BAD:,} of {n_rows[0]:,}" in error(events)["rule"]
    assert runs.served() == served
    _, result = records(runs)[-1]
    assert (result["state"], result["step"]) == ("failed", "DataGate")
    assert result["rejected"]["interactions"]["rejected"] == BAD
    newest = runs.index().read_text().partition("<tbody>")[2].partition("</tr>")[0]
    assert "failed" in newest
    assert "[R241]" in newest


def test_data_that_breaks_its_committed_schema_stop_the_run(runs, first, tmp_path):
    artifacts = runs.folder / "run/artifacts"
    for what in ("Interactions", "Items"):
        (schema,) = (artifacts / f"SchemaGen.{what}/schema").glob("*/schema.pbtxt")
        shutil.copy(schema, tmp_path / f"{what.lower()}.pbtxt")
    items = tmp_path / "items.pbtxt"
    assert items.read_text().count('value: "Comedy"') == 1
    items.write_text(items.read_text().replace('value: "Comedy"', 'value: "Nothing"'))
    served = runs.served()
    code, events = runs(f"data.gate.schema_dir={tmp_path}")
    assert code == 1
    assert error(events)["code"] == "R242"
    assert "column 'genres'" in error(events)["rule"]
    assert "Comedy" in error(events)["rule"]
    assert runs.served() == served


@pytest.mark.parametrize(
    ("override", "exit_code", "code"),
    [
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
