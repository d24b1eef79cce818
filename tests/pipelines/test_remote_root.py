"""A run whose root is in a bucket: killed, resumed on another machine, and served on a third."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from golden_runs import recsys
from s3_server import SECRET, gs, s3, s3_address

from recsys.storage.bucket import Bucket

__all__ = ["gs", "s3", "s3_address"]
pytest.importorskip("tfx", reason="needs the extra `pipeline`")
pytestmark = [pytest.mark.pipeline, pytest.mark.faults]
WAIT_S = 600


def committed(bucket):
    try:
        return set(json.loads(bucket.read(".recsys/manifest.json")[0])["files"])
    except FileNotFoundError:
        return set()


@pytest.mark.parametrize("store", ["s3", pytest.param("gs", marks=pytest.mark.engines)])
def test_a_killed_run_goes_on_on_another_machine_with_the_metrics_of_a_local_one(
    part_run, store, tmp_path, monkeypatch, request
):
    cache, bucket = tmp_path / "cache", Bucket(f"{request.getfixturevalue(store)}/runs")
    monkeypatch.setenv("RECSYS_CACHE", str(cache))
    for name in ("config.yaml", "ratings.csv", "movies.csv"):
        shutil.copy(part_run / "copy" / name, tmp_path / name)
    sets = [f"root={bucket.url}", "train.checkpoint.every_steps=5"]
    words = ["run", "config.yaml", *(word for one in sets for word in ("--set", one)), "--json"]
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen([sys.executable, "-m", "recsys", *words], cwd=tmp_path, stderr=log)
    deadline = time.monotonic() + WAIT_S
    while not any(path.endswith("/contents.json") for path in committed(bucket)):
        assert run.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    busy = recsys(*words, cwd=tmp_path, check=False)
    assert busy.returncode == os.EX_TEMPFAIL
    holder = json.loads(bucket.read(".recsys/lock.json")[0])["owner"]
    assert f"process {holder['pid']} on {holder['host']}" in busy.stderr
    run.kill()
    run.wait()
    while Path(f"/proc/{holder['pid']}").exists():
        time.sleep(0.1)
    shutil.rmtree(cache, ignore_errors=True)  # Another machine.

    done = recsys(*words, cwd=tmp_path)
    result = json.loads(done.stdout)
    local = json.loads((part_run / "copy" / "result.json").read_text())
    baselines = [one["metrics"].pop("baselines") for one in (result, local)]
    assert result["metrics"] == pytest.approx(local["metrics"], abs=1e-5)
    for name, of_baseline in baselines[1].items():
        assert baselines[0][name] == pytest.approx(of_baseline, abs=1e-5)
    assert "InteractionGen" in done.stderr
    assert done.stderr.count("cached") >= 8  # All before the training.
    shutil.rmtree(cache)

    lists = recsys("recommend", "--user", "1", "--root", bucket.url, "--json", cwd=tmp_path)
    assert len(json.loads(lists.stdout)["items"]) == 10
    (folder,) = cache.glob("recsys-*")
    assert [path.name for path in folder.glob("serving/*/*")] == ["1"]
    assert not any(path.is_file() for path in folder.glob("artifacts/**/*"))
    printed = [text for each in (busy, done, lists) for text in (each.stdout, each.stderr)]
    objects = [b"".join(bucket.stream(entry.key)) for entry in bucket.list()]
    assert objects
    assert not [text for text in printed if SECRET in text]
    assert not [content for content in objects if SECRET.encode() in content]
