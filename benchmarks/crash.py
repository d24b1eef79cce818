"""`python -m benchmarks.crash`: killed, started twice, out of disk: does a run come out right?

A root with one night in it sees a second night on new data, first undisturbed, with a
copy of the root before each step. Then, from those copies:

- `--kills N` runs are killed, each at another point: each component before, inside, and
  after its work, and once ML Metadata knows of it. The same command is given again. It must
  end with the model of the undisturbed run, bit for bit, and leave no ghost, no debris,
  and no file of the dead execution in use.
- `--chain N` kills the run of one night again and again, each time further on, and at last
  lets it end: the same checks for a part of the time.
- `--pairs N` times two runs start at once: one of them must run, the other be refused
  (R601, exit code 75), and nothing of it be in ML Metadata.
- `--full-disks N` runs of one night have too little room, each a little more than the one
  before, on a file system of their own (needs root). They must say what is wrong and leave
  all that is stored as it was; the last one has room, and must make the same model.

All the time what is served is looked at: it must be whole.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as proto

from benchmarks.crash_world import MOMENTS, Ended, World
from benchmarks.measure import print_line
from recsys.bundles.bundle import verify
from recsys.bundles.versions import versions
from recsys.errors import RecsysError
from recsys.report.runs import RUNS, read_result


def main() -> None:
    """Prints how many cases came out right, and what each took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--chain", type=int, default=0)
    parser.add_argument("--features", action="store_true", help="with Transform, and slower")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--full-disks", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="points of kills to leave out")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--folder", type=Path, help="where to work, and to find again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recsys-crash-") as scratch:
        world = World((options.folder or Path(scratch)).resolve(), features=options.features)
        try:
            night = world.prepare()
            print_line("crash", "undisturbed night", [night], "s", 0.0)
            _tell("chain of kills", chain(world, options.chain, options.first, options.seed))
            _tell("kills", kills(world, options.kills, options.first, options.seed))
            _tell("pairs", pairs(world, options.pairs))
            _tell("full disks", full_disks(world, options.full_disks, options.seed))
        finally:
            world.close()


def _tell(case: str, results: list[tuple[str, float, list[str]]]) -> None:
    """Prints the results of a case: names, seconds, and breaches."""
    if not results:
        return
    bad = [(name, wrong) for name, _, wrong in results if wrong]
    for name, wrong in bad:
        print(json.dumps({"bench": "crash", "case": case, "point": name, "breaches": wrong}))
    good = [float(not wrong) for _, _, wrong in results]
    print_line("crash", f"{case} that came out right", good, "1 if so", 0.0)
    print_line("crash", f"{case}, recovery", [seconds for _, seconds, _ in results], "s", 0.0)
    print(f"{case}: {sum(good):.0f} of {len(good)} right", file=sys.stderr, flush=True)


# --- Runs that are killed at named points, and the same command again.


_MAIN = (
    *("InteractionGen", "StatisticsGen.Interactions", "VocabularyGen", "InteractionEncoder"),
    *("Trainer", "RetrievalEvaluator", "Exporter", "Pusher"),
)
_RESOLVERS = ("LatestBlessed", "EarlierStatistics", "PreviousVocabularies", "WarmBase")
_STAGES = ("Trainer", "RetrievalEvaluator", "Exporter")


def points(steps: list[str]) -> list[tuple[str, str, str]]:
    """Returns step, moment and victim of every kill: the main steps three times each first."""
    whom = itertools.cycle(("group", "runner"))
    first = [(step, moment, next(whom)) for moment in MOMENTS[:3] for step in _MAIN]
    alone = [(step, "inside", "stage") for step in _STAGES]
    rest = [
        (step, moment, next(whom))
        for step in steps
        for moment in MOMENTS
        if not (step.split(".")[0] in _RESOLVERS and moment == "inside")
        and (step not in _MAIN or moment == "published")
    ]
    return [*first, *alone, *rest]


