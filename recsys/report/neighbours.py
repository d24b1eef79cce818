"""Neighbours of popular items: what the model knows, to look at."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.formats import counted, score
from recsys.report.artifacts import Artifacts, MissingError, read_table

_POPULAR_ITEMS = 6
_NEIGHBOURS = 5
_LOOKED_AT = 60
_BLOCK_ROWS = 65_536


@dataclasses.dataclass(frozen=True)
class Neighbourhood:
    """A popular item and the items whose embeddings are nearest."""

    title: str
    events: str
    nearest: list[tuple[str, str]]


def read_neighbours(artifacts: Artifacts) -> list[Neighbourhood]:
    """Returns popular items, unlike each other, and what lies nearest to them."""
    try:
        embeddings = np.load(artifacts.model / "candidates.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise MissingError(f"The item embeddings can't be read: {error}.") from None
    folder = artifacts.model
    vocabulary = read_table(folder / "vocabulary" / "items.parquet", "The item vocabulary")
    titles = read_table(folder / "catalogue" / "titles.parquet", "The catalogue")
    n_rows = min(len(embeddings), vocabulary.num_rows)
    if embeddings.ndim != 2 or n_rows < 2:
        raise MissingError("The model has too few items for neighbours.")
    # Rows that are shared, or free, are no items.
    is_item = np.asarray(vocabulary["id"].is_valid())[:n_rows]
    counts = np.where(is_item, vocabulary["count"].to_numpy()[:n_rows], 0)
    popular = np.argsort(-counts, kind="stable")[:_LOOKED_AT]
    popular = popular[counts[popular] > 0]
    if len(popular) == 0:
        raise MissingError("No item has training events, so none is popular.")
    nearest, scores = _nearest(embeddings[:n_rows], popular, is_item)
    shown: list[Neighbourhood] = []
    used: set[int] = set()
    for i, row in enumerate(popular.tolist()):
        if row in used or len(shown) == _POPULAR_ITEMS:
            continue
        # An item beside its own neighbours would say the same again.
        used.update([row, *nearest[i].tolist()])
        names = _titles([row, *nearest[i].tolist()], vocabulary, titles)
        cosines = [score(float(cosine)) for cosine in scores[i]]
        events = counted(int(counts[row]), "event", "events")
        shown.append(Neighbourhood(names[0], events, list(zip(names[1:], cosines, strict=True))))
    return shown


def _nearest(
    embeddings: np.ndarray, rows: np.ndarray, is_item: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows `[n, k]` of the highest cosines with `rows` `[n]`, and the cosines.

    The embeddings are read in blocks; rows that are no items, and the rows themselves,
    are left out.
    """
    queries = _unit(embeddings[rows])
    best_rows = np.zeros((len(rows), 0), np.int64)
    best = np.zeros((len(rows), 0), np.float32)
    for start in range(1, len(embeddings), _BLOCK_ROWS):
        block = np.arange(start, min(start + _BLOCK_ROWS, len(embeddings)))
        cosines = queries @ _unit(embeddings[block[0] : block[-1] + 1]).T
        cosines[(rows[:, None] == block) | ~is_item[block]] = -np.inf
        best = np.concatenate([best, cosines], axis=1)
        best_rows = np.concatenate([best_rows, np.broadcast_to(block, cosines.shape)], axis=1)
        kept = min(_NEIGHBOURS, best.shape[1])
        order = np.argpartition(-best, kept - 1, axis=1)[:, :kept]
        best = np.take_along_axis(best, order, axis=1)
        best_rows = np.take_along_axis(best_rows, order, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    best = np.take_along_axis(best, order, axis=1)
    best_rows = np.take_along_axis(best_rows, order, axis=1)
    # With few items the last places hold the item itself.
    n_others = min(_NEIGHBOURS, int(is_item.sum()) - 1)
    return best_rows[:, :n_others], best[:, :n_others]


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.nan_to_num(np.asarray(vectors, np.float32), posinf=0.0, neginf=0.0)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _titles(rows: list[int], vocabulary: pa.Table, titles: pa.Table) -> list[str]:
    """Returns the titles of item `rows`; the id where the catalogue has none."""
    ids = vocabulary["id"].take(pa.array(rows))
    wanted = ids.cast(titles["id"].type).combine_chunks()
    known = titles.filter(pc.is_in(titles["id"], value_set=wanted))
    by_id = dict(zip(known["id"].to_pylist(), known["title"].to_pylist(), strict=True))
    return [str(by_id.get(id_) or id_) for id_ in ids.to_pylist()]
