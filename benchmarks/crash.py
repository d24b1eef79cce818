"""`python -m benchmarks.crash`: killed, started twice, out of disk: does a run come out right?

A root with one night in it sees a second night on new data, first undisturbed, with a
copy of the root before each step. Then, from those copies:

- `--kills N` runs are killed, each at another point: each component before, inside, and
  after its work, and once ML Metadata knows of it. The same command is given again. It must
  end with the model of the undisturbed run, bit for bit, and leave no ghost, no debris,
  and no file of the dead execution in use.
- `--chain N` kills the run of one night again and again, each time further on, and at last
  lets it end: the same checks for a part of the time.
- `--pairs N` times two runs start at once: one of them must run, the other be refused
  (R601, exit code 75), and nothing of it be in ML Metadata.
- `--full-disks N` runs of one night have too little room, each a little more than the one
  before, on a file system of their own (needs root). They must say what is wrong and leave
  all that is stored as it was; the last one has room, and must make the same model.

All the time what is served is looked at: it must be whole.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.crash_case.full_disks import full_disks
from benchmarks.crash_case.kills import chain, kills
from benchmarks.crash_case.pairs import pairs
from benchmarks.crash_case.runs import World
from benchmarks.measure import print_line


def main() -> None:
    """Prints how many cases came out right, and what each took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--chain", type=int, default=0)
    parser.add_argument("--features", action="store_true", help="with Transform, and slower")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--full-disks", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="points of kills to leave out")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--folder", type=Path, help="where to work, and to find again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recsys-crash-") as scratch:
        world = World((options.folder or Path(scratch)).resolve(), features=options.features)
        try:
            night = world.prepare()
            print_line("crash", "undisturbed night", [night], "s", 0.0)
            _tell("chain of kills", chain(world, options.chain, options.first, options.seed))
            _tell("kills", kills(world, options.kills, options.first, options.seed))
            _tell("pairs", pairs(world, options.pairs))
            _tell("full disks", full_disks(world, options.full_disks, options.seed))
        finally:
            world.close()


def _tell(case: str, results: list[tuple[str, float, list[str]]]) -> None:
    """Prints the results of a case: names, seconds, and breaches."""
    if not results:
        return
    bad = [(name, wrong) for name, _, wrong in results if wrong]
    for name, wrong in bad:
        print(json.dumps({"bench": "crash", "case": case, "point": name, "breaches": wrong}))
    good = [float(not wrong) for _, _, wrong in results]
    print_line("crash", f"{case} that came out right", good, "1 if so", 0.0)
    print_line("crash", f"{case}, recovery", [seconds for _, seconds, _ in results], "s", 0.0)
    print(f"{case}: {sum(good):.0f} of {len(good)} right", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
