"""The query embeddings of a bundle, from a process that runs its SavedModel.

Starting TensorFlow takes 12 s of a core, more than the embeddings, and an evaluation never
imports it: one process, `python -m recsys.tasks.retrieval.judging.bundle_process`, serves all
requests to a bundle, until its stdin is closed. The processes exchange files. The SavedModel gets
raw ids, as from a client.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.config import AGES, ASKED_AT
from recsys.data.event_log import UNKNOWN
from recsys.data.vocabulary import Vocabulary, stand_ins
from recsys.ragged import slices
from recsys.savedmodel.signatures import (
    DTYPES,
    ENCODED,
    SavedModelGraph,
    SignatureInput,
    encoded_name,
)
from recsys.system.events import emit
from recsys.system.process import AskedStage, answer, stage_environment, stage_main

Given = Mapping[str, np.ndarray]

USERS, HISTORIES, EMBEDDINGS = "users.parquet", "histories.npy", "embeddings.npy"
"""Input files of the process: the `user_id` of each query, and item rows of the bundle
`[n, history]`, the newest first; and its output file: `[n, dim]` float32."""
GIVEN = "given.npz"
"""Input file with the inputs of the model that come from events, `[n, …]` each."""

_MODULE = "recsys.tasks.retrieval.judging.bundle_process"
_PLAIN, _BLOCK = "embed_query", 1024
# JAX uses the devices: TensorFlow would take the remaining memory of a GPU.
_NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "-1"}


class BundleProcess(AskedStage):
    """Computes query embeddings of a bundle in a process that ends with this object.

    Args:
        bundle: A complete bundle.
    """

    def __init__(self, bundle: Path) -> None:
        environment = stage_environment("tensorflow") | _NO_DEVICES
        super().__init__(_MODULE, [str(bundle.resolve())], environment)

    def queries(
        self, user_ids: pa.Array, history: np.ndarray, given: Given | None = None
    ) -> np.ndarray:
        """Returns the embeddings `[n, dim]` float32 of queries.

        Args:
            user_ids: Ids of the users `[n]`, text; at least one.
            history: Item rows of the bundle `[n, history]` int32, the newest first,
                padded with 0.
            given: Inputs of the model that come from events, by name; others are missing.

        Raises:
            RecsysError: TensorFlow is missing (R542), can't load the bundle (R543), or the
                process died (R610).
        """
        with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
            folder = Path(scratch)
            pq.write_table(pa.table({"user_id": user_ids}), folder / USERS)
            np.save(folder / HISTORIES, np.asarray(history, np.int32))
            arrays: Any = given or {}
            np.savez(folder / GIVEN, **arrays)
            self.ask({"folder": str(folder)})
            return np.load(folder / EMBEDDINGS, allow_pickle=False)


def embed(graph: SavedModelGraph, items: Vocabulary, folder: Path) -> None:
    """Writes the embeddings of the queries in `folder` beside them.

    Each query passes its history, even an empty one, so the stored history of a user, which
    includes held-out events, is never read. Features of users are the stored ones.

    Args:
        graph: The bundle's SavedModel.
        items: Vocabulary of its items.
        folder: Folder with `users.parquet`, the column `user_id` `[n]`, at least one;
            `histories.npy`, item rows of the bundle `[n, history]` int32, the newest first,
            padded with 0; and `given.npz`, inputs of the model that come from events `[n, …]`.
            `embeddings.npy` `[n, dim]` float32 is written to it.
    """
    users = np.asarray(pq.read_table(folder / USERS)["user_id"].to_pylist(), object)
    rows = np.load(folder / HISTORIES, mmap_mode="r", allow_pickle=False)
    with np.load(folder / GIVEN, allow_pickle=False) as file:
        given = dict(file)
    signature = ENCODED if ENCODED in graph.signatures else _PLAIN
    id_of_row = stand_ins(items, np.unique(rows))
    n, embeddings = len(users), []
    for block in slices(n, _BLOCK):
        # An unknown item at the end, since a history of only padding means the stored one.
        unknown = np.full((block.stop - block.start, 1), "?", object)
        history = np.concatenate([id_of_row[rows[block]], unknown], axis=1)
        known = {"user_id": users[block], "history": history}
        known |= {encoded_name(name): x[block] for name, x in given.items()}
        if signature == _PLAIN:
            known |= _older({name: x[block] for name, x in given.items()})
        inputs = {
            name: known[name] if name in known else _missing(name, spec, len(history))
            for name, spec in graph.signatures[signature].items()
        }
        embeddings.append(graph.ask(signature, inputs)["embedding"])
        text = f"{block.stop:,} of {n:,} queries embedded"
        emit("progress", done=block.stop, total=n, text=text)
    np.save(folder / EMBEDDINGS, np.concatenate(embeddings))


def _missing(name: str, spec: SignatureInput, n: int) -> np.ndarray:
    """Returns an input that nothing is known of, `[n, …]`."""
    shape = (n, *(1 if size < 0 else size for size in spec.shape[1:]))
    if spec.dtype == "DT_STRING":
        return np.full(shape, "", object)
    return np.full(shape, UNKNOWN if name in (AGES, ASKED_AT) else 0, DTYPES[spec.dtype])


def _older(given: Given) -> Given:
    """Returns ages and query times as texts, for a bundle whose manifest has the format 1."""
    texts = {}
    if AGES in given:
        texts[AGES] = np.where(given[AGES] < 0, "", given[AGES].astype("U11")).astype(object)
    if ASKED_AT in given:
        times = np.datetime_as_string(given[ASKED_AT].astype("datetime64[m]"))
        texts["query_time"] = times.astype(object)[:, None]
    return texts


def main() -> dict[str, Any]:
    """Embeds the queries of each folder that a request on stdin names."""
    bundle = Path(sys.argv[1])
    graph = SavedModelGraph(bundle)
    items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
    for line in sys.stdin:
        embed(graph, items, Path(json.loads(line)["folder"]))
        answer({})
    return {}


if __name__ == "__main__":
    stage_main(main)
