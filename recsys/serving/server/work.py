"""A bounded queue before a few threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from recsys.serving.server.limits import Limits
from recsys.serving.server.refusals import UNAVAILABLE, Refusal, busy

T = TypeVar("T")


class Work:
    """Runs functions in threads; refuses them at once where too many wait.

    Args:
        limits: How many threads, how many wait, and how long.
    """

    def __init__(self, limits: Limits) -> None:
        self._threads = ThreadPoolExecutor(limits.threads, "recsys-work")
        self._places = limits.threads + limits.queue
        self._answer_s = limits.answer_s
        self._held = 0

    @property
    def held(self) -> int:
        """Functions that run or wait."""
        return self._held

    def check(self) -> None:
        """Refuses where all places are taken, before more is done for a request.

        Raises:
            Refusal: They are (429).
        """
        if self._held >= self._places:
            raise busy(f"{self._held} requests")

    async def run(self, function: Callable[[], T]) -> T:
        """Returns what `function` returns, run in a thread.

        Raises:
            Refusal: All places are taken (429), or it took too long (503).
        """
        self.check()
        loop = asyncio.get_running_loop()
        self._held += 1
        future = self._threads.submit(function)
        future.add_done_callback(lambda _: self._free_in(loop))
        try:
            # A thread can't be stopped: it keeps its place until it is done.
            return await asyncio.wait_for(_shielded(future), self._answer_s)
        except TimeoutError:
            future.cancel()  # Unless it runs already.
            raise Refusal(
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
