"""Training in several processes: how one joins the others, and how the first ends alone.

The processes of a run find each other through the environment:

    RECSYS_COORDINATOR   host:port where the first one listens
    RECSYS_PROCESSES     how many there are
    RECSYS_PROCESS       which one this is, from 0

`recsys train --processes N` sets them on this machine; a scheduler sets them on a
cluster, or `RECSYS_COORDINATOR=auto` where JAX can ask the scheduler itself (Slurm,
Open MPI, Kubernetes).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import jax

from recsys.errors import UsageError

COORDINATOR, COUNT, INDEX = "RECSYS_COORDINATOR", "RECSYS_PROCESSES", "RECSYS_PROCESS"


def join() -> None:
    """Joins the processes of the run, if the environment names any.

    Raises:
        UsageError: The environment names them wrongly.
    """
    coordinator = os.environ.get(COORDINATOR)
    if not coordinator:
        return
    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":  # Of no consequence on GPUs.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if coordinator == "auto":
        jax.distributed.initialize()
        return
    jax.distributed.initialize(coordinator, _number(COUNT, 1), _number(INDEX, 0))


def _number(name: str, least: int) -> int:
    given = os.environ.get(name, "")
    if not given.isdecimal() or int(given) < least:
        raise UsageError(
            "R376",
            f"With {COORDINATOR} set, {name} must be a whole number from {least} on.",
            f"Set {COUNT} to how many processes there are, and {INDEX} to which one this is.",
            given,
        )
    return int(given)


def is_primary() -> bool:
    """Returns whether this process speaks for all."""
    return jax.process_index() == 0


def go_on_alone(arguments: Sequence[str]) -> NoReturn:
    """Ends this process' part in the run, and goes on as a single one.

    What several processes trained lies in the last checkpoint; one process, with this
    machine's devices, restores it and writes the model.

    Args:
        arguments: Command line of `python -m recsys.train`.
    """
    jax.distributed.shutdown()
    environment = {k: v for k, v in os.environ.items() if k not in (COORDINATOR, COUNT, INDEX)}
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-m", "recsys.train", *arguments]
    os.execve(sys.executable, words, environment)  # noqa: S606 our own program, by list
