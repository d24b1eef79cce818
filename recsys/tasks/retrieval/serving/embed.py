"""`python -m recsys.tasks.retrieval.serving.embed`: the query embeddings of a bundle.

The evaluation runs without TensorFlow, so it starts this process, which answers requests until
its stdin is closed. The SavedModel gets raw ids, as from a client.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from recsys.data.vocabulary import Vocabulary, load_kinds, stand_ins
from recsys.ragged import slices
from recsys.savedmodel.signatures import SavedModelGraph, fact_texts
from recsys.system.events import emit
from recsys.system.process import answer, stage_main
from recsys.tasks.retrieval.judging.bundle_process import EMBEDDINGS, FACTS, HISTORIES, USERS

_STEP, _SIGNATURE, _BLOCK = "RetrievalEvaluator", "embed_query", 1024


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


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Embeds the queries of each folder that a request on stdin names."""
    parser = argparse.ArgumentParser(
        prog="python -m recsys.tasks.retrieval.serving.embed", description=__doc__
    )
    parser.add_argument("--bundle", type=Path, required=True, help="a bundle")
    bundle = parser.parse_args(arguments).bundle
    graph = SavedModelGraph(bundle)
    items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
    kinds = load_kinds(bundle / "vocabulary")
    for line in sys.stdin:
        embed(graph, items, Path(json.loads(line)["folder"]), kinds)
        answer({})
    return {}


if __name__ == "__main__":
    stage_main(main)
