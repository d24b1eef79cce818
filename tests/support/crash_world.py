"""Starting runs, killing them at named points, and the root that they write."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import children_of
from recsys.pair.folder import ranker_of
from recsys.system.events import ENVIRONMENT_VARIABLE, EventReader
from recsys.system.parent import VARIABLE, end_with_parent


@dataclass(frozen=True)
class Kill:
    """A point of a run at which it is killed.

    Attributes:
        step: Name of the step.
        moment: One of `MOMENTS`.
        victim: `group`: the runner with its stages, at once; `runner`: only the runner; `stage`:
            only the process that the step started.
        seed: Of the moment inside.
    """

    step: str
    moment: str
    victim: str
    seed: int = 0

    def __str__(self) -> str:
        """Returns its name."""
        return f"{self.step} {self.moment}, {self.victim}"


@dataclass(frozen=True)
class Ended:
    """A run that ended.

    Attributes:
        code: Its exit code; negative: the signal.
        events: Its events.
        log: Its log.
    """

    code: int
    events: list[dict[str, Any]]
    log: Path

    @property
    def error(self) -> dict[str, Any] | None:
        """Its error, if any."""
        return next((e["error"] for e in self.events if e["kind"] == "error"), None)

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """The event of each step that ended."""
        return {e["step"]: e for e in self.events if e["kind"] == "step_finished"}

    @property
    def model(self) -> str:
        """Digest of the model that the run made, or took from the cache."""
        finished = next(e for e in self.events if e["kind"] == "finished")
        return model_digest(Path(finished["summary"]["model"]))


class Run:
    """A run that has started, as a fork of a process that has imported TFX: that takes 15 s."""

    def __init__(self, world: World, log: Path, *order: Any) -> None:
        fork = multiprocessing.get_context("forkserver")
        fork.set_forkserver_preload(["pipelines.local_runner", "pipelines.retrieval_pipeline"])
        self._log, self.events = log, log.with_suffix(".jsonl")
        self._process = fork.Process(target=_run, args=(world, log, self.events, *order))
        self._process.start()
        self.pid = self._process.pid

    def is_alive(self) -> bool:
        """Returns whether it hasn't ended."""
        return self._process.is_alive()

    def end(self) -> Ended:
        """Waits for its end."""
        self._process.join()
        return Ended(self._process.exitcode or 0, list(EventReader(self.events)), self._log)


class World:
    """A root, copies of it before each step, and the model of an undisturbed run.

    Args:
        folder: Where all of it lies.
        more: YAML that is added to the config.

    Attributes:
        steps: All steps of a run.
        seconds: How long each step took that night [s].
        digest: Digest of its model.
    """

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder, self.root, self.temporary = folder, folder / "root", folder / "tmp"
        self.snapshots, self.serving = folder / "snapshots", self.root / "serving" / NAME
        self.config = write_world(folder, more)
        self.temporary.mkdir(exist_ok=True)
        self.environment = {
            "TMPDIR": str(self.temporary),
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Most of a stage's start goes into compiling what the one before compiled.
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }
        self._n_runs, self.digest = 0, ""
        self.steps, self.seconds = list[str](), dict[str, float]()

    def prepare(self) -> None:
        """Runs the first night, and the second one undisturbed, with a copy before each step."""
        self._good(self.run())
        write_events(self.folder / "ratings-2.csv", _NEW_EVENTS, 50, 55)
        night = self._good(self.start(snapshots=self.snapshots).end())
        shutil.copytree(self.root, self.snapshots / "end", symlinks=True)
        self.steps, self.digest = night.events[0]["steps"], night.model
        self.seconds = {name: step["seconds"] for name, step in night.steps.items()}

    def _good(self, ended: Ended) -> Ended:
        if ended.code:
            raise SystemExit(ended.log.read_text()[-4000:])
        return ended

    def put_back(self, step: str) -> None:
        """Makes the root what it was before a step of the second night."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self.snapshots / step, self.root, symlinks=True, dirs_exist_ok=True)

    def start(self, kill: Kill | None = None, snapshots: Path | None = None) -> Run:
        """Starts a run.

        Args:
            kill: Where it is killed.
            snapshots: Folder for copies of the root before each step.
        """
        self._n_runs += 1
        return Run(self, self.folder / f"{self._n_runs:03}.log", kill, snapshots)

    def run(self, kill: Kill | None = None) -> Ended:
        """Runs to its end, whatever that is."""
        return self.start(kill).end()

    def processes(self) -> list[int]:
        """Returns the processes that work for the root: it is in their command line."""
        pids = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                # Another process may be at work at the same path, in a view of its own.
                is_here = (entry / "ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
                is_ours = f"{self.folder}/" in words and re.search(r"(recsys|pipelines)\.", words)
                pids += [int(entry.name)] if is_here and is_ours else []
        return pids

    def close(self) -> None:
        """Ends what was started."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


