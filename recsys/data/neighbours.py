"""Items with common users: the two-step graph of users and items.

Memory is bounded for any number of events: only a sample of many users and the newest events of a
user are read, and pairs of items are computed for a block of items at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from recsys.data.hold_out import KeptEvents
from recsys.ragged import RaggedRows, ranges

_BLOCK_PAIRS = 2**24
"""Maximum number of pairs of items in memory; 192 MiB with their indices."""
_MOST_EVENTS = 2**26
"""Maximum number of events to read; if there are more, only a sample of users is read."""
_EVENTS_OF_USER = 500
"""Maximum number of newest events per user: the number of pairs grows with its square."""
_LEAST_COMMON = 2
"""Minimum number of users that two neighbours share. With 1, a neighbour in the input would
reveal the label in each of that user's own examples."""

Weigh = Callable[[slice, Any, np.ndarray], None]


def graph_neighbours(events: KeptEvents, n_rows: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the items with the most common users for each item, and their weights.

    Let R be the user-item matrix, and D_U and D_I the diagonal matrices of its row and column
    sums. The weights are the `n` largest off-diagonal entries in each row of

        C = D_I^-½ Rᵀ D_U⁻¹ R D_I^-½,    C_ij = Σ_{u took i and j} 1 / (d_u √(d_i d_j))

    which is two layers of LightGCN's propagation, from items to users and back (He et al.,
    SIGIR 2020, eq. 3), summed over the users in between as in UltraGCN (Mao et al.,
    CIKM 2021, eq. 12). Pairs with a single common user are left out.

    Args:
        events: The events that training sees.
        n_rows: Number of item rows, row 0 included.
        n: Maximum number of neighbours per item.

    Returns:
        Item rows `[n_rows, n]` int32, the greatest weight first, padded with 0; and their
        weights `[n_rows, n]` float32.
    """
    from scipy import sparse

    taken = _sample(events, n_rows)
    of_item = sparse.csr_array(taken.T)
    n_users, n_items = np.diff(of_item.indptr), np.diff(taken.indptr)
    scale = np.maximum(n_users, 1) ** -0.5
    shares = sparse.diags_array(1.0 / np.maximum(n_items, 1)).tocsr() @ taken

    def weigh(block: slice, common: Any, row: np.ndarray) -> None:
        of_users = of_item[block] @ shares
        of_users.sort_indices()
        is_kept = common.data >= _LEAST_COMMON
        common.data = of_users.data * scale[row] * scale[common.indices] * is_kept

    return as_arrays(strongest_pairs(taken, n, weigh), n)


def as_arrays(pairs: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns and values of a CSR matrix with at most `n` entries a row.

    Returns:
        Columns `[rows, n]` int32, the greatest value first, padded with 0; and their values
        `[rows, n]` float32.
    """
    n_rows = pairs.shape[0]
    row = np.repeat(np.arange(n_rows), np.diff(pairs.indptr))
    order = np.lexsort((pairs.indices, -pairs.data, row))
    place = np.arange(len(row)) - pairs.indptr[row]
    columns, values = np.zeros((n_rows, n), np.int32), np.zeros((n_rows, n), np.float32)
    columns[row, place], values[row, place] = pairs.indices[order], pairs.data[order]
    return columns, values


def _sample(events: KeptEvents, n_rows: int) -> Any:
    """Returns the user-item matrix `[users, n_rows]` float32 in CSR; see `as_sets`."""
    stride = -(-len(events) // _MOST_EVENTS) or 1
    items, counts = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for shard in events.shards:
        ends = shard.offsets[1:][::stride]
        of_user = np.minimum(ends - shard.offsets[:-1][::stride], _EVENTS_OF_USER)
        items.append(shard.item_row[ranges(ends - of_user, of_user)])
        counts.append(of_user)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    taken = as_sets(RaggedRows(np.concatenate(items), offsets), n_rows)
    taken.data[taken.indices == 0] = 0.0  # Row 0 is no item.
    taken.eliminate_zeros()
    return taken


def as_sets(lists: RaggedRows, n_rows: int) -> Any:
    """Returns lists of item rows as sets.

    Args:
        lists: Item rows; a list may repeat an item.
        n_rows: Number of item rows, row 0 included.

    Returns:
        A matrix `[lists, item rows]` float32 in CSR, 1 if the item is in the list.
    """
    from scipy import sparse  # The import takes half a second, too long for reading a config.

    ones = np.ones(len(lists.rows), np.float32)
    # A copy, as the next line sorts the rows of each list in place.
    sets = sparse.csr_array(
        (ones, lists.rows, lists.offsets), shape=(len(lists), n_rows), copy=True
    )
    sets.sum_duplicates()
    sets.data[:] = 1.0
    return sets


def strongest_pairs(taken: Any, n: int, weigh: Weigh) -> Any:
    """Returns the `n` items with the greatest weights for each item, among its users' items.

    Ties go to the lower row.

    Args:
        taken: User-item matrix `[users, items]`, CSR, each value 1.
        n: Maximum number of items per item.
        weigh: Called with a block of items, the numbers of users that they share with each item
            `[block, items]` in CSR, and the item of each of its entries; replaces the numbers by
            weights. Pairs with a weight of 0 or less are left out.

    Returns:
        Weights `[items, items]` float32, CSR, a row for each item.
    """
    from scipy import sparse

    of_item = sparse.csr_array(taken.T)
    # An upper bound of the pairs of each item, which counts each common user.
    n_pairs = np.minimum(of_item @ np.diff(taken.indptr), taken.shape[1])
    offsets, parts = np.concatenate([[0], np.cumsum(n_pairs)]), []
    for block in RaggedRows(n_pairs, offsets).blocks(_BLOCK_PAIRS):
        common = of_item[block] @ taken
        common.sort_indices()
        row = np.repeat(np.arange(block.start, block.stop), np.diff(common.indptr))
        weigh(block, common, row)
        common.data[row == common.indices] = 0.0
        parts.append(strongest(common, n))
    return sparse.vstack(parts, format="csr")


def strongest(values: Any, n: int) -> Any:
    """Returns the `n` greatest positive values of each row; ties go to the first."""
    from scipy import sparse

    is_kept = values.data > 0.0
    for row in np.flatnonzero(np.diff(values.indptr) > n):
        part = slice(values.indptr[row], values.indptr[row + 1])
        of_row = values.data[part]
        border = np.partition(of_row, len(of_row) - n)[len(of_row) - n]
        is_kept[part] &= of_row >= border
        tied = np.flatnonzero(of_row == border)
        is_kept[part.start + tied[n - int((of_row > border).sum()) :]] = False
    kept = np.concatenate([[0], np.cumsum(is_kept)])[values.indptr]
    return sparse.csr_array((values.data[is_kept], values.indices[is_kept], kept), values.shape)
