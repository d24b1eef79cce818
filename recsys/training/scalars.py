"""What TensorBoard shows of a run."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path

import jax
from tensorboardX import SummaryWriter


class Scalars:
    """Writes numbers by step into a folder that TensorBoard reads.

    Args:
        folder: The folder; made if missing.
        first_step: Steps after this one, which an earlier attempt wrote, are forgotten.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes values, by names such as `train/loss`, as of `step`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is still in memory."""
        self._writer.close()


def memory() -> dict[str, float]:
    """Returns the memory of this process and of its devices [MiB]."""
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"memory/peak_rss_mib": peak_kib / 2**10}
    for device in jax.local_devices():
        # CPUs have no statistics.
        if statistics := device.memory_stats():
            found[f"memory/device_{device.id}_mib"] = statistics["bytes_in_use"] / 2**20
    return found
