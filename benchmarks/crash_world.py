"""Starting runs, and the root that they write: kept, put back, and told apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from recsys.system.parent import as_parent, child_command, end_with_parent


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run that ended.

    Attributes:
        code: Its exit code; negative: the signal.
        seconds: How long it took [s].
        events: What it told.
        log: Its log.
    """

    code: int
    seconds: float
    events: list[dict[str, Any]]
    log: Path

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that it told, if any."""
        return next((one["error"] for one in self.events if one["kind"] == "error"), None)

    def summary(self) -> dict[str, Any]:
        """Returns what it told at the end."""
        found: dict[str, Any] = next(
            one["summary"] for one in self.events if one["kind"] == "finished"
        )
        return found

    def seconds_of(self) -> dict[str, float]:
        """Returns the seconds of each step that ended."""
        return {e["step"]: e["seconds"] for e in self.events if e["kind"] == "step_finished"}

    def steps_that_ran(self) -> list[str]:
        """Returns the names of the steps that were not cached."""
        ended = (e for e in self.events if e["kind"] == "step_finished")
        return [e["step"] for e in ended if e["state"] == "ran"]


class Zygote:
    """The process that runs are forked from."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            child_command("benchmarks.crash_world"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, **as_parent()},
            text=True,
        )
        self._answer()

    def start(self, order: dict[str, Any]) -> int:
        """Starts a run and returns its pid."""
        return int(self._ask({"start": order})["pid"])

    def wait(self, pid: int) -> int:
        """Returns the exit code of a run, once it has ended."""
        return int(self._ask({"wait": pid})["code"])

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("The process that runs are forked from has ended.")
        answer: dict[str, Any] = json.loads(line)
        return answer


