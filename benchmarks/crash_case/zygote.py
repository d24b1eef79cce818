"""Starts runs as forks of a process that has imported TFX already, in place of 15 s each.

A line of JSON on stdin for each order, an answer on stdout:

    {"start": {"config", "sets", "log", "events", "environment", "plant", "snapshots"}} → {"pid"}
    {"wait": pid} → {"code"}
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from recsys.parent import as_parent, end_with_parent


def main() -> None:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from pipelines import (
        local_runner,  # noqa: F401
        retrieval,  # noqa: F401
        runner,  # noqa: F401
    )

    print(json.dumps({"ready": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            bound = as_parent()
            pid = os.fork()
            if pid == 0:
                os.environ.update(bound)
                end_with_parent()
                _run(order["start"])
            answer = {"pid": pid}
        else:
            _, status = os.waitpid(order["wait"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        print(json.dumps(answer), file=answers, flush=True)


def _run(order: dict[str, Any]) -> None:
    """Is a run, in a session of its own, and never returns."""
    code = 99
    try:
        os.setsid()
        _redirect(order["log"])
        os.environ.update(order["environment"])
        os.environ["RECSYS_EVENTS"] = order["events"]
        tempfile.tempdir = None
        words = [word for one in order["sets"] for word in ("--set", one)]
        sys.argv = ["local_runner", order["config"], *words]
        from benchmarks.crash_case import plant
        from pipelines import local_runner

        if order.get("plant"):
            plant.plant(**order["plant"])
        if order.get("snapshots"):
            plant.snapshot_before(Path(order["snapshots"]), Path(order["root"]))
        code = local_runner.main()
    except BaseException:  # noqa: BLE001 a fork must not go on as its parent would
        traceback.print_exc()
    finally:
        os._exit(code)


def _redirect(log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, to in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(descriptor, to)


if __name__ == "__main__":
    main()
