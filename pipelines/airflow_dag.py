"""The pipeline under Apache Airflow 3: one run a night, by the command `recsys run`.

Airflow reads this file with its own Python, in an environment of its own, so it imports only
Airflow and the standard library. Put it into the DAG folder (or a link to it) and set Airflow
Variables or environment variables:

    recsys_config    RECSYS_CONFIG    the config; needed
    recsys_command   RECSYS_COMMAND   how our command is called; `recsys`
                     RECSYS_SCHEDULE  when, as cron writes it; `30 2 * * *`, UTC
                     RECSYS_RETRIES, RECSYS_RETRY_DELAY_S, RECSYS_TIMEOUT_S, RECSYS_WAIT_S

It is one task: the command holds the lock of the root, cleans up after a killed run and reuses
finished steps; see docs/schedule/airflow.md.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import IO, Any

from airflow.sdk import DAG, Variable, get_current_context, task
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)

WRONG_CONFIG, ROOT_IS_HELD = 2, 75
_GRACE_S = 60.0  # A training saves its state.
_LOOK_AGAIN_S = 300.0
_log = logging.getLogger(__name__)


def _seconds(name: str, default: float) -> dt.timedelta:
    return dt.timedelta(seconds=float(os.environ.get(name, default)))


def _setting(name: str, default: str | None = None) -> str:
    """Returns the Airflow Variable `name`, or the environment's, or the default."""
    value = Variable.get(name, default=None) or os.environ.get(name.upper(), default)
    if not value:
        raise AirflowFailException(
            f"Neither the Airflow Variable {name} nor {name.upper()} in the environment is set."
        )
    return str(value)


def run_night() -> dict[str, Any]:
    """Runs the pipeline once; its summary goes to XCom.

    Raises:
        AirflowFailException: The config is wrong; a retry would not help.
        AirflowRescheduleException: Another run holds the root; this one waits without a worker
            slot, and without using a retry.
        AirflowSkipException: The other run held the root for too long.
        AirflowException: The run failed; Airflow retries.
    """
    words = [*shlex.split(_setting("recsys_command", "recsys")), "run", _setting("recsys_config")]
    words.append("--json")
    _log.info("Running %s", shlex.join(words))
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise AirflowFailException(f"{words[0]} can't be started: {error.strerror}") from None
    with _logged(process.stderr), _ended(process):
        output = process.stdout.read() if process.stdout else b""
        code = process.wait()
    if code == 0:
        return _summary(output)
    raise _failure(code, output)


def _failure(code: int, output: bytes) -> BaseException:
    """Returns the exception for an exit code other than 0."""
    if code == ROOT_IS_HELD:
        return _wait_or_skip()
    why = _error(output)
    if code == WRONG_CONFIG:
        return AirflowFailException(f"The config is wrong (exit code 2): {why}")
    return AirflowException(f"The run ended with exit code {code}: {why}")


def _error(output: bytes) -> str:
    try:
        summary = _summary(output).get("night") or {}
    except AirflowException:
        summary = {}
    return str(summary.get("error") or "the log says why.")


def _wait_or_skip() -> BaseException:
    """Returns the exception to raise while another run holds the root."""
    now = dt.datetime.now(dt.UTC)
    began = get_current_context()["dag_run"].start_date or now
    if now - began > _seconds("RECSYS_WAIT_S", 4 * 3600):
        return AirflowSkipException("Another run holds the root, and held it for too long.")
    _log.info("Another run holds the root; looking again in %.0f s.", _LOOK_AGAIN_S)
    again = min(_LOOK_AGAIN_S, float(os.environ.get("RECSYS_RETRY_DELAY_S", _LOOK_AGAIN_S)))
    return AirflowRescheduleException(now + dt.timedelta(seconds=again))


def _summary(output: bytes) -> dict[str, Any]:
    """Returns the JSON object in the last line of the command's output."""
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        summary = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise AirflowException("The command ended well without a summary.") from None
    if not isinstance(summary, dict):
        raise AirflowException("The command's summary is no object.")
    return summary


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the command if Airflow ends the task; the command ends its children."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _logged(stream: IO[bytes] | None) -> Iterator[None]:
    """Writes the output of the command to the task's log, line by line."""

    def pump() -> None:
        for line in stream or ():
            _log.info("%s", line.decode(errors="replace").rstrip())

    reader = threading.Thread(target=pump, daemon=True)
    reader.start()
    try:
        yield
    finally:
        reader.join(_GRACE_S)


with DAG(
    dag_id="recsys_nightly",
    description="Train, evaluate and push tonight's model, or keep the one that is served",
    schedule=os.environ.get("RECSYS_SCHEDULE", "30 2 * * *"),
    start_date=dt.datetime(2025, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    tags=["recsys"],
    doc_md=__doc__,
) as dag:
    task(
        run_night,
        task_id="run_night",
        multiple_outputs=False,
        retries=int(os.environ.get("RECSYS_RETRIES", "2")),
        retry_delay=_seconds("RECSYS_RETRY_DELAY_S", 600),
        retry_exponential_backoff=2.0,
        max_retry_delay=dt.timedelta(hours=2),
        execution_timeout=_seconds("RECSYS_TIMEOUT_S", 20 * 3600),
    )()