# --- Two nights of small data, and the config of a run that takes seconds.


NAME = "tiny"
_DAY_S = 86_400
_USERS, _ITEMS, _EVENTS, _NEW_EVENTS = 40, 60, 1_800, 300
_CONFIG = """
name: {name}
root: {folder}/root
data:
  interactions:
    files: {folder}/ratings-*.csv
    columns: {{user: user, item: item, timestamp: time}}
    labels: {{like: {{column: rating, at_least: 4}}}}
  items:
    files: "{folder}/films.csv"
    columns: {{item: id, title: name}}
    features: [{{name: words, column: name, kind: words}}]
  eval_share: 0.2
model: {{dim: 8, feature_dim: 4, history: 5, widths: [16]}}
train: {{batch_size: 32, epochs: 3, checkpoint: {{every_steps: 10}}}}
evaluate: {{k: [5, 10], baselines: [], resamples: 100}}
bless: {{metric: auc, at_least: 0.01, over: {{}}, over_blessed: 0.0, over_strongest: 0.0,
  sure_loss: allow}}
export: {{k: 10}}
push: {{keep: 3}}
"""


def write_world(folder: Path, more: str = "") -> Path:
    """Writes the data of the first night, and the config with `more`; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_events(folder / "ratings-1.csv", _EVENTS, 0, 50)
    titles = [f'i{i:02},"Film, No. {i}"' for i in range(_ITEMS)]
    (folder / "films.csv").write_text("\n".join(["id,name", *titles]) + "\n")
    path = folder / "config.yaml"
    path.write_text(_CONFIG.format(name=NAME, folder=folder) + more)
    return path


def write_events(file: Path, n: int, first_day: int, last_day: int) -> None:
    """Writes `n` distinct events of some days."""
    chance = random.Random(first_day)
    rows: set[tuple[str, str, int, int]] = set()
    while len(rows) < n:
        user = chance.randrange(_USERS)
        item = chance.randrange(_ITEMS // 2) + (user % 2) * (_ITEMS // 2)
        time = 10**9 + chance.randrange(first_day * _DAY_S, last_day * _DAY_S)
        rows.add((f"u{user:02}", f"i{item:02}", chance.choice([3, 4, 5]), time))
    lines = [",".join(map(str, row)) for row in sorted(rows)]
    file.write_text("\n".join(["user,item,rating,time", *lines]) + "\n")


# --- In the process of a run.


MOMENTS = ("before", "inside", "after", "published")
"""Before the executor, while it works, after it has written all files but before ML Metadata has
them, and after ML Metadata has them but before the run continues."""


def _run(world: World, log: Path, events: Path, kill: Kill | None, snapshots: Path | None) -> None:
    """Is a run, in a session of its own, and never returns."""
    code = 99
    try:
        os.environ[VARIABLE] = str(os.getppid())
        end_with_parent()
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(out, descriptor)
        os.environ.update({**world.environment, ENVIRONMENT_VARIABLE: str(events)})
        tempfile.tempdir = None
        from pipelines import local_runner

        if kill:
            plant(kill, world.seconds.get(kill.step, 0.0))
        if snapshots:
            snapshot_before(snapshots, world.root)
        sys.argv = ["local_runner", str(world.config)]
        code = local_runner.main()
    except BaseException:  # noqa: BLE001 a fork must not go on as its parent would
        traceback.print_exc()
    finally:
        os._exit(code)


def plant(point: Kill, seconds: float) -> None:
    """Has this process killed at a point of its run, by wrapping TFX's own methods.

    Args:
        point: Where.
        seconds: How long the step takes undisturbed [s].
    """
    from tfx.orchestration.portable import launcher, resolver_node_handler

    def kill() -> None:
        if point.victim == "group":
            os.killpg(0, signal.SIGKILL)
        for pid in [os.getpid()] if point.victim == "runner" else children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    def kill_inside() -> None:
        time.sleep(random.Random(point.seed).uniform(0.05, 0.9) * seconds)
        kill()

    def is_ours(self: Any, *_: Any, **__: Any) -> bool:
        return bool(self._pipeline_node.node_info.id == point.step)

    if point.moment == "inside":
        thread = threading.Thread(target=kill_inside, daemon=True)
        # An executor that is done sooner is killed at its end.
        _wrap(launcher.Launcher, "_run_executor", is_ours, thread.start, kill)
        return
    publish = "_publish_successful_execution"
    name = "_run_executor" if point.moment == "before" else publish
    before, after = (None, kill) if point.moment == "published" else (kill, None)
    _wrap(launcher.Launcher, name, is_ours, before, after)

    # The same for resolvers, which have a handler of their own.
    handler, running = resolver_node_handler.ResolverNodeHandler, list[str]()
    run = handler.run

    def run_noted(self: Any, connection: Any, node: Any, *more: Any, **options: Any) -> Any:
        running[:] = [node.node_info.id]
        return run(self, connection, node, *more, **options)

    handler.run = run_noted
    name = "register_execution" if point.moment == "before" else "publish_internal_execution"
    # The handler's own view of the module: launchers use the same functions.
    view = types.SimpleNamespace(**vars(resolver_node_handler.execution_publish_utils))
    _wrap(view, name, lambda *_, **__: running == [point.step], before, after)
    resolver_node_handler.execution_publish_utils = view


def _wrap(
    owner: Any,
    name: str,
    is_ours: Callable[..., bool],
    before: Callable[[], None] | None,
    after: Callable[[], None] | None,
) -> None:
    """Has something done before and after a method, where `is_ours` says so of its arguments."""
    original = getattr(owner, name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        ours = is_ours(*arguments, **options)
        if ours and before is not None:
            before()
        result = original(*arguments, **options)
        if ours and after is not None:
            after()
        return result

    setattr(owner, name, wrapped)


def snapshot_before(folder: Path, root: Path) -> None:
    """Has a copy of the root made before each step, as if none were at work."""
    from pipelines.runner import Runner

    original = Runner._run_step

    def wrapped(self: Any, node: Any, run: Any) -> Any:
        copy = folder / node.node_info.id
        shutil.copytree(root, copy, symlinks=True)
        os.truncate(copy / "run.lock", 0)
        shutil.rmtree(copy / "runs" / max(path.name for path in (copy / "runs").iterdir()))
        return original(self, node, run)

    Runner._run_step = wrapped  # type: ignore[method-assign]


# --- Everything that a model folder computes with.


_PARTS = """candidates.npy probe.npz rank_probe.npz calibration.json catalogue/*
user_features/* vocabulary/*""".split()  # noqa: SIM905


def model_digest(folder: Path) -> str:
    """Returns the sha256 of weights, candidates, probe, ids and features of a model folder.

    A pair's includes its ranker. It is the same whether one process wrote it, or several in parts.

    Args:
        folder: What `recsys.stages.train` wrote.
    """
    summary = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    variables = [[variable["path"], variable["shape"]] for variable in summary["variables"]]
    digest = hashlib.sha256(json.dumps([summary["spec"], variables], sort_keys=True).encode())
    weights = folder / "weights"
    for number in range(len(variables)):
        files = [*weights.glob(f"{number}.npy"), *weights.glob(f"{number}/*")]
        for path in sorted(files, key=lambda path: (len(path.name), path.name)):
            digest.update(np.load(path).tobytes())
    for path in sorted(path for part in _PARTS for path in folder.glob(part)):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    ranker = ranker_of(folder)
    digest.update(model_digest(ranker).encode() if ranker else b"")
    return digest.hexdigest()
