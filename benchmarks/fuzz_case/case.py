"""An input of the fuzzer, and what may be wrong with how it was taken."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from hypothesis import strategies as st

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


class Case(Protocol):
    """What is fuzzed."""

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns the inputs."""

    def take(self, example: Example, path: Path) -> None:
        """Gives an input to the program.

        Args:
            example: The input.
            path: Its file, alone in a folder.

        Raises:
            Finding: It was taken wrongly.
        """


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
