"""How gradients of rows are had without gradients of tables.

A lookup adds a *tap* to what it returns: zeros, by which the training step
differentiates. The gradient by the tap is the gradient by the bag's embedding, which
is all that an update of the touched rows needs; the table itself is a constant of the
derivation, and nothing of its size arises. The taps' shapes are found by tracing the
step once without them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import jax

if TYPE_CHECKING:
    from recsys.embedding.exchange import Use
    from recsys.embedding.table import Table


class Reading(NamedTuple):
    """One reading of a table within a step.

    Attributes:
        table: What was read.
        use: What its update needs.
        out: What it returned `[bags, dim]`.
    """

    table: Table
    use: Use
    out: jax.Array


class Counts(NamedTuple):
    """What a step counts, scalars int32.

    Attributes:
        ids: Ids that were looked up.
        unknown: Those outside their vocabulary.
        extra_rounds: Rounds that exchanges took beyond the first.
    """

    ids: jax.Array
    unknown: jax.Array
    extra_rounds: jax.Array


class Tape:
    """The readings of one step, in their order.

    Args:
        taps: What to add to each; None to find out their shapes.
        trains: Whether tables are to be updated after it.

    Attributes:
        readings: The readings.
        counts: What each counted.
        refused: Tables that take no unknown ids, with the unknown ids of each reading.
    """

    def __init__(self, taps: list[jax.Array] | None = None, trains: bool = True) -> None:
        self.taps, self.trains = taps, trains
        self.readings: list[Reading] = []
        self.counts: list[Counts] = []
        self.refused: list[tuple[Table, jax.Array]] = []

    def tapped(self, reading: Reading) -> jax.Array:
        """Records a reading; returns its output, to differentiate by if taps are known."""
        if not self.trains:
            return reading.out
        self.readings.append(reading)
        return reading.out if self.taps is None else reading.out + self.taps[len(self.readings) - 1]

    def total(self) -> Counts:
        """Returns the sums of the counts."""
        zero = jax.numpy.int32(0)
        return (
            Counts(*(sum(column, zero) for column in zip(*self.counts, strict=True)))
            if (self.counts)
            else Counts(zero, zero, zero)
        )


_active = threading.local()


def active() -> Tape | None:
    """Returns the tape of the step that is being traced, if there is one."""
    return getattr(_active, "tape", None)


@contextlib.contextmanager
def recording(tape: Tape) -> Iterator[Tape]:
    """Makes `tape` the active one."""
    before = active()
    _active.tape = tape
    try:
        yield tape
    finally:
        _active.tape = before
