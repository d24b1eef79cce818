"""What is done once a run has ended, however it did: its summary, a cleaning, and a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import logging

from pipelines.clean import clean_after_run
from recsys.config import Config
from recsys.errors import RecsysError
from recsys.formats import counted, size
from recsys.report.artifacts import MissingError
from recsys.report.runs import RUNS, read_result
from recsys.runs.notifications import send_summary
from recsys.runs.summary import run_summary
from recsys.system import events

_STOPPED_S = 10.0
"""Longest that people are told of a run that was asked to stop [s]: `recsys run` waits 30 s."""


def after_run(
    config: Config,
    run_id: str | None,
    error: RecsysError | None = None,
    step: str | None = None,
    state: str = "failed",
) -> dict[str, Any] | None:
    """Cleans if the run ended well and the config says so, and tells whom it names.

    Nothing of this fails a run, or hides why it failed.

    Args:
        config: The config of the run.
        run_id: Its id; None where it failed before it had one.
        error: Why it failed, or that it was stopped, if it did not end well.
        step: The step that failed.
        state: What to call such a run, `failed` or `stopped`.

    Returns:
        The summary of the night, with `cleaned` and `webhook`; None where not even that
        could be made.
    """
    try:
        return _after_run(config, run_id, error, step, state)
    except Exception:  # noqa: BLE001 the run is over, and whatever this is changes nothing of it
        logging.exception("Nobody could be told of the run.")
        return None


def tell_of_killed(config: Config, run_ids: Sequence[str]) -> None:
    """Tells of runs that were killed, and so could tell nobody themselves.

    Args:
        config: The config of the run that cleared up after them.
        run_ids: Their ids; their records are whole by now.
    """
    root = Path(config.root)
    for run_id in run_ids:
        try:
            result = _record(root, run_id) or {"name": config.name, "state": "killed"}
            _note_results(None, send_summary(run_summary(run_id, result, root), config.notify))
        except Exception:  # noqa: BLE001 tonight's run has nothing to do with it
            logging.exception("Nobody could be told of the killed run %s.", run_id)


def _after_run(
    config: Config, run_id: str | None, error: RecsysError | None, step: str | None, state: str
) -> dict[str, Any]:
    root = Path(config.root)
    result = _record(root, run_id) or {"name": config.name}
    if error is not None:
        result = {**result, "state": state, "error": str(error), "step": step}
    notify = config.notify
    if state == "stopped":
        notify = notify.model_copy(update={"total_s": min(notify.total_s, _STOPPED_S)})
    night = run_summary(run_id, result, root)
    night["cleaned"] = clean_after_run(config) if error is None else None
    webhook = send_summary(night, notify)
    _note_results(night["cleaned"], webhook)
    return {**night, "webhook": webhook}


def _record(root: Path, run_id: str | None) -> dict[str, Any] | None:
    if run_id is None:
        return None
    try:
        return read_result(root / RUNS / run_id)
    except MissingError as missing:
        logging.warning("The summary of the run is not whole: %s", missing)
        return None


def _note_results(cleaned: dict[str, Any] | None, webhook: dict[str, Any] | None) -> None:
    """Emits what was cleaned and sent as events, and logs it."""
    if cleaned and cleaned["removed"]:
        things = counted(cleaned["removed"], "thing", "things")
        _note("clean", f"{things} of earlier runs removed, {size(cleaned['freed'])}")
    if webhook is None:
        return
    tries = counted(webhook["attempts"], "attempt", "attempts")
    if webhook["sent"]:
        _note("webhook", f"{webhook['host']} was told ({tries})")
    else:
        where = webhook["host"] or "nobody"
        _note("webhook", f"{where} could not be told ({tries}): {webhook['error']}")


def _note(step: str, text: str) -> None:
    events.emit("note", step=step, text=text)
    logging.info("%s: %s", step, text)
