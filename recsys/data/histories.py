"""What every user did, train and eval together, as serving reads it."""

from __future__ import annotations

import dataclasses

import numpy as np

from recsys.data.store import InteractionStore, newest_first
from recsys.data.vocabulary import UNKNOWN_ROW, Vocabulary
from recsys.ragged import ranges


@dataclasses.dataclass(frozen=True)
class ServingHistories:
    """The positives of every user that the data know, in time order.

    Attributes:
        ids: Id of each user `[n]`: those of training in the order of their rows,
            then those whose events all came after the cut.
        user_rows: Row of each user `[n]` int32; 0 without training events.
        offsets: First event of each user, and the end `[n + 1]` int64.
        item_rows: Item row of each event `[events]` int32, the oldest first; 0 for
            items that the vocabulary doesn't know, which keep their place.
    """

    ids: list[str]
    user_rows: np.ndarray
    offsets: np.ndarray
    item_rows: np.ndarray

    def newest(self, users: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest items of `users` `[b]` as rows `[b, length]`, padded with 0."""
        return newest_first(self.item_rows, self.offsets[users], self.offsets[users + 1], length)


def serving_histories(store: InteractionStore, users: Vocabulary) -> ServingHistories:
    """Joins what each user did before the cut and after it.

    Args:
        store: The positives of a run.
        users: The users of training; row `r` is user `r` of `store.train`.
    """
    n_trained = users.n_rows - 1
    is_new = store.eval_user_rows == UNKNOWN_ROW
    new_ids = np.asarray(store.eval_user_ids, object)[is_new].tolist()
    n_users = n_trained + len(new_ids)
    eval_index = store.eval_user_rows.astype(np.int64) - 1
    eval_index[is_new] = n_trained + np.arange(len(new_ids))

    n_train, n_eval = np.zeros((2, n_users), np.int64)
    n_train[:n_trained] = np.diff(store.train.offsets)[1:]
    n_eval[eval_index] = np.diff(store.eval.offsets)
    offsets = np.zeros(n_users + 1, np.int64)
    np.cumsum(n_train + n_eval, out=offsets[1:])

    item_rows = np.empty(offsets[-1], np.int32)
    item_rows[ranges(offsets[:-1], n_train)] = store.train.item_row
    starts = (offsets[:-1] + n_train)[eval_index]
    item_rows[ranges(starts, n_eval[eval_index])] = store.eval.item_row
    user_rows = np.zeros(n_users, np.int32)
    user_rows[:n_trained] = np.arange(1, users.n_rows)
    return ServingHistories([*users.ids.to_pylist(), *new_ids], user_rows, offsets, item_rows)
