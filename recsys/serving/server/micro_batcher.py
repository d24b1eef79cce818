"""A bounded queue in front of a few threads; waiting requests are answered together.

A request never waits for others: if a thread is free, it is answered at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from recsys.serving.server.errors import UNAVAILABLE, HttpError, busy
from recsys.serving.server.limits import Limits

T = TypeVar("T")
_MOST_TOGETHER = 24
"""Requests in a batch; the C kernel ranks so many at the cost of one."""


class _Waiting(NamedTuple):
    question: Any
    answer: Callable[[Sequence[Any]], Sequence[Any]]
    future: Future[Any]


class MicroBatcher:
    """Runs functions in threads; refuses them if too many wait.

    Args:
        limits: Threads, length of the queue, and timeout.

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
        """Refuses a request early if the queue is full (429)."""
        if self.held >= self._places:
            raise busy(f"{self.held} requests")

    async def run(self, function: Callable[[], T]) -> T:
        """Runs `function` in a thread, and returns its result; raises like `together`."""
        return await self.together(object(), None, lambda _: [function()])

    async def together(
        self, kind: Hashable, question: Any, answer: Callable[[Sequence[Any]], Sequence[T]]
    ) -> T:
        """Returns the answer to a question; waiting questions of a kind are answered in a batch.

        Args:
            kind: Kind of the question.
            question: The question.
            answer: Returns the answers to several questions of the kind. If it raises an error,
                each is answered by itself.

        Raises:
            HttpError: The queue is full (429), or the answer took too long (503).
        """
        waiting = _Waiting(question, answer, Future())
        self.check()
        with self._lock:
            self.held += 1
            self._waiting.setdefault(kind, []).append(waiting)
        # A running thread can't be stopped; it counts until it has finished.
        waiting.future.add_done_callback(self._release)
        self._threads.submit(self._answer_some, kind)
        try:
            shielded = asyncio.shield(asyncio.wrap_future(waiting.future))
            return await asyncio.wait_for(shielded, self._answer_s)
        except TimeoutError:
            waiting.future.cancel()
            rule = f"A response must be ready within {self._answer_s:g} s."
            cure = "Send smaller requests, or retry later."
            raise HttpError(UNAVAILABLE, "R561", rule, cure) from None

    def close(self) -> None:
        """Waits for running functions and drops waiting ones."""
        self._threads.shutdown(cancel_futures=True)

    def _answer_some(self, kind: Hashable) -> None:
        """Answers the oldest questions of a kind. There is one call for each question."""
        with self._lock:
            waiting = self._waiting.pop(kind, [])
            some, rest = waiting[:_MOST_TOGETHER], waiting[_MOST_TOGETHER:]
            if rest:
                self._waiting[kind] = rest
        _answer([w for w in some if w.future.set_running_or_notify_cancel()])

    def _release(self, _: Future[Any]) -> None:
        with self._lock:
            self.held -= 1


def _answer(waiting: Sequence[_Waiting]) -> None:
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
        for w in waiting:  # One of the questions may be the cause.
            _answer([w])
