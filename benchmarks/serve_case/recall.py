"""How much of the exact best a server answers with."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

_USERS = 200


def recall_of(port: int, name: str, bundle: Path, n_users: int) -> float:
    """Returns the share of the exact best items that are among the answers [0..1].

    The exact ones are reckoned here, from the embeddings that the server gives of its
    queries and those of the bundle's items, without what the users did.

    Args:
        port: Of the server.
        name: Of the model.
        bundle: What is served.
        n_users: Users that there are, `u1`, `u2`, …
    """
    users = [f"u{n}" for n in range(1, min(n_users, _USERS) + 1)]
    stored = {"user_id": users, "history": [[""]] * len(users)}
    query = np.array(_ask(port, name, "embed_query", stored), np.float32)
    wish = {**stored, "exclude_seen": [True] * len(users)}
    answers = _ask(port, name, "recommend", wish)["candidate_ids"]
    seen = _ask(port, name, "stored_history", {"user_id": users})["item_ids"]
    items = np.load(bundle / "item_embeddings.npy", mmap_mode="r")
    ids = ["", *pq.read_table(bundle / "titles.parquet", columns=["id"])["id"].to_pylist()]
    row_of = {id_: row for row, id_ in enumerate(ids) if id_}
    hits, n = 0, 0
    for one, answer, did in zip(query, answers, seen, strict=True):
        scores = items @ one
        scores[[0, *(row_of[id_] for id_ in did if id_)]] = -np.inf
        least = np.partition(scores, -len(answer))[-len(answer)]
        # By their scores: of items that have the same one, any is as good.
        hits += int((scores[[row_of[id_] for id_ in set(answer)]] >= least).sum())
        n += len(answer)
    return hits / n


def _ask(port: int, name: str, signature: str, inputs: dict[str, Any]) -> Any:
    body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
    url = f"http://127.0.0.1:{port}/v1/models/{name}:predict"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=120) as answer:
        return json.load(answer)["outputs"]
