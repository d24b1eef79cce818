"""Files that a killed run left: only what is provably ours, and whose writer is dead.

Whoever calls this holds the lock of the root, so no run is alive there. What a killed
training, export or push leaves beside its own folders they sweep themselves when they
run again; here goes what nobody would come back to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from absl import logging

from recsys.held_folder import HeldFolder
from recsys.report.index import INDEX
from recsys.report.runs import RESULT, RUNS

_SYSTEM = ".system"
_EXECUTIONS = "executor_execution"
_STATEFUL = "stateful_working_dir"
_TEMPORARY = ".temp"
_UNFINISHED = re.compile(r"\.(?P<id>\d+)[.-].+")
"""What our stages write beside an output's folder, to rename it."""


def sweep_artifacts(artifacts: Path, dead: Collection[int]) -> list[Path]:
    """Removes what executions that will never be published wrote.

    TFX gives each output the folder `<step>/<output>/<id of the execution>`, and its own
    things `<step>/.system`: a temporary folder for each execution, gone when it ends
    well, and a working folder, which stays after a failure and is found by none.

    Args:
        artifacts: Folder of all artifacts of the root.
        dead: Ids of the executions.

    Returns:
        What was removed.
    """
    if not artifacts.is_dir():
        return []
    with HeldFolder(artifacts.parent) as root:
        return [path for path in _debris(artifacts, dead) if _remove(root, path)]


def sweep_records(root: Path) -> list[Path]:
    """Removes half-written records of runs, and pages of all runs; returns what was removed."""
    names = [root / INDEX, *(folder / RESULT for folder in (root / RUNS).glob("*"))]
    unfinished = [
        path
        for final in names
        for path in final.parent.glob(f".{final.name}.*")
        if path.name.rpartition(".")[2].isdecimal()
    ]
    with HeldFolder(root) as held:
        return [path for path in unfinished if _remove(held, path)]


def sweep_empty(artifacts: Path) -> int:
    """Removes the empty folders that TFX leaves, one for each execution; returns how many."""
    executions = (step / _SYSTEM / _EXECUTIONS for step in _folders(artifacts))
    if not artifacts.is_dir():
        return 0
    with HeldFolder(artifacts.parent) as root:
        return sum(_remove_empty(root, path) for folder in executions for path in _folders(folder))


def _debris(artifacts: Path, dead: Collection[int]) -> Iterator[Path]:
    names = {str(id_) for id_ in dead}
    for step in _folders(artifacts):
        executions = step / _SYSTEM / _EXECUTIONS
        yield from (path for path in _folders(executions) if path.name in names)
        yield from executions.glob(f"*/{_TEMPORARY}")
        yield from _folders(step / _SYSTEM / _STATEFUL)
        for output in _folders(step):
            if output.name == _SYSTEM:
                continue
            for path in output.iterdir():
                if path.name in names or _UNFINISHED.fullmatch(path.name):
                    yield path


def _folders(folder: Path) -> list[Path]:
    """Returns the folders in a folder that may not be there; links are no folders of ours."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]


def _remove_empty(root: HeldFolder, folder: Path) -> bool:
    try:
        root.remove_empty(folder)
    except OSError:  # Something is in it.
        return False
    return True


def _remove(root: HeldFolder, path: Path) -> bool:
    """Removes a file or a folder; returns whether it is gone. What stays harms nobody."""
    try:
        root.remove(path)
    except OSError as error:
        logging.warning("%s could not be removed: %s", path, error.strerror)
        return False
    return True
