"""The batches that the loop takes: read, shuffled and on the devices before it asks.

Grain's threads read blocks of batches from the store; one thread more puts the next few
batches on the devices; the loop waits only where both are slower than the step.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from typing import Any, Self

from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from recsys.data.batches import BatchSource
from recsys.training.on_devices import batch_placer
from recsys.training.pump import Pump

DEPTH = 2
"""Batches that are put on the devices before they are asked for."""

Element = tuple[dict[str, Any]]


class Feed(DataAdapter):
    """The batches of a source on the devices, for `fit`, and how long it waited for them.

    Keras asks for the next batch when the step before has been started, and for none
    beyond; so the position is that of the loop.

    Args:
        source: The batches.
        first_step: Step to begin with.
        end_step: Step to end before; None: the end of the run.

    Example:
        with Feed(source, first_step=progress.step) as feed:
            model.fit(feed, steps_per_epoch=len(source) - progress.step, shuffle=False)

    Attributes:
        step: The step whose batch comes next.
        waited_s: Time for which batches were waited for [seconds].
    """

    def __init__(self, source: BatchSource, first_step: int = 0, end_step: int | None = None):
        self.step, self.waited_s = first_step, 0.0
        self._place = batch_placer()
        self._pump: Pump | None = None
        self.go_on(source, first_step, end_step)

    def go_on(
        self, source: BatchSource, first_step: int | None = None, end_step: int | None = None
    ) -> None:
        """Reads from another source from now on; what was read ahead is thrown away.

        Args:
            source: The batches, as those from new lists of hard negatives.
            first_step: Step to go on with; None: the present one.
            end_step: Step to end before; None: the end of the run.
        """
        self.close()
        self._source = source
        self.step = self.step if first_step is None else first_step
        self._end = len(source) if end_step is None else min(end_step, len(source))

    def close(self) -> None:
        """Stops the threads; a later batch starts them again."""
        if self._pump is not None:
            self._stop()  # Once; later calls do nothing, and hold nothing.
            self._pump = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Element]:
        """Yields `(batch,)` from the present step on, up to the end."""
        while self.step < self._end:
            yield self._next()

    # --- what Keras asks of its source of data

    def get_jax_iterator(self) -> Iterator[Element]:
        """Yields as `__iter__` does."""
        return iter(self)

    def get_numpy_iterator(self) -> Iterator[Element]:
        """Yields as `__iter__` does."""
        return iter(self)

    @property
    def num_batches(self) -> None:
        """Unknown to Keras, which would stop there: the loop says how many steps it takes."""

    @property
    def batch_size(self) -> int:
        """Examples of a batch."""
        return self._source.batch_size

    @property
    def has_partial_batch(self) -> bool:
        """Whether a batch is shorter than others: never."""
        return False

    @property
    def partial_batch_size(self) -> None:
        """Size of that one."""

    def _next(self) -> Element:
        started = time.perf_counter()
        if self._pump is None:
            self._pump = Pump(self._source, self.step, self._end, self._place, DEPTH)
            # Threads hold no reference to the feed, so they end with it in any case.
            self._stop = weakref.finalize(self, self._pump.stop)
        try:
            batch = self._pump.take()
        except BaseException:
            self.close()
            raise
        self.waited_s += time.perf_counter() - started
        self.step += 1
        return (batch,)
