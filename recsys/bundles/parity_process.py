"""`python -m recsys.bundles.parity_process`: the parity checks, with TensorFlow alone.

The exporter starts it, and names the folder of an unfinished bundle on its stdin. What
trained the model can't be imported here: so a bundle that passes needs none of it, and the
process holds one copy of the tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from recsys.bundles.parity_reference import Reference
from recsys.errors import RecsysError
from recsys.system.events import emit
from recsys.system.parent import as_parent, child_command
from recsys.system.process import stage_main, stage_result

FORBIDDEN = ("keras", "tf_keras", "keras_rs", "jax", "recsys.models", "recsys.embedding")
"""Modules that a bundle must do without."""

_MODULE = "recsys.bundles.parity_process"
_STEP = "Exporter"
# The devices are the trainer's.
_ENVIRONMENT = {"KERAS_BACKEND": "", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class ParityProcess:
    """A process that checks one unfinished bundle, and ends with this object.

    It is started early: TensorFlow takes seconds to start, in which the exporter builds the
    graph.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            child_command(_MODULE),
            env={**os.environ, **_ENVIRONMENT, **as_parent()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:  # It has nothing to save.
            self._process.kill()
        self._process.communicate()

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
        question = json.dumps({"bundle": str(bundle), "reference": str(reference)})
        printed, _ = self._process.communicate(question + "\n")
        return stage_result(_MODULE, self._process.returncode, printed)


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
        raise RecsysError(
            "R529",
            "A bundle must be checked by a process with TensorFlow alone.",
            "Report this as a bug, with the run's log.",
            imported,
        )


def main() -> dict[str, Any]:
    """Checks the bundle that a line on stdin names; does nothing without one."""
    # Before TensorFlow is imported, which would bring Keras along.
    forbid(FORBIDDEN)
    from recsys.bundles import parity
    from recsys.serving.saved_model import load_saved_model

    line = sys.stdin.readline()
    if not line:
        return {}
    folders = {name: Path(folder) for name, folder in json.loads(line).items()}
    reference = Reference.load(folders["reference"])
    model = load_saved_model(folders["bundle"])
    difference = parity.check(model, folders["bundle"], reference, _report)
    result: dict[str, Any] = {"max_difference": difference}
    if reference.latency_ms is not None:
        result["latency_ms"] = parity.check_latency(model, reference, reference.latency_ms)
    check_absent(FORBIDDEN)
    return result


def _report(text: str) -> None:
    emit("note", step=_STEP, text=text)


if __name__ == "__main__":
    stage_main(main)
