"""Tasks on all cores of this machine, or on a runner of Apache Beam.

Without another runner, tasks run in threads of this process: Arrow and NumPy, which do most of
the work, release the GIL. Beam's graph is a chain without side inputs and multiple outputs, which
not every distributed runner supports.
"""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from recsys.system.events import emit

if TYPE_CHECKING:
    import apache_beam as beam

LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_LOCAL_NAMES = {"direct", "switchingdirect", "testdirect", "fnapi"}
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 32 << 20
_TASKS_PER_CORE = 4
LOCAL_BYTES = 64 << 20
"""Input for which the start of one more job on an engine takes longer than the work."""

T = TypeVar("T")
R = TypeVar("R")
Each = Callable[[Any], Iterable[Any]]
"""Yields the results of a task; if they are grouped, pairs of a key and a value."""
Group = Callable[[Any, Iterable[Any]], Iterable[Any]]
"""Yields the results of a key and all of its values."""


def run_tasks(
    like: beam.Pipeline | None,
    tasks: Iterable[Any],
    each: Each,
    work: Path,
    group: Group | None = None,
) -> list[Any]:
    """Runs tasks; returns their results, which are plain JSON, in any order.

    Args:
        like: A pipeline whose runner and options are used; None: threads of this process.
        tasks: The tasks, at least one; Beam may run a task twice.
        each: Runs a task.
        work: Folder for temporary files.
        group: Runs a group of results; None: they aren't grouped.
    """
    if like is None or uses_threads(like):
        return _run_in_threads(tasks, each, group)
    import apache_beam as beam

    with beam.Pipeline(runner=like.runner, options=like.options) as pipeline:
        spread = pipeline | beam.Create(list(tasks)) | beam.Reshuffle()
        results = spread | "Each" >> beam.FlatMap(each)
        if group is not None:
            results = results | "ByKey" >> beam.GroupByKey() | "Group" >> beam.FlatMapTuple(group)
        listed = to_json_list(results, work)
    return listed()


def _run_in_threads(tasks: Iterable[Any], each: Each, group: Group | None) -> list[Any]:
    results = [one for made in in_threads(lambda task: list(each(task)), tasks) for one in made]
    if group is not None:
        groups: dict[Any, list[Any]] = defaultdict(list)
        for key, value in results:
            groups[key].append(value)
        made = in_threads(lambda item: list(group(*item)), groups.items())
        results = [one for some in made for one in some]
    return json.loads(json.dumps(results))


def in_threads(function: Callable[[T], R], tasks: Iterable[T]) -> list[R]:
    """Returns the results of a function in the order of its tasks, with a thread per core."""
    with ThreadPoolExecutor(n_cores()) as pool:
        results = list(pool.map(function, tasks))
    pa.default_memory_pool().release_unused()
    return results


def to_json_list(results: beam.PCollection, work: Path) -> Callable[[], list[Any]]:
    """Writes a collection of plain JSON to a file; returns a function that reads it afterwards."""
    import apache_beam as beam

    file = work / f"results-{uuid.uuid4().hex}.json"
    _ = (
        results
        | "Pair" >> beam.Map(lambda result: (0, result))
        | "ToOne" >> beam.GroupByKey()
        | "List" >> beam.MapTuple(lambda _, all_: file.write_text(json.dumps(list(all_))))
    )
    return lambda: json.loads(file.read_text()) if file.exists() else []


def n_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def task_bytes(n_bytes: int) -> int:
    """Returns the size of a task [bytes], so that all cores have several and memory is bounded.

    Args:
        n_bytes: Size of the input [bytes].
    """
    return min(max(n_bytes // (_TASKS_PER_CORE * n_cores()), _LEAST_BYTES), _MOST_BYTES)


# --- runners


def with_local_runner(args: Sequence[str]) -> list[str]:
    """Returns Beam's arguments, ending with `LOCAL_RUNNER` for the DirectRunner or no runner.

    Beam 2.77's DirectRunner tries Prism first: it downloads a program, or takes a file of that
    name in the home folder, and runs it.
    """
    return [*args, f"--runner={LOCAL_RUNNER}"] if is_local(args) else list(args)


def is_local(args: Sequence[str]) -> bool:
    """Returns whether the arguments select the local runner, under any of its names."""
    return runner_of(args).rpartition(".")[2].lower().removesuffix("runner") in _LOCAL_NAMES


def runner_of(args: Sequence[str]) -> str:
    """Returns the runner that the arguments select."""
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    options = PipelineOptions(list(args)).view_as(StandardOptions)
    return str(options.runner or options.DEFAULT_RUNNER)


def uses_threads(like: beam.Pipeline) -> bool:
    """Returns whether threads replace a runner: Beam's local one without options."""
    from apache_beam.options.pipeline_options import DirectOptions

    direct = like.options.view_as(DirectOptions)
    is_default = (direct.direct_num_workers, direct.direct_running_mode) == (1, "in_memory")
    return is_default and is_local([f"--runner={type(like.runner).__name__}"])


# --- progress


@dataclasses.dataclass(frozen=True)
class StepProgress:
    """Reports the number of finished tasks of a step.

    Attributes:
        file: A file with a byte per finished task, which all workers can access.
        step: Name of the step.
        total: Number of tasks.
    """

    file: Path
    step: str
    total: int

    def advance(self, text: str) -> None:
        """Reports that a task is done."""
        with self.file.open("ab") as file:
            file.write(b".")
            file.flush()
            done = min(file.tell(), self.total)  # Beam may run a task twice.
        emit("progress", step=self.step, done=done, total=self.total, text=text)
