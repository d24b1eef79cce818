"""`calibration.json`: a damaged one is refused with what is wrong in it."""

import pytest

from recsys.errors import RecsysError
from recsys.models.calibration import Isotonic, Temperature
from recsys.tasks.ranking.calibration_file import FILE, load_calibration, save_calibration


def test_maps_are_read_as_they_were_written(tmp_path):
    maps = {
        "click": Temperature(scale=0.7, bias=-0.2),
        "buy": Isotonic.fit([0.1, 0.4, 0.2, 2.0], [0, 0, 1, 1]),
    }
    save_calibration(tmp_path, maps)
    assert load_calibration(tmp_path, maps) == maps
    (tmp_path / FILE).unlink()
    assert load_calibration(tmp_path, maps) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"click": {"kind": "temp', "Invalid JSON"),
        ('{"buy": {"kind": "temperature"}}', "the label 'buy'"),
        ('{"click": {"kind": "platt"}}', "click: Input tag 'platt'"),
        ('{"click": {"kind": "temperature", "scale": -1}}', "click.temperature.scale: .*greater"),
        ('{"click": {"kind": "temperature", "bias": NaN}}', "click.temperature.bias: .*finite"),
        ('{"a": {"kind": "isotonic", "logit": [], "probability": []}}', "ascending"),
        ('{"a": {"kind": "isotonic", "logit": [1, 0], "probability": [0.1, 0.2]}}', "ascending"),
        ('{"a": {"kind": "isotonic", "logit": [0, 1], "probability": [0.3]}}', "ascending"),
        ('{"a": {"kind": "isotonic", "logit": [0, 1], "probability": [0.3, 0.2]}}', "decreasing"),
        ('{"a": {"kind": "isotonic", "logit": [0, 1], "probability": [0.3, 2]}}', "from 0 to 1"),
    ],
)
def test_a_damaged_file_is_refused_with_its_problem(tmp_path, text, problem):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RecsysError, match=rf"R396.*Received: .*{problem}"):
        load_calibration(tmp_path, ["click", "a"])
