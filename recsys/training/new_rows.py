"""What the rows of new ids start from: their features' neighbours, or the mean of all.

A new item x with the tokens T(x) starts from the weighted mean of the survivors S, the
items that were trained before and still are there:

    v(x) = Σ_{y ∈ S} s(x, y) v(y) / Σ_{y ∈ S} s(x, y)

    s(x, y) = Σ_{t ∈ T(x) ∩ T(y)} w(t) / n(t)

    w(t) = ln(1 + N / n(t)) · n(t) / (n(t) + 10)

n(t) of the N survivors have the token t. So survivors count by the tokens that they share
with x, rare ones more than frequent ones (inverse document frequency: Spärck Jones,
Journal of Documentation 1972), but for those that too few have to say much (shrinkage by
support as in Koren, "Factorization Meets the Neighborhood", KDD 2008, eq. 2). It is the
mapping from attributes to vectors by weighted neighbours of Gantner et al., "Learning
Attribute-to-Feature Mappings for Cold-Start Recommendations", ICDM 2010, with all who
share something as neighbours in place of the nearest k: so the sum over y is taken once
for each token, in one pass over the survivors, and

    v(x) = Σ_{t ∈ T(x)} w(t) c(t) / Σ_{t ∈ T(x)} w(t),   c(t) the mean of those with t.

Whoever shares no token with a survivor starts from the mean of all survivors. The same
holds of users.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import sparse

from recsys.data.catalogue import FeatureBags

SUPPORT = 10.0
"""Survivors with a token from which on it counts by more than half."""
_CHUNK_NUMBERS = 1 << 22


class NewRows:
    """The vectors that new rows start from.

    Args:
        vectors: The earlier table `[rows before, dim]` float32.
        survivors: Rows of today that were trained before `[n]`; at least one.
        source: Their rows in the earlier table `[n]`.
        features: The features of all rows of today; none: the mean is what they start from.
        rows: The new rows `[m]`.

    Attributes:
        neighbours: New rows that share a token with a survivor.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        survivors: np.ndarray,
        source: np.ndarray,
        features: Sequence[FeatureBags],
        rows: np.ndarray,
    ) -> None:
        dim = int(vectors.shape[1])
        size = max(1, _CHUNK_NUMBERS // dim)
        self._features = features
        used = [np.unique(_tokens(features, rows[part]).indices) for part in _parts(rows, size)]
        self._columns = np.unique(np.concatenate([np.zeros(0, np.int32), *used]))
        n, n_tokens = len(survivors), len(self._columns)
        sums, counts, mean = np.zeros((n_tokens, dim)), np.zeros(n_tokens), np.zeros(dim)
        for part in _parts(survivors, size):
            values = vectors[source[part]].astype(np.float64)
            mean += values.sum(axis=0)
            if n_tokens:
                has = self._has(survivors[part]).T.tocsr()
                sums += has @ values
                counts += np.asarray(has.sum(axis=1)).ravel()
        support = np.maximum(counts, 1.0)
        self._mean = mean / n
        self._weight = np.log1p(n / support) * counts / (counts + SUPPORT)
        self._weighted = self._weight[:, None] * sums / support[:, None]
        shared = (self._has(rows[part]) @ self._weight > 0 for part in _parts(rows, size))
        self.neighbours = int(sum(is_shared.sum() for is_shared in shared))

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Returns the vectors `[n, dim]` float32 of some of the new rows `[n]`."""
        has = self._has(rows)
        vectors = np.broadcast_to(self._mean, (len(rows), len(self._mean))).copy()
        total = has @ self._weight
        some = np.flatnonzero(total > 0)
        vectors[some] = (has[some] @ self._weighted) / total[some, None]
        return vectors.astype(np.float32)

    def _has(self, rows: np.ndarray) -> sparse.csr_matrix:
        """Returns which of the new rows' tokens rows `[n]` have `[n, tokens]`."""
        return _tokens(self._features, rows)[:, self._columns]


def _parts(rows: np.ndarray, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, len(rows), size))


def _tokens(features: Sequence[FeatureBags], rows: np.ndarray) -> sparse.csr_matrix:
    """Returns which tokens rows `[n]` have, as 1 in a matrix `[n, tokens of all features]`."""
    parts = [sparse.csr_matrix((len(rows), 0), dtype=np.float64)]
    for feature in features:
        bags = np.asarray(feature.bags[rows])
        row = np.repeat(np.arange(len(rows)), bags.shape[1])
        shape = (len(rows), feature.rows)
        has = sparse.csr_matrix((np.ones(bags.size), (row, bags.ravel())), shape=shape)
        has.data[:] = 1.0  # A token that a bag holds twice is one.
        parts.append(has[:, 1:])  # The first one is padding.
    return sparse.hstack(parts, format="csr")
