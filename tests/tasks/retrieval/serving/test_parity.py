"""The parity checks: what they compare with, what they refuse, and where they run."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.errors import RecsysError

pytest.importorskip("tensorflow")
from recsys.bundles import parity_process
from recsys.bundles.parity_process import check_absent, check_latency
from recsys.tasks.retrieval.serving import parity
from recsys.tasks.retrieval.serving.parity import (
    Answers,
    RetrievalReference,
    compare_scores,
)


def test_a_reference_is_read_as_it_was_written(tmp_path):
    reference = make_reference(4, 3, kind="int8", vectors="apart")
    reference.save(tmp_path)
    read = RetrievalReference.load(tmp_path)
    for field in dataclasses.fields(RetrievalReference):
        np.testing.assert_array_equal(getattr(read, field.name), getattr(reference, field.name))
    assert read.query.dtype == np.float32


def make_reference(n, dim, n_items=1, popular=False, **options):
    rng = np.random.default_rng(n)
    source = np.where(np.broadcast_to(popular, n), "popularity", "user").astype(object)
    return RetrievalReference(
        user_id=np.array([f"u\n{i}" for i in range(n)], object),
        history=np.array([["ü", "", "?"]] * n, object),
        query=rng.standard_normal((n, dim)).astype(np.float32),
        source=source,
        popularity=rng.random(n_items).astype(np.float32),
        **options,
    )


def answered(reference, embeddings, is_item, popular, k):
    """Returns the best answers, by a full sort."""
    scores = reference.query @ embeddings.T
    scores[popular] = reference.popularity
    scores[:, ~is_item] = -np.inf
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    source = np.where(popular, b"popularity", b"user")
    return Answers("recommend", rows, np.take_along_axis(scores, rows, axis=1), source)


@given(seed=st.integers(0, 2**16), n_items=st.integers(2, 40), k=st.integers(1, 5))
def test_the_best_answers_pass_whatever_the_blocks(seed, n_items, k):
    rng = np.random.default_rng(seed)
    popular = rng.random(6) < 0.3
    reference = make_reference(6, 3, n_items, popular)
    embeddings = rng.standard_normal((n_items, 3)).astype(np.float32)
    is_item = rng.random(n_items) < 0.7
    is_item[-1] = True
    k = min(k, int(is_item.sum()))
    answers = answered(reference, embeddings, is_item, popular, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parity, "_BLOCK_ROWS", 7)
        assert compare_scores([answers], reference, embeddings, is_item) <= 1e-5


@pytest.mark.parametrize(
    ("what", "code"),
    [("scores", "R532"), ("rows", "R533"), ("source", "R533"), ("popularity", "R533")],
)
def test_answers_that_are_not_the_best_are_refused(what, code):
    reference = make_reference(6, 3, 30)
    embeddings = np.random.default_rng(2).standard_normal((30, 3)).astype(np.float32)
    is_item = np.arange(30) > 0
    answers = answered(reference, embeddings, is_item, np.zeros(6, bool), 4)
    # Whoever answers everybody by popularity, and says so, is wrong too.
    by_popularity = answered(reference, embeddings, is_item, np.ones(6, bool), 4)
    wrong = {
        "scores": answers.scores + np.float32(1e-3),
        "rows": np.where(answers.rows == answers.rows[0, 0], answers.rows[0, 1], answers.rows),
        "source": np.full(6, b"popularity"),
    }
    bent = by_popularity if what == "popularity" else None
    bent = bent or dataclasses.replace(answers, **{what: wrong[what]})
    with pytest.raises(RecsysError, match=code):
        compare_scores([answers, bent], reference, embeddings, is_item)


class Model:
    """Answers nothing."""

    def __init__(self):
        self.signatures = {"recommend": self}
        self.structured_input_signature = ((), {})

    def __call__(self):
        return {}


def test_one_slow_request_in_fifty_is_over_the_budget(monkeypatch):
    # Two looks at the clock for each request.
    steps = [0.0005] * 99 + [0.02]
    clock = itertools.accumulate(itertools.cycle(steps)).__next__
    monkeypatch.setattr(parity_process, "time", types.SimpleNamespace(perf_counter=clock))
    with pytest.raises(RecsysError, match=r"R528.*5 ms.*Received: '20.00 ms'"):
        check_latency(Model(), make_reference(3, 2), 5.0)
    found = check_latency(Model(), make_reference(3, 2), 25.0)
    assert found == {"p50": pytest.approx(0.5), "p99": pytest.approx(20.0)}


def test_a_module_that_is_there_is_named():
    with pytest.raises(RecsysError, match=r"R529.*'json'"):
        check_absent(["no.such.module", "json"])


def test_the_checks_run_where_the_trainers_libraries_cant_be_imported():
    script = """
import importlib, io, json, sys
from recsys.bundles.parity_process import FORBIDDEN, main
question = {"bundle": "none", "reference": "none", "class": sys.argv[1], "latency_ms": None}
sys.stdin = io.StringIO(json.dumps(question))
try:
    main()
except FileNotFoundError:
    pass
assert "recsys.tasks.retrieval.serving.parity" in sys.modules and "tensorflow" in sys.modules
for name in (*FORBIDDEN, "recsys.tasks.model_folder"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported")
"""
    environment = {**os.environ, "KERAS_BACKEND": ""}
    reference = "recsys.tasks.retrieval.serving.parity:RetrievalReference"
    words = [sys.executable, "-c", script, reference]
    subprocess.run(words, env=environment, check=True)
