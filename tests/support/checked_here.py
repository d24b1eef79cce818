"""The exporter's checks in its own process: to start one for each model would take minutes."""

import contextlib
import tempfile
from pathlib import Path

from recsys.bundles.parity_process import check_latency
from recsys.savedmodel.signatures import load_saved_model


class CheckedHere(contextlib.nullcontext):
    """Stands for the `ParityProcess` of an export."""

    def __enter__(self):
        return self

    def check(self, bundle, reference, latency_ms=None):
        model = load_saved_model(bundle)
        with tempfile.TemporaryDirectory() as folder:
            reference.save(Path(folder))
            reference = type(reference).load(Path(folder))
        checked = {"max_difference": reference.check(model, bundle, print)}
        if latency_ms is not None:
            checked["latency_ms"] = check_latency(model, reference, latency_ms)
        return checked
