"""A thread that moves batches from a reader to the devices, a few ahead of the taker."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from recsys.data.batches import BatchSource
from recsys.data.read_ahead import read_ahead
from recsys.training.on_devices import Placer


class Pump:
    """The batches of some steps, each placed before it is taken.

    Args:
        source: The batches.
        first_step: Step to begin with.
        end_step: Step to end before.
        place: Puts a batch on the devices.
        depth: Placed batches that wait to be taken, at the most.
    """

    def __init__(
        self, source: BatchSource, first_step: int, end_step: int, place: Placer, depth: int
    ) -> None:
        self._batches = iter(read_ahead(source, first_step, end_step))
        self._place, self._depth = place, depth
        self._ready: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="recsys-feed", daemon=True)
        self._thread.start()

    def take(self) -> dict[str, Any]:
        """Returns the next batch; waits for it.

        Raises:
            Exception: What the reader raised, after the batches that it had read.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure or self._is_stopped)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
        raise self._failure or RuntimeError("The feed was closed while a batch was waited for.")

    def stop(self) -> None:
        """Ends the threads; whoever waits for a batch gets an error."""
        with self._changed:
            self._is_stopped = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            for (batch,) in self._batches:
                placed = self._place(batch)
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._is_stopped or len(self._ready) < self._depth
                    )
                    if self._is_stopped:
                        break
                    self._ready.append(placed)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 it is raised again where batches are taken
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._batches.close()
