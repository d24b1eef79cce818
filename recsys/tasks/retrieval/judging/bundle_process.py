"""The query embeddings of a bundle, from a process that runs its SavedModel.

Starting TensorFlow takes 12 s of a core, more than the embeddings, and an evaluation never
imports it: one process serves all requests to a bundle. The processes exchange files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.event_log import Facts
from recsys.system.process import AskedStage, stage_environment

USERS, HISTORIES, EMBEDDINGS = "users.parquet", "histories.npy", "embeddings.npy"
"""Input files of `_MODULE`: the `user_id` of each query, and item rows of the bundle
`[n, history]`, the newest first; and its output file: `[n, dim]` float32."""
FACTS = "facts.npz"
"""Input file with the facts of the histories, each `[n, history]` int32."""

_MODULE = "recsys.tasks.retrieval.serving.embed"
# JAX uses the devices: TensorFlow would take the remaining memory of a GPU.
_NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "-1"}


class BundleProcess(AskedStage):
    """Computes query embeddings of a bundle in a process that ends with this object.

    Args:
        bundle: A complete bundle.
    """

    def __init__(self, bundle: Path) -> None:
        environment = stage_environment("tensorflow") | _NO_DEVICES
        super().__init__(_MODULE, ["--bundle", str(bundle.resolve())], environment)

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