def chain(world: World, n: int, first: int, seed: int) -> list[tuple[str, float, list[str]]]:
    """Kills the run of one night `n` times, each further on, with the same command between.

    The points before `first` are left out.

    Each step is killed at every moment in turn; that the next point is reached at all
    shows that the kill before was got over.

    Returns:
        Of each kill its name, the seconds until it, and what was wrong; then the same of
        the run that ends the night.
    """
    if not n:
        return []
    along = sorted(points(world.ran), key=lambda point: world.steps.index(point[0]))
    along = [point for point in along if point[2] != "stage"]
    along = [
        along[number * len(along) // min(n, len(along))] for number in range(min(n, len(along)))
    ]
    along = along[first:]
    world.put_back(along[0][0])
    served, results = Served(world.serving), []
    with served.watched():
        for number, (step, moment, whom) in enumerate(along, first):
            plant = {"step": step, "moment": moment, "whom": whom, "seed": seed + number}
            killed = world.run(plant={**plant, "seconds": world.seconds[step]})
            wrong = wait_until_ended(world)
            if killed.code != -signal.SIGKILL:
                wrong.append(f"it ended with {killed.code}: {killed.error}")
            name = f"{step} {moment}, {whom}"
            results.append((name, killed.seconds, wrong))
            print(f"chain {number + 1}: {name}: {wrong or 'ok'}", file=sys.stderr, flush=True)
        last = world.run()
    wrong = [] if last.code == 0 else [f"the last run ended with {last.code}: {last.error}"]
    if not wrong and world.model_of(last) != world.digest:
        wrong.append("another model")
    wrong += [*served.breaches, *breaches(world, len(along))]
    print(f"chain: last run: {wrong or 'ok'}", file=sys.stderr, flush=True)
    return [*results, ("the run that ended the night", last.seconds, wrong)]


def kills(world: World, n: int, first: int, seed: int) -> list[tuple[str, float, list[str]]]:
    """Kills `n` runs, from the point `first` on.

    Returns:
        Of each: its name, the seconds of the run after it, and what was wrong.
    """
    results = []
    for number, (step, moment, whom) in enumerate(points(world.ran)[first : first + n], first):
        name = f"{step} {moment}, {whom}"
        world.put_back(step)
        plant = {"step": step, "moment": moment, "whom": whom, "seed": seed + number}
        seconds, wrong = killed_once(world, {**plant, "seconds": world.seconds[step]})
        results.append((name, seconds, wrong))
        print(
            f"kill {number + 1}: {name}: {seconds:.1f} s {wrong or 'ok'}",
            file=sys.stderr,
            flush=True,
        )
    return results


def killed_once(world: World, plant: dict[str, Any]) -> tuple[float, list[str]]:
    """Kills one run and runs again; returns the seconds of that, and what was wrong."""
    served = Served(world.serving)
    with served.watched():
        killed = world.run(plant=plant)
        wrong = wait_until_ended(world)
        if plant["whom"] == "stage":
            if killed.code != 1 or killed.error is None:
                wrong.append(f"without its stage the run ended with {killed.code}")
        elif killed.code != -signal.SIGKILL:
            wrong.append(f"the run was not killed: it ended with {killed.code}")
        again = world.run()
    if again.code:
        return again.seconds, [*wrong, f"the run after it ended with {again.code}: {again.error}"]
    if world.model_of(again) != world.digest:
        wrong.append("another model")
    n_killed = int(killed.code == -signal.SIGKILL)
    return again.seconds, [*wrong, *served.breaches, *breaches(world, n_killed)]


# --- Two runs at once on one root.


_BUSY = 75


def pairs(world: World, n: int) -> list[tuple[str, float, list[str]]]:
    """Starts two runs at once, `n` times, on a root where all is cached.

    Returns:
        Of each pair: its name, the seconds until both had ended, and what was wrong.
    """
    if n:
        world.put_back("end")
    return [(f"pair {number}", *pair_once(world, number)) for number in range(n)]


def pair_once(world: World, number: int) -> tuple[float, list[str]]:
    """Starts two runs at once; returns the seconds until both ended, and what was wrong."""
    before = _runs(world)
    started = [world.start(), world.start()]
    ended = sorted((world.end(one) for one in started), key=lambda one: one.code)
    wrong = []
    if [one.code for one in ended] != [0, _BUSY]:
        wrong.append(f"exit codes {[one.code for one in ended]}")
    refused = ended[-1].error or {}
    pids = [str(pid) for pid, *_ in started]
    # Who is refused in the moment in which the other one signs can't be told its name.
    named = any(f"process {pid} on " in str(refused) for pid in pids)
    if refused.get("code") != "R601" or not (named or "just started" in str(refused)):
        wrong.append(f"refused with {refused}")
    after = _runs(world)
    new = after.keys() - before.keys()
    if len(new) != 1:
        wrong.append(f"{len(new)} runs in ML Metadata")
    for name in new:
        ids = after[name]
        if ids != list(range(ids[0], ids[0] + len(world.steps))):
            wrong.append(f"executions {ids}")
    seconds = max(one.seconds for one in ended)
    print(f"pair {number + 1}: {seconds:.1f} s {wrong or 'ok'}", file=sys.stderr, flush=True)
    return seconds, wrong


def _runs(world: World) -> dict[str, list[int]]:
    """Returns the executions of each run."""
    store = open_store(world.root)
    return {
        context.name: sorted(one.id for one in store.get_executions_by_context(context.id))
        for context in store.get_contexts_by_type("pipeline_run")
    }


# --- Runs on a file system that is about to be full.


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


# --- What must hold of a root once a run has recovered; each breach is a sentence.


_EXECUTION = re.compile(r"/(\d+)$")
_GOOD = (proto.Execution.COMPLETE, proto.Execution.CACHED)


def open_store(root: Path) -> mlmd.MetadataStore:
    """Opens ML Metadata of a root, to read."""
    connection = proto.ConnectionConfig()
    connection.sqlite.filename_uri = str(root / "metadata.sqlite")
    connection.sqlite.connection_mode = proto.SqliteMetadataSourceConfig.READONLY
    return mlmd.MetadataStore(connection)


def breaches(world: World, killed_runs: int) -> list[str]:
    """Returns what is wrong with the root after a recovery.

    Args:
        world: Whose root.
        killed_runs: How many runs were killed in it.
    """
    return [
        *_in_metadata(world.root),
        *_debris(world.root),
        *_temporary(world.temporary),
        *_records(world.root, killed_runs),
        *(f"process {pid} is left" for pid in world.processes()),
    ]


def _in_metadata(root: Path) -> Iterator[str]:
    store = open_store(root)
    executions = {one.id: one for one in store.get_executions()}
    dead = {id_ for id_, one in executions.items() if one.last_known_state not in _GOOD}
    for id_ in dead:
        if executions[id_].last_known_state != proto.Execution.FAILED:
            yield f"execution {id_} is {executions[id_].last_known_state}"
    for artifact in store.get_artifacts():
        found = _EXECUTION.search(artifact.uri)
        if artifact.state == proto.Artifact.LIVE:
            if found and int(found[1]) in dead:
                yield f"artifact {artifact.id} of a dead execution is live: {artifact.uri}"
            if not Path(artifact.uri).is_dir():
                yield f"artifact {artifact.id} has no folder: {artifact.uri}"
        elif artifact.state == proto.Artifact.PENDING:
            yield f"artifact {artifact.id} is pending"
    for id_ in dead:
        for path in (root / "artifacts").glob(f"*/*/{id_}"):
            yield f"{path} of a dead execution is there"
        for path in (root / "artifacts").glob(f"*/.system/executor_execution/{id_}/*"):
            yield f"{path} of a dead execution is there"  # TFX itself leaves the empty folder.


def _debris(root: Path) -> Iterator[str]:
    for pattern in (
        "artifacts/*/.system/stateful_working_dir/*",
        "artifacts/*/.system/executor_execution/*/.temp",
        "artifacts/*/*/.[0-9]*",
        "artifacts/*/*/*/.*-*",
        "artifacts/**/*beam-temp*",
        ".index.html.*",
        ".run.lock.*",
        "runs/*/.run.json.*",
        "serving/*/.publish-*",
        "checkpoints/*/*/*.writing*",
        "checkpoints/*/.*",
    ):
        for path in root.glob(pattern):
            yield f"debris: {path}"


def _temporary(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        yield f"debris: {path}"


def _records(root: Path, killed_runs: int) -> Iterator[str]:
    folders = sorted((root / RUNS).iterdir())
    states = [(read_result(folder) or {}).get("state") for folder in folders]
    if None in states:
        yield f"a record without a result: {states}"
    if states.count("killed") != killed_runs or states[-1:] != ["finished"]:
        yield f"the records are {states}"
    if "or still is" in (root / "index.html").read_text(encoding="utf-8"):
        yield "the page of all runs shows a dead run as running"


class Served:
    """Looks at what is served, again and again."""

    def __init__(self, serving: Path) -> None:
        self._serving = serving
        self.looks, self.breaches = 0, list[str]()
        self._checked: set[str] = set()

    def look(self) -> None:
        """Looks once: there is a version, and the newest one is whole."""
        newest = versions(self._serving)[-1:]
        if not newest:
            self.breaches.append("nothing is served")
            return
        try:
            verify(newest[0])
        except (RecsysError, OSError) as error:
            if newest[0].exists():  # Else it was pruned meanwhile, which only old ones are.
                self.breaches.append(str(error))
        self.looks += 1

    @contextmanager
    def watched(self, every_s: float = 1.0) -> Iterator[None]:
        """Looks every so often while it is open."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(every_s):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self.look()


def stored(root: Path) -> dict[str, str]:
    """Returns the sha256 of every file of the live artifacts, and of what is served."""
    folders = [
        Path(artifact.uri)
        for artifact in open_store(root).get_artifacts()
        if artifact.state == proto.Artifact.LIVE
    ]
    files = {file for folder in [*folders, root / "serving"] for file in folder.rglob("*")}
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not file.name.startswith(".")
    }


def wait_until_ended(world: World, seconds: float = 10.0) -> list[str]:
    """Waits for the stages of a dead runner; returns the breaches: those that live on."""
    end = time.monotonic() + seconds
    while (left := world.processes()) and time.monotonic() < end:
        time.sleep(0.1)
    return [f"process {pid} outlived its runner by {seconds:.0f} s" for pid in left]


if __name__ == "__main__":
    main()
