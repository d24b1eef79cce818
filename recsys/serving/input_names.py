"""Names of the inputs of signatures that stand for columns or features of the data."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

ONLY = "only_"
_OWN = ("user_id", "item_id", "history", "exclude_seen", "exclude_ids")


def raw_inputs(columns: Iterable[str]) -> dict[str, str]:
    """Returns the column of each input that takes raw values, by the name of the input."""
    return _named(columns, "")


def filter_inputs(features: Iterable[str]) -> dict[str, str]:
    """Returns the feature of each input that filters, by the name of the input."""
    return _named(features, ONLY)


def _named(columns: Iterable[str], prefix: str) -> dict[str, str]:
    """Returns the column of each input; a name of TensorFlow has letters, digits and `_`."""
    column_of: dict[str, str] = {}
    for column in columns:
        name = prefix + re.sub(r"[^A-Za-z0-9]", "_", column)
        is_taken = not prefix and name.startswith(ONLY)
        name = name if name[:1].isalpha() and not is_taken else f"column_{name}"
        taken = {*column_of, *_OWN}
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        free = next(one for one in itertools.chain([name], numbered) if one not in taken)
        column_of[free] = column
    return column_of
