"""Two runs at once on one root."""

from __future__ import annotations

import sys

from benchmarks.crash_case.checks import open_store
from benchmarks.crash_case.runs import World

_BUSY = 75


def pairs(world: World, n: int) -> list[tuple[str, float, list[str]]]:
    """Starts two runs at once, `n` times, on a root where all is cached.

    Returns:
        Of each pair: its name, the seconds until both had ended, and what was wrong.
    """
    if n:
        world.put_back("end")
    return [(f"pair {number}", *pair_once(world, number)) for number in range(n)]


def pair_once(world: World, number: int) -> tuple[float, list[str]]:
    """Starts two runs at once; returns the seconds until both ended, and what was wrong."""
    before = _runs(world)
    started = [world.start(), world.start()]
    ended = sorted((world.end(one) for one in started), key=lambda one: one.code)
    wrong = []
    if [one.code for one in ended] != [0, _BUSY]:
        wrong.append(f"exit codes {[one.code for one in ended]}")
    refused = ended[-1].error or {}
    pids = [str(pid) for pid, *_ in started]
    # Who is refused in the moment in which the other one signs can't be told its name.
    named = any(f"process {pid} on " in str(refused) for pid in pids)
    if refused.get("code") != "R601" or not (named or "just started" in str(refused)):
        wrong.append(f"refused with {refused}")
    after = _runs(world)
    new = after.keys() - before.keys()
    if len(new) != 1:
        wrong.append(f"{len(new)} runs in ML Metadata")
    for name in new:
        ids = after[name]
        if ids != list(range(ids[0], ids[0] + len(world.steps))):
            wrong.append(f"executions {ids}")
    seconds = max(one.seconds for one in ended)
    print(f"pair {number + 1}: {seconds:.1f} s {wrong or 'ok'}", file=sys.stderr, flush=True)
    return seconds, wrong


def _runs(world: World) -> dict[str, list[int]]:
    """Returns the executions of each run."""
    store = open_store(world.root)
    return {
        context.name: sorted(one.id for one in store.get_executions_by_context(context.id))
        for context in store.get_contexts_by_type("pipeline_run")
    }
