"""The histories of all users, of train and eval together, as serving reads them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from recsys.data.event_log import newest_first
from recsys.data.store import InteractionStore
from recsys.ragged import ranges


@dataclasses.dataclass(frozen=True)
class ServingHistories:
    """The positives of every known user, oldest first.

    Attributes:
        ids: Id of each user `[n]`: those of training in the order of the store, then
            those whose events are all held out.
        user_rows: Row of each user `[n]` int32, of its own or shared with others.
        offsets: First event of each user, and the end `[n + 1]` int64.
        item_rows: Item row of each event `[events]` int32, the oldest first; row 0 and
            hash rows, for items without a row of their own, keep their place.
    """

    ids: list[str]
    user_rows: np.ndarray
    offsets: np.ndarray
    item_rows: np.ndarray

    def newest(self, users: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest items of `users` `[b]` as rows `[b, length]`, padded with 0."""
        return newest_first(self.item_rows, self.offsets[users], self.offsets[users + 1], length)


def serving_histories(store: InteractionStore) -> ServingHistories:
    """Joins what each user did in both parts; held-out events come last, if split by time."""
    n_trained = len(store.train_users.rows)
    is_new = store.trained_user < 0
    n_users = n_trained + int(is_new.sum())
    eval_index = store.trained_user.copy()
    eval_index[is_new] = np.arange(n_trained, n_users)

    n_train, n_eval = np.zeros((2, n_users), np.int64)
    n_train[:n_trained] = np.diff(store.train.offsets)
    n_eval[eval_index] = np.diff(store.eval.offsets)
    offsets = np.zeros(n_users + 1, np.int64)
    np.cumsum(n_train + n_eval, out=offsets[1:])

    item_rows = np.empty(offsets[-1], np.int32)
    item_rows[ranges(offsets[:-1], n_train)] = store.train.item_row
    starts = (offsets[:-1] + n_train)[eval_index]
    item_rows[ranges(starts, n_eval[eval_index])] = store.eval.item_row
    if store.split.split in ("random", "given"):
        times = np.empty(offsets[-1], np.int64)
        times[ranges(offsets[:-1], n_train)] = store.train.timestamp
        times[ranges(starts, n_eval[eval_index])] = store.eval.timestamp
        user = np.repeat(np.arange(n_users), n_train + n_eval)
        item_rows = item_rows[np.lexsort((times, user))]
    new_ids = store.eval_users.ids.filter(pa.array(is_new))
    return ServingHistories(
        ids=[*store.train_users.ids.to_pylist(), *new_ids.to_pylist()],
        user_rows=np.concatenate([store.train_users.rows, store.eval_users.rows[is_new]]),
        offsets=offsets,
        item_rows=item_rows,
    )
