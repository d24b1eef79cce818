"""`recsys clean`: what stays whatever its age, what goes, and a kill in between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import run_main
from places import ROOT
from s3_server import s3, s3_address

pytest.importorskip("ml_metadata", reason="needs the extra `pipeline`")

from metadata_nights import Store, config_of
from ml_metadata.proto import metadata_store_pb2 as proto

from pipelines.clean import clean, clean_after_run
from recsys.config import KeepConfig
from recsys.errors import BusyError
from recsys.runs.retention import Thing, own_size, plan_files, remove
from recsys.storage.bucket import Bucket
from recsys.storage.working_folder import fetched, local_folder, written
from recsys.system.run_lock import run_lock

__all__ = ["s3", "s3_address"]
BIG = ("examples", "vocabularies", "model", "bundle")
"""Only small artifacts of an old run are kept, for resolvers."""


def cleaned(store: Store, *, apply: bool = True, **keep: Any) -> dict[str, Any]:
    return clean(config_of(store.root, keep=keep), apply=apply)


@pytest.fixture(scope="module")
def four_nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, int]]]:
    store = Store(tmp_path_factory.mktemp("four") / "run")
    return store.root, [store.night(f"2026-01-0{day}") for day in (1, 2, 3, 4)]


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
        if "pushed_destination" in artifact.custom_properties:
            pushed = artifact.custom_properties["pushed_destination"]
            pushed.string_value = pushed.string_value.replace(str(four_nights[0]), str(copied.root))
    copied.store.put_artifacts(artifacts)
    return copied


def there(store: Store) -> set[int]:
    return {int(path.name) for path in store.root.glob("artifacts/*/*/*")}


def big(*nights: dict[str, int]) -> set[int]:
    return {night[key] for night in nights for key in BIG}


def test_a_dry_run_changes_nothing_and_says_what_would_go(store, nights):
    first, second, *_ = nights
    states, folders = store.states(), there(store)
    plan = cleaned(store, runs=2, apply=False)
    goes = {thing["artifact"] for thing in plan["goes"]}
    assert goes == big(first, second)
    assert (plan["freed"], plan["applied"]) == (800, False)
    assert (store.states(), there(store)) == (states, folders)
    stays = {thing["artifact"] for thing in plan["stays"]}
    assert not stays & goes
    assert stays | goes == folders


def test_what_goes_is_marked_and_gone_and_all_else_is_as_it_was(store, nights):
    before = {
        each.id: each.SerializeToString(deterministic=True) for each in store.store.get_artifacts()
    }
    done = cleaned(store, runs=2)
    assert done["failed"] == []
    goes = {thing["artifact"] for thing in done["goes"]}
    assert there(store) == before.keys() - goes
    states = store.states()
    assert {id_ for id_, state in states.items() if state == proto.Artifact.DELETED} == goes
    # To the byte: an artifact's properties are part of TFX's cache key.
    after = {
        each.id: each.SerializeToString(deterministic=True) for each in store.store.get_artifacts()
    }
    assert all(after[id_] == before[id_] for id_ in after.keys() - goes)
    assert cleaned(store, runs=2)["goes"] == []


def test_without_a_limit_every_artifact_stays(store):
    assert cleaned(store, checkpoints=1)["goes"] == []
    assert cleaned(store, days=1)["goes"] == []  # All of them are of today.


def test_what_the_next_run_continues_from_stays_though_its_own_run_goes(store, nights):
    failed = store.night("2026-01-05", "failed")  # After it made vocabularies.
    last = store.night("2026-01-06", "refused")
    for day in (7, 8):
        store.execute("InteractionGen", f"2026-01-0{day}")  # Both were refused by the gate.
    cleaned(store, runs=1)
    *_, third, fourth = nights
    stay = there(store)
    assert set(last.values()) <= stay, "the last run that came to its end is whole"
    assert {last["vocabularies"], failed["vocabularies"]} <= stay
    assert {third["model"], fourth["model"]} <= stay, "the last two blessed models"
    assert stay.isdisjoint([third["examples"], fourth["examples"], third["bundle"]])
    small = ("statistics", "verdict", "blessing", "pushed")
    assert {night[key] for night in nights for key in small} <= stay


def test_the_models_of_versions_stay_and_of_those_rolled_back(store, nights):
    serving = store.root / "serving" / "tiny"
    (serving / "1").mkdir(parents=True)
    (serving / ".withdrawn-2").mkdir()
    done = cleaned(store, runs=1)
    first, second, *_ = nights
    assert {first["model"], second["model"]} <= there(store)
    whys = {thing["artifact"]: thing["why"] for thing in done["stays"]}
    assert whys[second["model"]] == "it is the model of version 2"


def test_the_last_models_that_were_not_rolled_back_stay(store, nights):
    ledger = {"highest": 4, "pinned": None, "withdrawn": {"3": "d", "4": "d"}}
    serving = store.root / "serving" / "tiny"
    serving.mkdir(parents=True)
    (serving / ".versions.json").write_text(json.dumps(ledger))
    store.night("2026-01-05", "refused")
    cleaned(store, runs=1)
    assert {night["model"] for night in nights} <= there(store)


def test_the_empty_folders_of_executions_go_and_those_with_something_in_them_stay(store):
    system = store.root / "artifacts" / "Trainer" / ".system" / "executor_execution"
    (system / "7").mkdir(parents=True)
    (system / "8" / "executor_output.pb").mkdir(parents=True)
    cleaned(store, apply=False)
    assert (system / "7").is_dir()
    cleaned(store)
    assert [path.name for path in system.iterdir()] == ["8"]


# Dies as by kill -9: nothing is flushed, no lock given back.
KILLED = """
import os, shutil, sys
from pipelines import clean as module
from recsys.config import Config

