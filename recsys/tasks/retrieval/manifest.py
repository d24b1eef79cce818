"""Fields of a retrieval bundle's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def direction_width(manifest: Mapping[str, Any]) -> int | None:
    """Returns the number of an embedding's entries that are its direction; None: all.

    The columns of terms, such as a bias, are not part of it.
    """
    model = manifest.get("config", {}).get("model", {})
    has_more = any(model.get(key) for key in ("item_bias", "item_age", "terms"))
    return int(model["dim"]) if has_more else None
