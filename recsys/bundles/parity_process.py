"""`python -m recsys.bundles.parity_process`: the parity checks, with only TensorFlow.

The exporter starts it, and writes the folder of an unfinished bundle to its stdin. The training
code can't be imported here, which shows that a bundle works without it. Large variables are
mapped from files, so no table is in memory. The trainer's results are a `Reference`, which
compares the SavedModel with them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recsys import registry
from recsys.errors import RecsysError
from recsys.system.events import emit
from recsys.system.process import AskedStage, stage_main

if TYPE_CHECKING:  # It imports TensorFlow.
    from recsys.savedmodel.parity import Reference

FORBIDDEN = ("keras", "tf_keras", "keras_rs", "jax", "recsys.models", "recsys.embedding")
"""Modules that a bundle must not need."""

_MODULE = "recsys.bundles.parity_process"
# The trainer uses the devices.
_ENVIRONMENT = {"KERAS_BACKEND": "", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
_WARM_UP, _REQUESTS = 50, 400


class ParityProcess(AskedStage):
    """A process that checks one unfinished bundle, while the exporter builds the graph."""

    def __init__(self) -> None:
        super().__init__(_MODULE, (), _ENVIRONMENT)

    def check(
        self, bundle: Path, reference: Reference, latency_ms: float | None = None
    ) -> dict[str, Any]:
        """Checks an unfinished bundle.

        Args:
            bundle: Folder with the SavedModel and the files that the reference reads.
            reference: The trainer's results.
            latency_ms: Highest 99th percentile of the latency of single requests; None: not
                measured [ms].

        Returns:
            `max_difference`, and `latency_ms` if it was measured.

        Raises:
            RecsysError: A check failed (R528 … R533, R538), TensorFlow can't load the bundle
                (R543), or the process died (R610).
        """
        kind = type(reference)
        with tempfile.TemporaryDirectory(prefix="recsys-") as folder:
            reference.save(Path(folder))
            question = {
                "bundle": str(bundle),
                "reference": folder,
                "class": f"{kind.__module__}:{kind.__qualname__}",
                "latency_ms": latency_ms,
            }
            return self.ask(question)


def forbid(names: Sequence[str]) -> None:
    """Makes every import of these modules fail from now on.

    Raises:
        RecsysError: A module is already imported (R529).
    """
    check_absent(names)
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]


def check_absent(names: Sequence[str]) -> None:
    """Raises an error if any of these modules is imported (R529)."""
    imported = [name for name in names if sys.modules.get(name) is not None]
    if imported:
        rule = "A bundle must be checked by a process without Keras and JAX."
        raise RecsysError("R529", rule, "Report this as a bug, with the run's log.", imported)


def check_latency(model: Any, reference: Reference, allowed_ms: float) -> dict[str, float]:
    """Measures the latency of single, consecutive requests to a warm model.

    Args:
        model: A loaded SavedModel.
        reference: Makes the requests.
        allowed_ms: Highest 99th percentile of their latency [ms].

    Returns:
        `p50` and `p99` of the requests [ms].

    Raises:
        RecsysError: The latency is too high (R528).
    """
    times = np.empty(_WARM_UP + _REQUESTS)
    for number in range(len(times)):
        signature, inputs = reference.request(model, number)
        started = time.perf_counter()
        for value in model.signatures[signature](**inputs).values():
            value.numpy()
        times[number] = (time.perf_counter() - started) * 1e3
    p50, p99 = np.quantile(times[_WARM_UP:], (0.5, 0.99), method="higher").tolist()
    if p99 > allowed_ms:
        rule = f"The exported model must answer 99 % of single requests within {allowed_ms:g} ms."
        cure = (
            "Raise export.latency_ms, use an index or a smaller export.k, or export on a"
            " machine that does nothing else."
        )
        raise RecsysError("R528", rule, cure, f"{p99:.2f} ms")
    return {"p50": p50, "p99": p99}


def main() -> dict[str, Any]:
    """Checks the bundle that a line on stdin names; does nothing at the end of the input."""
    # Before TensorFlow is imported, which would bring Keras along.
    forbid(FORBIDDEN)
    from recsys.savedmodel.variables import load_mapped

    line = sys.stdin.readline()
    if not line:
        return {}
    question = json.loads(line)
    bundle, allowed_ms = Path(question["bundle"]), question["latency_ms"]
    reference: Reference = registry.load(question["class"]).load(Path(question["reference"]))

    def report(text: str) -> None:
        emit("note", text=text)

    # On the disk that has space for the bundle.
    with tempfile.TemporaryDirectory(prefix=".parity-", dir=bundle) as scratch:
        model = load_mapped(bundle, Path(scratch))
        result: dict[str, Any] = {"max_difference": reference.check(model, bundle, report)}
        if allowed_ms is not None:
            result["latency_ms"] = check_latency(model, reference, allowed_ms)
    check_absent(FORBIDDEN)
    return result


if __name__ == "__main__":
    stage_main(main)
