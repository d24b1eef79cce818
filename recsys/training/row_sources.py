"""The initial rows of a warm start's tables.

A row of a known id, token or bucket continues the row of the earlier table. A row of a new id
starts from ids with similar features, or from the mean of all.

A new item x with the tokens T(x) starts from the weighted mean of the survivors S, the items
that were trained before and still exist:

    v(x) = Σ_{y ∈ S} s(x, y) v(y) / Σ_{y ∈ S} s(x, y)

    s(x, y) = Σ_{t ∈ T(x) ∩ T(y)} w(t) / n(t)

    w(t) = ln(1 + N / n(t)) · n(t) / (n(t) + 10)

n(t) of the N survivors have the token t. So survivors are weighted by the tokens that they share
with x. Rare tokens count more than frequent ones (inverse document frequency: Spärck Jones,
Journal of Documentation 1972), but tokens with little support count less (shrinkage as in Koren,
"Factorization Meets the Neighborhood", KDD 2008, eq. 2). This is the mapping from attributes to
vectors by weighted neighbours of Gantner et al., "Learning Attribute-to-Feature Mappings for
Cold-Start Recommendations", ICDM 2010, with all survivors that share a token as neighbours
instead of the nearest k. So the sum over y is computed once per token, in one pass over the
survivors, and

    v(x) = Σ_{t ∈ T(x)} w(t) c(t) / Σ_{t ∈ T(x)} w(t),   c(t) the mean of those with t.

Items that share no token with a survivor start from the mean of all survivors. Users are
treated in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from recsys.data.catalogue import FeatureBags
from recsys.data.event_features import LearnedFeature
from recsys.data.vocabulary import IdIndex, Vocabulary
from recsys.embedding.saved_arrays import SavedRows

NOWHERE = -1
_MONTHS = 12
_CHUNK_ROWS = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class RowSources:
    """The source of each row of a table.

    Attributes:
        source: Earlier row that each row continues `[rows]` int32; -1: none.
        is_new: Whether a row has an id or token without an earlier row `[rows]` bool.
        counts: Numbers of ids or tokens: `kept`; `new`, in a free row; `reset`, new in the
            row of another one; `dropped`, only in the earlier table; `moved`, kept in
            another row than before.
    """

    source: np.ndarray
    is_new: np.ndarray
    counts: dict[str, int]

    @classmethod
    def of(cls, source: np.ndarray, before: np.ndarray, now: np.ndarray, shared: int) -> RowSources:
        """Returns the sources with their counts.

        Args:
            source: Earlier row of each row `[rows]`; -1: none.
            before: Whether a row of the earlier table had an id or token `[rows before]` bool.
            now: Whether a row has an id or token `[rows]` bool.
            shared: Number of leading shared rows, which always continue.
        """
        own = source[shared:]
        is_new = now & (source < 0)
        reset = int(before[np.flatnonzero(is_new[: len(before)])].sum())
        counts = {
            "kept": int((own >= 0).sum()),
            "new": int(is_new.sum()) - reset,
            "reset": reset,
            "dropped": int(before.sum()) - len(np.unique(own[own >= 0])),
            "moved": int(((own >= 0) & (own != np.arange(shared, len(source)))).sum()),
        }
        return cls(source.astype(np.int32), is_new, counts)


def sources_of_ids(old: Vocabulary, new: Vocabulary) -> RowSources:
    """Returns the sources of the rows of users or items.

    Row 0 and the hash rows continue, since both vocabularies have the same number of them. A
    row whose `generation` increased was given to another id, so it is reset.

    Args:
        old: The earlier vocabulary.
        new: The current one.
    """
    n = min(len(old.own_ids), len(new.own_ids))
    place = np.full(len(new.own_ids), NOWHERE, np.int64)
    is_same = _bools(pc.equal(old.own_ids.slice(0, n), new.own_ids.slice(0, n)))
    place[:n][is_same] = np.flatnonzero(is_same)
    unplaced = np.flatnonzero((place == NOWHERE) & _bools(new.own_ids.is_valid()))
    unmatched = _bools(old.own_ids.is_valid())
    unmatched[:n] &= ~is_same
    rest = np.flatnonzero(unmatched)
    if len(unplaced) and len(rest):
        index = IdIndex(new.own_ids.take(pa.array(unplaced)))
        matches = index.find(old.own_ids.take(pa.array(rest)))
        place[unplaced[matches[matches >= 0]]] = rest[matches >= 0]
    is_again = new.generation[:n] > old.generation[:n]
    place[:n][is_again & (place[:n] == np.arange(n))] = NOWHERE
    shared = new.first_own_row
    source = np.concatenate([np.arange(shared), np.where(place >= 0, place + shared, NOWHERE)])
    return RowSources.of(source, old.has_id(), new.has_id(), shared)


def sources_of_labels(before: Sequence[str], now: Sequence[str]) -> RowSources:
    """Returns the sources of labels, in the order in which a model learns them."""
    source = np.array([before.index(x) if x in before else NOWHERE for x in now], np.int64)
    return RowSources.of(source, np.ones(len(before), bool), np.ones(len(now), bool), 0)


def _bools(mask: pa.Array) -> np.ndarray:
    """Returns an Arrow mask `[n]`, with nulls as false."""
    bools: np.ndarray = pc.fill_null(mask, False).to_numpy(zero_copy_only=False).copy()
    return bools


def kind_of(feature: FeatureBags) -> str:
    """Returns the kind of a feature.

    It is `numbers`; or `hashed`, `known`, `buckets` or `buckets, months` for tokens.
    """
    if feature.floats:
        return "numbers"
    if feature.tokens is None:
        return "hashed"
    second = feature.tokens[1] if feature.rows > 1 else ""
    for kind, n_buckets in (
        ("buckets, months", feature.rows - 1 - _MONTHS),
        ("buckets", feature.rows - 1),
    ):
        if n_buckets > 0 and second == f"bucket 1 of {n_buckets}":
            return kind
    return "known"


def sources_of_tokens(old: FeatureBags, new: FeatureBags, ids: np.ndarray) -> RowSources:
    """Returns the sources of the rows of a feature's table.

    Args:
        old: The earlier feature.
        new: The current feature, with the same `kind_of`.
        ids: Earlier row of each item or user `[rows now]`; -1: none.
    """
    source = np.full(new.rows, NOWHERE, np.int64)
    source[0] = 0
    kind = kind_of(new)
    if kind == "hashed":
        source = np.arange(new.rows)
    elif kind == "known":
        names = [pa.array(list(f.tokens or ())[1:], pa.large_string()) for f in (new, old)]
        matches = pc.index_in(names[0], value_set=names[1])
        source[1:] = pc.fill_null(matches, NOWHERE - 1).to_numpy(zero_copy_only=False) + 1
    else:
        months = _MONTHS if "months" in kind else 0
        n_old, n_new = (feature.rows - 1 - months for feature in (old, new))
        source[1 : 1 + n_new] = _main_buckets(_bucket_moves(old, new, ids, n_old, n_new))
        source[1 + n_new :] = np.arange(1 + n_old, old.rows)
    before, now = np.ones(old.rows, bool), np.ones(new.rows, bool)
    before[0] = now[0] = False
    return RowSources.of(source, before, now, 1)


def sources_of_event_tokens(old: LearnedFeature, new: LearnedFeature) -> RowSources:
    """Returns the sources of the rows of an event feature's table.

    Tokens are matched by name; without names a row continues the same row.

    Args:
        old: The earlier feature.
        new: The current feature, of the same kind.
    """
    names = [one.feature.token_names(one.learned) for one in (new, old)]
    source = np.arange(new.rows)
    if names[0] is not None and names[1] is not None:
        texts = [pa.array(known[1:], pa.large_string()) for known in (names[0], names[1])]
        matches = pc.index_in(texts[0], value_set=texts[1])
        source[1:] = pc.fill_null(matches, NOWHERE - 1).to_numpy(zero_copy_only=False) + 1
    source[source >= old.rows] = NOWHERE
    before, now = np.ones(old.rows, bool), np.ones(new.rows, bool)
    before[0] = now[0] = False
    return RowSources.of(source, before, now, 1)


def _bucket_moves(
    old: FeatureBags, new: FeatureBags, ids: np.ndarray, n_old: int, n_new: int
) -> np.ndarray:
    """Returns the number of ids by current and earlier bucket `[now, then]` int64."""

    def bucket(bags: np.ndarray, n_buckets: int) -> np.ndarray:
        return np.where(bags <= n_buckets, bags, 0).max(axis=1, initial=0).astype(np.int64)

    counts = np.zeros((1 + n_new) * (1 + n_old), np.int64)
    for start in range(0, len(ids), _CHUNK_ROWS):
        rows = start + np.flatnonzero(ids[start : start + _CHUNK_ROWS] >= 0)
        then, now = bucket(old.bags[ids[rows]], n_old), bucket(new.bags[rows], n_new)
        counts += np.bincount(now * (1 + n_old) + then, minlength=len(counts))
    return counts.reshape(1 + n_new, 1 + n_old)[1:, 1:]


def _main_buckets(counts: np.ndarray) -> np.ndarray:
    """Returns the earlier bucket row that most ids of each bucket had `[now]`; -1: none.

    Ties go to the bucket nearest in relative position between the first and the last.
    """
    places = [(np.arange(n) + 0.5) / n for n in counts.shape]
    distance = np.abs(places[0][:, None] - places[1][None, :])
    nearest = np.argmax(counts - distance / 2, axis=1) + 1
    return np.where(counts.sum(axis=1) > 0, nearest, NOWHERE)


# --- new rows

SUPPORT = 10.0
"""Number of survivors with a token at which its shrinkage is one half."""
_CHUNK_NUMBERS = 1 << 22


class NewRows:
    """The vectors that new rows start from.

    Args:
        vectors: The earlier table `[rows before, dim]` float32.
        survivors: Current rows that were trained before `[n]`; at least one.
        source: Their rows in the earlier table `[n]`.
        features: The features of all current rows; if empty, new rows start from the mean.
        rows: The new rows `[m]`.

    Attributes:
        neighbours: New rows that share a token with a survivor.
    """

    def __init__(
        self,
        vectors: np.ndarray | SavedRows,
        survivors: np.ndarray,
        source: np.ndarray,
        features: Sequence[FeatureBags],
        rows: np.ndarray,
    ) -> None:
        dim = int(vectors.shape[1])
        size = max(1, _CHUNK_NUMBERS // dim)
        features = [feature for feature in features if not feature.floats]
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
        """Returns which of the new rows' tokens the rows `[n]` have `[n, tokens]`."""
        return _tokens(self._features, rows)[:, self._columns]


def _parts(rows: np.ndarray, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, len(rows), size))


def _tokens(features: Sequence[FeatureBags], rows: np.ndarray) -> sparse.csr_matrix:
    """Returns the tokens of the rows `[n]` as 1 in a matrix `[n, tokens of all features]`."""
    parts = [sparse.csr_matrix((len(rows), 0), dtype=np.float64)]
    for feature in features:
        bags = np.asarray(feature.bags[rows])
        row = np.repeat(np.arange(len(rows)), bags.shape[1])
        shape = (len(rows), feature.rows)
        has = sparse.csr_matrix((np.ones(bags.size), (row, bags.ravel())), shape=shape)
        has.data[:] = 1.0  # A bag may hold a token twice.
        parts.append(has[:, 1:])  # Row 0 is padding.
    return sparse.hstack(parts, format="csr")
