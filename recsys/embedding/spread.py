"""Where a row lies in its table: spread over the shards, alike on every mesh.

Frequent ids have small rows. Were row r stored at place r, the first device would
serve most of the traffic. Were it stored on device r mod n, the file of 8 devices
would not fit 4. So a table has `SLOTS` equal slots whatever the mesh, row r lies in
slot (r · `STRIDE`) mod `SLOTS`, and a device holds a run of neighbouring slots:
rows that follow each other fall on all devices evenly, for every number of devices
that divides `SLOTS`, and a table moves between meshes without moving a row in it.
"""

from __future__ import annotations

import math
from typing import Any

SLOTS = 3840
"""Slots of a table: 2^8 · 3 · 5, so 1 … 6, 8, 10, 12, 15, 16, … 256 devices divide it."""

STRIDE = 2371
"""Close to the golden section of `SLOTS`, which spreads runs most evenly; coprime to it."""

_STRIDE_INVERSE = pow(STRIDE, -1, SLOTS)


def padded_rows(rows: int, n_shards: int) -> int:
    """Returns the places of a table of `rows` rows that `n_shards` devices share equally."""
    unit = math.lcm(SLOTS, n_shards)
    return -(-rows // unit) * unit


def places(rows: Any, padded: int) -> Any:
    """Returns the places of `rows` in a table of `padded` places.

    Args:
        rows: Rows `[...]`, each in 0 … `padded` - 1; an int, or an integer array of
            any library.
        padded: What `padded_rows` returned.
    """
    # Every product stays below 2^31, so int32 is wide enough.
    return (rows % SLOTS) * STRIDE % SLOTS * (padded // SLOTS) + rows // SLOTS


def rows_at(places: Any, padded: int) -> Any:
    """Returns the rows that lie at `places`: the inverse of `places`."""
    depth = padded // SLOTS
    return places % depth * SLOTS + places // depth * _STRIDE_INVERSE % SLOTS
