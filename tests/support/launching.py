"""Starts the stage `launched_stage` by a launcher."""

import json
from pathlib import Path

from recsys.distributed.launchers import launching_by, run_launched

STAGES = Path(__file__).parent


def launch(launcher, folder, *fates):
    """Runs the stage `launched_stage`, whose processes end as `fates` say."""
    folder.mkdir(exist_ok=True)
    with launching_by(launcher, folder):
        return run_launched("launched_stage", json.dumps({"fates": fates}), ["--out", str(folder)])


def lives(folder, index):
    """Returns whether a process of the stage runs; its file is written at its start."""
    pid = int((folder / f"{index}.pid").read_text())
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
