"""Rolling back: an earlier version is served again, at once, and what was bad stays away."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import run_main
from places import SUPPORT

from recsys.bundles import bundle as bundles
from recsys.bundles.publishing import Rollback, WithdrawnError, latest, publish, rollback
from recsys.errors import RecsysError, UsageError

_KILLS = SUPPORT / "kills.py"


def make_bundle(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "data").write_text(content)
    bundles.write_manifest(folder, {})
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Versions 1, 2 and 3 of the model `m`, of the contents a, b and c."""
    folder = tmp_path / "serving" / "m"
    for content in "abc":
        publish(make_bundle(tmp_path / content, content), folder, keep=3)
    return folder


def served(root: Path) -> list[str]:
    """Returns what stock TensorFlow Serving sees: folders whose name is a number."""
    return sorted(path.name for path in root.iterdir() if path.name.isdecimal())


@pytest.mark.parametrize(
    ("calls", "withdrawn", "versions"),
    [
        ([None], [3], ["1", "2"]),
        ([1], [2, 3], ["1"]),
        ([3], [], ["1", "2", "3"]),
        ([1, 2], [], ["1", "2"]),
        ([1, 2, 3], [], ["1", "2", "3"]),
    ],
    ids=["the-one-before", "several-back", "the-served-one", "back", "all-back"],
)
def test_a_rollback_withdraws_newer_versions_and_brings_older_ones_back(
    root, calls, withdrawn, versions
):
    found = [rollback(root, to) for to in calls][-1]
    assert found == Rollback(root / versions[-1], withdrawn)
    assert served(root) == versions
    assert (latest(root) / "data").read_text() == "abc"[len(versions) - 1]


def test_each_rollback_goes_one_further_back(root):
    assert [rollback(root).served.name for _ in range(2)] == ["2", "1"]
    with pytest.raises(RecsysError, match=r"R515.*'1'") as refused:
        rollback(root)
    assert not isinstance(refused.value, UsageError)
    assert served(root) == ["1"]


def test_one_comes_back_where_a_newer_one_goes(root, tmp_path):
    rollback(root)
    publish(make_bundle(tmp_path / "d", "d"), root, keep=3)
    assert rollback(root, 3) == Rollback(root / "3", [4])
    assert served(root) == ["1", "2", "3"]


@pytest.mark.parametrize("to", [0, 4, -1, 2**70])
def test_a_version_that_never_was_is_refused(root, to):
    with pytest.raises(UsageError, match=r"R516.*1, 2, 3"):
        rollback(root, to)
    assert served(root) == ["1", "2", "3"]


@pytest.mark.parametrize("exists", [True, False])
def test_without_a_version_there_is_nothing_to_roll_back(tmp_path, exists):
    folder = tmp_path / "serving"
    if exists:
        folder.mkdir()
    with pytest.raises(RecsysError, match="R515"):
        rollback(folder)
    assert folder.exists() == exists


def rot(version: Path) -> None:
    (version / "data").write_text("x")


def make_pipe(version: Path) -> None:
    (version / "data").unlink()
    os.mkfifo(version / "data")


@pytest.mark.parametrize("damage", [rot, make_pipe])
def test_a_damaged_target_is_refused_and_a_damaged_newest_one_is_not(root, damage):
    damage(root / "2")
    with pytest.raises(RecsysError, match=r"R517.*--list") as refused:
        rollback(root)
    assert "'data'" in str(refused.value)
    assert served(root) == ["1", "2", "3"]
    damage(root / "3")
    assert rollback(root, 1).withdrawn == [2, 3]


def test_what_was_rolled_back_is_not_published_again(root, tmp_path):
    rollback(root)
    with pytest.raises(WithdrawnError, match=r"R513.*version 3.*--to 3"):
        publish(tmp_path / "c", root, keep=3)
    assert served(root) == ["1", "2"]
    assert publish(tmp_path / "b", root, keep=3) == root / "2"
    rollback(root, 3)
    assert publish(tmp_path / "c", root, keep=3) == root / "3"


def test_it_is_known_when_its_folder_is_long_gone(root, tmp_path):
    rollback(root)
    for n in range(4, 8):
        publish(make_bundle(tmp_path / f"b{n}", str(n)), root, keep=1)
        if n < 6:
            rollback(root)
    assert not list(root.glob(".withdrawn-3"))
    with pytest.raises(WithdrawnError, match="version 3"):
        publish(tmp_path / "c", root, keep=1)


