"""A bounded queue in front of a few threads; waiting requests are answered together.

A request never waits for others: if a thread is free, it is answered at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from recsys.serving.server.http_errors import UNAVAILABLE, HttpError, busy
from recsys.serving.server.limits import Limits

T = TypeVar("T")
_MOST_TOGETHER = 24
"""Requests that are answered at once; the C kernel ranks so many at the cost of one."""


class _Waiting(NamedTuple):
    """A question that waits for a thread, with those of its kind."""

    question: Any
    answer: Callable[[Sequence[Any]], Sequence[Any]]
    future: Future[Any]


class MicroBatcher:
    """Runs functions in threads; refuses them at once where too many wait.

    Args:
        limits: How many threads, how many wait, and how long.

    Attributes:
        held: Functions that run or wait.
    """

    def __init__(self, limits: Limits) -> None:
        self._threads = ThreadPoolExecutor(limits.threads, "recsys-work")
        self._places, self._answer_s = limits.threads + limits.queue, limits.answer_s
        self.held = 0
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, list[_Waiting]] = {}

    def check(self) -> None:
        """Refuses where all places are taken, before more is done for a request.

        Raises:
            HttpError: They are (429).
        """
        if self.held >= self._places:
            raise busy(f"{self.held} requests")

    async def run(self, function: Callable[[], T]) -> T:
        """Returns what `function` returns, run in a thread.

        Raises:
            HttpError: All places are taken (429), or it took too long (503).
        """
        self.check()
        return await self._wait_for(self._threads.submit(function))

    async def together(
        self, kind: Hashable, question: Any, answer: Callable[[Sequence[Any]], Sequence[T]]
    ) -> T:
        """Returns the answer to `question`, given with those of its kind that wait for a thread.

        Args:
            kind: Questions of one kind may be answered at once.
            question: The question.
            answer: Gives an answer for each of several questions of the kind, or raises
                an error for all of them: then each is answered alone.

        Raises:
            HttpError: As in `run`.
        """
        self.check()
        waiting = _Waiting(question, answer, Future())
        with self._lock:
            self._waiting.setdefault(kind, []).append(waiting)
        self._threads.submit(self._answer_some, kind)
        return await self._wait_for(waiting.future)

    def close(self) -> None:
        """Waits for what runs; nothing may be run any more."""
        self._threads.shutdown(cancel_futures=True)

    def _answer_some(self, kind: Hashable) -> None:
        """Answers the first of those who wait; each has brought a call of this with it."""
        with self._lock:
            waiting = self._waiting.pop(kind, [])
            some, rest = waiting[:_MOST_TOGETHER], waiting[_MOST_TOGETHER:]
            if rest:
                self._waiting[kind] = rest
        _answer([w for w in some if w.future.set_running_or_notify_cancel()])

    async def _wait_for(self, future: Future[T]) -> T:
        loop = asyncio.get_running_loop()
        self.held += 1

        def free(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: the server has ended.
                loop.call_soon_threadsafe(self._free)

        future.add_done_callback(free)
        try:
            # A thread can't be stopped: it keeps its place until it is done.
            shielded = asyncio.shield(asyncio.wrap_future(future))
            return await asyncio.wait_for(shielded, self._answer_s)
        except TimeoutError:
            future.cancel()  # Unless it runs already.
            rule = f"A response must be ready within {self._answer_s:g} s."
            cure = "Send smaller requests, or retry later."
            raise HttpError(UNAVAILABLE, "R561", rule, cure, retry_s=1) from None

    def _free(self) -> None:
        self.held -= 1


def _answer(waiting: Sequence[_Waiting]) -> None:
    """Answers all at once; each alone where that fails, as one may be at fault."""
    if not waiting:
        return
    try:
        answers = waiting[0].answer([w.question for w in waiting])
        for w, answer in zip(waiting, answers, strict=True):
            w.future.set_result(answer)
    except BaseException as error:  # noqa: BLE001 any failure of a damaged bundle, or of a request, is reported
        if len(waiting) == 1:
            waiting[0].future.set_exception(error)
            return
        for w in waiting:
            _answer([w])
