"""The approximate index of a bundle, built and measured at the export."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recsys.errors import RecsysError
from recsys.index.ann_index import AnnIndex, Report, learn_lists, write_index
from recsys.index.config import IndexConfig
from recsys.index.ranker import Ranker
from recsys.ragged import RaggedRows

_FEWEST_QUERIES, _SEED = 512, 0
_WAY = 0.5
"""Distance of a synthetic query from its item, relative to the item's norm."""
_MARGIN_SHARE = 0.2
"""Safety margin as a share of the allowed loss of recall: future queries differ from these."""
_MOST_SHARE = 0.5
"""Highest share of lists to search; above half of the items, an exact search is faster."""
_LISTS_OF_A_ROOT = 4


def build(
    folder: Path,
    embeddings: np.ndarray,
    is_item: np.ndarray,
    queries: np.ndarray,
    k: int,
    config: IndexConfig,
    report: Report | None = None,
) -> dict[str, Any] | None:
    """Writes `index/` into a bundle, if the config requires an index for this number of items.

    The search effort is the lowest with sufficient recall, plus a margin, on every other query. The
    recall is measured on the other half. The same input gives the same files.

    Args:
        folder: The bundle.
        embeddings: Item embeddings `[item rows, dim]` float32; may be a memory map.
        is_item: Whether each row is an item `[item rows]` bool.
        queries: Query embeddings `[n, dim]` float32.
        k: Number of items per query.
        config: Config of the index.
        report: Called with the number of finished items and the total.

    Returns:
        Fields of the manifest: `kind`, `items`, `lists`, `effort`, `k`, `recall` on held-out
        `queries`, `min_recall`, `seconds`; None without an index.

    Raises:
        RecsysError: FAISS is missing (R580), or the recall is too low (R581).
    """
    rows, started = np.flatnonzero(is_item), time.perf_counter()
    least = {"auto": config.exact_up_to, "ann": 0}.get(config.kind, len(rows))
    if len(rows) <= least:
        return None
    default = max(1, round(_LISTS_OF_A_ROOT * math.sqrt(len(rows))))
    n_lists = min(config.lists or default, len(rows))
    lists = learn_lists(embeddings, rows, n_lists, report)
    ranker = Ranker(embeddings, is_item, AnnIndex(lists, embeddings, rows))
    judges = judging_queries(queries, embeddings, rows)
    nothing = RaggedRows.empty(len(judges))
    exact, _ = Ranker(embeddings, is_item).best(judges, nothing, k)

    def search(some: np.ndarray, effort: int) -> np.ndarray:
        return ranker.by_index(some, RaggedRows.empty(len(some)), k, effort)[0]

    effort, recall = choose_effort(search, judges, exact, n_lists, config.min_recall)
    fields = {
        "kind": "ivf-sq8",
        "items": len(rows),
        "lists": n_lists,
        "effort": effort,
        "k": k,
        "recall": round(recall, 5),
        "queries": len(judges) // 2,
        "min_recall": config.min_recall,
    }
    write_index(folder, lists, fields)
    return {**fields, "seconds": round(time.perf_counter() - started, 3)}


def judging_queries(queries: np.ndarray, embeddings: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns at least 512 queries `[n, dim]` float32.

    Args:
        queries: Query embeddings of the model `[m, dim]`. Zero vectors are dropped.
        embeddings: Item embeddings `[item rows, dim]`.
        rows: Rows that are items. If there are too few queries, synthetic ones near random items
            are added.
    """
    queries = np.asarray(queries, np.float32).reshape(-1, embeddings.shape[1])
    own = queries[np.abs(queries).max(axis=1, initial=0) > 0]
    rng = np.random.default_rng(_SEED)
    n_missing = max(0, _FEWEST_QUERIES - len(own))
    near = np.asarray(embeddings[rng.choice(rows, n_missing)], np.float32)
    ways = rng.standard_normal(near.shape, np.float32)
    ways /= np.maximum(np.linalg.norm(ways, axis=1, keepdims=True), 1e-12)
    lengths = np.linalg.norm(near, axis=1, keepdims=True)
    return np.concatenate([own, near + np.float32(_WAY) * lengths * ways])


def choose_effort(
    search: Callable[[np.ndarray, int], np.ndarray],
    queries: np.ndarray,
    exact: np.ndarray,
    n_lists: int,
    min_recall: float,
) -> tuple[int, float]:
    """Returns the number of lists to search, and the recall on held-out queries [0..1].

    Every other query is used to choose the effort, the rest to measure the recall.

    Args:
        search: Returns item rows `[n, k]` of queries at an effort, padded with 0.
        queries: Query embeddings `[n, dim]` float32, at least two.
        exact: Rows of the exact top k `[n, k]`, padded with 0.
        n_lists: Number of lists.
        min_recall: Share of `exact` that must be found [0..1].

    Raises:
        RecsysError: The recall is too low even at the highest effort (R581).
    """
    wanted = min_recall + _MARGIN_SHARE * (1 - min_recall)
    most = max(1, int(n_lists * _MOST_SHARE))
    # Each is about a fourth larger than the previous one.
    steps = np.unique(np.round(1.25 ** np.arange(64)).astype(int))
    effort = most
    for effort in [*steps[steps < most].tolist(), most]:
        if recall_of(search(queries[::2], effort), exact[::2]) >= wanted:
            break
    recall = recall_of(search(queries[1::2], effort), exact[1::2])
    if recall < min_recall:
        rule = f"The index must find {min_recall:.1%} of the exact best {exact.shape[1]} items."
        cure = (
            "Set export.index.kind to exact, export.index.lists lower, or"
            " export.index.min_recall lower; then run again: recsys run."
        )
        raise RecsysError("R581", rule, cure, f"{recall:.4f} at {effort} of {n_lists} lists")
    return effort, recall


def recall_of(rows: np.ndarray, exact: np.ndarray) -> float:
    """Returns the share of `exact` `[n, k]`, without padding 0, that is in `rows` `[n, k]`."""
    hits = sum(len(np.intersect1d(x, best[best > 0])) for x, best in zip(rows, exact, strict=True))
    return hits / max(1, int((exact > 0).sum()))
