"""The items of a batch's histories, each once.

Histories repeat items: those of 512 users, 20 items each, hold a few thousand different ones.
A model whose tower reads the items one by one then reads each of them once.
"""

from __future__ import annotations

import numpy as np

ITEM, PLACE = "history_item", "history_place"
_MARGIN, _MULTIPLE = 1.125, 128


def each_once(history: np.ndarray, n: int) -> dict[str, np.ndarray]:
    """Returns the items of histories once each.

    The arrays are the same for every batch: Keras' `fit` wants the keys of the first in all.

    Args:
        history: Item rows `[batch, history]` int32; 0 is padding, and counts as an item.
        n: Items to return, doubled until there is room for all; the last is repeated to
            fill them up.

    Returns:
        `history_item` `[n]` int32, the rows, ascending; `history_place` `[batch, history]`
        int32, where among them each entry of `history` is.
    """
    rows, place = np.unique(history, return_inverse=True)
    while n < len(rows):
        n *= 2
    items = np.pad(rows, (0, n - len(rows)), mode="edge")
    return {ITEM: items, PLACE: place.reshape(history.shape).astype(np.int32)}


def items_for(histories: list[np.ndarray]) -> int:
    """Returns how many items to give of a batch's histories, judged by some batches' own.

    A batch that has more gives twice as many, and is compiled for anew: there is a margin.

    Args:
        histories: Those of some batches, each `[batch, history]`.

    Returns:
        The number, a multiple of 128; 0 where most items come once, and there is no gain.
    """
    most = max(len(np.unique(history)) for history in histories)
    n = -(-int(most * _MARGIN) // _MULTIPLE) * _MULTIPLE
    return n if n <= histories[0].size // 2 else 0
