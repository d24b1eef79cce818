"""Exports of a large table that are killed, or run out of disk: the old bundle stays whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from recsys.bundles.bundle import manifest_digest, verify

pytestmark = pytest.mark.faults

_ROWS = 400_000
_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Returns a folder with a model of 100 MB, and its bundle."""
    out = tmp_path_factory.mktemp("faults") / "made"
    words = ["--users", str(_ROWS), "--items", "50", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "benchmarks.worlds", *words], check=True)
    folder = out.with_name("made.work")
    (folder / "export.json").write_text('{"name": "wide", "export": {"k": 100}}')
    finished = start(folder)
    said, _ = finished.communicate(timeout=_TIMEOUT_S)
    assert finished.returncode == 0, said
    return folder


def start(folder, largest_file=None):
    """Starts an export into `bundle`; no file may become larger than `largest_file` bytes."""
    # A fork of this process, as by a function before the start, may stand still in JAX.
    limit = [] if largest_file is None else ["prlimit", f"--fsize={largest_file}"]
    paths = {"config": "export.json", "model": "model", "data": "data", "out": "bundle"}
    words = [word for name, path in paths.items() for word in (f"--{name}", str(folder / path))]
    return subprocess.Popen(
        [*limit, sys.executable, "-m", "recsys.stages.export", *words],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    "moment",
    ["saved_model.pb", "variables/variables-0-1.index", "item_embeddings.npy"],
    ids=["saved", "streaming", "gates"],
)
def test_a_killed_export_leaves_the_old_bundle_and_the_next_one_sweeps(world, moment):
    before = manifest_digest(world / "bundle")
    killed = start(world)
    end = time.monotonic() + _TIMEOUT_S
    while not (world / ".bundle.partial" / moment).exists():
        assert killed.poll() is None, killed.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=_TIMEOUT_S)
    assert (world / ".bundle.partial").exists()
    verify(world / "bundle")
    assert manifest_digest(world / "bundle") == before

    again = start(world)
    said, _ = again.communicate(timeout=_TIMEOUT_S)
    assert again.returncode == 0, said
    verify(world / "bundle")
    assert sorted(path.name for path in world.iterdir()) == [
        "bundle",
        "data",
        "export.json",
        "model",
    ]


@pytest.mark.parametrize("room", [1_000, 100_000, 10_000_000])
def test_a_full_disk_leaves_the_old_bundle(world, room):
    before = manifest_digest(world / "bundle")
    stopped = start(world, room)
    said, _ = stopped.communicate(timeout=_TIMEOUT_S)
    assert stopped.returncode == 1
    error = json.loads(said.splitlines()[-1])["error"]
    assert error["code"] in ("R525", "R526")
    assert "Free disk space" in error["cure"]
    verify(world / "bundle")
    assert manifest_digest(world / "bundle") == before
    assert not (world / ".bundle.partial").exists()


def test_a_table_that_was_cut_short_is_named(world):
    summary = json.loads((world / "model" / "model.json").read_text())
    paths = [variable["path"] for variable in summary["variables"]]
    number = next(n for n, path in enumerate(paths) if path.endswith("users/embeddings"))
    table = world / "model" / "weights" / f"{number}.npy"
    size = table.stat().st_size
    os.truncate(table, size - 1)
    try:
        said, _ = start(world).communicate(timeout=_TIMEOUT_S)
    finally:
        os.truncate(table, size)
    error = json.loads(said.splitlines()[-1])["error"]
    assert error["code"] == "R310"
    assert table.name in error["rule"]
