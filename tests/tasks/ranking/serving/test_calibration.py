"""Calibration in TensorFlow, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from recsys.models.calibration import Isotonic, Temperature

pytest.importorskip("tensorflow")
from recsys.tasks.ranking.serving.calibration import calibrated

RNG = np.random.default_rng(3)
LOGIT = RNG.normal(size=400).astype(np.float32)


@pytest.mark.parametrize(
    "map_",
    [
        Temperature(scale=0.4, bias=-1.5),
        Isotonic.fit(LOGIT, RNG.random(400) < 1 / (1 + np.exp(-2 * LOGIT))),
        Isotonic(logit=(0.25,), probability=(0.125,)),
    ],
    ids=["temperature", "isotonic", "one block"],
)
def test_probabilities_are_those_of_the_calibration(map_):
    logit = np.concatenate([LOGIT, LOGIT + 1e-3, [-50.0, 50.0]]).astype(np.float32)
    found = calibrated(map_, logit)
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, map_.apply(logit), atol=1e-6)
