"""`recsys clean` over ML Metadata: what is marked, what is removed, and a kill in between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ml_metadata", reason="needs the extra `pipeline`")

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as proto

from pipelines.clean import clean, clean_after_run
from pipelines.metadata_store import read_known
from pipelines.recovery import sweep_artifacts, sweep_records
from recsys.cli import main
from recsys.config import Config
from recsys.errors import BusyError, RecsysError
from recsys.runs.lock import run_lock

OUTPUT, INPUT = proto.Event.OUTPUT, proto.Event.INPUT


class Store:
    """A small store of ML Metadata under a root, filled as TFX fills it.

    Args:
        root: The root.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        connection = proto.ConnectionConfig()
        connection.sqlite.filename_uri = str(root / "metadata.sqlite")
        connection.sqlite.connection_mode = proto.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        self.store = mlmd.MetadataStore(connection)
        self._execution_type = self.store.put_execution_type(proto.ExecutionType(name="step"))

    def run(self, run: str, pipeline: str = "tiny") -> Run:
        return Run(self, run, pipeline)

    def context(self, kind: str, name: str) -> proto.Context:
        type_id = self.store.put_context_type(proto.ContextType(name=kind))
        if self.store.get_context_by_type_and_name(kind, name) is None:
            self.store.put_contexts([proto.Context(name=name, type_id=type_id)])
        return self.store.get_context_by_type_and_name(kind, name)

    def states(self) -> dict[int, int]:
        return {one.id: one.state for one in self.store.get_artifacts()}


class Run:
    """One run in the store."""

    def __init__(self, store: Store, run: str, pipeline: str) -> None:
        self._store, self._pipeline = store, pipeline
        whole = store.context("pipeline", pipeline)
        self._contexts = [store.context("pipeline_run", run), whole]
        links = store.store.get_children_contexts_by_context(whole.id)
        if self._contexts[0].id not in {one.id for one in links}:
            link = proto.ParentContext(parent_id=whole.id, child_id=self._contexts[0].id)
            store.store.put_parent_contexts([link])

    def step(
        self,
        step: str,
        key: str,
        kind: str,
        properties: dict[str, Any] | None = None,
        state: int = proto.Artifact.LIVE,
        **inputs: list[int],
    ) -> int:
        """Adds an execution with one output; returns the output's id."""
        store = self._store.store
        type_id = store.put_artifact_type(proto.ArtifactType(name=kind))
        (id_,) = store.put_artifacts([proto.Artifact(type_id=type_id, state=state)])
        folder = self._store.root / "artifacts" / step / key / str(id_)
        folder.mkdir(parents=True)
        (folder / "content").write_bytes(b"x" * 100)
        (artifact,) = store.get_artifacts_by_id([id_])
        artifact.uri = str(folder)
        for name, value in (properties or {}).items():
            field = "int_value" if isinstance(value, int) else "string_value"
            setattr(artifact.custom_properties[name], field, value)
        store.put_artifacts([artifact])
        self._execute(step, [(OUTPUT, key, [id_]), *((INPUT, k, v) for k, v in inputs.items())])
        return id_

    def _execute(self, step: str, links: list[tuple[int, str, list[int]]]) -> None:
        store = self._store.store
        execution = proto.Execution(
            type_id=self._store._execution_type, last_known_state=proto.Execution.COMPLETE
        )
        (id_,) = store.put_executions([execution])
        events = []
        for kind, key, ids in links:
            for place, artifact in enumerate(ids):
                event = proto.Event(artifact_id=artifact, execution_id=id_, type=kind)
                event.path.steps.add().key = key
                event.path.steps.add().index = place
                events.append(event)
        store.put_events(events)
        node = self._store.context("node", f"{self._pipeline}.{step}")
        store.put_attributions_and_associations(
            [],
            [
                proto.Association(context_id=context.id, execution_id=id_)
                for context in [*self._contexts, node]
            ],
        )


