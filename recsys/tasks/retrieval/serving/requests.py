"""Requests to the signatures of a retrieval bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from recsys.savedmodel.signatures import Arrays


def warm_up_requests(names: Mapping[str, Iterable[str]], probes: Arrays) -> dict[str, Arrays]:
    """Returns inputs by signature, a row for each probe; other inputs are padding.

    Args:
        names: Names of the inputs by signature.
        probes: Texts of queries by input, including `user_id` `[n]` and `history` `[n, length]`.
    """
    users, histories = probes["user_id"], probes["history"]
    n = len(users)
    known = {
        **probes,
        "item_id": histories[:, 0],
        "exclude_seen": np.ones(n, bool),
        "examples": np.array(list(map(example, users, histories))),
    }
    padding = np.full((n, 1), "", object)
    return {
        signature: {name: known.get(name, padding) for name in inputs}
        for signature, inputs in names.items()
    }


def example(
    user_id: str,
    history: Iterable[str],
    facts: Mapping[str, Iterable[str]] | None = None,
    **flags: int,
) -> bytes:
    """Returns a serialized tf.Example for a user with a history."""
    made = tf.train.Example()
    feature = made.features.feature
    feature["user_id"].bytes_list.value.append(user_id.encode())
    feature["history"].bytes_list.value.extend(id_.encode() for id_ in history)
    for name, texts in (facts or {}).items():
        feature[name].bytes_list.value.extend(text.encode() for text in texts)
    for name, flag in flags.items():
        feature[name].int64_list.value.append(flag)
    serialized: bytes = made.SerializeToString(deterministic=True)
    return serialized
