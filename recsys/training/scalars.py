"""What TensorBoard shows of a run."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from recsys.training.told import note


class Scalars:
    """Writes numbers by step into a folder that TensorBoard reads.

    Each call writes: tensorboardX's own thread would end at a full disk, without a word,
    and the training then wait for it for good. Where they can't be written the run goes on
    without.

    Args:
        folder: The folder; made if missing.
        first_step: Steps after this one, which an earlier attempt wrote, are forgotten.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self._writer: EventsWriter | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}")
        except OSError as error:
            self._give_up(error)
        if first_step:
            start = SessionLog(status=SessionLog.START)
            self._put(step=first_step + 1, session_log=start)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes values, by names such as `train/loss`, as of `step`."""
        named = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._put(step=step, summary=Summary(value=named))

    def close(self) -> None:
        """Closes the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):
                writer.close()

    def _put(self, **fields: Any) -> None:
        if self._writer is None:
            return
        try:
            self._writer.write_event(Event(wall_time=time.time(), **fields))
            self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.close()
        note(f"Nothing more is written for TensorBoard: {error.strerror or error}.")


def memory() -> dict[str, float]:
    """Returns the memory of this process and of its devices [MiB]."""
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"memory/peak_rss_mib": peak_kib / 2**10}
    for device in jax.local_devices():
        # CPUs have no statistics.
        if statistics := device.memory_stats():
            found[f"memory/device_{device.id}_mib"] = statistics["bytes_in_use"] / 2**20
    return found
