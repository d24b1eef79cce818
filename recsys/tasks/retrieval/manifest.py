"""Fields of a retrieval bundle's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def direction_width(manifest: Mapping[str, Any]) -> int | None:
    """Returns the width of the part of an embedding that similarity is computed from; None: all.

    A bias and the numbers of ages are not part of it.
    """
    model = manifest.get("config", {}).get("model", {})
    has_more = model.get("item_bias") or model.get("item_age")
    return int(model["dim"]) if has_more else None
