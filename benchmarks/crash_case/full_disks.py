"""Runs on a file system that is about to be full."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.crash_case.checks import Served, breaches, stored
from benchmarks.crash_case.runs import Ended, World

_SIZE = 1 << 30
_PAGE = 4096
_FULL = ("R603", "R330", "R525", "R526", "R511", "R902")
"""The codes that tell of a disk without room."""


def full_disks(world: World, n: int, seed: int) -> list[tuple[str, float, list[str]]]:
    """Runs one night `n` times with too little room, and then with enough.

    The room ends at places spread over all that the night writes, one drawn in each
    n-th of it, so that the runs fail all along the way: a step that has ended is cached
    in the next one.

    Returns:
        Of each run: its name, its seconds, and what was wrong.
    """
    if not n:
        return []
    draw = random.Random(seed)
    results: list[tuple[str, float, list[str]]] = []
    start = _size(world.snapshots / world.steps[0])
    grows = _size(world.snapshots / "end") - start
    with _small_disk(world.root):
        world.put_back(world.steps[0])
        served = Served(world.serving)
        with served.watched():
            for number in range(n):
                until = start + int((number + draw.random()) / n * grows)
                free = max(0, until - _size(world.root))
                found = _starved(world, free)
                if found is None:  # Some steps write less than they did: the night is over.
                    print(f"{number} of {n} were too few bytes", file=sys.stderr, flush=True)
                    break
                results.append((f"{free:,} bytes: {found[2]}", *found[:2]))
                print(f"full disk {number + 1}: {results[-1]}", file=sys.stderr, flush=True)
            last = world.run()
        results.append(("with room", last.seconds, _ended(world, last, served)))
    return results


def _starved(world: World, free: int) -> tuple[float, list[str], str] | None:
    """Returns seconds, breaches and the step; None where the room was enough."""
    before = stored(world.root)
    with _filled(world.root, free):
        starved = world.run()
    if starved.code == 0:
        return None
    wrong = _told(world, starved)
    now = stored(world.root)
    wrong += [f"{file} has changed" for file, sha in before.items() if now.get(file) != sha]
    step = next((e["step"] for e in reversed(starved.events) if e["kind"] == "step_started"), "-")
    return starved.seconds, wrong, step


def _ended(world: World, last: Ended, served: Served) -> list[str]:
    """Returns what is wrong after the run that had room."""
    if last.code:
        return [f"with room it ended with {last.code}: {last.error}"]
    other = [] if world.model_of(last) == world.digest else ["another model"]
    # How many of the starved runs could leave a record is their own affair.
    found = [one for one in breaches(world, 0) if not one.startswith("the records")]
    return [*other, *served.breaches, *found]


def _told(world: World, starved: Ended) -> list[str]:
    error = starved.error
    if error is None:
        said = starved.log.read_text(errors="replace").splitlines()[-1:]
        return [] if "[R603]" in str(said) else [f"ended with {starved.code}: {said}"]
    text = f"{error['rule']} {error['received']} {error['cure']}"
    wrong = []
    if error["code"] not in _FULL:
        wrong.append(f"it was told as {error['code']}: {text}")
    if str(world.folder) not in text or "free" not in text:
        wrong.append(f"no path or no free bytes: {text}")
    return wrong


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Has a file system of its own at `folder`, which needs the rights of root."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(folder)]
    subprocess.run(words, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def _filled(folder: Path, free: int) -> Iterator[None]:
    """Leaves `free` bytes while it is open."""
    filler = folder / ".filler"
    room = shutil.disk_usage(folder).free - free
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, room))
    try:
        yield
    finally:
        filler.unlink()


def _size(folder: Path) -> int:
    """Returns what a folder takes in whole pages, as tmpfs counts [bytes]."""
    sizes = (file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return sum(-(-size // _PAGE) * _PAGE for size in sizes)