def night(store: Store, day: int, *, blessed: bool = True, **kwargs: Any) -> dict[str, int]:
    """Adds a night that came to its end."""
    run = store.run(f"2026-01-{day:02}", **kwargs)
    ids = {"examples": run.step("InteractionGen", "examples", "Examples")}
    ids["model"] = run.step("Trainer", "model", "Model", data=[ids["examples"]])
    verdict = {"blessed": int(blessed), "current_model_id": ids["model"]}
    ids["blessing"] = run.step("RetrievalEvaluator", "blessing", "ModelBlessing", verdict)
    ids["report"] = run.step("Reporter", "report", "Report")
    return ids


def config_of(root: Path, **keep: Any) -> Config:
    columns = {"user": "u", "item": "i", "timestamp": "t"}
    return Config.model_validate_json(
        json.dumps(
            {
                "name": "tiny",
                "root": str(root),
                "data": {"interactions": {"files": "e.csv", "columns": columns}},
                "keep": keep,
            }
        )
    )


@pytest.fixture(scope="module")
def four_nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, int]]]:
    store = Store(tmp_path_factory.mktemp("four") / "run")
    return store.root, [night(store, day) for day in (1, 2, 3, 4)]


@pytest.fixture
def nights(four_nights: tuple[Path, list[dict[str, int]]]) -> list[dict[str, int]]:
    """The ids of the four nights that `store` has."""
    return four_nights[1]


@pytest.fixture
def store(tmp_path: Path, four_nights: tuple[Path, list[dict[str, int]]]) -> Store:
    """A store of four nights. SQLite takes its time for each line, so it is a copy."""
    shutil.copytree(four_nights[0], tmp_path / "run")
    copied = Store(tmp_path / "run")
    artifacts = copied.store.get_artifacts()
    for artifact in artifacts:
        artifact.uri = artifact.uri.replace(str(four_nights[0]), str(copied.root))
    copied.store.put_artifacts(artifacts)
    return copied


def there(store: Store) -> set[int]:
    return {int(path.name) for path in store.root.glob("artifacts/*/*/*")}


def test_a_dry_run_changes_nothing_and_says_what_would_go(store, nights):
    old, *new = nights
    states, folders = store.states(), there(store)
    plan = clean(config_of(store.root, runs=2), apply=False)
    goes = {thing["artifact"] for thing in plan["goes"]}
    # Of the second night the model is one of the last two blessed ones but for the newest.
    assert goes == {old["examples"], old["model"], new[0]["examples"], new[0]["model"]}
    assert plan["freed"] == 400
    assert plan["applied"] is False
    assert (store.states(), there(store)) == (states, folders)
    stays = {thing["artifact"] for thing in plan["stays"]}
    assert not stays & goes
    assert stays | goes == folders


def test_what_goes_is_marked_and_gone_and_all_else_is_as_it_was(store, nights):
    old = nights[0]
    before = {one.id: one.SerializeToString() for one in store.store.get_artifacts()}
    done = clean(config_of(store.root, runs=2), apply=True)
    assert done["failed"] == []
    goes = {thing["artifact"] for thing in done["goes"]}
    assert there(store) == before.keys() - goes
    states = store.states()
    assert {id_ for id_, state in states.items() if state == proto.Artifact.DELETED} == goes
    # To the byte: an artifact's properties are part of TFX's cache key.
    after = {one.id: one.SerializeToString() for one in store.store.get_artifacts()}
    assert all(after[id_] == before[id_] for id_ in after.keys() - goes)
    assert old["blessing"] in after.keys() - goes
    assert clean(config_of(store.root, runs=2), apply=True)["goes"] == []


def test_the_empty_folders_of_executions_go_and_those_with_something_in_them_stay(store):
    system = store.root / "artifacts" / "Trainer" / ".system" / "executor_execution"
    (system / "7").mkdir(parents=True)
    (system / "8" / "executor_output.pb").mkdir(parents=True)
    clean(config_of(store.root), apply=False)
    assert (system / "7").is_dir()
    clean(config_of(store.root), apply=True)
    assert [path.name for path in system.iterdir()] == ["8"]


