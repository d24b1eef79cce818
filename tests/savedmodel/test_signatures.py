"""An unused SavedModel is freed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
from recsys.savedmodel.signatures import load_saved_model  # noqa: E402


class _Gated(tf.Module):
    """Uses a function that has a gradient of its own, as the towers of a bundle do."""

    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(np.full(8, 2, np.float32))

    @tf.function(input_signature=[tf.TensorSpec([8], tf.float32)])
    def answer(self, x):
        return {"y": tf.nn.silu(x * self.weights)}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    module = _Gated()
    tf.saved_model.save(module, str(folder), {"answer": module.answer})
    return folder


def _graphs_left(load, bundle: Path) -> int:
    """Returns how many functions of a model are there after it was used and let go."""
    model = load(bundle)
    found = model.signatures["answer"](tf.zeros(8))["y"].numpy().tolist()
    assert found == [0.0] * 8
    graphs = [weakref.ref(one.graph) for one in model.signatures.values()]
    graphs += [weakref.ref(one.graph) for one in model.answer.concrete_functions]
    del model
    gc.collect()
    return sum(graph() is not None for graph in graphs)


def test_a_model_that_was_let_go_leaves_nothing(bundle):
    assert _graphs_left(load_saved_model, bundle) == 0
    # TensorFlow itself keeps it: where it doesn't any more, `loading` has a line too many.
    assert _graphs_left(lambda folder: tf.saved_model.load(str(folder)), bundle) > 0
