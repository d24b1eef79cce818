"""Fields of a retrieval bundle's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def direction_width(manifest: Mapping[str, Any]) -> int | None:
    """Returns the number of an embedding's entries that are its direction; None: all.

    A bias and the entries for ages are not part of it.
    """
    model = manifest.get("config", {}).get("model", {})
    has_more = model.get("item_bias") or model.get("item_age")
    return int(model["dim"]) if has_more else None
