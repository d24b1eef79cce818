"""How hard an index searches: the least that finds enough, and whether that is enough."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from recsys.errors import RecsysError

_MARGIN_SHARE = 0.2
"""Of what recall may lack: the queries to come aren't those that the effort is chosen by."""
_MOST_SHARE = 0.5
"""Of all lists; who must look at more than half of the items better looks at all."""


class Searched(Protocol):
    """Finds the best items of queries; the harder the surer."""

    def best(self, queries: np.ndarray, k: int, effort: int) -> np.ndarray:
        """Returns item rows `[queries, k]`, 0: none."""


def choose_effort(
    searched: Searched,
    queries: np.ndarray,
    exact: np.ndarray,
    n_lists: int,
    min_recall: float,
) -> tuple[int, float]:
    """Returns the lists to look through, and the recall [0..1] on queries held out.

    Every other query chooses, the rest judges.

    Args:
        searched: The index.
        queries: `[n, dim]` float32, two at least.
        exact: Their exact best rows `[n, k]`, 0: none.
        n_lists: Lists that there are.
        min_recall: Share of `exact` that must be found [0..1].

    Raises:
        RecsysError: It isn't, at the highest effort (R581).
    """
    wanted = min_recall + _MARGIN_SHARE * (1 - min_recall)
    effort = 1
    for effort in _efforts(n_lists):
        if _recall(searched, queries[::2], exact[::2], effort) >= wanted:
            break
    found = _recall(searched, queries[1::2], exact[1::2], effort)
    if found < min_recall:
        raise RecsysError(
            "R581",
            f"The index must find {min_recall:.1%} of the exact best {exact.shape[1]} items.",
            "Set export.index.kind to exact, export.index.lists lower, or"
            " export.index.min_recall lower; then run again: recsys run.",
            f"{found:.4f} at {effort} of {n_lists} lists",
        )
    return effort, found


def recall_of(found: np.ndarray, exact: np.ndarray) -> float:
    """Returns the share of the rows `exact` `[n, k]`, 0: none, that were `found` `[n, k]`."""
    hits = sum(
        len(np.intersect1d(one, best[best > 0])) for one, best in zip(found, exact, strict=True)
    )
    return hits / max(1, int((exact > 0).sum()))


def _recall(searched: Searched, queries: np.ndarray, exact: np.ndarray, effort: int) -> float:
    return recall_of(searched.best(queries, exact.shape[1], effort), exact)


def _efforts(n_lists: int) -> list[int]:
    """Returns efforts to try, each about a fourth more than the one before."""
    most = max(1, int(n_lists * _MOST_SHARE))
    steps = np.unique(np.round(1.25 ** np.arange(64)).astype(int))
    return [*steps[steps < most].tolist(), most]