class World:
    """A root, what it is put back to, and what an undisturbed run makes of it.

    Args:
        folder: Where all of it lies.
        features: Whether the items have features.
    """

    def __init__(self, folder: Path, *, features: bool = False) -> None:
        self.folder = folder
        self.config = write_world(folder, features=features)
        if (folder / "state.json").exists():
            write_second_night(folder)
        self.root = folder / "root"
        self.snapshots = folder / "snapshots"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.environment = {
            "TMPDIR": str(self.temporary),
            "JAX_PLATFORMS": "cpu",
            # A step that is refused beforehand never meets a full disk.
            "RECSYS_NO_ROOM_CHECK": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Most of a stage's start goes into compiling what the one before compiled.
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }
        self.zygote = Zygote(self.environment)
        self._n = len(list(folder.glob("*.log")))
        self.digest = ""
        self.seconds: dict[str, float] = {}
        self.steps: list[str] = []
        self.ran: list[str] = []

    def prepare(self) -> float:
        """Runs the first night, and the second one undisturbed, with a copy before each step.

        What an earlier call left in the folder is used again.

        Returns:
            How long the second night took [s].
        """
        state = self.folder / "state.json"
        if not state.exists():
            self._good(self.run())
            write_second_night(self.folder)
            ended = self._good(self.run(snapshots=True))
            shutil.copytree(self.root, self.snapshots / "end", symlinks=True)
            found = {"steps": ended.events[0]["steps"], "seconds": ended.seconds_of()}
            found["ran"] = ended.steps_that_ran()
            found |= {"digest": self.model_of(ended), "night": ended.seconds}
            state.write_text(json.dumps(found))
        found = json.loads(state.read_text())
        self.steps, self.ran = found["steps"], found["ran"]
        self.seconds, self.digest = found["seconds"], found["digest"]
        return float(found["night"])

    def _good(self, ended: Ended) -> Ended:
        if ended.code:
            raise SystemExit(ended.log.read_text()[-4000:])
        return ended

    def put_back(self, step: str) -> None:
        """Makes the root what it was before a step of the second night."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self.snapshots / step, self.root, symlinks=True, dirs_exist_ok=True)

    def start(self, sets: Sequence[str] = (), **more: Any) -> tuple[int, Path, Path, float]:
        """Starts a run; returns its pid, log, file of events, and when that was."""
        self._n += 1
        log = self.folder / f"{self._n:03}.log"
        events = log.with_suffix(".jsonl")
        order = {
            "config": str(self.config),
            "sets": list(sets),
            "log": str(log),
            "events": str(events),
            "root": str(self.root),
            "environment": self.environment,
            **more,
        }
        return self.zygote.start(order), log, events, time.monotonic()

    def end(self, started: tuple[int, Path, Path, float]) -> Ended:
        """Waits for a run that `start` started."""
        pid, log, events, when = started
        code = self.zygote.wait(pid)
        told = events.read_text().splitlines() if events.exists() else []
        return Ended(code, time.monotonic() - when, [_parsed(one) for one in told], log)

    def run(self, *, plant: dict[str, Any] | None = None, snapshots: bool = False) -> Ended:
        """Runs to its end, whatever that is."""
        more: dict[str, Any] = {"plant": plant} if plant else {}
        if snapshots:
            self.snapshots.mkdir(exist_ok=True)
            more["snapshots"] = str(self.snapshots)
        return self.end(self.start(**more))

    def model_of(self, ended: Ended) -> str:
        """Returns the digest of the model that a run made, or found cached."""
        return model_digest(Path(ended.summary()["model"]))

    @property
    def serving(self) -> Path:
        """Folder of the served versions."""
        return self.root / "serving" / NAME

    def processes(self) -> list[int]:
        """Returns the processes that work for the root: it is in their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    # Another one's may be at work at the same path, in a view of its own.
                    if (entry / "ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink():
                        continue
                    words = (entry / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                ours = "recsys." in words or "pipelines." in words
                if f"{self.folder}/" in words and ours:
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        """Ends what was started."""
        self.zygote.close()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


def _parsed(line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:  # Cut short by a full disk.
        return {"kind": "damaged"}
    return found


# --- Two nights of small data, and the config of a run that takes seconds.


NAME = "tiny"
_DAY_S = 86_400
_USERS, _ITEMS, _EVENTS, _NEW_EVENTS = 40, 60, 1_800, 300

_CONFIG: dict[str, Any] = {
    "name": NAME,
    "data": {
        "interactions": {
            "columns": {"user": "user", "item": "item", "timestamp": "time", "rating": "rating"},
            "positive_at_least": 4.0,
        },
        "items": {
            "columns": {"item": "id", "title": "name"},
        },
        "eval_share": 0.2,
    },
    "model": {"dim": 8, "feature_dim": 4, "history": 5, "widths": [16]},
    "train": {"batch_size": 32, "epochs": 3, "checkpoint": {"every_steps": 10}},
    "evaluate": {"k": [5, 10], "baselines": [], "resamples": 100},
    "bless": {
        "metric": "auc",
        "at_least": 0.01,
        "over": {},
        "over_blessed": 0.0,
        "over_strongest": 0.0,
        "sure_loss": "allow",
    },
    "export": {"k": 10},
    "push": {"keep": 3},
}


def write_world(folder: Path, *, features: bool = False) -> Path:
    """Writes the data of the first night, and the config; returns the config's path.

    Args:
        folder: Where to.
        features: Whether the items have one, and so Transform a part, which takes as long
            as all other steps before the training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_events(folder / "ratings-1.csv", _EVENTS, 0, 50)
    titles = [
        f'i{i:02},"Film, No. {i}",{"comedy|drama" if i % 2 else "drama"}' for i in range(_ITEMS)
    ]
    (folder / "films.csv").write_text("\n".join(["id,name,genres", *titles]) + "\n")
    config = json.loads(json.dumps(_CONFIG))
    config["root"] = str(folder / "root")
    if features:
        genres = {"name": "genres", "column": "genres", "kind": "categories"}
        config["data"]["items"]["features"] = [genres]
    config["data"]["interactions"]["files"] = str(folder / "ratings-*.csv")
    config["data"]["items"]["files"] = str(folder / "films.csv")
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def write_second_night(folder: Path) -> None:
    """Writes the data that the second night finds beside those of the first."""
    _write_events(folder / "ratings-2.csv", _NEW_EVENTS, 50, 55)


def _write_events(file: Path, n: int, first_day: int, last_day: int) -> None:
    chance = random.Random(first_day)
    rows: set[tuple[str, str, int, int]] = set()
    while len(rows) < n:
        user = chance.randrange(_USERS)
        item = chance.randrange(_ITEMS // 2) + (user % 2) * (_ITEMS // 2)
        time = 10**9 + chance.randrange(first_day * _DAY_S, last_day * _DAY_S)
        rows.add((f"u{user:02}", f"i{item:02}", chance.choice([3, 4, 5]), time))
    lines = [",".join(map(str, row)) for row in sorted(rows)]
    file.write_text("\n".join(["user,item,rating,time", *lines]) + "\n")


# --- Starts runs as forks of a process that has imported TFX already, in place of 15 s each.


def serve_orders() -> None:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from pipelines import (
        local_runner,  # noqa: F401
        retrieval_pipeline,  # noqa: F401
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
        from pipelines import local_runner

        if order.get("plant"):
            plant(**order["plant"])
        if order.get("snapshots"):
            snapshot_before(Path(order["snapshots"]), Path(order["root"]))
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


# --- Kills a run at a named point, by wrapping TFX's own methods: the product has no hooks.


MOMENTS = ("before", "inside", "after", "published")
"""Before the executor, while it works, when it has written all but nobody knows, and when
ML Metadata knows but the run doesn't."""


def plant(step: str, moment: str, whom: str, seconds: float, seed: int) -> None:
    """Has this process killed at a point of its run.

    Args:
        step: Name of the step.
        moment: One of `MOMENTS`.
        whom: `group`: the runner with its stages, at once; `runner`: it alone; `stage`: the
            process that the step started, alone.
        seconds: How long the step takes undisturbed [s].
        seed: Of the moment inside.
    """
    kill = _killer(whom)
    draw = random.Random(seed)

    def inside() -> None:
        time.sleep(draw.uniform(0.05, 0.9) * seconds)
        kill()

    from tfx.orchestration.portable import launcher, resolver_node_handler

    if moment == "inside":
        # An executor that is done sooner is killed at its end.
        _wrap(launcher.Launcher, "_run_executor", step, _in_thread(inside), kill)
    elif moment == "before":
        _wrap(launcher.Launcher, "_run_executor", step, kill, None)
    elif moment == "after":
        _wrap(launcher.Launcher, "_publish_successful_execution", step, kill, None)
    else:
        _wrap(launcher.Launcher, "_publish_successful_execution", step, None, kill)
    if moment != "inside":
        _wrap_resolver(resolver_node_handler, step, moment, kill)


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


def _killer(whom: str) -> Callable[[], None]:
    def kill() -> None:
        if whom == "group":
            os.killpg(0, signal.SIGKILL)
        elif whom == "runner":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            for child in _children():
                os.kill(child, signal.SIGKILL)

    return kill


def _children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def _in_thread(work: Callable[[], None]) -> Callable[[], None]:
    return lambda: threading.Thread(target=work, daemon=True).start()


def _wrap(
    owner: Any,
    name: str,
    step: str,
    before: Callable[[], None] | None,
    after: Callable[[], None] | None,
) -> None:
    original = getattr(owner, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = self._pipeline_node.node_info.id == step
        if ours and before is not None:
            before()
        result = original(self, *args, **kwargs)
        if ours and after is not None:
            after()
        return result

    setattr(owner, name, wrapped)


def _wrap_resolver(module: Any, step: str, moment: str, kill: Callable[[], None]) -> None:
    """The same for resolvers, which have a handler of their own."""
    handler = module.ResolverNodeHandler
    publish = module.execution_publish_utils
    run = handler.run
    is_ours = False

    class Publish:
        def __getattr__(self, name: str) -> Any:
            original = getattr(publish, name)
            wanted = {
                "before": "register_execution",
                "after": "publish_internal_execution",
                "published": "publish_internal_execution",
            }
            if not is_ours or name != wanted[moment]:
                return original

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                if moment != "published":
                    kill()
                result = original(*args, **kwargs)
                kill()
                return result

            return wrapped

    def run_wrapped(self: Any, connection: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_ours
        is_ours = node.node_info.id == step
        return run(self, connection, node, *args, **kwargs)

    module.execution_publish_utils = Publish()
    handler.run = run_wrapped


if __name__ == "__main__":
    serve_orders()


# --- everything a model folder computes with

_ARRAYS = ("weights/*.npy", "candidates.npy", "catalogue/*.npy", "user_features/*.npy")
_TABLES = ("vocabulary/*.parquet", "catalogue/*.parquet", "user_features/*.parquet")


def model_digest(folder: Path) -> str:
    """Returns the sha256 of weights, candidates, probe, ids and features of a model folder.

    It is the same wherever the values are the same, bit for bit.

    Args:
        folder: What `recsys.train` wrote.

    Raises:
        OSError: A file can't be read.
        ValueError: One is damaged.
    """
    digest = hashlib.sha256()
    summary = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    for part in ("spec", "variables"):
        digest.update(json.dumps(summary[part], sort_keys=True).encode())
    for pattern in _ARRAYS:
        for path in sorted(folder.glob(pattern)):
            _add(digest, path.relative_to(folder).as_posix(), np.load(path, allow_pickle=False))
    with np.load(folder / "probe.npz", allow_pickle=False) as probe:
        for name in sorted(probe):
            _add(digest, name, probe[name])
    for pattern in _TABLES:
        for path in sorted(folder.glob(pattern)):
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(_content(pq.read_table(path)))
    return digest.hexdigest()


def _add(digest: Any, name: str, array: np.ndarray) -> None:
    digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())


def _content(table: pa.Table) -> bytes:
    """Returns the rows of a table as Arrow writes them, in one batch whatever the file had."""
    plain = table.replace_schema_metadata(None).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    return sink.getvalue().to_pybytes()
