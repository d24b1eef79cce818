"""`python -m pipelines.clean`: removes what retention lets go, and marks it in ML Metadata first.

An artifact is marked as deleted before its folder goes: TFX's cache and every resolver
take live artifacts alone, so a kill in between leaves a folder that nobody uses, and
that the next cleaning removes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from absl import logging
from ml_metadata.proto import metadata_store_pb2 as proto

from pipelines.metadata_store import open_store, read_known, with_password
from pipelines.recovery import sweep_empty
from recsys.config import Config
from recsys.config.load import load_config
from recsys.errors import RecsysError
from recsys.report.index import write_index
from recsys.runs.cleaning_plan import (
    EXAMPLES,
    GONE,
    Plan,
    Thing,
    plan_artifacts,
    plan_files,
    plan_segments,
    served_versions,
    with_sizes,
)
from recsys.runs.lock import run_lock
from recsys.runs.removal import remove
from recsys.runs.retention import REPORT, kept_runs, needed_artifacts, records_since
from recsys.runs.retention_facts import Known
from recsys.system.events import emit
from recsys.system.held_folder import link_on_the_way
from recsys.system.process import stage_main

_STEP = "clean"


def clean(config: Config, *, apply: bool) -> dict[str, Any]:
    """Plans, and where `apply` is set removes, while no run holds the root.

    Returns:
        The plan as JSON, `applied`, and `failed`: what could not be removed, and why.

    Raises:
        RecsysError: A run holds the root (R601), its folder of what is removed is a link
            (R605), or it can't be written.
    """
    root = Path(config.root)
    if not root.is_dir():
        return {**Plan([], []).to_json(), "applied": False, "failed": []}
    with run_lock(root):
        _check_gone(root)
        store = open_store(config)
        known = Known((), (), {}) if store is None else read_known(store, config.name)
        del store
        plan = make_plan(config, known, time.time())
        failed = _apply(config, plan) if apply else []
    return {**plan.to_json(), "applied": apply, "failed": failed}


def make_plan(config: Config, known: Known, now: float) -> Plan:
    """Returns what goes and what stays.

    Args:
        config: The config of the runs.
        known: What ML Metadata knows of them.
        now: Seconds since 1970.
    """
    root, keep = Path(config.root), config.keep
    versions = served_versions(root / "serving" / config.name)
    since = records_since(known.runs, keep)
    reasons = needed_artifacts(known, kept_runs(known, keep, now), versions)
    reports = _reports(known, since)
    goes, stays = plan_artifacts(known, reasons, root / "artifacts", reports_stay=reports)
    more, others = plan_files(root, config.name, known.runs, keep, since)
    unused, used = plan_segments(
        root, [thing.path for thing in stays if thing.name == EXAMPLES], keep
    )
    return Plan(with_sizes([*goes, *more, *unused]), with_sizes([*stays, *others, *used]))


def clean_after_run(config: Config) -> dict[str, Any] | None:
    """Cleans after a run if the config says so; never fails the run over it.

    Returns:
        How many things went, what was freed [bytes], and how many could not be removed;
        None where the config keeps everything, or nothing could be done.
    """
    if not config.keep.is_set:
        return None
    try:
        done = clean(config, apply=True)
    except (RecsysError, OSError, mlmd.errors.StatusError) as error:
        logging.warning("Nothing was cleaned: %s", error)
        return None
    return {
        "removed": len(done["goes"]) - len(done["failed"]),
        "freed": done["freed"],
        "failed": len(done["failed"]),
    }


def _reports(known: Known, since: float | None) -> set[int]:
    """Returns the ids of the reports whose run's record stays."""
    young = {run.id for run in known.runs if since is None or run.started >= since}
    reports = {report.id for report in known.of_kind(REPORT)}
    made = (execution.artifacts for execution in known.executions if execution.run in young)
    return {id_ for ids in made for id_ in ids} & reports


def _apply(config: Config, plan: Plan) -> list[list[str]]:
    """Marks, removes, and writes the page of all runs anew; returns what failed, and why."""
    marked = [thing.artifact for thing in plan.goes if thing.artifact is not None]
    if marked:
        _mark(mlmd.MetadataStore(with_password(config)), marked)
    done = 0

    def tell(thing: Thing) -> None:
        nonlocal done
        done += 1
        emit("progress", step=_STEP, done=done, total=len(plan.goes), text=str(thing.path))

    root = Path(config.root)
    _, failed = remove(root, plan.goes, tell)
    sweep_empty(root / "artifacts")
    if plan.goes and (root / "runs").is_dir():
        write_index(root)  # A report that is gone has no link there.
    return [[str(thing.path), why] for thing, why in failed]


def _check_gone(root: Path) -> None:
    """Refuses a link before anything is marked; removing looks again at each step."""
    link = link_on_the_way(root, root / GONE)
    if link is not None:
        raise RecsysError(
            "R605",
            f"The folder {GONE!r} of a root must be no link: it is where things are removed.",
            "Nothing was changed. Look at what it leads to, and remove the link.",
            str(link),
        )


def _mark(store: mlmd.MetadataStore, ids: Sequence[int]) -> None:
    """Marks artifacts as deleted, all of them or none."""
    artifacts = store.get_artifacts_by_id(ids)
    for artifact in artifacts:
        artifact.state = proto.Artifact.DELETED
    store.put_artifacts(artifacts)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Cleans as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.clean")
    parser.add_argument("--config", type=Path, required=True, help="config file (YAML)")
    parser.add_argument("--apply", action="store_true", help="remove what the plan says")
    options = parser.parse_args(arguments)
    return clean(load_config(options.config), apply=options.apply)


if __name__ == "__main__":
    stage_main(main)