# Dies as by kill -9: nothing is flushed, no lock given back.
KILLED = """
import os, shutil, sys
from pipelines import clean as module
from recsys.config import Config

def die(*_, **__):
    os._exit(9)

moment, config = sys.argv[1], Config.model_validate_json(sys.argv[2])
of, name = {"before": (module, "_mark"), "between": (module, "remove")}.get(
    moment, (shutil, "rmtree")
)
assert hasattr(of, name)
setattr(of, name, die)
module.clean(config, apply=True)
"""


@pytest.mark.parametrize("moment", ["before", "between", "inside"])
def test_a_cleaning_that_was_killed_is_finished_by_the_next(store, moment):
    config = config_of(store.root, runs=1)
    planned = {thing["artifact"] for thing in clean(config, apply=False)["goes"]}
    command = [sys.executable, "-c", KILLED, moment, config.model_dump_json()]
    assert subprocess.run(command, cwd=Path(__file__).parents[1], check=False).returncode == 9
    deleted = {id_ for id_, one in store.states().items() if one == proto.Artifact.DELETED}
    assert deleted == (set() if moment == "before" else planned)
    assert clean(config, apply=True)["failed"] == []
    assert there(store).isdisjoint(planned)
    assert list((store.root / ".gone").iterdir()) == []
    states = store.states()
    assert all(states[id_] == proto.Artifact.DELETED for id_ in planned)
    assert all(states[id_] == proto.Artifact.LIVE for id_ in there(store))


def test_another_pipeline_under_the_root_is_left_alone(store):
    theirs = night(store, 5, pipeline="other")
    folders = there(store)
    done = clean(config_of(store.root, runs=1), apply=True)
    assert done["goes"]
    assert there(store) >= set(theirs.values())
    assert there(store) < folders
    assert (
        clean(config_of(store.root, runs=1).model_copy(update={"name": "none"}), apply=True)["goes"]
        == []
    )


def test_what_a_step_is_still_at_is_left_alone(store):
    run = store.run("2026-01-01")
    pending = run.step("Trainer", "model", "Model", state=proto.Artifact.PENDING)
    clean(config_of(store.root, runs=1), apply=True)
    assert pending in there(store)


def test_no_cleaning_while_a_run_holds_the_root(store):
    folders = there(store)
    with run_lock(store.root):
        with pytest.raises(BusyError):
            clean(config_of(store.root, runs=1), apply=True)
        assert clean_after_run(config_of(store.root, runs=1)) is None
    assert there(store) == folders
    told = clean_after_run(config_of(store.root, runs=1))
    assert told is not None
    assert told["removed"] == 5
    assert clean_after_run(config_of(store.root)) is None


def test_reports_follow_the_records(store, nights):
    reports = [one["report"] for one in nights]
    clean(config_of(store.root, runs=1), apply=True)
    assert set(reports) <= there(store)
    clean(config_of(store.root, records=2), apply=True)
    assert set(reports) & there(store) == set(reports[2:])


def test_a_root_without_a_run_has_nothing_to_clean(tmp_path):
    assert clean(config_of(tmp_path / "none", runs=1), apply=True)["goes"] == []
    (tmp_path / "run").mkdir()
    assert clean(config_of(tmp_path / "run", runs=1), apply=True)["goes"] == []
    assert read_known(Store(tmp_path / "run").store, "tiny").runs == ()


EVERYTHING = {"runs": 1, "checkpoints": 1, "records": 1}


def furnish(root: Path) -> None:
    """Gives a root what a cleaning looks at beside its artifacts."""
    for place in (
        *(f"checkpoints/{number:016x}/last" for number in range(3)),
        *(f"runs/2026-01-0{day}" for day in (1, 2, 3, 4)),
        "serving/tiny/.publish-7",
        "segments/0123",
        "logs/old",
        ".gone/rest",
        "artifacts/Trainer/.system/executor_execution/7",
    ):
        (root / place).mkdir(parents=True)
        if "executor_execution" not in place:
            (root / place / "content").write_text("x")


