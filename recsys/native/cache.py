"""Where built libraries are kept: whole or not at all, and only ours.

A library's name is the hash of all that made it. Its last 32 bytes are the SHA-256 of
those before, which the loader of shared objects doesn't look at: a truncated or
damaged file is seen before it is mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

_DIGEST_BYTES = 32
_FORMAT = "1"


def cache_folder() -> Path:
    """Returns the folder of built libraries; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path there is to be ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "recsys" / "native"


def cache_key(parts: Iterable[str], files: Iterable[Path]) -> str:
    """Returns the name for what is built from `files` under the circumstances `parts`."""
    digest = hashlib.sha256()
    contents = (b for path in files for b in (path.name.encode(), path.read_bytes()))
    for part in (_FORMAT.encode(), *(p.encode() for p in parts), *contents):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def processor() -> str:
    """Returns what the code of this processor depends on: its model and its features."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                found.setdefault(name.strip(), value.strip())
    return f"{platform.machine()} {platform.processor()} {sorted(found.items())}"


def is_whole(library: Path) -> bool:
    """Returns whether `library` is there, undamaged."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return False
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(body).digest() == digest


def is_private(library: Path) -> bool:
    """Returns whether nobody but us and root can have written `library`."""
    return all(
        path.stat().st_uid in (os.getuid(), 0)
        and not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        for path in (library, library.parent)
    )


def store(library: Path, build: Callable[[Path], None]) -> None:
    """Makes `library` with `build`, which writes it to the path that it is given.

    Any number of processes may do so at once: each builds in a folder of its own and
    puts the whole file into place in one step.

    Raises:
        OSError: The folder can't be made or written.
    """
    library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        built = Path(folder) / library.name
        build(built)
        with built.open("rb+") as file:
            file.write(hashlib.sha256(file.read()).digest())
            file.flush()
            os.fsync(file.fileno())
        built.chmod(0o755)
        built.replace(library)
