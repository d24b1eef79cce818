"""A simulation through the real pipeline: killed in the middle, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from recsys.synth import synthesize

pytestmark = [pytest.mark.pipeline, pytest.mark.thorough]

_OPTIONS = ("--by", "month", "--nights", "4", "--json")
_SETS = ("train.epochs=4", "model.dim=16", "model.history=5", "evaluate.baselines=[popularity]",
         "bless.at_least=0.0", "bless.over={}", "bless.over_blessed=0.0",
         "bless.over_strongest=0.0", "bless.sure_loss=allow",
         "warm_start.epochs=1")  # fmt: skip


def _start(config: Path, out: Path) -> subprocess.Popen[str]:
    sets = [word for one in _SETS for word in ("--set", one)]
    command = [sys.executable, "-m", "recsys", "simulate-nights", str(config), "--out", str(out)]
    return subprocess.Popen([*command, *_OPTIONS, *sets], stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("nights")
    made = synthesize(folder / "data", users=200, items=150, interactions=6_000)
    out = folder / "out"
    first = _start(made.config, out)
    journal = out / "nights.jsonl"
    while first.poll() is None and not journal.exists():
        time.sleep(0.2)
    time.sleep(3)  # In the second night.
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert len(journal.read_text().splitlines()) == 1
    again = _start(made.config, out)
    said, _ = again.communicate()
    assert again.returncode == 0
    return out, json.loads(said.splitlines()[-1])


def test_each_day_is_replayed_once(simulated: tuple[Path, dict[str, Any]]) -> None:
    out, told = simulated
    nights = [json.loads(line) for line in (out / "nights.jsonl").read_text().splitlines()]
    assert [night["span"] for night in nights] == [f"2023-{m:02}-01" for m in (9, 10, 11, 12)]
    assert told["nights"] == nights
    assert not nights[0]["base"]
    for night in nights[1:]:
        assert night["base"]
        assert night["steps"] * 3 < nights[0]["steps"]
        assert 0 < night["value"] < 1
    page = (out / "run" / "index.html").read_text()
    assert told["page"] == str(out / "run" / "index.html")
    assert "<h2>4 runs</h2>" in page
