"""Every engine makes the local data folder."""

import json
import shutil
import subprocess
import sys

import pytest
from places import ROOT

pytest.importorskip("apache_beam", reason="needs the extra `pipeline`")

from benchmarks import ingest_engines as bench
from recsys.config import Config
from recsys.stages.ingest import ingest

NEEDED = {"prism": "prism", "flink": "java", "spark": "java", "dask": "dask"}
pytestmark = [pytest.mark.pipeline, pytest.mark.slow]


def needs(engine):
    program = NEEDED[engine]
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"needs {program} on PATH, see docs/cluster.md"
    )


def made(config, out, beam):
    ingest(Config.model_validate_json(json.dumps({**config, "beam": beam})), out, progress=False)
    return bench.folder_digest(out)


@needs("prism")
def test_prism_makes_the_local_folder(tmp_path):
    config = bench.write_case(tmp_path / "raw", bench.Case.files, 2_000)
    with bench.started(bench.Name.prism, tmp_path / "prism") as (beam, _):
        found = made(config, tmp_path / "prism-out", beam)
    assert found == made(config, tmp_path / "local", {})


@pytest.mark.engines
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
