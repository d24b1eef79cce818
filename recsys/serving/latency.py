"""How long a bundle takes to answer one user, and whether that is allowed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from recsys.errors import RecsysError
from recsys.serving.gate_reference import Reference
from recsys.serving.gates import inputs_of

_WARM_UP, _REQUESTS = 50, 400


def check(model: Any, reference: Reference, allowed_ms: float) -> dict[str, float]:
    """Times requests of one user to `recommend`, one after the other, once it is warm.

    Args:
        model: A loaded SavedModel.
        reference: Its probes ask.
        allowed_ms: Longest that 99 % of the requests may take [ms].

    Returns:
        `p50` and `p99` of the requests [ms].

    Raises:
        RecsysError: They take longer (R528).
    """
    times = _times_ms(model, reference)[_WARM_UP:]
    p50, p99 = (float(np.quantile(times, share, method="higher")) for share in (0.5, 0.99))
    if p99 > allowed_ms:
        raise RecsysError(
            "R528",
            f"The exported model must answer 99 % of single requests within {allowed_ms:g} ms.",
            "Raise export.latency_ms, use an index or a smaller export.k, or export on a"
            " machine that does nothing else.",
            f"{p99:.2f} ms",
        )
    return {"p50": p50, "p99": p99}


def _times_ms(model: Any, reference: Reference) -> np.ndarray:
    signature = model.signatures["recommend"]
    times = np.empty(_WARM_UP + _REQUESTS)
    for number in range(len(times)):
        probe = number % len(reference.query)
        inputs = inputs_of(signature, reference, slice(probe, probe + 1))
        started = time.perf_counter()
        for value in signature(**inputs).values():
            value.numpy()
        times[number] = (time.perf_counter() - started) * 1e3
    return times
