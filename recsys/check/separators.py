"""What stands between the parts of texts that are lists: of genres, of items."""

from __future__ import annotations

from collections.abc import Sequence

_SIGNS = ("|", ";", ",", " ")
_LEAST_VALUES = 5
_MOST_PARTS = 30


def find_separator(values: Sequence[str]) -> str:
    """Returns what stands between the parts of values; empty: they are no lists.

    The parts of lists come again in other values, in other company: there are fewer
    different ones than there are values, and each of them is short. Words of titles and of
    sentences aren't so. A blank is the last that is asked: it stands inside of parts too.

    Args:
        values: Some different values.
    """
    if len(values) < _LEAST_VALUES:
        return ""
    return next((sign for sign in _SIGNS if _separates(sign, values)), "")


def _separates(sign: str, values: Sequence[str]) -> bool:
    lists = [[part.strip() for part in value.split(sign)] for value in values]
    parts = [part for one in lists for part in one if part]
    n_several = sum(len(one) > 1 for one in lists)
    n_different = len(set(parts))
    is_strong = sign in "|;"
    if n_several < (0.1 if is_strong else 0.3) * len(values):
        return False
    if is_strong:
        return True
    return (
        max(map(len, lists)) <= _MOST_PARTS
        and 1.5 * n_different <= len(values)
        and len(parts) >= 4 * n_different
    )