def die(*_, **__):
    os._exit(9)

moment, config = sys.argv[1], Config.model_validate_json(sys.argv[2])
of, name = {
    "before": (module, "remove_marked"),
    "between": (module, "remove"),
    "inside": (shutil, "rmtree"),
    "after": (module, "write_index"),
}[moment]
assert hasattr(of, name)
setattr(of, name, die)
module.clean(config, apply=True)
"""


@pytest.mark.parametrize("moment", ["before", "between", "inside", "after"])
def test_a_cleaning_that_was_killed_is_finished_by_the_next(store, moment):
    (store.root / "runs").mkdir(exist_ok=True)
    planned = {thing["artifact"] for thing in cleaned(store, runs=1, apply=False)["goes"]}
    config = config_of(store.root, keep={"runs": 1})
    command = [sys.executable, "-c", KILLED, moment, config.model_dump_json()]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 9
    deleted = {id_ for id_, state in store.states().items() if state == proto.Artifact.DELETED}
    assert deleted == (set() if moment == "before" else planned)
    assert cleaned(store, runs=1)["failed"] == []
    assert there(store).isdisjoint(planned)
    assert (store.root / "index.html").exists()
    assert list((store.root / ".gone").iterdir()) == []
    states = store.states()
    assert all(states[id_] == proto.Artifact.DELETED for id_ in planned)
    assert all(states[id_] == proto.Artifact.LIVE for id_ in there(store))


def test_what_belongs_to_others_is_unchanged(store, tmp_path, nights):
    theirs = store.night("other-1", pipeline="other")
    _, pending = store.execute(
        "Trainer",
        "2026-01-01",
        made={"model": ("Model", {})},
        artifact_state=proto.Artifact.PENDING,
    )
    (copied,) = store.store.get_artifacts_by_id([nights[0]["examples"]])
    copied.uri = str(tmp_path / "original" / "step" / "key" / "7")
    Path(copied.uri).mkdir(parents=True)
    store.store.put_artifacts([copied])
    done = cleaned(store, runs=1)
    assert there(store) >= {*theirs.values(), pending["model"]}
    assert Path(copied.uri).is_dir()
    whys = {thing["artifact"]: thing["why"] for thing in done["stays"]}
    assert whys[copied.id] == "it lies outside of this root"
    assert whys[pending["model"]] == "its step has not ended well"


def test_no_cleaning_while_a_run_holds_the_root(store, tmp_path, monkeypatch):
    monkeypatch.setenv("RECSYS_EVENTS", str(tmp_path / "events"))
    folders, keep = there(store), config_of(store.root, keep={"runs": 1})
    with run_lock(store.root):
        with pytest.raises(BusyError):
            clean(keep, apply=True)
        assert clean_after_run(keep) is None
    assert there(store) == folders
    assert clean_after_run(keep)["removed"] == 10
    *_, note = map(json.loads, (tmp_path / "events").read_text().splitlines())
    assert note["text"].startswith("10 things of earlier runs removed, ")
    assert clean_after_run(config_of(store.root)) is None


def test_reports_follow_the_records(store, nights):
    reports = [night["report"] for night in nights]
    cleaned(store, runs=1)
    assert set(reports) <= there(store)
    cleaned(store, records=2)
    assert set(reports) & there(store) == set(reports[2:])


def test_a_root_without_a_run_has_nothing_to_clean(tmp_path):
    for root in (tmp_path / "none", tmp_path):
        assert clean(config_of(root, keep={"runs": 1}), apply=True)["goes"] == []


def test_a_root_that_is_a_link_itself_is_cleaned(store, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(store.root)
    done = clean(config_of(link, keep={"runs": 1}), apply=True)
    assert (len(done["goes"]), done["failed"]) == (10, [])
    assert there(store).isdisjoint(thing["artifact"] for thing in done["goes"])


def test_the_command_shows_the_plan_and_carries_it_out(store, tmp_path, capsys):
    pytest.importorskip("tfx", reason="needs the extra `pipeline`")
    path = tmp_path / "config.yaml"
    path.write_text(config_of(store.root).model_dump_json())  # JSON is YAML.
    words = ["clean", str(path), "--set", "keep.runs=1"]
    folders = there(store)
    assert run_main(*words) == 0
    text = capsys.readouterr().out
    assert "entries 10 freed 1.0 kB" in " ".join(text.split())
    assert "artifacts/Trainer/model/" in text
    assert there(store) == folders
    assert run_main(*words, "--apply", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["applied"], done["freed"], len(done["goes"])) == (True, 1000, 10)
    assert len(there(store)) == len(folders) - 10


# --- files that are no artifacts


def filled(path: Path, size: int = 10) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "content").write_bytes(b"x" * size)
    return path


def set_time(path: Path, moment: float) -> None:
    for each in [*path.rglob("*"), path]:
        os.utime(each, (moment, moment))


def test_checkpoints_records_and_logs_have_separate_limits(tmp_path):
    runs = [(f"run-{i}", 1000.0 * i) for i in range(5)]
    (tmp_path / "logs").mkdir()
    for place, (run, started) in enumerate(runs):
        name = f"{place:016x}"
        for path in (tmp_path / "checkpoints" / name, tmp_path / "tensorboard" / name):
            set_time(filled(path), started + 1)
        filled(tmp_path / "runs" / run)
        (tmp_path / "logs" / f"{place}.log").touch()
        set_time(tmp_path / "logs" / f"{place}.log", started + 1)
    filled(tmp_path / "checkpoints" / "mine")
    filled(tmp_path / "runs" / "another-pipeline")

    def goes(**keep: Any) -> set[tuple[str, str]]:
        things = plan_files(tmp_path, "tiny", runs, KeepConfig(**keep), [])
        return {(thing.kind, thing.path.name) for thing in things if thing.goes}

    assert goes() == set()
    assert goes(checkpoints=2) == {("checkpoints", f"{i:016x}") for i in range(3)}
    assert goes(records=3) == {
        *(("log", f"{i}.log") for i in range(2)),
        *(("record", f"run-{i}") for i in range(2)),
        *(("tensorboard", f"{i:016x}") for i in range(2)),
    }


def test_checkpoints_that_a_training_writes_stay(tmp_path):
    folder = filled(tmp_path / "checkpoints" / ("0" * 16))
    thing = Thing("checkpoints", folder, "", goes=True)
    with run_lock(folder):
        assert remove(tmp_path, [thing], print) == [[str(folder), "a training is writing it"]]
    assert remove(tmp_path, [thing], print) == []
    assert not folder.exists()


def test_of_a_link_only_the_link_is_removed(tmp_path):
    outside, root = filled(tmp_path / "outside"), filled(tmp_path / "root")
    link = root / "link"
    link.symlink_to(outside)
    assert remove(root, [Thing("Model", link, "", goes=True)], print) == []
    assert not link.is_symlink()
    assert (outside / "content").exists()


def test_a_file_with_a_name_elsewhere_frees_nothing(tmp_path):
    shared = filled(tmp_path / "segments", 1000) / "content"
    linked = filled(tmp_path / "artifact", 50)
    os.link(shared, linked / "first")
    os.link(shared, linked / "second")
    assert own_size(linked) == 50
    assert own_size(tmp_path) == 1050


def test_what_goes_from_a_bucket_is_in_no_object_and_the_rest_is_whole(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("RECSYS_CACHE", str(tmp_path / "cache"))
    bucket, root = Bucket(f"{s3}/runs"), local_folder(f"{s3}/runs")
    with written(root):
        store = Store(root)
        nights = [store.night(f"2026-01-0{day}") for day in (1, 2, 3, 4)]
    config = config_of(root, keep={"runs": 2}).model_dump(mode="json") | {"root": bucket.url}
    (tmp_path / "c.yaml").write_text(json.dumps(config))

    def on_another_machine(*words: str) -> set[str]:
        """Cleans, and returns the contents of the objects that are files of artifacts."""
        shutil.rmtree(tmp_path / "cache")
        assert run_main("clean", str(tmp_path / "c.yaml"), *words) == 0
        entries = list(bucket.list(".recsys/objects"))
        return {bucket.read(entry.key)[0].decode() for entry in entries if entry.size == 100}

    gone = {f"{id_:0100}" for id_ in big(*nights[:2])}
    before = on_another_machine()
    assert gone < before
    assert on_another_machine("--apply") == before - gone
    shutil.rmtree(tmp_path / "cache")
    files = fetched(local_folder(bucket.url)).glob("artifacts/*/*/*/content")
    assert {file.read_text() for file in files} == before - gone
    goes = cleaned(Store(root), runs=2, apply=False)["goes"]
    assert not [thing for thing in goes if thing["artifact"] in big(*nights)]
