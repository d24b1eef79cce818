"""A stage that a launcher starts; its config says what becomes of each of its processes."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

from recsys.errors import RecsysError
from recsys.system import events
from recsys.system.process import stage_main


def main():
    parser = argparse.ArgumentParser()
    for name in ("config", "out", "wait"):
        parser.add_argument(f"--{name}")
    named = os.environ.get
    parser.add_argument("--coordinator", default=named("RECSYS_COORDINATOR"))
    parser.add_argument("--num-processes", default=named("RECSYS_PROCESSES"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process-id", type=int, default=int(named("RECSYS_PROCESS", "0")))
    options = parser.parse_args()
    stage, out = json.loads(Path(options.config).read_text()), Path(options.out)
    index = options.process_id
    (out / f"{index}.new").write_text(str(os.getpid()))
    (out / f"{index}.new").rename(out / f"{index}.pid")
    events.emit("progress", step="Stage", done=index)
    fate = stage["fates"][index]
    if fate == "lost once" and not (out / "lost").exists():
        (out / "lost").touch()
        raise RecsysError("R388", "A host was lost.", "Look.")
    if fate == "fails":
        # The others have begun, so that a test can look whether they were ended.
        while len(list(out.glob("*.pid"))) < len(stage["fates"]):
            time.sleep(0.01)
        raise RecsysError("R322", "It must be a number.", "Correct it.")
    if fate == "dies":
        os._exit(7)
    if fate == "waits":
        signal.signal(signal.SIGTERM, stop)
        time.sleep(60)
    return {**vars(options), "folder": str(Path.cwd())}


def stop(*_):
    raise RecsysError("R375", "It saved where it was.", "Run it again.")


if __name__ == "__main__":
    stage_main(main)
