"""Inputs that were made to break readers, config, `recsys check` and server, or that once did.

`python -m benchmarks.fuzz --replay` takes each under watch: tests/project/fuzz_corpus/CASE-NAME
holds a file or the body of a request, and in facts.json how it is taken and what is known of
it. The large ones are made by the tests of the readers and of the server.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from places import ROOT

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("hypothesis", reason="needs the development group")

CORPUS = sorted((ROOT / "tests" / "project" / "fuzz_corpus").iterdir())
COUNTS = ("crashes", "hangs", "memory", "wrong accepts")


def test_no_input_of_the_corpus_crashes_hangs_grows_or_is_wrongly_taken(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", "--keep", tmp_path, "--replay", *CORPUS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {line["case"]: line["max"] for line in map(json.loads, done.stdout.splitlines())}
    assert {kind: lines[kind] for kind in COUNTS} == dict.fromkeys(COUNTS, 0), done.stderr
    assert done.returncode == 0, done.stderr
    taken = {case: int(n) for case, n in re.findall(r"^(\w+): (\d+) inputs", done.stderr, re.M)}
    assert taken == Counter(folder.name.split("-")[0] for folder in CORPUS)
