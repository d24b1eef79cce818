"""What a run does first: it clears up after one that was killed, or stopped in the midst."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_metadata as mlmd
from absl import logging

from pipelines.debris import sweep_artifacts, sweep_records
from pipelines.ghosts import find_ghosts, lay, mark_runs
from pipelines.killed import record_killed
from recsys.bundles.publishing import only_publisher
from recsys.errors import RecsysError
from recsys.held_folder import link_on_the_way


@dataclasses.dataclass(frozen=True)
class Cleared:
    """What was found and cleared up.

    Attributes:
        runs: Ids of the runs that left no result.
        executions: Ids of their executions, now marked as failed.
        swept: Files and folders that were removed.
    """

    runs: list[str]
    executions: list[int]
    swept: list[Path]

    def __bool__(self) -> bool:
        """Returns whether there was anything."""
        return bool(self.runs or self.executions or self.swept)

    def told(self) -> str:
        """Returns what was done, a sentence."""
        return (
            f"Cleared up after an earlier run that did not end: {len(self.executions)} executions"
            f" marked as failed, {len(self.swept)} files and folders removed."
        )


def clear_up(root: Path, serving: Path, store: mlmd.MetadataStore, pipeline: str | None) -> Cleared:
    """Clears up; the holder of the run lock alone may call this.

    Files go before the executions are marked, so that a sweep that is killed itself is
    done again.

    Args:
        root: Folder of everything that runs write.
        serving: Folder of the served versions.
        store: The metadata store.
        pipeline: Name of the pipeline whose executions count; None: of every one.
    """
    ghosts = find_ghosts(store, pipeline)
    ids = [execution.id for execution in ghosts.executions]
    swept = [*sweep_artifacts(root / "artifacts", ids), *sweep_records(root)]
    _sweep_serving(root, serving)
    runs = record_killed(root)
    mark_runs(store, runs)
    lay(store, ghosts)
    cleared = Cleared(runs, ids, swept)
    if cleared:
        logging.warning(cleared.told())
        for path in swept:
            logging.info("Removed %s.", path)
    return cleared


def _sweep_serving(root: Path, serving: Path) -> None:
    """Has the publisher sweep what a push that was killed left, but not behind a link."""
    if not serving.is_dir():
        return
    link = link_on_the_way(root, serving)
    if link is not None:
        logging.warning("%s is a link, and what it leads to is left alone.", link)
        return
    try:
        with only_publisher(serving):
            pass
    except RecsysError as error:  # The step that pushes will say so if it matters.
        logging.warning(str(error))
