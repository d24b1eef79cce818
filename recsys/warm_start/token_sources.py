"""Which row of an earlier feature table each row of today's goes on from: rows follow tokens.

| tokens | a row goes on from |
| --- | --- |
| known ones, of categories and words | the row of the same text |
| hashed ones | the row of the same number; their number is fixed |
| buckets of numbers and dates | the bucket that most of its items, or users, were in |
| months | the same month |

The borders of buckets are quantiles of the data, so bucket 3 need not mean today what it
meant. What it means is seen from the items, or users, that both models know: where the
borders stayed, those of a bucket are in the bucket of the same number.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.catalogue import FeatureBags
from recsys.data.tokens import MONTHS
from recsys.warm_start.row_sources import NOWHERE, RowSources

_CHUNK_ROWS = 1 << 20


def kind_of(feature: FeatureBags) -> str:
    """Returns what the tokens of a feature are: `hashed`, `known`, `buckets`, `buckets, months`."""
    if feature.tokens is None:
        return "hashed"
    second = feature.tokens[1] if feature.rows > 1 else ""
    for kind, n_buckets in (
        ("buckets, months", feature.rows - 1 - MONTHS),
        ("buckets", feature.rows - 1),
    ):
        if n_buckets > 0 and second == f"bucket 1 of {n_buckets}":
            return kind
    return "known"


def sources_of_tokens(old: FeatureBags, new: FeatureBags, ids: np.ndarray) -> RowSources:
    """Returns where the rows of a feature's table come from.

    Args:
        old: The feature then.
        new: The feature now, of the same `kind_of`.
        ids: Row that each item or user had then `[rows now]`; -1: none.
    """
    source = np.full(new.rows, NOWHERE, np.int64)
    source[0] = 0
    kind = kind_of(new)
    if kind == "hashed":
        source = np.arange(new.rows)
    elif kind == "known":
        names = [pa.array(list(f.tokens or ())[1:], pa.large_string()) for f in (new, old)]
        found = pc.index_in(names[0], value_set=names[1])
        source[1:] = pc.fill_null(found, NOWHERE - 1).to_numpy(zero_copy_only=False) + 1
    else:
        months = MONTHS if "months" in kind else 0
        n_old, n_new = (feature.rows - 1 - months for feature in (old, new))
        source[1 : 1 + n_new] = _buckets(_together(old, new, ids, n_old, n_new))
        source[1 + n_new :] = np.arange(1 + n_old, old.rows)
    before, now = np.ones(old.rows, bool), np.ones(new.rows, bool)
    before[0] = now[0] = False
    return RowSources.of(source, before, now, 1)


def _together(
    old: FeatureBags, new: FeatureBags, ids: np.ndarray, n_old: int, n_new: int
) -> np.ndarray:
    """Returns how many were in each bucket then and in each now `[now, then]` int64."""
    counts = np.zeros((1 + n_new) * (1 + n_old), np.int64)
    for start in range(0, len(ids), _CHUNK_ROWS):
        rows = start + np.flatnonzero(ids[start : start + _CHUNK_ROWS] >= 0)
        then, now = _bucket(old.bags[ids[rows]], n_old), _bucket(new.bags[rows], n_new)
        counts += np.bincount(now * (1 + n_old) + then, minlength=len(counts))
    return counts.reshape(1 + n_new, 1 + n_old)[1:, 1:]


def _bucket(bags: np.ndarray, n_buckets: int) -> np.ndarray:
    """Returns the bucket among the token rows `[n, width]` of each `[n]`; 0: none."""
    return np.where(bags <= n_buckets, bags, 0).max(axis=1, initial=0).astype(np.int64)


def _buckets(counts: np.ndarray) -> np.ndarray:
    """Returns the row `[now]` of the bucket that most were in `[now, then]`; -1: nobody was.

    Of several with as many it is the one that lies nearest on the way from the first
    bucket to the last.
    """
    places = [(np.arange(n) + 0.5) / n for n in counts.shape]
    distance = np.abs(places[0][:, None] - places[1][None, :])
    nearest = np.argmax(counts - distance / 2, axis=1) + 1
    return np.where(counts.sum(axis=1) > 0, nearest, NOWHERE)
