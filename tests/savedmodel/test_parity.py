"""The default reference of a SavedModel, for a task without its own."""

import numpy as np
import pytest

from recsys.errors import RecsysError

tf = pytest.importorskip("tensorflow")
from recsys.bundles.parity_process import ParityProcess, check_latency  # noqa: E402
from recsys.savedmodel.parity import Expected, parts  # noqa: E402


class Lengths(tf.Module):
    """Scores a text by its length in bytes, times a number."""

    def score(self, text, number):
        return {"score": tf.cast(tf.strings.length(text), tf.float32) * number}

    def signatures(self):
        text = tf.TensorSpec([None], tf.string, "text")
        number = tf.TensorSpec([None], tf.float32, "number")
        score = tf.function(self.score).get_concrete_function(text=text, number=number)
        return {"score": score}


def expected_of(n=100, error=0.0):
    texts = ["é" * (row % 5) for row in range(n)]
    number = np.linspace(0, 1, n, dtype=np.float32)
    scores = np.array([len(text.encode()) for text in texts], np.float32) * number
    scores[-1] += np.float32(error)
    inputs = {"text": np.array(texts, object), "number": number}
    return Expected({"score": inputs}, {"score": {"score": scores}})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    module = Lengths()
    tf.saved_model.save(module, str(folder), signatures=module.signatures())
    return folder


def test_expected_outputs_survive_a_save(tmp_path):
    expected = expected_of(9)
    expected.save(tmp_path)
    read = Expected.load(tmp_path)
    assert len(read) == 9
    assert read.inputs["score"]["text"].tolist() == expected.inputs["score"]["text"].tolist()
    for name in ("inputs", "outputs"):
        for key, values in getattr(expected, name)["score"].items():
            np.testing.assert_array_equal(getattr(read, name)["score"][key], values)


def test_outputs_within_the_tolerance_pass(bundle):
    model, told = tf.saved_model.load(str(bundle)), []
    assert expected_of().check(model, bundle, told.append) == 0.0
    assert len(told) == 1
    assert 0 < expected_of(error=2e-5).check(model, bundle, told.append) <= 8e-5
    with pytest.raises(RecsysError, match=r"R530.*score"):
        expected_of(error=1e-4).check(model, bundle, told.append)
    quick = check_latency(model, expected_of(), 1e6)
    assert 0 < quick["p50"] <= quick["p99"]


@pytest.mark.slow
def test_the_process_of_the_checks_loads_the_reference(bundle):
    with ParityProcess() as parity:
        checked = parity.check(bundle, expected_of(), latency_ms=1e6)
    assert checked["max_difference"] == 0.0
    assert checked["latency_ms"]["p99"] > 0


@pytest.mark.parametrize(
    ("n", "sizes"), [(0, [0, 0, 0]), (1, [0, 1, 0]), (8, [0, 1, 7]), (14, [0, 1, 7, 4, 2])]
)
def test_batches_have_several_sizes(n, sizes):
    assert [part.stop - part.start for part in parts(n, 4)] == sizes
