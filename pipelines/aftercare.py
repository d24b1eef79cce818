"""The end of every run: its error, summary, retention and notification."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from recsys.config import Config
from recsys.errors import RecsysError, plugin_error
from recsys.formats import counted, size
from recsys.report.runs import RUNS, MissingError, read_result
from recsys.runs.summary import run_summary, send_summary
from recsys.system import events
from recsys.system.disk import full_disk_error, storage_error
from recsys.system.signals import StoppedError

_STOPPED_S = 10.0
"""Time limit for the notification of a stopped run [s]; `recsys run` waits 30 s."""


def after_run(
    config: Config,
    run_id: str | None,
    error: RecsysError | None = None,
    step: str | None = None,
    state: str = "failed",
) -> dict[str, Any] | None:
    """Applies the retention of the config after a successful run, and sends the summary.

    A failure here neither fails the run nor hides its error.

    Args:
        config: The config of the run.
        run_id: Its id; None if it failed before it had one.
        error: The error of a failed or stopped run.
        step: The step that failed.
        state: State of a run with an error: `failed`, `stopped` or `killed`.

    Returns:
        The summary of the run, with `cleaned` and `webhook`; None if it can't be made.
    """
    try:
        result = _record(config.root_folder, run_id) or {"name": config.name}
        if state == "killed":
            result.setdefault("state", state)
        if error is not None:
            result |= {"state": state, "error": str(error), "step": step}
        notify = config.notify
        if state == "stopped":
            notify = notify.model_copy(update={"total_s": min(notify.total_s, _STOPPED_S)})
        summary = run_summary(run_id, result, config.root_folder)
        summary["cleaned"] = _clean(config) if error is None and state != "killed" else None
        webhook = send_summary(summary, notify)
        if webhook is not None:
            _note("webhook", _sentence(webhook))
        return {**summary, "webhook": webhook}
    except Exception:  # noqa: BLE001 must not change the result of the run
        logging.exception("The summary of the run could not be sent.")
        return None


def report_killed(config: Config, run_ids: Sequence[str]) -> None:
    """Sends the summaries of killed runs."""
    for run_id in run_ids:
        after_run(config, run_id, state="killed")


def _clean(config: Config) -> dict[str, Any] | None:
    # A run that fails early needs no database.
    from pipelines.clean import clean_after_run

    cleaned = clean_after_run(config)
    if cleaned and cleaned["removed"]:
        things = counted(cleaned["removed"], "thing", "things")
        _note("clean", f"{things} of earlier runs removed, {size(cleaned['freed'])}")
    return cleaned


def _record(root: Path, run_id: str | None) -> dict[str, Any] | None:
    try:
        return None if run_id is None else read_result(root / RUNS / run_id)
    except MissingError as missing:
        logging.warning("The record of the run is not whole: %s", missing)
        return None


def _sentence(webhook: dict[str, Any]) -> str:
    tries = counted(webhook["attempts"], "attempt", "attempts")
    if webhook["sent"]:
        return f"{webhook['host']} was notified ({tries})"
    return f"{webhook['host'] or 'the webhook'} could not be notified ({tries}): {webhook['error']}"


def _note(step: str, text: str) -> None:
    events.emit("note", step=step, text=text)
    logging.info("%s: %s", step, text)


_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}
_FULL = re.compile(r"No space left on device|Disk quota exceeded|database or disk is full")
"""Texts of Beam, TensorFlow, Arrow and SQLite for a full disk, without an error number."""
_NAMED = re.compile(r"[\s'\"](/[^'\";\s]+)")


def as_recsys_error(error: BaseException, step: str, root: Path) -> RecsysError:
    """Returns the `RecsysError` that caused `error`, or a new one that names `step`.

    Args:
        error: The exception.
        step: The failed step.
        root: Folder of the run, for errors that name no file.
    """
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, RecsysError):
            return cause
        if isinstance(cause, OSError) and cause.errno in _STORAGE:
            return storage_error(cause, root)
    for cause in causes:
        if full := _FULL.search(str(cause)):
            near = full.string[max(0, full.start() - 300) : full.end() + 300]
            named = [path for path in _NAMED.findall(near) if Path(path).parent.is_dir()]
            where = [*named, str(root)][0]
            return storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where))
    if full_disk := full_disk_error(root):
        return full_disk
    for cause in reversed(causes):
        if told := plugin_error(cause, "R600"):
            return told
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    rule = f"The step {step} failed."
    cure = "See the log of the run; if the data are correct, report this as a bug."
    return RecsysError("R600", rule, cure, f"{type(error).__name__}: {lines[-1] if lines else ''}")


def stopped_error(stopped: StoppedError, step: str | None) -> RecsysError:
    """Returns the error of a run that was stopped by a signal."""
    errors = [cause for cause in _chain(stopped) if isinstance(cause, RecsysError)]
    where = f" in {step}" if step else ""
    more = f" {errors[0].rule}" if errors else ""
    rule = f"The run was stopped by {stopped.name}{where}; all its processes have ended.{more}"
    cure = "Run the same command again to resume."
    return RecsysError("R606", rule, cure)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes, each once."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
