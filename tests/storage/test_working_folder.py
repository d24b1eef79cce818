"""Roots in buckets: commits, other machines, second writers, readers, and what a kill leaves."""

import json
import os
import shlex
import shutil
import sqlite3
import threading
import time
from contextlib import closing

import pytest
from commands import run_main
from s3_server import dropped, proxied, s3, s3_address, truncated, unavailable

from recsys.bundles.bundle import write_manifest
from recsys.errors import BusyError, RecsysError
from recsys.storage import bucket_lock, working_folder
from recsys.storage.bucket import Bucket
from recsys.storage.working_folder import fetch_served, fetched, local_folder, written
from recsys.system.run_lock import Owner

__all__ = ["s3", "s3_address"]


@pytest.fixture
def machine(s3, tmp_path, monkeypatch):
    """Switches to the working folder of the bucket on a machine, and returns it."""

    def switch(name="a"):
        monkeypatch.setenv("RECSYS_CACHE", str(tmp_path / name))
        return local_folder(f"{s3}/runs/x")

    return switch


def write(root, path, content):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)


def contents(root):
    files = {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file()}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if not name.startswith((".home", ".fetched"))
    }


def keys(s3):
    return [entry.key.removeprefix("runs/x/") for entry in Bucket(s3).list()]


def test_a_commit_is_what_another_machine_gets_and_other_files_go(machine, s3):
    root = machine()
    with written(root) as commit:
        write(root, "a/1", b"1")
        write(root, "a/big", os.urandom(9 << 20))
        write(root, "a/run.lock", b"own")
        (root / "artifacts" / "empty").mkdir(parents=True)
        commit()
        write(root, "a/1", b"changed")
        write(root, "b/č 2", b"2")
    before = contents(root)
    other = machine("b")
    write(other, "b/stale", b"of a killed run")
    write(other, "logs/new.log", b"of this run")
    with written(other):
        assert contents(other) == {n: c for n, c in before.items() if n != "a/run.lock"} | {
            "logs/new.log": b"of this run"
        }
        assert (other / "artifacts" / "empty").is_dir()
        assert (other / "a" / "1").stat().st_mtime_ns == (root / "a" / "1").stat().st_mtime_ns
        (other / "b" / "č 2").unlink()
        (other / "b").rmdir()
    assert "b/č 2" not in contents(fetched(machine()))
    assert not (root / "b").exists()
    assert len(keys(s3)) == 4  # The manifest and three objects: what is replaced is deleted.


