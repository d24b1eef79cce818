"""Runs that are killed, started twice, or out of disk: what is wrong with their root afterwards.

A root with one night in it sees a second night on new data, first undisturbed, with a copy of the
root before each step. The cases start from these copies; a run after them must end with the model
of the undisturbed one, bit for bit, and leave nothing of the dead one. What is served must be
whole all the time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import ml_metadata as mlmd
from crash_world import Ended, Kill, World
from ml_metadata.proto import metadata_store_pb2 as proto

from benchmarks.measure import repeated
from recsys.bundles.bundle import verify
from recsys.bundles.publishing import versions
from recsys.errors import RecsysError
from recsys.report.runs import RUNS, read_result

Breaches = list[str]
"""A sentence for each fault."""


def killed_once(world: World, point: Kill) -> Breaches:
    """Kills one run and runs again."""
    world.put_back(point.step)
    with watched(world.serving) as unserved:
        killed = world.run(point)
        breaches = _of_killed(world, point, killed)
        again = world.run()
    breaches += _of_recovered(world, again, int(killed.code == -signal.SIGKILL))
    return breaches + unserved


def _of_killed(world: World, point: Kill, killed: Ended) -> list[str]:
    breaches = wait_until_ended(world)
    expected = 1 if point.victim == "stage" else -signal.SIGKILL
    if killed.code != expected or (expected == 1 and killed.error is None):
        breaches.append(f"the run was not killed: it ended with {killed.code}: {killed.error}")
    return breaches


def _of_recovered(world: World, ended: Ended, n_killed: int | None) -> list[str]:
    if ended.code:
        return [f"the run after it ended with {ended.code}: {ended.error}"]
    other = [] if ended.model == world.digest else ["another model"]
    return [*other, *breaches(world, n_killed)]


def wait_until_ended(world: World, seconds: float = 10.0) -> list[str]:
    """Waits for the stages of a dead runner; returns the breaches: those that live on."""
    end = time.monotonic() + seconds
    while (left := list(_living(world))) and time.monotonic() < end:
        time.sleep(0.1)
    return [f"{process} outlived its runner by {seconds:.0f} s" for process in left]


def _living(world: World) -> Iterator[str]:
    """Yields what lives: a dying process has no words any more, but still holds its folder."""
    yield from map("process {}".format, world.processes())
    for path in world.temporary.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield f"the holder of {path}"
        finally:
            os.close(descriptor)


# --- Two runs at once on one root.


_BUSY = 75


def started_twice(world: World, n: int) -> Iterator[Breaches]:
    """Starts two runs at once, `n` times, on a root where all is cached."""
    world.put_back("end")
    for _ in range(n):
        before = _executions(world)
        runs = [world.start(), world.start()]
        ended = sorted((run.end() for run in runs), key=lambda run: run.code)
        breaches = []
        if [run.code for run in ended] != [0, _BUSY]:
            breaches.append(f"exit codes {[run.code for run in ended]}")
        error = ended[-1].error or {}
        # A run that is refused while the other one writes its name can't report the name.
        names = ("just started", *(f"process {run.pid} on " for run in runs))
        if error.get("code") != "R601" or not any(name in str(error) for name in names):
            breaches.append(f"refused with {error}")
        new = [ids for name, ids in _executions(world).items() if name not in before]
        if len(new) != 1 or new[0] != [new[0][0] + n for n in range(len(world.steps))]:
            breaches.append(f"executions of new runs in ML Metadata: {new}")
        yield breaches


def _executions(world: World) -> dict[str, list[int]]:
    """Returns the ids of the executions of each run."""
    store = open_store(world.root)
    return {
        context.name: sorted(e.id for e in store.get_executions_by_context(context.id))
        for context in store.get_contexts_by_type("pipeline_run")
    }


# --- Runs on a file system that is about to be full.


_SIZE = 1 << 30
_PAGE = 4096
_FULL = ("R603", "R330", "R525", "R526", "R511", "R902")
"""The codes of a disk without space."""


def on_full_disks(world: World, n: int, seed: int) -> Iterator[Breaches]:
    """Runs one night `n` times with too little space, and then with enough.

    The space ends at places spread over all that the night writes, one drawn in each
    n-th of it, so that the runs fail all along the way: a step that has ended is cached
    in the next run.
    """
    draw = random.Random(seed)
    start = _size(world.snapshots / world.steps[0])
    growth = _size(world.snapshots / "end") - start
    with _small_disk(world.root), watched(world.serving) as unserved:
        world.put_back(world.steps[0])
        for number in range(n):
            until = start + int((number + draw.random()) / n * growth)
            free = max(0, until - _size(world.root))
            before = stored(world.root)
            with _filled(world.root, free):
                starved = world.run()
            if starved.code == 0:  # Some steps write less than they did: the night is over.
                break
            after = stored(world.root)
            changed = [f"{file} has changed" for file in before if before[file] != after.get(file)]
            yield _of_starved(world, starved) + changed
        last = world.run()
        # How many of the starved runs could leave a record is not known.
        breaches = _of_recovered(world, last, None)
    yield breaches + unserved


def _of_starved(world: World, starved: Ended) -> list[str]:
    error = starved.error
    if error is None:
        last = starved.log.read_text(errors="replace").splitlines()[-1:]
        return [] if "[R603]" in str(last) else [f"ended with {starved.code}: {last}"]
    text = f"{error['rule']} {error['received']} {error['cure']}"
    is_said = str(world.folder) in text and "bytes are free" in text
    return [] if is_said and error["code"] in _FULL else [f"{error['code']}: {text}"]


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
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(folder).free - free))
    try:
        yield
    finally:
        filler.unlink()


def _size(folder: Path) -> int:
    """Returns what a folder takes in whole pages, as tmpfs counts [bytes]."""
    sizes = (file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return sum(-(-size // _PAGE) * _PAGE for size in sizes)


def stored(root: Path) -> dict[str, str]:
    """Returns the sha256 of every file of the live artifacts, and of what is served."""
    artifacts = open_store(root).get_artifacts()
    folders = [Path(a.uri) for a in artifacts if a.state == proto.Artifact.LIVE]
    files = {file for folder in [*folders, root / "serving"] for file in folder.rglob("*")}
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not file.name.startswith(".")
    }


# --- invariants of a root after a recovery; each violation is a sentence


_GOOD = (proto.Execution.COMPLETE, proto.Execution.CACHED)
_DEBRIS = """artifacts/*/.system/stateful_working_dir/* artifacts/*/*/.[0-9]*
artifacts/*/.system/executor_execution/*/.temp artifacts/*/*/*/.*-*
artifacts/**/*beam-temp* .index.html.* .run.lock.* runs/*/.run.json.*
serving/*/.publish-* checkpoints/*/*/*.writing* checkpoints/*/.*"""


def open_store(root: Path) -> mlmd.MetadataStore:
    """Opens ML Metadata of a root, to read."""
    connection = proto.ConnectionConfig()
    connection.sqlite.filename_uri = str(root / "metadata.sqlite")
    connection.sqlite.connection_mode = proto.SqliteMetadataSourceConfig.READONLY
    return mlmd.MetadataStore(connection)


def breaches(world: World, n_killed: int | None) -> list[str]:
    """Returns what is wrong with the root after a recovery.

    Args:
        world: Whose root.
        n_killed: How many runs were killed in it; None: unknown.
    """
    debris = [path for pattern in _DEBRIS.split() for path in world.root.glob(pattern)]
    return [
        *_in_metadata(world.root),
        *(f"debris: {path}" for path in [*debris, *world.temporary.iterdir()]),
        *_in_records(world.root, n_killed),
        *(f"process {pid} is left" for pid in world.processes()),
    ]


def _in_metadata(root: Path) -> Iterator[str]:
    store = open_store(root)
    states = {execution.id: execution.last_known_state for execution in store.get_executions()}
    dead = {id_ for id_, state in states.items() if state not in _GOOD}
    for id_ in dead:
        if states[id_] != proto.Execution.FAILED:
            yield f"execution {id_} is {states[id_]}"
        # TFX itself leaves the empty folder.
        for pattern in (f"*/*/{id_}", f"*/.system/executor_execution/{id_}/*"):
            for path in (root / "artifacts").glob(pattern):
                yield f"{path} of a dead execution is there"
    for artifact in store.get_artifacts():
        maker = Path(artifact.uri).name
        if artifact.state == proto.Artifact.LIVE:
            if maker.isdecimal() and int(maker) in dead:
                yield f"artifact {artifact.id} of a dead execution is live: {artifact.uri}"
            if not Path(artifact.uri).is_dir():
                yield f"artifact {artifact.id} has no folder: {artifact.uri}"
        elif artifact.state == proto.Artifact.PENDING:
            yield f"artifact {artifact.id} is pending"


def _in_records(root: Path, n_killed: int | None) -> Iterator[str]:
    results = [read_result(folder) or {} for folder in sorted((root / RUNS).iterdir())]
    states = [result.get("state") for result in results]
    is_known = n_killed is not None
    is_other = is_known and (states.count("killed"), states[-1:]) != (n_killed, ["finished"])
    if None in states or is_other:
        yield f"the records are {states}"
    if "or still is" in (root / "index.html").read_text(encoding="utf-8"):
        yield "the page of all runs shows a dead run as running"


@contextlib.contextmanager
def watched(serving: Path, every_s: float = 1.0) -> Iterator[list[str]]:
    """Checks while it is open that the newest version that is served is there and whole.

    Yields:
        The breaches so far.
    """
    breaches: list[str] = []

    def look() -> None:
        newest = versions(serving)[-1:]
        try:
            verify(newest[0])
        except IndexError:
            breaches.append("nothing is served")
        except (RecsysError, OSError) as error:
            if newest[0].exists():  # Else it was pruned meanwhile, which only old ones are.
                breaches.append(str(error))

    with repeated(look, every_s):
        yield breaches
