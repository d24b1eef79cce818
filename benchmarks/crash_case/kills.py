"""Runs that are killed at named points, and the same command again."""

from __future__ import annotations

import itertools
import signal
import sys
from typing import Any

from benchmarks.crash_case.checks import Served, breaches, wait_until_ended
from benchmarks.crash_case.plant import MOMENTS
from benchmarks.crash_case.runs import World

_MAIN = (
    *("InteractionGen", "StatisticsGen.Interactions", "VocabularyGen", "InteractionEncoder"),
    *("Trainer", "RetrievalEvaluator", "Exporter", "Pusher"),
)
_RESOLVERS = ("LatestBlessed", "EarlierStatistics", "PreviousVocabularies", "WarmBase")
_STAGES = ("Trainer", "RetrievalEvaluator", "Exporter")


def points(steps: list[str]) -> list[tuple[str, str, str]]:
    """Returns step, moment and victim of every kill: the main steps three times each first."""
    whom = itertools.cycle(("group", "runner"))
    first = [(step, moment, next(whom)) for moment in MOMENTS[:3] for step in _MAIN]
    alone = [(step, "inside", "stage") for step in _STAGES]
    rest = [
        (step, moment, next(whom))
        for step in steps
        for moment in MOMENTS
        if not (step.split(".")[0] in _RESOLVERS and moment == "inside")
        and (step not in _MAIN or moment == "published")
    ]
    return [*first, *alone, *rest]


def chain(world: World, n: int, first: int, seed: int) -> list[tuple[str, float, list[str]]]:
    """Kills the run of one night `n` times, each further on, with the same command between.

    The points before `first` are left out.

    Each step is killed at every moment in turn; that the next point is reached at all
    shows that the kill before was got over.

    Returns:
        Of each kill its name, the seconds until it, and what was wrong; then the same of
        the run that ends the night.
    """
    if not n:
        return []
    along = sorted(points(world.ran), key=lambda point: world.steps.index(point[0]))
    along = [point for point in along if point[2] != "stage"]
    along = [
        along[number * len(along) // min(n, len(along))] for number in range(min(n, len(along)))
    ]
    along = along[first:]
    world.put_back(along[0][0])
    served, results = Served(world.serving), []
    with served.watched():
        for number, (step, moment, whom) in enumerate(along, first):
            plant = {"step": step, "moment": moment, "whom": whom, "seed": seed + number}
            killed = world.run(plant={**plant, "seconds": world.seconds[step]})
            wrong = wait_until_ended(world)
            if killed.code != -signal.SIGKILL:
                wrong.append(f"it ended with {killed.code}: {killed.error}")
            name = f"{step} {moment}, {whom}"
            results.append((name, killed.seconds, wrong))
            print(f"chain {number + 1}: {name}: {wrong or 'ok'}", file=sys.stderr, flush=True)
        last = world.run()
    wrong = [] if last.code == 0 else [f"the last run ended with {last.code}: {last.error}"]
    if not wrong and world.model_of(last) != world.digest:
        wrong.append("another model")
    wrong += [*served.breaches, *breaches(world, len(along))]
    print(f"chain: last run: {wrong or 'ok'}", file=sys.stderr, flush=True)
    return [*results, ("the run that ended the night", last.seconds, wrong)]


def kills(world: World, n: int, first: int, seed: int) -> list[tuple[str, float, list[str]]]:
    """Kills `n` runs, from the point `first` on.

    Returns:
        Of each: its name, the seconds of the run after it, and what was wrong.
    """
    results = []
    for number, (step, moment, whom) in enumerate(points(world.ran)[first : first + n], first):
        name = f"{step} {moment}, {whom}"
        world.put_back(step)
        plant = {"step": step, "moment": moment, "whom": whom, "seed": seed + number}
        seconds, wrong = killed_once(world, {**plant, "seconds": world.seconds[step]})
        results.append((name, seconds, wrong))
        print(
            f"kill {number + 1}: {name}: {seconds:.1f} s {wrong or 'ok'}",
            file=sys.stderr,
            flush=True,
        )
    return results


def killed_once(world: World, plant: dict[str, Any]) -> tuple[float, list[str]]:
    """Kills one run and runs again; returns the seconds of that, and what was wrong."""
    served = Served(world.serving)
    with served.watched():
        killed = world.run(plant=plant)
        wrong = wait_until_ended(world)
        if plant["whom"] == "stage":
            if killed.code != 1 or killed.error is None:
                wrong.append(f"without its stage the run ended with {killed.code}")
        elif killed.code != -signal.SIGKILL:
            wrong.append(f"the run was not killed: it ended with {killed.code}")
        again = world.run()
    if again.code:
        return again.seconds, [*wrong, f"the run after it ended with {again.code}: {again.error}"]
    if world.model_of(again) != world.digest:
        wrong.append("another model")
    n_killed = int(killed.code == -signal.SIGKILL)
    return again.seconds, [*wrong, *served.breaches, *breaches(world, n_killed)]
