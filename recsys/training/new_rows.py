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

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from recsys.data.catalogue import FeatureBags

SUPPORT = 10.0
"""Survivors with a token from which on it counts by more than half."""

_CHUNK_NUMBERS = 1 << 22


@dataclasses.dataclass(frozen=True, eq=False)
class Survivors:
    """The rows that new ones are made of.

    Attributes:
        vectors: The earlier table `[rows before, dim]` float32.
        rows: Rows of today that were trained before `[n]`.
        source: Their rows in the earlier table `[n]`.
    """

    vectors: np.ndarray
    rows: np.ndarray
    source: np.ndarray

    @property
    def chunk(self) -> int:
        """Rows processed at a time."""
        return max(1, _CHUNK_NUMBERS // int(self.vectors.shape[1]))


class NewRows:
    """The vectors that new rows start from.

    Args:
        survivors: What they are made of; at least one.
        features: The features of all rows of today; none: the mean is what they start from.
        rows: The new rows `[m]`.
    """

    def __init__(
        self, survivors: Survivors, features: Sequence[FeatureBags], rows: np.ndarray
    ) -> None:
        self._rows = rows
        self._tokens = _Tokens(features, rows, survivors.chunk)
        self._compute(survivors)

    @property
    def neighbours(self) -> int:
        """New rows that share a token with a survivor."""
        return int(self._shares.sum())

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Returns the vectors `[n, dim]` float32 of some of the new rows `[n]`."""
        has = self._tokens.of(rows)
        vectors = np.broadcast_to(self._mean, (len(rows), len(self._mean))).copy()
        total = has @ self._weight
        some = np.flatnonzero(total > 0)
        vectors[some] = (has[some] @ self._weighted) / total[some, None]
        return vectors.astype(np.float32)

    def _compute(self, survivors: Survivors) -> None:
        n_tokens, dim = len(self._tokens), int(survivors.vectors.shape[1])
        sums, counts, mean = np.zeros((n_tokens, dim)), np.zeros(n_tokens), np.zeros(dim)
        for start in range(0, len(survivors.rows), survivors.chunk):
            part = slice(start, start + survivors.chunk)
            vectors = survivors.vectors[survivors.source[part]].astype(np.float64)
            mean += vectors.sum(axis=0)
            if n_tokens:
                has = self._tokens.of(survivors.rows[part]).T.tocsr()
                sums += has @ vectors
                counts += np.asarray(has.sum(axis=1)).ravel()
        n = len(survivors.rows)
        self._mean = mean / n
        support = np.maximum(counts, 1.0)
        self._weight = np.log1p(n / support) * counts / (counts + SUPPORT)
        self._weighted = self._weight[:, None] * sums / support[:, None]
        self._shares = np.concatenate(
            [
                self._tokens.of(self._rows[start : start + survivors.chunk]) @ self._weight > 0
                for start in range(0, len(self._rows), survivors.chunk)
            ]
            or [np.zeros(0, bool)]
        )


class _Tokens:
    """The tokens that some rows have, of all features, with consecutive numbers.

    Args:
        features: The features.
        rows: The rows whose tokens count `[m]`.
        chunk: Rows processed at a time.
    """

    def __init__(self, features: Sequence[FeatureBags], rows: np.ndarray, chunk: int) -> None:
        self._features, self._known = features, []
        for feature in features:
            known = np.zeros(feature.rows, bool)
            for start in range(0, len(rows), chunk):
                known[np.asarray(feature.bags[rows[start : start + chunk]])] = True
            known[0] = False  # Padding.
            self._known.append(np.flatnonzero(known))

    def __len__(self) -> int:
        return sum(len(known) for known in self._known)

    def of(self, rows: np.ndarray) -> sparse.csr_matrix:
        """Returns which tokens rows `[n]` have, as 1 in a matrix `[n, tokens]` float64."""
        parts = [
            self._of_feature(feature, known, rows)
            for feature, known in zip(self._features, self._known, strict=True)
        ]
        none = sparse.csr_matrix((len(rows), 0), dtype=np.float64)
        return sparse.hstack([none, *parts], format="csr")

    @staticmethod
    def _of_feature(feature: FeatureBags, known: np.ndarray, rows: np.ndarray) -> sparse.csr_matrix:
        bags = np.asarray(feature.bags[rows])
        place = np.searchsorted(known, bags)
        place[place == len(known)] = 0
        is_known = (known[place] == bags) if len(known) else np.zeros(bags.shape, bool)
        row = np.repeat(np.arange(len(rows)), bags.shape[1])[is_known.ravel()]
        shape = (len(rows), len(known))
        has = sparse.csr_matrix(
            (np.ones(len(row)), (row, place[is_known])), shape=shape, dtype=np.float64
        )
        has.sum_duplicates()
        has.data[:] = 1.0  # A token that a bag holds twice is one.
        return has
