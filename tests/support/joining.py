"""A stage of several processes, each of which does what its words say once they have met.

joining.py [--facts JSON] [--folder DIR] [--heartbeat S] [--fate FATE] OPTIONS OF A PROCESS
"""

import argparse
import contextlib
import json
import time
from pathlib import Path

from recsys.distributed.local import run_placed
from recsys.distributed.place import Place, add_process_options, place_of
from recsys.errors import RecsysError
from recsys.system.process import stage_main


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--facts", type=json.loads, default={})
    parser.add_argument("--folder", type=Path, action="append", default=[])
    parser.add_argument("--heartbeat", type=int, default=20)
    parser.add_argument("--fate", default="ends")
    parser.add_argument("--file", type=Path)
    add_process_options(parser)
    options = parser.parse_args()
    if Place.of_environment() is None:
        words = [f"--facts={json.dumps(options.facts)}", f"--heartbeat={options.heartbeat}"]
        words += [f"--folder={folder}" for folder in options.folder]
        words += [f"--fate={options.fate}", *([f"--file={options.file}"] * bool(options.file))]
        return run_placed("joining", words, place_of(options))
    return met(options)


def met(options):
    from recsys.distributed import join
    from recsys.distributed.coordination import exchange, failing_at_once, in_shares

    join.SEEN_WITHIN_S, join.HEARTBEAT_S = 1.0, options.heartbeat
    with failing_at_once():
        join.join(lambda: options.facts, options.folder)
        if options.file is not None:
            options.file.touch()
        if options.fate == "fails":
            raise RecsysError("R322", "It must be a number.", "Correct it.")
        if options.fate == "waits":
            time.sleep(60)
        seen = []
        with contextlib.suppress(RecsysError):
            in_shares(lambda index, count: seen.append([index, count]))
        return {"seen": seen[0], "all": exchange(seen[0])}


if __name__ == "__main__":
    stage_main(main)
