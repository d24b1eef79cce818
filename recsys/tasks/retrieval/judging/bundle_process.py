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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.event_log import Facts
from recsys.data.vocabulary import Vocabulary, load_kinds, stand_ins
from recsys.ragged import slices
from recsys.savedmodel.signatures import SavedModelGraph, fact_texts
from recsys.system.events import emit
from recsys.system.process import AskedStage, answer, stage_environment, stage_main

USERS, HISTORIES, EMBEDDINGS = "users.parquet", "histories.npy", "embeddings.npy"
"""Input files of the process: the `user_id` of each query, and item rows of the bundle
`[n, history]`, the newest first; and its output file: `[n, dim]` float32."""
FACTS = "facts.npz"
"""Input file with the facts of the histories, each `[n, history]` int32."""

_MODULE = "recsys.tasks.retrieval.judging.bundle_process"
_STEP, _SIGNATURE, _BLOCK = "RetrievalEvaluator", "embed_query", 1024
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
        self, user_ids: pa.Array, history: np.ndarray, facts: Facts | None = None
    ) -> np.ndarray:
        """Returns the embeddings `[n, dim]` float32 of queries.

        Args:
            user_ids: Ids of the users `[n]`, text; at least one.
            history: Item rows of the bundle `[n, history]` int32, the newest first,
                padded with 0.
            facts: Facts of the histories, each `[n, history]` int32; see
                `recsys.data.event_log`.

        Raises:
            RecsysError: TensorFlow is missing (R542), can't load the bundle (R543), or the
                process died (R610).
        """
        with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
            folder = Path(scratch)
            pq.write_table(pa.table({"user_id": user_ids}), folder / USERS)
            np.save(folder / HISTORIES, np.asarray(history, np.int32))
            arrays: Any = facts or {}
            np.savez(folder / FACTS, **arrays)
            self.ask({"folder": str(folder)})
            return np.load(folder / EMBEDDINGS, allow_pickle=False)


def embed(
    graph: SavedModelGraph, items: Vocabulary, folder: Path, kinds: Sequence[str] = ()
) -> None:
    """Writes the embeddings of the queries in `folder` beside them.

    Each query passes its history, even an empty one, so the stored history of a user, which
    includes held-out events, is never read. Features are the stored ones.

    Args:
        graph: The bundle's SavedModel.
        items: Vocabulary of its items.
        folder: Folder with `users.parquet`, the column `user_id` `[n]`, at least one;
            `histories.npy`, item rows of the bundle `[n, history]` int32, the newest first,
            padded with 0; and `facts.npz`, facts of the histories, each `[n, history]` int32,
            and of the queries `[n]`. `embeddings.npy` `[n, dim]` float32 is written to it.
        kinds: Its kinds of events by index.
    """
    users = np.asarray(pq.read_table(folder / USERS)["user_id"].to_pylist(), object)
    rows = np.load(folder / HISTORIES, mmap_mode="r", allow_pickle=False)
    with np.load(folder / FACTS, allow_pickle=False) as file:
        facts = dict(file)
    id_of_row = stand_ins(items, np.unique(rows))
    n, embeddings = len(users), []
    for block in slices(n, _BLOCK):
        size = block.stop - block.start
        padding = np.full((size, 1), "", object)
        inputs = dict.fromkeys(graph.signatures[_SIGNATURE], padding)
        # An unknown item at the end, since a history of only padding means the stored one.
        unknown = np.full((size, 1), "?", object)
        history = np.concatenate([id_of_row[rows[block]], unknown], axis=1)
        inputs |= {"user_id": users[block], "history": history}
        inputs |= fact_texts({name: fact[block] for name, fact in facts.items()}, kinds)
        embeddings.append(graph.ask(_SIGNATURE, inputs)["embedding"])
        text = f"{block.stop:,} of {n:,} queries embedded"
        emit("progress", step=_STEP, done=block.stop, total=n, text=text)
    np.save(folder / EMBEDDINGS, np.concatenate(embeddings))


def main() -> dict[str, Any]:
    """Embeds the queries of each folder that a request on stdin names."""
    bundle = Path(sys.argv[1])
    graph = SavedModelGraph(bundle)
    items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
    kinds = load_kinds(bundle / "vocabulary")
    for line in sys.stdin:
        embed(graph, items, Path(json.loads(line)["folder"]), kinds)
        answer({})
    return {}


if __name__ == "__main__":
    stage_main(main)