def test_a_folder_that_goes_is_remembered_though_nothing_new_came(root, tmp_path):
    rollback(root)
    rollback(root)
    assert publish(tmp_path / "a", root, keep=1) == root / "1"
    assert not (root / ".withdrawn-2").exists()
    with pytest.raises(WithdrawnError, match="version 2"):
        publish(tmp_path / "b", root, keep=1)


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "no-ledger"])
def test_a_number_that_was_rolled_back_is_not_given_again(root, tmp_path, ledger):
    rollback(root, 1)
    if not ledger:
        (root / ".versions.json").unlink()
    assert publish(make_bundle(tmp_path / "d", "d"), root, keep=3).name == "4"
    with pytest.raises(WithdrawnError, match="version 3"):
        publish(tmp_path / "c", root, keep=3)


def test_what_a_rollback_chose_stays_whatever_is_published(root, tmp_path):
    rollback(root, 1)
    for n in range(4, 8):
        publish(make_bundle(tmp_path / f"b{n}", str(n)), root, keep=1)
    assert served(root) == ["1", "7"]
    rollback(root)
    assert served(root) == ["1"]


def test_a_pin_moves_with_the_next_rollback(root, tmp_path):
    rollback(root, 1)
    for n in range(4, 7):
        publish(make_bundle(tmp_path / f"b{n}", str(n)), root, keep=2)
    rollback(root, 5)
    publish(make_bundle(tmp_path / "b7", "7"), root, keep=1)
    assert served(root) == ["5", "7"]


@contextmanager
def no_space() -> Iterator[None]:
    """No byte can be written to a file, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_stops_a_push_and_no_rollback(root, tmp_path):
    made = make_bundle(tmp_path / "d", "d")
    before = sorted(root.iterdir())
    with no_space(), pytest.raises(RecsysError, match="R511"):
        publish(made, root, keep=1)
    assert sorted(root.iterdir()) == before
    with no_space():
        assert rollback(root).served == root / "2"
    assert served(root) == ["1", "2"]
    with pytest.raises(WithdrawnError):
        publish(tmp_path / "c", root, keep=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "before", "after", "content"),
    [
        ("rollback", [1, 2, 3], [1], "1"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ("publish", [1, 2, 3], [3, 4], "4"),
                ("publish-after-rollback", [1], [1, 4], "4"),
                ("restore", [1, 2], [1, 2, 3], "3"),
            )
        ),
    ],
)
def test_a_kill_before_any_call_leaves_the_old_or_the_new_version(
    tmp_path, scenario, before, after, content
):
    said = subprocess.run(
        [sys.executable, _KILLS, scenario, tmp_path], capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(found) > 20
    newest = [one["versions"][-1] for one in found]
    assert set(newest) <= {before[-1], *after[-1:]}
    assert newest[0] == before[-1]
    assert newest[-1] == after[-1]
    # It changes once.
    assert sum(a != b for a, b in itertools.pairwise(newest)) == 1
    for one in found:
        assert one["damaged"] == []
        assert one["debris"] == []
        assert one["content"] == content
        # A push that was killed may have used up its number.
        assert one["after"][:-1] == after[:-1]
        assert one["after"][-1] in (after[-1], after[-1] + scenario.startswith("publish"))
        assert one["next"] > max(one["after"][-1], *one["versions"], *before)


def test_the_command_says_what_is_served_now(root, tmp_path, capsys):
    assert run_main("rollback", "--root", tmp_path, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"served": 2, "bundle": str(root / "2"), "withdrawn": [3]}
    assert run_main("rollback", "--root", tmp_path) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("served 1 ")
    assert "recsys rollback --root" in text
    assert "--to 2" in text
    assert run_main("rollback", "--root", tmp_path) == 1
    assert "R515" in capsys.readouterr().err
    assert run_main("rollback", "--root", tmp_path, "--to", 9) == 2
    assert "R516" in capsys.readouterr().err
    assert run_main("rollback", "--root", tmp_path, "--to", "x") == 2


def test_the_command_lists_the_versions(root, tmp_path, capsys):
    rollback(root, 2)
    shutil.rmtree(root / "1")
    assert run_main("rollback", "--root", tmp_path, "--list", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    states = {one["version"]: one["state"] for one in said["versions"]}
    assert states == {2: "served", 3: "rolled back"}
    assert run_main("rollback", "--root", tmp_path, "--list") == 0
    assert "rolled back" in capsys.readouterr().out
    assert served(root) == ["2"]
