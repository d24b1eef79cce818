"""`python -m recsys.bundles.parity_process`: the parity checks, with TensorFlow alone.

The exporter starts it with the folder of an unfinished bundle. What trained the model
can't be imported here: so a bundle that passes needs none of it, and the process holds one
copy of the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.bundles.parity_reference import Reference
from recsys.errors import RecsysError
from recsys.system.events import emit
from recsys.system.process import run_stage, stage_main

FORBIDDEN = ("keras", "tf_keras", "keras_rs", "jax", "recsys.models", "recsys.embedding")
"""Modules that a bundle must do without."""

_STEP = "Exporter"
# The devices are the trainer's.
_ENVIRONMENT = {"KERAS_BACKEND": "", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def run_gates(bundle: Path, reference: Path) -> dict[str, Any]:
    """Checks an unfinished bundle in a process of its own.

    Args:
        bundle: Holds the SavedModel, `item_embeddings.npy` and `vocabulary/`.
        reference: What `Reference.save` wrote.

    Returns:
        `max_difference`, and `latency_ms` where it was measured.

    Raises:
        RecsysError: A gate refused (R528 … R533, R538), TensorFlow can't load the bundle
            (R543), or the process died (R610).
    """
    arguments = ["--bundle", str(bundle), "--reference", str(reference)]
    return run_stage("recsys.bundles.parity_process", arguments, _ENVIRONMENT)


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
    found = [name for name in names if sys.modules.get(name) is not None]
    if found:
        raise RecsysError(
            "R529",
            "A bundle must be checked by a process with TensorFlow alone.",
            "Report this as a bug, with the run's log.",
            found,
        )


def _tell(text: str) -> None:
    emit("note", step=_STEP, text=text)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="python -m recsys.bundles.parity_process")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    given = parser.parse_args(arguments)
    # Before TensorFlow is imported, which would bring Keras along.
    forbid(FORBIDDEN)
    from recsys.bundles import parity
    from recsys.serving.saved_model import load_saved_model

    reference = Reference.load(given.reference)
    model = load_saved_model(given.bundle)
    result: dict[str, Any] = {"max_difference": parity.check(model, given.bundle, reference, _tell)}
    if reference.latency_ms is not None:
        result["latency_ms"] = parity.check_latency(model, reference, reference.latency_ms)
    check_absent(FORBIDDEN)
    return result


if __name__ == "__main__":
    stage_main(main)
