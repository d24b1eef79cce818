"""A bounded queue before a few threads; requests that wait are answered together.

Nobody waits for others to come: a request that finds a thread free is answered alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

from recsys.bundles.signatures import Arrays
from recsys.serving.retriever import Graph
from recsys.serving.server.http_errors import UNAVAILABLE, HttpError, busy
from recsys.serving.server.limits import Limits
from recsys.serving.server.messages import PredictRequest

T = TypeVar("T")
_MOST_TOGETHER = 24
"""Requests that are answered at once; the C kernel ranks so many at the cost of one."""


class _Waiting(Generic[T]):
    """A question that waits for a thread, with those of its kind."""

    def __init__(self, question: Any, answer: Callable[[Sequence[Any]], Sequence[T]]) -> None:
        self.question, self.answer = question, answer
        self.future: Future[T] = Future()


class MicroBatcher:
    """Runs functions in threads; refuses them at once where too many wait.

    Args:
        limits: How many threads, how many wait, and how long.
    """

    def __init__(self, limits: Limits) -> None:
        self._threads = ThreadPoolExecutor(limits.threads, "recsys-work")
        self._places = limits.threads + limits.queue
        self._answer_s = limits.answer_s
        self._held = 0
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, list[_Waiting[Any]]] = {}

    @property
    def held(self) -> int:
        """Functions that run or wait."""
        return self._held

    def check(self) -> None:
        """Refuses where all places are taken, before more is done for a request.

        Raises:
            HttpError: They are (429).
        """
        if self._held >= self._places:
            raise busy(f"{self._held} requests")

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

        Nobody waits for others to come: who finds a thread free is answered alone.

        Args:
            kind: Questions of one kind may be answered at once.
            question: What is asked.
            answer: Gives an answer for each of several questions of the kind, or raises
                an error for all of them: then each is asked alone.

        Raises:
            HttpError: As in `run`.
        """
        self.check()
        asked: _Waiting[T] = _Waiting(question, answer)
        with self._lock:
            self._waiting.setdefault(kind, []).append(asked)
        self._threads.submit(self._answer_some, kind)
        return await self._wait_for(asked.future)

    def _answer_some(self, kind: Hashable) -> None:
        """Answers the first of those who wait; each has brought a call of this with it."""
        with self._lock:
            waiting = self._waiting.get(kind, [])
            some, rest = waiting[:_MOST_TOGETHER], waiting[_MOST_TOGETHER:]
            self._waiting[kind] = rest
            if not rest:
                del self._waiting[kind]
        _answer([one for one in some if one.future.set_running_or_notify_cancel()])

    async def _wait_for(self, future: Future[T]) -> T:
        loop = asyncio.get_running_loop()
        self._held += 1
        future.add_done_callback(lambda _: self._free_in(loop))
        try:
            # A thread can't be stopped: it keeps its place until it is done.
            return await asyncio.wait_for(_shielded(future), self._answer_s)
        except TimeoutError:
            future.cancel()  # Unless it runs already.
            raise HttpError(
                UNAVAILABLE,
                "R561",
                f"An answer must be there within {self._answer_s:g} s.",
                "Ask for less at once, or again later.",
                headers={"Retry-After": "1"},
            ) from None

    def close(self) -> None:
        """Waits for what runs; nothing may be asked any more."""
        self._threads.shutdown(cancel_futures=True)

    def _free_in(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: the server has ended.
            loop.call_soon_threadsafe(self._free)

    def _free(self) -> None:
        self._held -= 1


def _shielded(future: Future[T]) -> asyncio.Future[T]:
    return asyncio.shield(asyncio.wrap_future(future))


def _answer(asked: Sequence[_Waiting[Any]]) -> None:
    """Answers all at once; each alone where that fails, as one may be at fault."""
    if not asked:
        return
    try:
        answers = asked[0].answer([waiting.question for waiting in asked])
        for waiting, answer in zip(asked, answers, strict=True):
            waiting.future.set_result(answer)
    except BaseException as error:  # noqa: BLE001 any failure of a damaged bundle, or of a request, is reported
        if len(asked) == 1:
            asked[0].future.set_exception(error)
            return
        for waiting in asked:
            _answer([waiting])


_JOINED = ("recommend", "recommend_filtered")
"""Signatures whose texts are padded with the empty one, so that rows stand side by side."""
_MOST_ROWS = 8
"""Of a request; a larger one is no faster with others."""


def may_join(question: PredictRequest) -> bool:
    """Returns whether a question may be answered together with others."""
    if question.signature not in _JOINED:
        return False
    n = len(next(iter(question.inputs.values())))
    return 0 < n <= _MOST_ROWS


def ask_together(model: Graph, questions: Sequence[PredictRequest]) -> list[Arrays]:
    """Returns the outputs of each of several questions of one signature, asked as one."""
    signature = questions[0].signature
    if len(questions) == 1:
        return [model.ask(signature, questions[0].inputs)]
    inputs = {
        name: _stacked([request.inputs[name] for request in questions])
        for name in questions[0].inputs
    }
    outputs = model.ask(signature, inputs)
    sizes = [len(next(iter(request.inputs.values()))) for request in questions]
    if any(len(values) != sum(sizes) for values in outputs.values()):
        raise ValueError("the outputs are not by row")  # Each is asked alone then.
    ends = np.cumsum(sizes)[:-1]
    parts = {name: np.split(values, ends) for name, values in outputs.items()}
    return [{name: parts[name][place] for name in parts} for place in range(len(questions))]


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns rows one below the other; lists of texts padded to the longest."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    return np.concatenate(
        [
            np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=b"")
            if part.shape[1] < width
            else part
            for part in parts
        ]
    )
