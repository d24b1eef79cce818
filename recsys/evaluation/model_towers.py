"""A model folder as it is measured: by Keras on JAX, in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.evaluation.systems import SystemEmbeddings, check_numbers
from recsys.models import load_model
from recsys.models.inference import embed_catalogue, embed_queries
from recsys.models.saved import check_probe, read_probe


def open_model(folder: Path, name: str) -> SystemEmbeddings:
    """Reads a model folder, and checks that it still computes what its trainer did.

    Args:
        folder: What a training wrote.
        name: What people call it.

    Raises:
        RecsysError: It is damaged (R310), computes something else than when it was
            trained (R311), or no numbers (R402).
    """
    saved = load_model(folder)
    probe = read_probe(folder)
    candidates = embed_catalogue(saved.model, saved.inputs)
    query = embed_queries(saved.model, probe.user_row, probe.history, saved.inputs)
    check_numbers(name, candidates, query)
    check_probe(folder, probe, query, candidates)

    def queries(user_ids: pa.Array, history: np.ndarray) -> np.ndarray:
        return embed_queries(saved.model, saved.users.rows(user_ids), history, saved.inputs)

    return SystemEmbeddings(saved.items, candidates, saved.stage.model.history, queries)
