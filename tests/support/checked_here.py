"""The exporter's checks in its own process: to start one for each model would take minutes."""

import contextlib

from recsys.bundles import parity
from recsys.bundles.reference import Reference
from recsys.serving.saved_model import load_saved_model


class CheckedHere(contextlib.nullcontext):
    """Stands for the `ParityProcess` of an export."""

    def __enter__(self):
        return self

    def check(self, bundle, reference):
        model, reference = load_saved_model(bundle), Reference.load(reference)
        checked = {"max_difference": parity.check(model, bundle, reference, print)}
        if reference.latency_ms is not None:
            checked["latency_ms"] = parity.check_latency(model, reference, reference.latency_ms)
        return checked
