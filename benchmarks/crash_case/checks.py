"""What must hold of a root once a run has recovered; each breach is a sentence."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as proto

from benchmarks.crash_case.runs import World
from recsys.bundles.bundle import verify
from recsys.bundles.versions import versions
from recsys.errors import RecsysError
from recsys.report.runs import RUNS, read_result

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
