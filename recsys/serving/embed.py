"""`python -m recsys.serving.embed`: a bundle's query embeddings, for who can't ask it itself.

An evaluation runs without TensorFlow; it starts this as a process, which answers until its
stdin ends. The SavedModel is asked in raw ids, as a client asks it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from recsys.bundles.parity_reference import stand_ins
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.evaluation.bundle_process import EMBEDDINGS, HISTORIES, USERS
from recsys.serving.saved_model import load_saved_model
from recsys.system.events import emit
from recsys.system.process import stage_main

_STEP = "RetrievalEvaluator"
_BLOCK = 1024
_GIVEN = "?"


class Embedder:
    """Embeds queries with the SavedModel of a bundle.

    Args:
        bundle: A whole bundle.

    Raises:
        RecsysError: TensorFlow is missing (R542), or the SavedModel can't be loaded or
            has no `embed_query` (R543).
    """

    def __init__(self, bundle: Path) -> None:
        self._signature = _signature(load_saved_model(bundle))
        self._items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")

    def embed(self, folder: Path) -> int:
        """Writes the embeddings of the queries in `folder` beside them; returns how many.

        Every history counts as given, an empty one too: what the bundle has stored of a
        user, the held-out events among it, is never read. Features are the stored ones.

        Args:
            folder: Holds `users.parquet`, the column `user_id` `[n]`, at least one, and
                `histories.npy`, item rows of the bundle `[n, history]` int32, the newest
                first, padded with 0; gets `embeddings.npy` `[n, dim]` float32.
        """
        users = np.asarray(pq.read_table(folder / USERS)["user_id"].to_pylist(), object)
        rows = np.load(folder / HISTORIES, mmap_mode="r", allow_pickle=False)
        id_of_row = stand_ins(self._items, np.unique(rows))
        embedded = [
            _ask(self._signature, users[block], id_of_row[rows[block]])
            for block in _blocks(len(users))
        ]
        np.save(folder / EMBEDDINGS, np.concatenate(embedded))
        return len(users)


def _signature(model: Any) -> Any:
    signature = model.signatures.get("embed_query")
    if signature is None:
        raise RecsysError(
            "R543",
            "A bundle must have the signature 'embed_query'.",
            "Export the model again: recsys export.",
            sorted(model.signatures),
        )
    return signature


def _ask(signature: Any, users: np.ndarray, histories: np.ndarray) -> np.ndarray:
    """Asks for the embeddings `[b, dim]` of users `[b]` with histories `[b, history]`."""
    import tensorflow as tf

    n = len(users)
    # Behind all that is read: a history of padding alone would be the stored one.
    padded = np.concatenate([histories, np.full((n, 1), _GIVEN, object)], axis=1)
    inputs = {name: tf.fill([n, 1], "") for name in signature.structured_input_signature[1]}
    inputs["user_id"] = tf.constant(users, tf.string)
    inputs["history"] = tf.constant(padded, tf.string)
    return signature(**inputs)["embedding"].numpy()


def _blocks(n: int) -> Iterator[slice]:
    """Yields slices of 0 … `n`, and tells how far they are."""
    for start in range(0, n, _BLOCK):
        yield slice(start, min(start + _BLOCK, n))
        done = min(start + _BLOCK, n)
        emit("progress", step=_STEP, done=done, total=n, text=f"{done:,} of {n:,} queries embedded")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Embeds the queries of every folder that stdin names, a line each; says so on stdout."""
    parser = argparse.ArgumentParser(prog="python -m recsys.serving.embed", description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="a bundle")
    embedder = Embedder(parser.parse_args(arguments).bundle)
    n_queries = 0
    for line in sys.stdin:
        n_queries += embedder.embed(Path(line.rstrip("\n")))
        sys.stdout.write(json.dumps({"queries": n_queries}) + "\n")
        sys.stdout.flush()
    return {"queries": n_queries}


if __name__ == "__main__":
    stage_main(main)