def content(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "place",
    [
        ".gone",
        "artifacts",
        "artifacts/Trainer",
        "artifacts/Trainer/model",
        "artifacts/Trainer/.system",
        "checkpoints",
        "checkpoints/0000000000000000",
        "logs",
        "runs",
        "runs/2026-01-01",
        "segments",
        "serving",
        "serving/tiny",
    ],
)
def test_nothing_behind_a_link_is_touched_and_it_is_said(store, tmp_path, place):
    furnish(store.root)
    outside = tmp_path / "outside"
    (store.root / place).rename(outside)
    (store.root / place).symlink_to(outside)
    before = content(outside)
    if place == ".gone":
        with pytest.raises(RecsysError, match="R605"):
            clean(config_of(store.root, **EVERYTHING), apply=True)
        return
    done = clean(config_of(store.root, **EVERYTHING), apply=True)
    assert content(outside) == before
    # Of TFX's own folders, which no plan names, nothing is said.
    whys = [thing["why"] for thing in done["stays"]]
    is_said = any("is a link, and what it leads to is left alone" in why for why in whys)
    assert is_said or place == "artifacts/Trainer/.system"
    assert done["failed"] == []
    # Nothing is marked as removed that is still there.
    marked = [one for one in store.store.get_artifacts() if one.state == proto.Artifact.DELETED]
    assert not any(Path(one.uri).exists() for one in marked)


@pytest.mark.parametrize("moment", ["rename", "rmtree"])
@pytest.mark.parametrize("place", ["artifacts", "artifacts/Trainer", ".gone"])
def test_a_link_that_comes_in_between_leads_nowhere(store, tmp_path, monkeypatch, moment, place):
    furnish(store.root)
    aside, outside = tmp_path / "aside", tmp_path / "outside"
    shutil.copytree(store.root / place, outside)
    before = content(outside)
    of, real = (os, os.rename) if moment == "rename" else (shutil, shutil.rmtree)

    def swap_first(*words: Any, **more: Any) -> Any:
        if not aside.exists():
            (store.root / place).replace(aside)
            (store.root / place).symlink_to(outside)
        return real(*words, **more)

    monkeypatch.setattr(of, moment, swap_first)
    clean(config_of(store.root, **EVERYTHING), apply=True)
    assert (store.root / place).is_symlink()
    assert content(outside) == before


def test_a_root_that_is_a_link_itself_is_cleaned(store, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(store.root)
    done = clean(config_of(link, runs=1), apply=True)
    assert (len(done["goes"]), done["failed"]) == (5, [])
    assert there(store).isdisjoint(thing["artifact"] for thing in done["goes"])


def test_what_killed_runs_left_behind_links_stays(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for place in ("runs/1/.run.json.5", "artifacts/Trainer/model/7/x"):
        (outside / place).parent.mkdir(parents=True)
        (outside / place).touch()
    root.mkdir()
    for name in ("runs", "artifacts"):
        (root / name).symlink_to(outside / name)
    before = content(outside)
    assert sweep_records(root) == sweep_artifacts(root / "artifacts", [7]) == []
    assert content(outside) == before


def test_the_command_shows_the_plan_and_carries_it_out(store, tmp_path, capsys):
    pytest.importorskip("tfx", reason="needs the extra `pipeline`")
    path = tmp_path / "config.yaml"
    path.write_text(config_of(store.root).model_dump_json())  # JSON is YAML.
    words = ["clean", str(path), "--set", "keep.runs=1"]
    folders = there(store)
    assert run_main(*words) == 0
    text = capsys.readouterr().out
    assert "A dry run: 5 things, 500 B would go." in text
    assert "artifacts/Trainer/model/2" in text
    assert there(store) == folders
    assert run_main(*words, "--apply", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["applied"], done["freed"], len(done["goes"])) == (True, 500, 5)
    assert len(there(store)) == len(folders) - 5


def run_main(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def test_a_page_is_not_written_through_a_link(store, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    (store.root / f".index.html.{os.getpid()}").symlink_to(outside)
    (store.root / "runs").mkdir()
    clean(config_of(store.root, runs=1), apply=True)
    assert (store.root / "index.html").read_text().startswith("<!doctype html>")
    assert outside.read_text() == "theirs"
