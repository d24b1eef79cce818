"""Calibration and labels of a request in TensorFlow, against NumPy and literal values."""

from __future__ import annotations

import numpy as np
import pytest

from recsys.data.label_config import LabelConfig
from recsys.models.calibration import Isotonic, Temperature

pytest.importorskip("tensorflow")
from recsys.tasks.ranking.serving.calibration import calibrated
from recsys.tasks.ranking.serving.labels import raw_labels

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


def test_labels_of_a_history_are_typed_as_by_the_ingest():
    labels = {
        "like": LabelConfig(column="rating", at_least=4.1),
        "finished": LabelConfig(column="state", values=("done", "twice")),
        "seconds": LabelConfig(column="time", given="like"),
    }
    texts = {
        "rating": [["4.1", " 4.09", "5", ""]],
        "state": [["done ", "half", "", "twice"]],
        "time": [["3", "4", "", "5"]],
    }
    found = raw_labels(labels, {name: np.array(x, object) for name, x in texts.items()})
    unknown = np.nan
    np.testing.assert_array_equal(found["like"], [[1, 0, 1, unknown]])
    np.testing.assert_array_equal(found["finished"], [[1, 0, unknown, 1]])
    np.testing.assert_array_equal(found["seconds"], [[3, unknown, unknown, unknown]])
