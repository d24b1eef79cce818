"""The bundle on disk: damage is named, publishing is atomic under kill -9."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from recsys.bundles import bundle as bundles
from recsys.bundles.publishing import latest, publish
from recsys.errors import RecsysError


def make_bundle(folder: Path, content: str = "weights") -> Path:
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_text("graph")
    (folder / "variables" / "data").write_text(content)
    bundles.write_manifest(folder, {"metrics": {"recall@10": 0.118}})
    return folder


def enlarge(path: Path, size: int) -> None:
    os.truncate(path, size)


def versions(serving_root: Path) -> list[str]:
    return sorted(path.name for path in serving_root.iterdir() if path.is_dir())


def test_manifest_lists_every_file_with_size_and_sha256(tmp_path):
    bundle = make_bundle(tmp_path / "b", content="abc")
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["metrics"] == {"recall@10": 0.118}
    assert set(manifest["files"]) == {"saved_model.pb", "variables/data"}
    assert manifest["files"]["variables/data"] == {
        "size": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }


def test_manifest_refuses_nan(tmp_path):
    tmp_path.joinpath("file").write_text("x")
    with pytest.raises(RecsysError, match="R504"):
        bundles.write_manifest(tmp_path, {"metrics": {"mrr": float("nan")}})


def test_a_whole_bundle_is_verified(tmp_path):
    bundles.verify(make_bundle(tmp_path / "b"))


@pytest.mark.parametrize(
    ("damage", "code", "named"),
    [
        (lambda b: (b / "variables" / "data").write_text("weightz"), "R502", "variables/data"),
        (lambda b: (b / "variables" / "data").write_text("weight"), "R502", "variables/data"),
        (lambda b: (b / "saved_model.pb").unlink(), "R502", "saved_model.pb"),
        (lambda b: (b / "stray").write_text(""), "R503", "stray"),
        (lambda b: (b / "manifest.json").unlink(), "R501", "manifest.json"),
        (lambda b: (b / "manifest.json").write_text('{"files": {'), "R501", "manifest.json"),
        (lambda b: (b / "manifest.json").write_text("[]"), "R501", "manifest.json"),
        (lambda b: (b / "manifest.json").write_bytes(b"\xff\xfe"), "R501", "manifest.json"),
        (lambda b: enlarge(b / "saved_model.pb", 1 << 40), "R502", "1099511627776 bytes"),
        (lambda b: (b / "manifest.json").write_text('{"format": 1, "files": {"a": null}}'),
         "R501", "'a': None"),
    ],
    ids=[
        "one-byte", "short", "missing", "added", "no-manifest", "half-manifest", "no-map",
        "no-text", "endless-file", "no-description",
    ],
)  # fmt: skip
def test_damage_is_refused_and_named(tmp_path, damage, code, named):
    bundle = make_bundle(tmp_path / "b")
    damage(bundle)
    with pytest.raises(RecsysError, match=code) as refused:
        bundles.verify(bundle)
    assert named in str(refused.value)


@pytest.mark.parametrize("format_", ['"2"', "1", "3", "null"])
def test_a_manifest_of_another_format_is_refused(tmp_path, format_):
    bundle = make_bundle(tmp_path / "b")
    (bundle / "manifest.json").write_text(f'{{"format": {format_}, "files": {{}}}}')
    with pytest.raises(RecsysError, match="R501"):
        bundles.read_manifest(bundle)


def test_a_damaged_bundle_is_not_published(tmp_path):
    bundle = make_bundle(tmp_path / "b")
    (bundle / "variables" / "data").write_text("weightz")
    with pytest.raises(RecsysError, match="R502"):
        publish(bundle, tmp_path / "serving", keep=2)
    assert not (tmp_path / "serving").exists()


def test_a_bundle_that_changes_while_it_is_copied_is_not_published(tmp_path, monkeypatch):
    root, real = tmp_path / "serving", shutil.copytree
    publish(make_bundle(tmp_path / "a", "a"), root, keep=2)

    def rotting(source: Path, target: Path, *more: Any, **options: Any) -> None:
        real(source, target, *more, **options)
        if (file := Path(target) / "variables" / "data").exists():
            file.write_text("rotten")

    monkeypatch.setattr(shutil, "copytree", rotting)
    with pytest.raises(RecsysError, match="R502"):
        publish(make_bundle(tmp_path / "b", "b"), root, keep=2)
    assert versions(root) == ["1"]


def test_versions_count_up_and_the_newest_stay(tmp_path):
    root = tmp_path / "serving"
    for n in range(1, 13):
        path = publish(make_bundle(tmp_path / f"b{n}", content=str(n)), root, keep=3)
        assert path == root / str(n)
        assert latest(root) == path
    assert versions(root) == ["10", "11", "12"]
    assert (root / "12" / "variables" / "data").read_text() == "12"


def test_the_same_content_is_published_once(tmp_path):
    bundle, root = make_bundle(tmp_path / "b"), tmp_path / "serving"
    first = publish(bundle, root, keep=3)
    inode = first.stat().st_ino
    assert publish(bundle, root, keep=3) == first
    assert first.stat().st_ino == inode
    assert versions(root) == ["1"]


def test_content_that_returns_after_another_is_a_new_version(tmp_path):
    root = tmp_path / "serving"
    a, b = make_bundle(tmp_path / "a", "a"), make_bundle(tmp_path / "b", "b")
    published = [publish(x, root, keep=9).name for x in (a, b, a)]
    assert published == ["1", "2", "3"]


def test_a_published_version_that_was_damaged_is_replaced(tmp_path):
    bundle, root = make_bundle(tmp_path / "b"), tmp_path / "serving"
    first = publish(bundle, root, keep=3)
    (first / "variables" / "data").write_text("rotten")
    second = publish(bundle, root, keep=3)
    assert second.name == "2"
    bundles.verify(second)


def test_other_entries_are_unchanged_and_their_numbers_are_not_reused(tmp_path):
    root = tmp_path / "serving"
    (root / "notes").mkdir(parents=True)
    (root / "7").write_text("a file")
    (root / "99999999999999999999").mkdir()  # More than an int64.
    assert publish(make_bundle(tmp_path / "b"), root, keep=1).name == "8"
    assert latest(root).name == "8"
    assert versions(root) == ["8", "99999999999999999999", "notes"]
    assert (root / "7").read_text() == "a file"


def test_a_number_is_never_given_again(tmp_path):
    root = tmp_path / "serving"
    for n in range(1, 4):
        publish(make_bundle(tmp_path / f"b{n}", str(n)), root, keep=3)
    shutil.rmtree(root / "3")
    shutil.rmtree(root / "2")
    assert publish(make_bundle(tmp_path / "b4", "4"), root, keep=3).name == "4"


@pytest.mark.parametrize(
    "ledger",
    [None, "", "{", "[]", "[" * 10_000, '{"highest": "9"}', '{"highest": -1, "pinned": null}',
     '{"highest": 5, "pinned": null, "withdrawn": []}', '{"highest": true, "pinned": 1}',
     '{"highest": 1e99, "pinned": 1, "withdrawn": {"x": 1}}'],
)  # fmt: skip
def test_without_its_ledger_or_with_a_damaged_one_the_folders_count(tmp_path, ledger):
    root = tmp_path / "serving"
    for n in range(1, 4):
        publish(make_bundle(tmp_path / f"b{n}", str(n)), root, keep=2)
    file = root / ".versions.json"
    assert json.loads(file.read_text())["highest"] == 3
    file.unlink()
    if ledger is not None:
        file.write_text(ledger)
    assert publish(make_bundle(tmp_path / "b4", "4"), root, keep=2).name == "4"
    assert json.loads(file.read_text()) == {"highest": 4, "pinned": None, "withdrawn": {}}


@pytest.mark.parametrize("exists", [False, True], ids=["no-folder", "empty-folder"])
def test_latest_without_a_push_names_the_cure(tmp_path, exists):
    root = tmp_path / "serving"
    if exists:
        root.mkdir()
    with pytest.raises(RecsysError, match=r"R510.*recsys run"):
        latest(root)


def test_a_serving_root_that_is_a_file_is_refused(tmp_path):
    root = tmp_path / "serving"
    root.write_text("in the way")
    with pytest.raises(RecsysError, match="R511"):
        publish(make_bundle(tmp_path / "b"), root, keep=1)
    assert root.read_text() == "in the way"


def test_at_least_one_version_is_kept(tmp_path):
    with pytest.raises(RecsysError, match="R512"):
        publish(make_bundle(tmp_path / "b"), tmp_path / "serving", keep=0)


_PUBLISH = """
import sys
from pathlib import Path
from recsys.bundles.publishing import publish
publish(Path(sys.argv[1]), Path(sys.argv[2]), keep=2)
"""


def start_publishing(bundle: Path, root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _PUBLISH, bundle, root], cwd=ROOT)


def assert_only_whole_versions(root: Path) -> None:
    for name in versions(root):
        if not name.startswith("."):
            bundles.verify(root / name)


def test_a_kill_in_the_middle_of_the_copy_leaves_the_old_version(tmp_path):
    root = tmp_path / "serving"
    publish(make_bundle(tmp_path / "old"), root, keep=2)
    big = tmp_path / "big"
    big.mkdir()
    for n in range(300):
        (big / f"part{n:03}").write_bytes(os.urandom(64) * 4096)
    bundles.write_manifest(big, {})

    child = start_publishing(big, root)
    temporary = root / ".publish-2"
    while not (temporary.is_dir() and len(list(temporary.iterdir())) >= 3):
        assert child.poll() is None, "published before it could be killed"
        time.sleep(0.0005)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert 0 < len(list(temporary.iterdir())) < 301, "not in the middle of the copy"
    assert latest(root).name == "1"
    assert_only_whole_versions(root)

    assert publish(big, root, keep=2).name == "2"
    assert versions(root) == ["1", "2"]
    assert_only_whole_versions(root)


def test_a_reader_sees_only_whole_versions_while_others_publish(tmp_path):
    root, seen, broken = tmp_path / "serving", set(), []
    made = [make_bundle(tmp_path / f"b{n}", str(n)) for n in range(30)]
    publish(made[0], root, keep=5)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            path = latest(root)
            try:
                bundles.verify(path)
            except RecsysError as error:
                broken.append(error)
            seen.add(path.name)

    reader = threading.Thread(target=read)
    reader.start()
    for bundle in made[1:]:
        publish(bundle, root, keep=5)
        time.sleep(0.002)
    done.set()
    reader.join()
    assert not broken
    assert len(seen) > 5


def test_two_publishers_wait_for_each_other(tmp_path):
    root = tmp_path / "serving"
    made = [make_bundle(tmp_path / f"b{n}", str(n)) for n in range(4)]
    children = [start_publishing(bundle, root) for bundle in made]
    assert [child.wait() for child in children] == [0, 0, 0, 0]
    assert versions(root) == ["3", "4"]
    assert_only_whole_versions(root)
