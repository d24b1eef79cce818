"""Requests in raw ids, for parity and for warm-up. Nothing here imports Keras or JAX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from recsys.data.vocabulary import Vocabulary, stand_ins
from recsys.savedmodel.signatures import ENCODED, LIST_PADDING, RANK, RANK_ENCODED, Arrays


def raw_probes(
    users: Vocabulary, items: Vocabulary, user_row: np.ndarray, history: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns user ids `[n]` and histories `[n, length + 1]`, as a client sends them.

    An unknown id follows each history, so that an empty one isn't replaced by the stored
    history.

    Args:
        users: Vocabulary of the users.
        items: Vocabulary of the items.
        user_row: User row of each probe `[n]`.
        history: Item rows of each probe `[n, length]`, the newest first.
    """
    user_of_row, item_of_row = stand_ins(users, user_row), stand_ins(items, history)
    unknown = "?"
    while any(
        pc.index(known.own_ids, pa.scalar(unknown, pa.large_string())).as_py() >= 0
        for known in (users, items)
    ):
        unknown += "?"
    if users.first_own_row == 1:
        user_of_row[0] = unknown
    last = np.full((len(user_row), 1), unknown, object)
    return user_of_row[user_row], np.concatenate([item_of_row[history], last], axis=1)


def warm_up_requests(names: Mapping[str, Iterable[str]], probes: Arrays) -> dict[str, Arrays]:
    """Returns inputs by signature, a row for each probe; other inputs are padding.

    The items to rank are the histories.

    Args:
        names: Names of the inputs by signature.
        probes: Texts of queries by input, including `user_id` `[n]` and `history` `[n, length]`.
    """
    users, histories = probes["user_id"], probes["history"]
    n = len(users)
    items = [{"item_id": items} if RANK in names else None for items in histories]
    known = {
        **{name: np.full((n, 1), x, np.float32) for name, x in LIST_PADDING.items()},
        **probes,
        "exclude_seen": np.ones(n, bool),
        "examples": np.array(list(map(example, users, histories, items))),
    }
    padding = np.full((n, 1), "", object)
    requests = {}
    for signature, inputs in names.items():
        if signature not in (ENCODED, RANK_ENCODED):  # Clients don't call them.
            known["item_id"] = histories if signature == RANK else histories[:, 0]
            requests[signature] = {name: known.get(name, padding) for name in inputs}
    return requests


def example(
    user_id: str,
    history: Iterable[str],
    events: Mapping[str, Iterable[str]] | None = None,
    **flags: int,
) -> bytes:
    """Returns a serialized tf.Example for a user with a history."""
    made = tf.train.Example()
    feature = made.features.feature
    feature["user_id"].bytes_list.value.append(user_id.encode())
    feature["history"].bytes_list.value.extend(id_.encode() for id_ in history)
    for name, texts in (events or {}).items():
        feature[name].bytes_list.value.extend(text.encode() for text in texts)
    for name, flag in flags.items():
        feature[name].int64_list.value.append(flag)
    serialized: bytes = made.SerializeToString(deterministic=True)
    return serialized
