"""Inputs that break readers, config, `recsys check`, kernels or server, and how to find more.

tests/project/fuzz_corpus/CASE-NAME holds an input that was made for it, or that once did: a file or
the body of a request, and in facts.json how it is taken and what is known of it. The large ones
are made by the tests of the readers and of the server.

`pytest -m fuzz` has hypothesis make `FUZZ_INPUTS` of each case. The last one is kept in runs/fuzz;
after a failure it is the smallest that fails.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase
from places import ROOT

from benchmarks import measure

pytest.importorskip("fastapi", reason="needs the extra `serve`")
fuzz_cases = pytest.importorskip("fuzz_cases", reason="needs the development group")

CORPUS = sorted((ROOT / "tests" / "project" / "fuzz_corpus").iterdir())
LIMIT_S, LIMIT_MIB = 60.0, 2048.0
KEPT = ROOT / "runs" / "fuzz"
SEARCH = hypothesis.settings(
    max_examples=int(os.environ.get("FUZZ_INPUTS", "1000")),
    derandomize=False,
    database=DirectoryBasedExampleDatabase(KEPT / "found"),
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(scope="module")
def case() -> Iterator[Any]:
    yield functools.cache(lambda name: fuzz_cases.CASES[name]())
    fuzz_cases.servers.close()


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Ends the process where an input hangs, and fails where it takes too much memory."""
    held = measure.forget_peak()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert measure.peak_rss_mib() - held < LIMIT_MIB


@pytest.mark.parametrize("folder", CORPUS, ids=lambda folder: folder.name)
def test_an_input_of_the_corpus_is_taken_rightly(case: Any, folder: Path, tmp_path: Path) -> None:
    example = fuzz_cases.Example.load(folder)
    example.save(tmp_path)
    with watched():
        case(folder.name.split("-")[0]).take(example, tmp_path / example.name)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", fuzz_cases.CASES)
def test_no_input_is_taken_wrongly(
    case: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @hypothesis.settings(SEARCH)
    @hypothesis.given(case(name).strategy())
    def take(example: Any) -> None:
        example.save(KEPT / name)
        with watched():
            case(name).take(example, KEPT / name / example.name)

    take()
