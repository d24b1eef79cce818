"""Columns of vectors: lists of numbers, or texts of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.sources.values import is_list, list_lengths, lists_of, to_numbers, to_text
from recsys.formats import counted

Rules = list[tuple[pa.Array, str]]
"""Masks of rows `[n]`, and the reasons why those are rejected."""

ENDS, BETWEEN = r"^[\s\[({]+|[\s\])}]+$", r"[\s,;|]+"
"""Patterns (RE2) of what surrounds the numbers of a text, and of what is between two of them."""


def to_vectors(
    column: pa.Array, name: str, length: int, decimal: str = "."
) -> tuple[pa.Array, Rules]:
    """Returns lists of float32 `[n]`, null if missing, and the rules that rejected ones break.

    Args:
        column: Lists of numbers, or text such as `[0.5, 1]`, `0.5 1` or `0.5;1`.
        name: Name of the raw column, for reasons.
        length: Number of numbers in each list.
        decimal: Decimal separator of text.
    """
    lists = _lists(column, decimal)
    lengths = list_lengths(lists)
    numbers = to_numbers(lists.flatten(), decimal)
    is_bad = np.zeros(len(lists), bool)
    is_bad[np.repeat(np.arange(len(lists)), lengths)[numbers.is_null().to_numpy(False)]] = True
    rules = [(pa.array(is_bad), f"{name} holds a value that is no finite number")]
    for found in np.setdiff1d(lengths, [0, length]).tolist():
        rules.append(
            (
                pa.array(lengths == found),
                f"{name} has {counted(found, 'number', 'numbers')}, not {length}",
            )
        )
    return lists_of(numbers, lengths, pa.array(lengths == 0)), rules


def _lists(column: pa.Array, decimal: str) -> pa.Array:
    """Returns the lists of a column, or the parts of its texts; empty for missing ones."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_list(column.type):
        return column
    text = pc.replace_substring_regex(pc.fill_null(to_text(column), ""), ENDS, "")
    parts = pc.split_pattern_regex(text, r"[\s;|]+" if decimal == "," else BETWEEN)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, parts.type), parts)
