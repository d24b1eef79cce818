"""Starting runs, and the root that they write: kept, put back, and told apart."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.crash_case.world import NAME, write_second_night, write_world
from recsys.models.digest import model_digest
from recsys.parent import as_parent, child_command


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
            child_command("benchmarks.crash_case.zygote"),
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
