"""A process that takes one input after the other, and says when each begins and ends.

`python -m benchmarks.fuzz_case.worker CASE SEED PIPE`, in a folder of its own; inputs are
made from the seed until the process is ended. With `--replay FOLDER…` it takes those alone.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from benchmarks.fuzz_case.case import CRASH, LIMIT_MIB, MEMORY, WRONG, Case, Example, Finding

ROOT = Path(__file__).resolve().parent.parent.parent
CURRENT = "current"
_SCRIPTS = ("data", "hostile", "serve")
_ADDRESSES_BYTES = 16 << 30
"""No input may take the machine down, however fast it grows."""
_INPUTS_A_SEED = 200


class Planted:
    """Inputs of which some crash, hang, grow, or are taken wrongly: what watches must see it."""

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns a byte each."""
        return st.integers(0, 15).map(lambda n: Example("byte", bytes([n])))

    def take(self, example: Example, path: Path) -> None:
        """Goes wrong for some bytes."""
        byte = path.read_bytes()[0]
        if byte == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        elif byte == 2:
            raise KeyError(byte)
        elif byte == 3:
            time.sleep(3600)
        elif byte == 4:
            bytearray(b"x") * (3 << 30)
        elif byte == 5:
            raise Finding(WRONG, "planted")


def _files(format: str) -> Callable[[], Case]:
    def make() -> Case:
        from benchmarks.fuzz_case.files import Files

        return Files(format)

    return make


def _lazily(module: str, name: str) -> Callable[[], Case]:
    def make() -> Case:
        case: Case = getattr(__import__(f"benchmarks.fuzz_case.{module}", fromlist=[name]), name)()
        return case

    return make


CASES: dict[str, Callable[[], Case]] = {
    "csv": _files("csv"),
    "jsonl": _files("jsonl"),
    "parquet": _files("parquet"),
    "tfrecord": _files("tfrecord"),
    "check": _lazily("checks", "Checks"),
    "config": _lazily("configs", "Configs"),
    "server": _lazily("requests", "Server"),
    "api": _lazily("requests", "Api"),
    "planted": Planted,
}


class Taker:
    """Takes inputs, and tells of them.

    Args:
        case: What takes them.
        pipe: File descriptor that is told.
    """

    def __init__(self, case: Case, pipe: int) -> None:
        self._case, self._pipe, self._folder = case, pipe, Path(CURRENT)
        self._n_found = 0

    def take(self, example: Example) -> None:
        """Takes an input; whatever it raises is told and goes no further."""
        example.save(self._folder)
        self.say(event="begin")
        Path("/proc/self/clear_refs").write_text("5")  # The peak of memory begins anew.
        try:
            self._case.take(example, self._folder / example.name)
        except Finding as finding:
            self._tell(example, finding.kind, finding.text)
        except MemoryError:
            self._tell(example, MEMORY, traceback.format_exc())
        except Exception:  # noqa: BLE001 - that is what is looked for
            self._tell(example, CRASH, traceback.format_exc())
        peak_mib = _peak_mib()
        if peak_mib > LIMIT_MIB:
            self._tell(example, MEMORY, f"it held {peak_mib:.0f} MiB")
        self.say(event="end", peak_mib=peak_mib)

    def _tell(self, example: Example, kind: str, text: str) -> None:
        """Tells of a finding; the next input doesn't overwrite this one."""
        self._n_found += 1
        folder = f"found-{self._n_found}"
        example.save(Path(folder))
        self.say(event="finding", kind=kind, text=text, folder=folder)

    def say(self, **event: Any) -> None:
        """Writes a line of JSON."""
        os.write(self._pipe, json.dumps(event).encode() + b"\n")


def _peak_mib() -> float:
    """Returns the most memory that was held since it was last cleared [MiB]."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def main() -> None:
    """Takes inputs until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("seed", type=int)
    parser.add_argument("pipe", type=int)
    parser.add_argument("--replay", type=Path, nargs="*")
    options = parser.parse_args()
    faulthandler.enable()
    sys.path.extend(str(ROOT / "tests" / f"test_{name}_scripts") for name in _SCRIPTS)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES_BYTES, _ADDRESSES_BYTES))
    case = CASES[options.case]()
    taker = Taker(case, options.pipe)
    if options.replay is not None:
        for folder in options.replay:
            taker.take(Example.load(folder))
        taker.say(event="over")
        return
    settings = hypothesis.settings(
        max_examples=_INPUTS_A_SEED,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    test = settings(hypothesis.given(case.strategy())(taker.take))
    for seed in itertools.count(options.seed):
        taker.say(event="seed", seed=seed)
        hypothesis.seed(seed)(test)()


if __name__ == "__main__":
    main()
