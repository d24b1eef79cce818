"""The index of a bundle, made and judged at the export."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from recsys.config.index import IndexConfig
from recsys.ragged import Ragged
from recsys.serving.index.ann import AnnIndex, Tell, learn_lists
from recsys.serving.index.effort import choose_effort
from recsys.serving.index.queries import judging_queries
from recsys.serving.index.ranker import Ranker
from recsys.serving.index.stored import write_index

_LISTS_OF_A_ROOT = 4


def build(
    folder: Path,
    embeddings: np.ndarray,
    is_item: np.ndarray,
    queries: np.ndarray,
    k: int,
    config: IndexConfig,
    tell: Tell | None = None,
) -> dict[str, Any] | None:
    """Writes `index/` into a bundle, if the config wants an index for so many items.

    The effort of a search is the least that finds enough on every other query, with a
    margin; the rest of them tells the recall. The same input gives the same files.

    Args:
        folder: The bundle.
        embeddings: Of each item row `[item rows, dim]` float32; may be a memory map.
        is_item: Which rows are items `[item rows]` bool.
        queries: Embeddings of queries `[n, dim]` float32, as the model gives them.
        k: Items of an answer.
        config: Whether, and how good.
        tell: Is told how many items are done.

    Returns:
        What the manifest says of it: `kind`, `items`, `lists`, `effort`, `k`, `recall` on
        `queries` held out, `min_recall`, `seconds`; None without an index.

    Raises:
        RecsysError: FAISS is missing (R580), or the index finds too little (R581).
    """
    rows = np.flatnonzero(is_item)
    if not wants_index(config, len(rows)):
        return None
    started = time.perf_counter()
    n_lists = min(config.lists or _default_lists(len(rows)), len(rows))
    lists = learn_lists(embeddings, rows, n_lists, tell)
    ranker = Ranker(embeddings, is_item, AnnIndex(lists, embeddings, rows))
    asked = judging_queries(queries, embeddings, rows)
    exact, _ = Ranker(embeddings, is_item).best(asked, Ragged.empty(len(asked)), k)
    effort, recall = choose_effort(_Searched(ranker), asked, exact, n_lists, config.min_recall)
    said = {"kind": "ivf-sq8", "items": len(rows), "lists": n_lists, "effort": effort, "k": k}
    said |= {"recall": round(recall, 5), "queries": len(asked) // 2}
    said["min_recall"] = config.min_recall
    write_index(folder, lists, said)
    return {**said, "seconds": round(time.perf_counter() - started, 3)}


def wants_index(config: IndexConfig, n_items: int) -> bool:
    """Returns whether a bundle of so many items gets an index."""
    if config.kind == "auto":
        return n_items > config.exact_up_to
    return config.kind == "ann" and n_items > 0


def _default_lists(n_items: int) -> int:
    return max(1, round(_LISTS_OF_A_ROOT * math.sqrt(n_items)))


@dataclasses.dataclass(frozen=True)
class _Searched:
    """An index, asked for rows alone."""

    ranker: Ranker

    def best(self, queries: np.ndarray, k: int, effort: int) -> np.ndarray:
        """See `recsys.serving.index.effort.Searched`."""
        return self.ranker.by_index(queries, Ragged.empty(len(queries)), k, effort)[0]
