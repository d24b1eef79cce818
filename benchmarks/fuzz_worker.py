"""A process that takes one input after the other, and says when each begins and ends."""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import itertools
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from benchmarks.measure import ROOT, forget_peak, peak_rss_mib

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


CASES = {
    **{format: ("Files", format) for format in ("csv", "jsonl", "parquet", "tfrecord")},
    "check": ("Checks",),
    "config": ("Configs",),
    "server": ("Server",),
    "api": ("Api",),
    "planted": (),
}
"""Class and arguments of each case, in `benchmarks.fuzz_cases`.

A case has `strategy()`, which returns the inputs, and `take(example, path)`, which gives an
input to the program: the example, and its file, alone in a folder. It raises `Finding` where
the program takes it wrongly.
"""


def work(name: str, seed: int, folder: Path, replay: list[Path] | None, pipe: Any) -> None:
    """Takes inputs until the process is ended.

    Args:
        name: Name of the case that takes them.
        seed: Seed that they are made of.
        folder: Folder to work in; the input that is taken is in `CURRENT`.
        replay: Folders of inputs that are taken in place of made ones; then it ends.
        pipe: Is told the events, a tuple each.
    """
    os.chdir(folder)
    for file, descriptor in ((os.devnull, 1), ("stderr.txt", 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    faulthandler.enable()
    sys.path.extend(str(ROOT / "tests" / f"test_{name}_scripts") for name in _SCRIPTS)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES_BYTES, _ADDRESSES_BYTES))
    case = Planted()
    if CASES[name]:
        kind, *arguments = CASES[name]
        case = getattr(importlib.import_module("benchmarks.fuzz_cases"), kind)(*arguments)
    numbers = itertools.count()

    def find(example: Example, kind: str, text: str) -> None:
        folder = f"found-{next(numbers)}"  # The next input doesn't overwrite it.
        example.save(Path(folder))
        pipe.send(("finding", kind, text, folder))

    def take(example: Example) -> None:
        """Takes an input; whatever it raises is told and goes no further."""
        example.save(Path(CURRENT))
        pipe.send(("begin",))
        forget_peak()
        try:
            case.take(example, Path(CURRENT) / example.name)
        except Finding as finding:
            find(example, finding.kind, finding.text)
        except MemoryError:
            find(example, MEMORY, traceback.format_exc())
        except Exception:  # noqa: BLE001 - that is what is looked for
            find(example, CRASH, traceback.format_exc())
        peak_mib = peak_rss_mib()
        if peak_mib > LIMIT_MIB:
            find(example, MEMORY, f"it held {peak_mib:.0f} MiB")
        pipe.send(("end", peak_mib))

    if replay is not None:
        for kept in replay:
            take(Example.load(kept))
        pipe.send(("over",))
        return
    settings = hypothesis.settings(
        max_examples=_INPUTS_A_SEED,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    test = settings(hypothesis.given(case.strategy())(take))
    for number in itertools.count(seed):
        pipe.send(("seed", number))
        hypothesis.seed(number)(test)()


# --- An input of the fuzzer, and what may be wrong with how it was taken.


CRASH, HANG, MEMORY, WRONG = "crashes", "hangs", "memory", "wrong accepts"
KINDS = (CRASH, HANG, MEMORY, WRONG)
LIMIT_S = 20.0
LIMIT_MIB = 2048.0
"""What one input may take: time, and memory of the whole process."""

_FACTS = "facts.json"


@dataclasses.dataclass(frozen=True)
class Example:
    """One input.

    Attributes:
        name: Its file name.
        content: Its bytes.
        facts: How it is taken, and what is known to be good of it; plain JSON.
        live: What takes its place where it is more than bytes; it isn't kept.
    """

    name: str
    content: bytes
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    live: Any = dataclasses.field(default=None, compare=False)

    def save(self, folder: Path) -> None:
        """Writes the input into an own folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / self.name).write_bytes(self.content)
        (folder / _FACTS).write_text(json.dumps(dict(self.facts), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Example:
        """Returns the input that `save` wrote."""
        [path] = [path for path in folder.iterdir() if path.name not in (_FACTS, "finding.txt")]
        return cls(path.name, path.read_bytes(), json.loads((folder / _FACTS).read_text()))


class Finding(Exception):
    """An input was taken wrongly.

    Args:
        kind: One of `KINDS`.
        text: What came of it.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text
        super().__init__(f"{kind}: {text}")


def require(holds: bool, text: str) -> None:
    """Raises a finding where the program took what it must refuse, or says what isn't so."""
    if not holds:
        raise Finding(WRONG, text)


_TERMINAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


def require_harmless(text: str) -> None:
    """Raises a finding where a text would steer a terminal."""
    match = _TERMINAL.search(text)
    require(match is None, f"printed a control character: {match}")


_TOKENS = [
    b"", b"\0", b"\n", b"\r", b"\r\n", b'"', b'""', b",", b";", b"\t", b"|", b"\\", b"'",
    b"\\u0000", b"\\ud800", b"\xff", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xe2\x80\xae", b"\x1b[31m", b"\x1b]0;x\x07", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8",
    b"[", b"]", b"{", b"}", b"[" * 100, b"{" * 5000, b'{"a":' * 70, b"[[],", b"null", b"NaN",
    b"Infinity", b"-", b"1e999", b"-0", b"9" * 400, b"0x10", b"1_000", b"2024-99-99", b": ", b"- ",
    b"? ", b"&a [", b"*a", b"<<: *a", b"!!int ", b"!!python/name:os.system", b"!!binary ", b"%YAML",
    b"---\n", b"...\n", b"|\n", b"#", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd",
    b"PK\x03\x04", b"PAR1", b"\x7f\xff\xff\xff\xff\xff\xff\xff",
]  # fmt: skip


@st.composite
def broken(draw: st.DrawFn, content: bytes) -> bytes:
    """Returns a content with some of its bytes changed, cut, doubled or replaced."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.sampled_from([0, 1, 2, 7, 60, 1000])))
        part = bytes(data[start:stop])
        tokens = st.sampled_from(_TOKENS) | st.binary(max_size=8)
        new = draw(
            st.sampled_from([b"", part * 2, part * 40, bytes(byte ^ 0x80 for byte in part)])
            | tokens
            | tokens
        )
        data[start:stop] = new
    return bytes(data)
