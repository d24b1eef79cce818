"""Kills a run at a named point, by wrapping TFX's own methods: the product has no hooks."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
