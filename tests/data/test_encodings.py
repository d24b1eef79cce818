"""Numbers, vectors and crosses as inputs of a model, against formulas of their own."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from on_tensorflow import run_on_tensorflow
from places import SUPPORT

from recsys.data.config import read_event_feature, write_event_feature
from recsys.data.event_features import (
    LearnedFeature,
    encode_features,
    load_event_features,
    save_event_features,
)

AS = {
    "dense": {"as": "dense"},
    "log": {"as": "dense", "scale": "log"},
}
NUMBERS = [3.0, -7.5, 0.0, 0.0, 0.0, 1e6, 12.25, None, 88.0, 0.5, 12.25]


def number(name, **options):
    return read_event_feature({"name": name, "column": "x", "kind": "number", **options})


def learned(feature, values):
    counts = pa.array(values, pa.float32()).drop_null().value_counts()
    columns = dict(zip(("value", "count"), counts.flatten(), strict=True))
    return LearnedFeature(feature, feature.learn(pa.table(columns).sort_by("value"), None))


def encoded(feature, values, new=None):
    made = learned(feature, values)
    return made.encode(pa.array(values if new is None else new, pa.float32()))


@pytest.mark.parametrize("scale", ["standard", "log"])
def test_a_dense_number_is_standardised_and_says_if_it_is_known(scale):
    found = encoded(number("f", scale=scale, **{"as": "dense"}), NUMBERS)
    x = np.array([n for n in NUMBERS if n is not None])
    x = np.sign(x) * np.log(1 + abs(x)) if scale == "log" else x
    missing = NUMBERS.index(None)
    expected = np.insert((x - x.mean()) / x.std(), missing, 0)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5, atol=1e-6)
    assert found[:, 1].tolist() == [float(n is not None) for n in NUMBERS]
    assert found.dtype == np.float32


@pytest.mark.parametrize("options", AS.values(), ids=AS)
@pytest.mark.parametrize("values", [[], [4.0, 4.0]], ids=["none", "constant"])
def test_few_values_give_finite_numbers(options, values):
    assert np.isfinite(encoded(number("f", **options), values, [4.0, 5.0, None])).all()


def test_a_cross_is_missing_if_one_token_is():
    cross = read_event_feature({"name": "c", "kind": "cross", "of": ["a", "b"], "hash_buckets": 64})
    tokens = np.array([[a, b] for a in range(9) for b in range(9)], np.int32)
    rows = cross.encode(tokens, pa.table({}))[:, 0]
    assert ((rows == 0) == (tokens == 0).any(axis=1)).all()
    assert 0 < rows[rows > 0].min() <= rows.max() < cross.table_rows(pa.table({})) == 65
    assert len(set(rows)) > 40  # 64 pairs in 64 buckets: 1 - 1/e of them.
    assert rows[10 + 1] != rows[2 * 9 + 1]  # (1, 2) isn't (2, 1).


def test_the_graph_encodes_events_as_numpy_does(tmp_path):
    rng = np.random.default_rng(2)
    n = 400
    x = [None if rng.random() < 0.1 else float(v) for v in np.round(rng.lognormal(2, 2, n), 1)]
    vectors = [None if i % 5 == 0 else v.tolist() for i, v in enumerate(rng.normal(size=(n, 3)))]
    features = [
        *(learned(number(name, **options), x) for name, options in AS.items()),
        learned(number("bucket", buckets=7), x),
        LearnedFeature(number("price", kind="price"), pa.table({})),
        *(
            LearnedFeature(read_event_feature(options), pa.table({}))
            for options in (
                {"name": "picture", "column": "v", "kind": "vector", "width": 3},
                {"name": "pair", "kind": "cross", "of": ["bucket", "price"], "hash_buckets": 30},
            )
        ),
    ]
    save_event_features(tmp_path / "features", features)
    loaded = load_event_features(tmp_path / "features")
    assert [f.feature for f in loaded] == [f.feature for f in features]
    values = dict.fromkeys((*AS, "bucket", "price"), x) | {"picture": vectors}
    (tmp_path / "values.json").write_text(json.dumps(values))
    run_on_tensorflow(SUPPORT / "event_encoder.py", tmp_path)
    found = np.load(tmp_path / "encoded.npz")
    types = {"picture": pa.list_(pa.float32())}
    typed = {name: pa.array(v, types.get(name, pa.float32())) for name, v in values.items()}
    for name, expected in encode_features(loaded, typed).items():
        np.testing.assert_allclose(
            found[name].reshape(n, -1), expected, rtol=1e-5, atol=1e-5, err_msg=name
        )


def test_options_are_read_as_they_are_written():
    feature = number("f", scale="log", **{"as": "dense"})
    written = write_event_feature(feature)
    assert (written["as"], feature.as_, feature.floats) == ("dense", "dense", 2)
    assert read_event_feature(written) == feature
    with pytest.raises(ValueError, match=re.escape("scale: log needs as: dense")):
        number("f", scale="log")
    with pytest.raises(ValueError, match="as_"):
        number("f", as_="dense")
