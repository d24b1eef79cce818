"""Types of features: each has options of its own, and one of one's own goes the whole way."""

import importlib.util
import re
import sys

import numpy as np
import pytest
from places import ROOT

from recsys import registry
from recsys.config import read_feature, write_feature

KINDS = ("category", "categories", "words", "number", "date", "vector", "cross")
NEEDED = {"vector": {"width": 3}, "cross": {"column": None, "of": ["a", "b"]}}


def feature(kind, **options):
    needed = NEEDED.get(kind, {})
    return read_feature({"name": "f", "column": "c", "kind": kind, **needed, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_a_feature_is_written_as_it_is_read(kind):
    written = write_feature(feature(kind))
    assert written["kind"] == kind
    assert write_feature(read_feature(written)) == written


def test_an_option_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="buckets"):
        feature("category", buckets=20)
    with pytest.raises(ValueError, match=r"category.*no_kind"):
        feature("no_kind")
    with pytest.raises(ValueError, match="must have a kind"):
        read_feature({"name": "f", "column": "c"})


@pytest.mark.parametrize(
    ("kind", "options", "width", "rows"),
    [
        ("category", {}, 1, 8),
        ("categories", {"max_tokens": 3}, 3, 8),
        ("words", {"hash_buckets": 50}, 8, 51),
        ("number", {"buckets": 4}, 1, 5),
        ("date", {"buckets": 4}, 2, 17),
        ("cross", {"hash_buckets": 8}, 1, 9),
    ],
)
def test_a_feature_says_what_the_model_needs(kind, options, width, rows):
    made = feature(kind, **options)
    assert (made.width, made.table_rows(7 if made.has_vocabulary else 0)) == (width, rows)
    names = made.token_names([f"t{n}" for n in range(7)])
    assert names is None if "hash_buckets" in options else len(names) == rows
    assert made.floats == 0


@pytest.mark.parametrize(
    ("kind", "options", "floats"),
    [
        ("number", {"as": "dense"}, 2),
        ("vector", {"width": 7}, 8),
    ],
)
def test_a_feature_of_numbers_has_no_table(kind, options, floats):
    made = feature(kind, **options)
    assert (made.floats, made.table_rows(), made.token_names()) == (floats, 0, None)
    assert read_feature(write_feature(made)) == made


def test_the_page_lists_every_option_of_every_kind():
    page = (ROOT / "docs" / "features.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(.*?)` \|", page, flags=re.MULTILINE)
    options = [
        (kind, field.alias or name, shown(field).replace("|", r"\|"))
        for kind in KINDS
        for name, field in registry.config_type("feature", kind).model_fields.items()
        if name not in ("name", "column")
    ]
    # The page also has tables of features of events.
    assert {row for row in rows if row[0] in KINDS} == {*options}


def shown(field):
    if field.is_required():
        return "required"
    return "null" if field.default is None else str(field.default)


@pytest.mark.pipeline
def test_a_type_of_a_plugin_makes_tokens_in_the_data_and_in_the_graph(tmp_path):
    tft = pytest.importorskip("tensorflow_transform")
    import tensorflow as tf

    spec = importlib.util.spec_from_file_location(
        "custom_feature_example", ROOT / "examples" / "custom_feature.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    data = module.main(tmp_path)
    (table,) = data.spec.features
    assert (table.name, table.rows, table.width) == ("grams", 1001, 16)
    rows = [set(bag[bag > 0]) for bag in data.catalogue.features[0].bags]
    bags = dict(zip(data.catalogue.titles, rows, strict=True))
    assert len(bags["Colour"]) == 3
    assert bags["Colour"] < bags["Colours"]
    assert not bags["Colour"] & bags["Night"]
    graph = tft.TFTransformOutput(str(data.folder / "graphs" / "items"))
    raw = {"item_id": tf.sparse.from_dense([["new"]]), "title": tf.sparse.from_dense([["Colour"]])}
    tokens = graph.transform_features_layer()(raw)["grams"].numpy()
    assert set(np.ravel(tokens)) - {0} == bags["Colour"]
