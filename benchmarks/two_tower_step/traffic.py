"""Bytes that the exchange sends, from the compiled step and the ids, against the least.

The compiled step holds an all-to-all for each capacity of a chunk, of which a step runs
the smallest that is wide enough. How wide that is, the ids say: so what is counted is
what the program would send for these very batches, padding included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Owner = Callable[[Ids], Ids]

_ALL_TO_ALL = re.compile(r" = (\(.*?\)) all-to-all\(")
_PART = re.compile(r"\b(?:s32|f32)\[([\d,]+)\]")
_ITEMSIZE = 4


def sent_by_capacity(hlo: str) -> dict[int, float]:
    """Returns the bytes that a device sends to others in all exchanges of a capacity.

    Args:
        hlo: The compiled step. On a CPU an all-to-all is a tuple of parts
            `[1, capacity, …]`, one for each device, of which one stays at home.
    """
    found: dict[int, float] = {}
    for result in _ALL_TO_ALL.findall(hlo):
        parts = [[int(d) for d in shape.split(",")] for shape in _PART.findall(result)]
        sent = sum(math.prod(part) for part in parts[1:]) * _ITEMSIZE
        found[parts[0][1]] = found.get(parts[0][1], 0.0) + sent
    return found


def sent_bytes(hlo: str, ids: Ids, owner: Owner, n_devices: int) -> float:
    """Returns the bytes that a device sends to others in a step, on average over the steps.

    Args:
        hlo: The compiled step; its tables must be alike.
        ids: Rows of each table `[steps, tables, batch]` int32.
        owner: Says which device holds each row.
        n_devices: Devices, each with an equal run of the batch.
    """
    by_capacity = sent_by_capacity(hlo)
    capacities = sorted(by_capacity)
    total = 0.0
    for of_table in ids.reshape(-1, ids.shape[-1]):
        fullest = int(_needs(of_table, owner, n_devices).max())
        wide = next((c for c in capacities if c >= fullest), capacities[-1])
        total += by_capacity[wide] / ids.shape[1] * math.ceil(fullest / wide)
    return total / len(ids)


def least_bytes(ids: Ids, owner: Owner, n_devices: int, dim: int) -> float:
    """Returns the least that a device must send in a step, on average over steps and devices.

    Each distinct row of its part of the batch that lives elsewhere comes once, and its
    gradient goes once: rows · dim · 4 bytes, both ways.
    """
    elsewhere = 0.0
    for of_table in ids.reshape(-1, ids.shape[-1]):
        needs = _needs(of_table, owner, n_devices)
        elsewhere += (needs.sum() - np.trace(needs)) / n_devices
    return 2 * elsewhere / len(ids) * dim * _ITEMSIZE


def _needs(of_table: Ids, owner: Owner, n_devices: int) -> npt.NDArray[np.int64]:
    """Returns how many distinct rows each device needs of each other one `[device, owner]`."""
    parts = [np.unique(part) for part in np.split(of_table, n_devices)]
    return np.stack([np.bincount(owner(part), minlength=n_devices) for part in parts])
