"""Every engine makes the local data folder."""

import json
import shutil
import subprocess
import sys

import pytest
from places import ROOT

pytest.importorskip("apache_beam", reason="needs the extra `pipeline`")

from benchmarks import ingest_engines as bench
from recsys.data.ingest import transform

NEEDED = {"prism": "prism", "flink": "java", "spark": "java", "dask": "dask"}
pytestmark = [pytest.mark.pipeline, pytest.mark.engines]


def needs(engine):
    program = NEEDED[engine]
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"needs {program} on PATH, see docs/cluster.md"
    )


@pytest.mark.parametrize("engine", [pytest.param(name, marks=needs(name)) for name in NEEDED])
def test_every_case_is_equal_to_the_local_one(engine, tmp_path):
    words = ["--engines", "local", engine, "--rows", "5000", "--folder", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ingest_engines", *map(str, words)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, lines
    assert len(lines) == 2 * len(bench.Case) + 1
    assert lines[-1] == {"equal": True}


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=needs(name)) for name in NEEDED if name != "dask"]
)
def test_features_of_large_sides_are_the_local_ones(engine, tmp_path, monkeypatch):
    config = bench.write_case(tmp_path / "raw", bench.Case("files"), 5000)
    bench.ingested(config, str(tmp_path / "local"))
    monkeypatch.setattr(transform, "_LOCAL_BYTES", 0)
    with bench.started(bench.Name(engine), tmp_path / "cluster") as (beam, _):
        bench.ingested({**config, "beam": beam}, str(tmp_path / "engine"))
    assert bench.folder_digest(tmp_path / "engine") == bench.folder_digest(tmp_path / "local")
