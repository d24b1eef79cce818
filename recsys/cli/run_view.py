"""The events of a run as lines, and as a live bar where there is a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from recsys.cli.terminal import Console
from recsys.errors import RecsysError

_MARKS = {"ran": ("✓", "green"), "cached": ("↺", "cyan"), "failed": ("✗", "red")}
_QUIET_S = 30.0


class RunView:
    """Shows a run: one line a finished step, and a bar for the running one.

    Without a terminal there is no bar; a long step says where it is every 30 s.

    Args:
        console: Where it goes.

    Attributes:
        summary: What the `finished` event brought; None before it.
        error: The first error of the run; None without one.
        run_id: Id of the run; None before it has one.
    """

    def __init__(self, console: Console) -> None:
        self.summary: dict[str, Any] | None = None
        self.error: RecsysError | None = None
        self.run_id: str | None = None
        self._console = console
        self._bar = _bar(console) if console.is_terminal else None
        self._steps: list[str] = []
        self._n_finished = 0
        self._spoke = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
            self._start("Starting")  # importing TFX takes seconds
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, event: dict[str, Any]) -> None:
        """Shows one event; one of a kind that this version doesn't know is left out."""
        match event["kind"]:
            case "run_started":
                self._clear_bar()
                self._steps, self.run_id = event["steps"], event.get("run")
                self._say(Text(f"{event['name']}: {len(self._steps)} steps into {event['root']}"))
            case "step_started":
                self._start(event["step"])
            case "progress":
                self._advance(event)
            case "note":
                self._say(Text(f"  {event['step']}: {event['text']}"))
            case "step_finished":
                self._finish(event)
            case "error":
                self.error = self.error or RecsysError.from_json(event["error"])
            case "finished":
                self.summary = event["summary"]

    def _start(self, step: str) -> None:
        if self._bar:
            self._clear_bar()
            self._bar.add_task(step, total=None, text="")

    def _advance(self, event: dict[str, Any]) -> None:
        done, total, text = event.get("done"), event.get("total"), event.get("text") or ""
        if self._bar:
            for task in self._bar.task_ids:
                self._bar.update(task, completed=done, total=total, text=text)
        elif time.monotonic() - self._spoke > _QUIET_S:
            share = f"{done / total:.0%}  " if done is not None and total else ""
            self._say(Text(f"  {event['step']}  {share}{text}"))

    def _finish(self, event: dict[str, Any]) -> None:
        self._clear_bar()
        self._n_finished += 1
        mark, colour = _MARKS[event["state"]]
        width = max(map(len, [*self._steps, event["step"]]))
        self._say(
            Text.assemble(
                (mark, colour),
                f" {self._n_finished:>2}/{max(len(self._steps), self._n_finished)}",
                f"  {event['step']:<{width}}",
                f"  {event['seconds']:>7.1f} s",
                f"  {_outcome(event['state'], event.get('reason') or '')}",
            )
        )

    def _clear_bar(self) -> None:
        if self._bar:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)

    def _say(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)
        self._spoke = time.monotonic()


def _outcome(state: str, reason: str) -> str:
    if state == "failed" or not reason:  # the run's error says why it failed
        return state
    return reason if reason.startswith(state) else f"{state}: {reason}"


def _bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=console,
        transient=True,
    )
