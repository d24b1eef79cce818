"""The signatures of a bundle, computed by a process that runs its SavedModel.

Evaluation never imports TensorFlow, which takes 12 s of a core to start: one process,
`python -m recsys.tasks.bundle_process`, answers for a bundle until its stdin is closed. The
processes exchange files.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from recsys.savedmodel.signatures import Arrays, SavedModelGraph, Signature, SignatureInput
from recsys.system.process import AskedStage, answer, stage_environment, stage_main

_INPUTS, _OUTPUTS = "inputs.npz", "outputs.npz"
_MODULE = "recsys.tasks.bundle_process"
# JAX uses the devices: TensorFlow would take the remaining memory of a GPU.
_NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "-1"}


class BundleProcess:
    """The signatures of a bundle, in a process that ends with this object.

    Its requests raise `RecsysError` if TensorFlow is missing (R542) or can't load the bundle
    (R543), or if the process died (R610).

    Args:
        bundle: A complete bundle.
    """

    def __init__(self, bundle: Path) -> None:
        environment = stage_environment("tensorflow") | _NO_DEVICES
        self._stage = AskedStage(_MODULE, [str(bundle.resolve())], environment)

    @functools.cached_property
    def signatures(self) -> dict[str, Signature]:
        """Inputs of each signature, by name."""
        return {
            signature: {name: SignatureInput(*spec) for name, spec in inputs.items()}
            for signature, inputs in self._stage.ask({})["signatures"].items()
        }

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature that are numbers.

        Args:
            signature: Name of the signature.
            inputs: Its inputs, texts as `str`; others are ignored.
        """
        named = {n: inputs[n] for n in self.signatures[signature]}
        arrays: Any = {n: x.astype("U") if x.dtype == object else x for n, x in named.items()}
        with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
            np.savez(Path(scratch) / _INPUTS, **arrays)
            self._stage.ask({"signature": signature, "folder": scratch})
            with np.load(Path(scratch) / _OUTPUTS, allow_pickle=False) as file:
                return dict(file)


def main() -> dict[str, Any]:
    """Answers each request on stdin with the signatures, after the outputs of one are written."""
    graph = SavedModelGraph(Path(sys.argv[1]))
    for question in map(json.loads, sys.stdin):
        if "folder" in question:
            folder = Path(question["folder"])
            with np.load(folder / _INPUTS, allow_pickle=False) as file:
                inputs = {
                    n: x.astype(object) if x.dtype.kind == "U" else x for n, x in file.items()
                }
            outputs = graph.ask(question["signature"], inputs)
            arrays: Any = {name: x for name, x in outputs.items() if x.dtype != object}
            np.savez(folder / _OUTPUTS, **arrays)
        answer({"signatures": graph.signatures})
    return {}


if __name__ == "__main__":
    stage_main(main)
