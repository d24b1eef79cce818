"""The predictions of a ranking bundle, from a process that runs its SavedModel.

Evaluation never imports TensorFlow: one process,
`python -m recsys.tasks.ranking.judging.bundle_process`, answers for a bundle until its stdin is
closed. The processes exchange files. The SavedModel gets encoded rows, since a store has no raw
values: histories and statistics are those of the case, not those that the bundle holds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys.errors import RecsysError
from recsys.savedmodel.signatures import RANK_ENCODED, SavedModelGraph, encoded_name
from recsys.system.process import AskedStage, answer, stage_environment, stage_main

ROWS, PREDICTIONS = "rows.npz", "predictions.npy"
"""Input file of the process: inputs of rows by name `[n, …]`; and its output file: `[n, labels]`
float32."""
_MODULE = "recsys.tasks.ranking.judging.bundle_process"
# JAX uses the devices: TensorFlow would take the remaining memory of a GPU.
_NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "-1"}


class BundleProcess(AskedStage):
    """Computes predictions of a bundle in a process that ends with this object.

    Args:
        bundle: A complete bundle.
        labels: Names of its labels.
    """

    def __init__(self, bundle: Path, labels: Sequence[str]) -> None:
        environment = stage_environment("tensorflow") | _NO_DEVICES
        super().__init__(_MODULE, [str(bundle.resolve()), *labels], environment)

    def predict(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns calibrated predictions `[n, labels]` float32.

        Args:
            rows: `user_row`, `item_row`, `history`, and the encoded inputs of events and of rows
                `[n, …]`, in the rows of the bundle; others are ignored.

        Raises:
            RecsysError: The bundle takes no encoded rows (R409), TensorFlow is missing (R542) or
                can't load it (R543), or the process died (R610).
        """
        with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
            folder = Path(scratch)
            arrays: Any = rows
            np.savez(folder / ROWS, **arrays)
            self.ask({"folder": str(folder)})
            return np.load(folder / PREDICTIONS, allow_pickle=False)


def main() -> dict[str, Any]:
    """Predicts the rows in each folder that a request on stdin names."""
    bundle, labels = Path(sys.argv[1]), sys.argv[2:]
    graph = SavedModelGraph(bundle)
    if RANK_ENCODED not in graph.signatures:
        raise RecsysError(
            "R409",
            f"A bundle that is measured must have the signature {RANK_ENCODED}.",
            "Export the model again: recsys export.",
            f"{str(bundle)!r} with {', '.join(graph.signatures)}",
        )
    for line in sys.stdin:
        folder = Path(json.loads(line)["folder"])
        with np.load(folder / ROWS, allow_pickle=False) as file:
            rows = {encoded_name(name): file[name] for name in file}
        inputs = {name: rows[name] for name in graph.signatures[RANK_ENCODED]}
        predicted = graph.ask(RANK_ENCODED, inputs)
        np.save(folder / PREDICTIONS, np.stack([predicted[name] for name in labels], axis=1))
        answer({})
    return {}


if __name__ == "__main__":
    stage_main(main)
