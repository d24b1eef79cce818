"""The query embeddings of a bundle, which gets raw ids, as from a client."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recsys.data.vocabulary import Vocabulary, stand_ins
from recsys.models.inputs import Given
from recsys.ragged import slices
from recsys.savedmodel.signatures import (
    DTYPES,
    ENCODED,
    SignatureInput,
    encoded_name,
)
from recsys.system.events import emit
from recsys.tasks.bundle_process import BundleProcess

_PLAIN, _BLOCK = "embed_query", 1024


def embed(
    bundle: BundleProcess,
    items: Vocabulary,
    user_ids: pa.Array,
    history: np.ndarray,
    given: Given | None = None,
) -> np.ndarray:
    """Returns the embeddings `[n, dim]` float32 of queries.

    Each query passes its history, even an empty one, so the stored history of a user, which
    includes held-out events, is never read. Features of users are the stored ones.

    Args:
        bundle: The bundle.
        items: Vocabulary of its items.
        user_ids: Ids of the users `[n]`, text; at least one.
        history: Item rows of the bundle `[n, history]` int32, the newest first, padded with 0.
        given: Inputs of the model that come from events, by name; others are missing.
    """
    users, given = np.asarray(user_ids.to_pylist(), object), given or {}
    signature = ENCODED if ENCODED in bundle.signatures else _PLAIN
    id_of_row = stand_ins(items, np.unique(history))
    n, embeddings = len(users), []
    for block in slices(n, _BLOCK):
        # An unknown item at the end, since a history of only padding means the stored one.
        unknown = np.full((block.stop - block.start, 1), "?", object)
        known = {
            "user_id": users[block],
            "history": np.concatenate([id_of_row[history[block]], unknown], axis=1),
            **{encoded_name(name): x[block] for name, x in given.items()},
        }
        inputs = {
            name: known[name] if name in known else _missing(spec, len(unknown))
            for name, spec in bundle.signatures[signature].items()
        }
        embeddings.append(bundle.ask(signature, inputs)["embedding"])
        text = f"{block.stop:,} of {n:,} queries embedded"
        emit("progress", done=block.stop, total=n, text=text)
    return np.concatenate(embeddings)


def _missing(spec: SignatureInput, n: int) -> np.ndarray:
    """Returns an input that nothing is known of, `[n, …]`."""
    shape = (n, *(1 if size < 0 else size for size in spec.shape[1:]))
    if spec.dtype == "DT_STRING":
        return np.full(shape, "", object)
    return np.zeros(shape, DTYPES[spec.dtype])