def test_a_database_is_copied_whole_while_it_is_open(machine):
    root = machine()
    with written(root), closing(sqlite3.connect(root / "metadata.sqlite")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE t (x)")
        database.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
        database.commit()
    other = fetched(machine("b"))
    with closing(sqlite3.connect(other / "metadata.sqlite")) as database:
        assert database.execute("SELECT sum(x) FROM t").fetchone() == (499500,)
    assert not (other / "metadata.sqlite-wal").exists()


def test_a_second_writer_is_refused_with_the_name_of_the_holder(machine):
    root = machine()
    with written(root):
        write(root, "a", b"1")
        other = machine("b")
        with (
            pytest.raises(BusyError, match=rf"R601.*s3://.*process {os.getpid()} on"),
            written(other),
        ):
            pass
        assert contents(other) == {}


@pytest.mark.parametrize(("silent_s", "is_taken"), [(0, False), (3600, True)])
def test_the_lock_of_another_machine_is_taken_over_after_silence(machine, s3, silent_s, is_taken):
    root = machine()
    owner = Owner.this().model_copy(update={"machine": "another"})
    held = bucket_lock._Held(owner=owner, renewed=time.time() - silent_s)
    Bucket(f"{s3}/runs/x").write(".recsys/lock.json", held.model_dump_json().encode())
    if is_taken:
        with written(root):
            write(root, "a", b"1")
        assert ".recsys/lock.json" not in keys(s3)
        return
    with pytest.raises(BusyError, match="R601"), written(root):
        pass


def test_a_writer_whose_lock_was_taken_over_commits_nothing(machine, monkeypatch):
    monkeypatch.setattr(bucket_lock, "BEAT_S", 0.1)
    signals = []
    monkeypatch.setattr(bucket_lock.os, "kill", lambda *signal: signals.append(signal))
    root = machine()

    def lose():
        with written(root):
            Bucket(working_folder.home_of(root)).write(".recsys/lock.json", b"another's")
            while not signals:
                time.sleep(0.05)
            write(root, "a", b"1")

    with pytest.raises(RecsysError, match="R604"):
        lose()
    assert contents(fetched(machine("b"))) == {}


def test_after_a_commit_by_another_writer_nothing_is_mixed(machine):
    root = machine()

    def late():
        with written(root):
            write(root, "serving/m/1/a", b"mine")
            other = machine("b")
            folder = working_folder._WorkingFolder(other, working_folder.home_of(other))
            write(other, "serving/m/1/a", b"other")
            folder.commit(("",))

    with pytest.raises(RecsysError, match="R622"):
        late()
    assert contents(fetched(machine("c"))) == {"serving/m/1/a": b"other"}


def test_readers_get_the_newest_version_only_and_follow_pushes_and_rollbacks(
    machine, s3, monkeypatch
):
    root = machine()
    with written(root):
        for version in (1, 2):
            write(root, f"serving/m/{version}/saved_model.pb", b"%d" % version)
        write(root, "artifacts/x/1/data", b"1")
    assert "serving/m/2/saved_model.pb" in keys(s3)  # Other servers read it there.
    reader = fetch_served(machine("b"))
    assert contents(reader) == {"serving/m/2/saved_model.pb": b"2"}
    assert (reader / "artifacts" / "x" / "1").is_dir()
    monkeypatch.setattr(working_folder, "_CHECK_S", 0.05)
    with working_folder.following(reader, 1):
        with written(root):
            write(root, "serving/m/3/saved_model.pb", b"3")
            (root / "serving/m/2").rename(root / "serving/m/.withdrawn-2")
        deadline = time.monotonic() + 20
        while not (reader / "serving/m/3").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
    assert contents(fetch_served(reader)) == {"serving/m/3/saved_model.pb": b"3"}
    with written(root):
        write(root, "serving/m/4/saved_model.pb", b"4")
    served = contents(fetch_served(reader))
    assert set(served) == {f"serving/m/{n}/saved_model.pb" for n in (3, 4)}  # To fall back to.
    assert "serving/m/2/saved_model.pb" not in keys(s3)
    restored = fetched(machine("b"), "serving/")
    assert contents(restored)["serving/m/.withdrawn-2/saved_model.pb"] == b"2"


def test_a_rollback_says_how_any_machine_restores_the_version(machine, s3, capsys):
    root = machine()
    with written(root):
        for version in (1, 2):
            write(root, f"serving/m/{version}/a", b"a")
            write_manifest(root / "serving" / "m" / str(version), {})
    assert run_main("rollback", "--root", f"{s3}/runs/x") == 0
    printed = capsys.readouterr().out
    words = shlex.split(next(line for line in printed.splitlines() if "to restore" in line))
    shutil.rmtree(root)
    machine("b")
    assert run_main(*words[words.index("rollback") :]) == 0
    assert "serving/m/2/a" in keys(s3)


def test_only_the_parts_that_were_fetched_are_committed(machine):
    root = machine()
    with written(root):
        write(root, "serving/m/1/a", b"1")
        write(root, "artifacts/x/1/data", b"1")
    other = machine("b")
    with written(other, "serving/"):
        write(other, "serving/m/2/a", b"2")
    assert set(contents(fetched(machine("c")))) == {
        "serving/m/1/a",
        "serving/m/2/a",
        "artifacts/x/1/data",
    }


def test_checkpoints_are_committed_when_complete_and_alone(machine, monkeypatch):
    monkeypatch.setattr(working_folder, "_CHECK_S", 0.05)
    root = machine()
    with written(root):
        write(root, "checkpoints/f/last/7.writing/contents.json", b"{}")
        write(root, "checkpoints/f/last/6/contents.json", b"{}")
        write(root, "artifacts/x/1/part", b"unfinished")
        deadline = time.monotonic() + 20
        while not (there := contents(fetched(machine("b")))) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert set(there) == {"checkpoints/f/last/6/contents.json"}


def test_a_run_on_this_machine_keeps_its_files_from_readers(machine):
    root = machine()
    with written(root):
        write(root, "a", b"not committed")
        done = threading.Thread(target=fetched, args=[root])
        done.start()
        done.join()
        assert contents(root) == {"a": b"not committed"}


@pytest.mark.parametrize("fault", [unavailable, dropped, truncated])
def test_a_commit_and_a_fetch_survive_a_store_that_fails_now_and_then(
    machine, s3_address, monkeypatch, fault
):
    counts = {"n": 0}

    def sometimes(handler, content):
        counts["n"] += 1
        return fault(handler, content) if counts["n"] % 3 == 0 else content

    with proxied(s3_address, sometimes) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        root = machine()
        with written(root):
            for n in range(20):
                write(root, f"serving/m/1/{n}", os.urandom(2000))
        assert contents(fetched(machine("b"))) == contents(root)


def test_a_damaged_object_is_found_and_nothing_is_changed(machine, s3):
    root = machine()
    with written(root):
        write(root, "a", b"right")
    (name,) = [key for key in keys(s3) if "objects" in key]
    Bucket(f"{s3}/runs/x").write(name, b"wrong")
    with pytest.raises(RecsysError, match=r"R624.*'a'"):
        fetched(machine("b"))
    assert contents(machine("b")) == {}


def test_working_folders_of_other_roots_go_beyond_the_limit(machine, s3, monkeypatch):
    old = machine()
    write(old, "a", bytes(2 << 20))
    os.utime(old / ".home", (1, 1))
    monkeypatch.setenv("RECSYS_CACHE_GIB", "0.001")
    fetched(local_folder(f"{s3}/another"))
    assert not old.exists()


def test_a_working_folder_of_another_user_is_refused(machine, monkeypatch):
    root = machine()
    assert root.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(RecsysError, match="R623"):
        machine()


def test_the_manifest_names_each_file_and_no_credentials(machine, s3):
    root = machine()
    with written(root):
        write(root, "a", b"1")
    manifest = json.loads(Bucket(f"{s3}/runs/x").read(".recsys/manifest.json")[0])
    assert manifest["files"]["a"][1] == 1
