"""The metrics equal ranx's, which is installed only for this test."""

import json
import os
import subprocess

import numpy as np
import pytest
from places import SUPPORT

from recsys.config import EvaluateConfig
from recsys.metrics import RankedLists, per_query

pytestmark = pytest.mark.bench  # Installs ranx with its dependencies, from the network.

SCRIPT = SUPPORT / "ranx_metrics.py"


def test_metrics_equal_those_of_ranx():
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 60, 200)
    cases = [
        (int(n), sorted(rng.choice(n, rng.integers(1, min(n, 9)), replace=False) + 1))
        for n in lengths
    ]
    ranks = np.concatenate([right for _, right in cases])
    query = np.repeat(np.arange(len(cases)), [len(right) for _, right in cases])
    accuracy = [m for m in EvaluateConfig().metrics if m.decides and m.name != "auc"]
    ours = per_query(accuracy, RankedLists(ranks, query, len(cases)), [1, 5, 20])
    uv = os.environ.get("UV", "uv")
    done = subprocess.run(
        [uv, "run", "--no-project", "--python", "3.11", "--with", "ranx", "python", str(SCRIPT)],
        input=json.dumps([(n, [int(rank) for rank in right]) for n, right in cases]),
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(done.stdout)
    assert set(theirs) == set(ours)
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-9, err_msg=name)
