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
"""Length of the way that a made query lies from its item, as a share of the item's length."""
_MARGIN_SHARE = 0.2
"""Of what recall may lack: the queries to come aren't those that the effort is chosen by."""
_MOST_SHARE = 0.5
"""Of all lists; who must look at more than half of the items better looks at all."""
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
    """Writes `index/` into a bundle, if the config wants an index for so many items.

    The search effort is the least with enough recall, plus a margin, on every other query; the
    recall is measured on the rest. The same input gives the same files.

    Args:
        folder: The bundle.
        embeddings: Of each item row `[item rows, dim]` float32; may be a memory map.
        is_item: Which rows are items `[item rows]` bool.
        queries: Embeddings of queries `[n, dim]` float32, as the model gives them.
        k: Items of an answer.
        config: Whether, and how good.
        report: Called with the items that are done, and all of them.

    Returns:
        What the manifest says of it: `kind`, `items`, `lists`, `effort`, `k`, `recall` on
        `queries` held out, `min_recall`, `seconds`; None without an index.

    Raises:
        RecsysError: FAISS is missing (R580), or the index finds too little (R581).
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
        queries: Those of the model `[m, dim]`; all of them are taken. One without a
            length is none: every item is as good as any other.
        embeddings: Of each item row `[item rows, dim]`.
        rows: Rows that are items; where there are too few queries, such as lie near
            random ones of them are made.
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
    """Returns the lists to look through, and the recall [0..1] on queries held out.

    Every other query chooses, the rest judges.

    Args:
        search: Returns item rows `[n, k]` of queries at an effort, 0: none.
        queries: `[n, dim]` float32, two at least.
        exact: Their exact best rows `[n, k]`, 0: none.
        n_lists: Lists that there are.
        min_recall: Share of `exact` that must be found [0..1].

    Raises:
        RecsysError: It isn't, at the highest effort (R581).
    """
    wanted = min_recall + _MARGIN_SHARE * (1 - min_recall)
    most = max(1, int(n_lists * _MOST_SHARE))
    # Each about a fourth more than the one before.
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
    """Returns the share of the rows `exact` `[n, k]`, 0: none, that are in `rows` `[n, k]`."""
    hits = sum(len(np.intersect1d(x, best[best > 0])) for x, best in zip(rows, exact, strict=True))
    return hits / max(1, int((exact > 0).sum()))
