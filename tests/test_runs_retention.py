"""Retention: nothing that is needed is ever in the plan, and what goes is really gone."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.config.operation import KeepConfig
from recsys.runs.cleaning_plan import GONE, Thing, own_size, plan_artifacts, plan_files, tree_size
from recsys.runs.removal import remove
from recsys.runs.retention import kept_runs, needed_artifacts, records_since
from recsys.runs.retention_facts import Artifact, Execution, Known, PastRun, Version

SERVING = Path("/serving/tiny")
DAY_S = 86_400.0


class Nights:
    """The metadata of nights, as the pipeline leaves it.

    Args:
        folder: Where the artifacts lie.
    """

    def __init__(self, folder: Path = Path("/root/artifacts")) -> None:
        self.folder = folder
        self.runs: list[PastRun] = []
        self.executions: list[Execution] = []
        self.artifacts: dict[int, Artifact] = {}
        self.pushes: list[tuple[int, int]] = []

    def known(self) -> Known:
        return Known(self.runs, self.executions, self.artifacts)

    def night(
        self, outcome: str = "pushed", *, accepted: bool = True, cached: bool = False
    ) -> dict[str, int]:
        """Adds a night that `failed`, was `refused`, `blessed` or `pushed`; returns its ids."""
        day = len(self.runs)
        run = f"run-{day:03}"
        self.runs.append(PastRun(run, day * DAY_S))
        if cached and self.executions:
            return self._again(run)
        ids: dict[str, int] = {}
        ids["examples"] = self.make(run, "InteractionGen", "examples", "Examples")
        before = self.of("Vocabularies")[-1:]
        ids["statistics"] = self.make(
            run, "StatisticsGen", "statistics", "ExampleStatistics", examples=[ids["examples"]]
        )
        if not accepted:
            return ids
        ids["verdict"] = self.make(
            run, "DataGate", "verdict", "Verdict", numbers={"x_statistics_id": ids["statistics"]}
        )
        ids["vocabularies"] = self.make(
            run, "VocabularyGen", "vocabularies", "Vocabularies", previous=before
        )
        if outcome == "failed":
            return ids
        ids["model"] = self.make(run, "Trainer", "model", "Model", verdict=[ids["verdict"]])
        of_model = {"current_model_id": ids["model"]}
        good = {"blessed": int(outcome != "refused"), **of_model}
        ids["blessing"] = self.make(run, "RetrievalEvaluator", "blessing", "ModelBlessing", good)
        push, texts = {}, {}
        if outcome == "pushed":
            number = len(self.pushes) + 1
            self.pushes.append((number, ids["model"]))
            push, texts = of_model, {"pushed_destination": str(SERVING / str(number))}
        ids["pushed"] = self.make(run, "Pusher", "pushed", "PushedModel", push, texts)
        ids["report"] = self.make(run, "Reporter", "report", "Report")
        return ids

    def of(self, kind: str) -> list[int]:
        return [one.id for one in self.artifacts.values() if one.kind == kind]

    def make(
        self,
        run: str,
        step: str,
        key: str,
        kind: str,
        numbers: dict[str, int] | None = None,
        texts: dict[str, str] | None = None,
        **inputs: list[int],
    ) -> int:
        id_ = len(self.artifacts) + 1
        path = self.folder / step / key / str(id_)
        self.artifacts[id_] = Artifact(id_, kind, path, "live", numbers or {}, texts or {})
        place = len(self.executions) + 1
        self.executions.append(Execution(place, step, run, True, inputs, {key: [id_]}))
        return id_

    def _again(self, run: str) -> dict[str, int]:
        """Adds a night whose steps are all cached."""
        last = [one for one in self.executions if one.run == self.executions[-1].run]
        self.executions += [
            Execution(len(self.executions) + 1, one.step, run, True, one.inputs, one.outputs)
            for one in last
        ]
        return {}


OUTCOMES = st.sampled_from(["pushed", "pushed", "blessed", "refused", "failed"])
ONE_NIGHT = st.tuples(OUTCOMES, st.booleans(), st.booleans())


@given(
    st.lists(ONE_NIGHT, min_size=1, max_size=12),
    st.sampled_from([1, 1, 2, 5]),
    st.sampled_from([None, None, 1, 5]),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_what_later_runs_look_for_is_never_in_the_plan(outcomes, n_runs, days, kept, n_withdrawn):
    nights = Nights()
    for outcome, accepted, cached in outcomes:
        nights.night(outcome, accepted=accepted, cached=cached)
    pushes = nights.pushes[-kept:]
    withdrawn = {number for number, _ in pushes[len(pushes) - n_withdrawn :]}
    versions = [Version(n, SERVING / str(n), n not in withdrawn) for n, _ in pushes]
    known = nights.known()
    runs = kept_runs(known, KeepConfig(runs=n_runs, days=days), len(outcomes) * DAY_S)
    stay = set(needed_artifacts(known, runs, versions))
    assert stay >= {model for _, model in pushes}, "models of versions"
    assert stay >= set(nights.of("Vocabularies")[-1:]), "the newest vocabulary"
    assert stay >= last_blessed(nights, withdrawn), "what is compared with, and started from"
    assert stay >= baselines(nights), "measures of drift and skew"
    for one in known.executions:
        if one.run in runs:
            assert stay >= one.artifacts, "a kept run is whole"
    assert {run.id for run in nights.runs[-n_runs:]} <= runs
    # What a resolver sees must not change for a model that stays.
    live = {id_: one for id_, one in nights.artifacts.items() if id_ in stay}
    for blessing in (one for one in live.values() if one.kind == "ModelBlessing"):
        assert nights.artifacts[blessing.id] is blessing
    assert set(nights.of("ModelBlessing")) | set(nights.of("PushedModel")) <= stay


def last_blessed(nights: Nights, withdrawn: set[int]) -> set[int]:
    """What LatestBlessed returns to the next run, reckoned as it does."""
    gone = {model for number, model in nights.pushes if number in withdrawn}
    blessed = [
        one.numbers["current_model_id"]
        for one in nights.artifacts.values()
        if one.kind == "ModelBlessing" and one.numbers["blessed"]
    ]
    good = sorted(set(blessed) - gone)
    return set(good[-1:])


def baselines(nights: Nights) -> set[int]:
    """What EarlierStatistics returns to the next run, and the verdicts that it rests on."""
    verdicts = [one for one in nights.artifacts.values() if one.kind == "Verdict"]
    newest = verdicts[-1:]
    behind = [
        verdict
        for execution in nights.executions
        if execution.step == "Trainer"
        and set(execution.outputs["model"]) & last_blessed(nights, set())
        for verdict in verdicts
        if verdict.id in execution.inputs["verdict"]
    ]
    both = [*newest, *behind]
    return {one.id for one in both} | {one.numbers["x_statistics_id"] for one in both}


def test_an_old_night_goes_and_its_blessing_stays():
    nights = Nights()
    old = nights.night("pushed")
    for _ in range(5):
        nights.night("pushed")
    known = nights.known()
    reasons = needed_artifacts(known, kept_runs(known, KeepConfig(runs=2), 6 * DAY_S), [])
    assert not {old["examples"], old["statistics"], old["model"], old["vocabularies"]} & set(
        reasons
    )
    assert {old["blessing"], old["pushed"]} <= set(reasons)


def test_without_limits_every_run_stays():
    nights = Nights()
    for _ in range(3):
        nights.night()
    known = nights.known()
    assert kept_runs(known, KeepConfig(records=1), 9e9) == {run.id for run in nights.runs}


def test_after_a_week_of_failures_the_last_finished_run_stays():
    nights = Nights()
    good = nights.night("refused")
    for _ in range(7):
        nights.night("failed")
    known = nights.known()
    runs = kept_runs(known, KeepConfig(runs=3), 8 * DAY_S)
    assert runs == {"run-000", "run-005", "run-006", "run-007"}
    assert set(good.values()) <= set(needed_artifacts(known, runs, []))


def test_what_the_next_run_goes_on_from_stays_though_its_own_run_goes():
    nights = Nights()
    nights.night("pushed")
    failed = nights.night("failed")  # After it made vocabularies.
    nights.night(accepted=False)
    known = nights.known()
    runs = kept_runs(known, KeepConfig(runs=1), 3 * DAY_S)
    assert runs == {"run-000", "run-002"}
    reasons = needed_artifacts(known, runs, [])
    assert reasons[failed["vocabularies"]] == "it is the newest vocabulary"
    assert {failed["verdict"], failed["statistics"]} <= set(reasons)
    assert failed["examples"] not in reasons


def test_the_model_of_a_version_that_was_rolled_back_stays():
    nights = Nights()
    first = nights.night("pushed")
    for _ in range(6):
        nights.night("pushed")
    known = nights.known()
    runs = kept_runs(known, KeepConfig(runs=1), 7 * DAY_S)
    assert first["model"] not in needed_artifacts(known, runs, [])
    reasons = needed_artifacts(known, runs, [Version(1, SERVING / "1", is_served=False)])
    assert reasons[first["model"]] == "it is the model of version 1"
    assert first["statistics"] in reasons


def written(path: Path, size: int = 10) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "content").write_bytes(b"x" * size)
    return path


def planned(nights: Nights, **keep: Any) -> tuple[list[Thing], list[Thing]]:
    known = nights.known()
    reasons = needed_artifacts(known, kept_runs(known, KeepConfig(**keep), 9e9), [])
    return plan_artifacts(known, reasons, nights.folder, reports_stay=set())


def test_what_lies_outside_of_the_root_is_left_alone(tmp_path):
    nights = Nights(tmp_path / "artifacts")
    for _ in range(4):
        nights.night("refused")
    (tmp_path / "artifacts").mkdir()
    elsewhere = written(tmp_path / "original" / "7")
    link = tmp_path / "artifacts" / "link"
    link.symlink_to(elsewhere.parent)
    first = nights.artifacts[1]
    behind = "'link' is a link, and what it leads to is left alone"
    for path, why in ((elsewhere, "it lies outside of this root"), (link / "7", behind)):
        nights.artifacts[1] = Artifact(1, first.kind, path)
        goes, stays = planned(nights, runs=1)
        assert not goes
        assert [thing.why for thing in stays] == [why]


def test_a_folder_that_holds_what_stays_is_left_alone(tmp_path):
    nights = Nights(tmp_path / "artifacts")
    for _ in range(4):
        nights.night("refused")
    stays_id = nights.of("Model")[-1]
    inner = written(nights.artifacts[stays_id].path)
    first = nights.artifacts[1]
    nights.artifacts[1] = Artifact(1, first.kind, inner.parent)
    goes, stays = planned(nights, runs=1)
    assert not goes
    assert {thing.why for thing in stays} >= {"what stays shares its folder"}


def test_a_removal_that_was_cut_short_is_finished(tmp_path):
    nights = Nights(tmp_path / "artifacts")
    nights.night("pushed")
    one = nights.artifacts[1]
    written(one.path)
    nights.artifacts[1] = Artifact(1, one.kind, one.path, "deleted")
    ((thing,), _) = planned(nights)
    assert "cut short" in thing.why
    written(tmp_path / GONE / "artifacts--x")
    goes, _ = plan_files(tmp_path, "tiny", [], KeepConfig(), None)
    assert [(one.kind, one.path.name) for one in goes] == [("rest", "artifacts--x")]
    done, failed = remove(tmp_path, [thing, *goes])
    assert (len(done), failed) == (2, [])
    assert not one.path.exists()
    assert not any((tmp_path / GONE).iterdir())


def test_checkpoints_records_and_logs_have_limits_of_their_own(tmp_path):
    runs = [PastRun(f"run-{i}", 1000.0 * i) for i in range(5)]
    for place, run in enumerate(runs):
        name = f"{place:016x}"
        for path in (tmp_path / "checkpoints" / name, tmp_path / "tensorboard" / name):
            set_time(written(path), run.started + 1)
        written(tmp_path / "runs" / run.id)
        log = tmp_path / "logs" / f"{place}.log"
        log.parent.mkdir(exist_ok=True)
        log.touch()
        set_time(log, run.started + 1)
    written(tmp_path / "checkpoints" / "mine")
    written(tmp_path / "runs" / "another-pipeline")
    keep = KeepConfig(checkpoints=2, records=3)
    goes, _ = plan_files(tmp_path, "tiny", runs, keep, records_since(runs, keep))
    names = {kind: {t.path.name for t in goes if t.kind == kind} for kind in ("log", "record")}
    assert names == {"log": {"0.log", "1.log"}, "record": {"run-0", "run-1"}}
    folders = {t.path.name for t in goes if t.kind == "checkpoints"}
    assert folders == {f"{i:016x}" for i in range(3)}
    assert {t.path.name for t in goes if t.kind == "tensorboard"} == {f"{i:016x}" for i in range(2)}
    nothing, _ = plan_files(tmp_path, "tiny", runs, KeepConfig(), None)
    assert nothing == []


def set_time(path: Path, moment: float) -> None:
    for one in [*(path.rglob("*") if path.is_dir() else []), path]:
        os.utime(one, (moment, moment))


def test_checkpoints_that_a_training_writes_stay(tmp_path):
    folder = written(tmp_path / "checkpoints" / ("0" * 16))
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thing = Thing("checkpoints", folder, "")
        assert remove(tmp_path, [thing]) == ([], [(thing, "a training is writing it")])
    assert remove(tmp_path, [thing])[1] == []
    assert not folder.exists()


def test_nothing_outside_is_removed_whatever_a_plan_says(tmp_path):
    outside = written(tmp_path / "outside")
    root = written(tmp_path / "root")
    link = root / "link"
    link.symlink_to(outside)
    things = [Thing("rest", outside, ""), Thing("artifact", link, ""), Thing("rest", root, "")]
    gone, failed = remove(root, things)
    assert gone == []
    assert len(failed) == 3
    assert (outside / "content").exists()


def test_a_file_with_a_name_elsewhere_frees_nothing(tmp_path):
    shared = written(tmp_path / "segments", 1000) / "content"
    linked = written(tmp_path / "artifact", 50)
    os.link(shared, linked / "one")
    os.link(shared, linked / "two")
    assert tree_size(linked) == 1050
    assert own_size(linked) == 50
    assert own_size(tmp_path) == 1050


@pytest.mark.parametrize("n_kept", [1, 400])
def test_a_plan_over_a_year_takes_no_time(n_kept):
    nights = Nights()
    for _ in range(400):
        nights.night("pushed")
    known = nights.known()
    started = time.perf_counter()
    runs = kept_runs(known, KeepConfig(runs=n_kept), 9e9)
    needed_artifacts(known, runs, [Version(400, SERVING / "400", is_served=True)])
    assert time.perf_counter() - started < 2
