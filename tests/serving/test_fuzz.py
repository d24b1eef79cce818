"""The HTTP surface, fuzzed by what its OpenAPI page says of it."""

import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("schemathesis", reason="needs the development group")

from serving import FakeRecommender, Running

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("n", [5, pytest.param(100, marks=pytest.mark.faults)])
def test_every_answer_is_in_the_openapi_page(tmp_path, n):
    # The page can't say what a signature takes: valid requests may be refused.
    options = ["--exclude-checks", "positive_data_acceptance", "--max-examples", str(n)]
    with Running(versions=(1, 2), kind=FakeRecommender) as running:
        page = f"{running.url}/openapi.json"
        finished = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", *options, "--seed", "1", page],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-1000:]
