"""`python -m recsys.bundles.parity_process`: the parity checks, with TensorFlow alone.

The exporter starts it, and writes the folder of an unfinished bundle to its stdin. The training
code can't be imported here, which shows that a bundle works without it. Large variables are
mapped from files, so no table is in memory. The trainer's results are a `Reference`; item
embeddings are those of the bundle, `item_embeddings.npy`: the trainer's own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.bundles.reference import Reference
from recsys.errors import RecsysError
from recsys.system.events import emit
from recsys.system.process import AskedStage, stage_main

FORBIDDEN = ("keras", "tf_keras", "keras_rs", "jax", "recsys.models", "recsys.embedding")
"""Modules that a bundle must do without."""

_MODULE = "recsys.bundles.parity_process"
_STEP = "Exporter"
# The devices are the trainer's.
_ENVIRONMENT = {"KERAS_BACKEND": "", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class ParityProcess(AskedStage):
    """A process that checks one unfinished bundle, while the exporter builds the graph."""

    def __init__(self) -> None:
        super().__init__(_MODULE, (), _ENVIRONMENT)

    def check(self, bundle: Path, reference: Path) -> dict[str, Any]:
        """Checks an unfinished bundle.

        Args:
            bundle: Holds the SavedModel, `item_embeddings.npy` and `vocabulary/`.
            reference: What `Reference.save` wrote.

        Returns:
            `max_difference`, and `latency_ms` where it was measured.

        Raises:
            RecsysError: A check refused (R528 … R533, R538), TensorFlow can't load the
                bundle (R543), or the process died (R610).
        """
        return self.ask({"bundle": str(bundle), "reference": str(reference)})


def forbid(names: Sequence[str]) -> None:
    """Makes every import of these modules fail from now on.

    Raises:
        RecsysError: One of them is there already (R529).
    """
    check_absent(names)
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]


def check_absent(names: Sequence[str]) -> None:
    """Raises an error if one of these modules is imported (R529)."""
    imported = [name for name in names if sys.modules.get(name) is not None]
    if imported:
        rule = "A bundle must be checked by a process without Keras and JAX."
        raise RecsysError("R529", rule, "Report this as a bug, with the run's log.", imported)


def main() -> dict[str, Any]:
    """Checks the bundle that a line on stdin names; does nothing without one."""
    # Before TensorFlow is imported, which would bring Keras along.
    forbid(FORBIDDEN)
    from recsys.bundles import parity
    from recsys.bundles.variables import load_mapped

    line = sys.stdin.readline()
    if not line:
        return {}
    folders = {name: Path(folder) for name, folder in json.loads(line).items()}
    reference = Reference.load(folders["reference"])

    def report(text: str) -> None:
        emit("note", step=_STEP, text=text)

    # On the disk that has room for the bundle.
    with tempfile.TemporaryDirectory(prefix=".parity-", dir=folders["bundle"]) as scratch:
        model = load_mapped(folders["bundle"], Path(scratch))
        difference = parity.check(model, folders["bundle"], reference, report)
        result: dict[str, Any] = {"max_difference": difference}
        if reference.latency_ms is not None:
            result["latency_ms"] = parity.check_latency(model, reference, reference.latency_ms)
    check_absent(FORBIDDEN)
    return result


if __name__ == "__main__":
    stage_main(main)
