"""Tables: safe rows, bags, and the proof that the devices hold what was planned."""

import keras
import numpy as np
import pytest

from recsys.embedding import Bag, TableLookup, TableSpec, activate, prove_placement, table_layout
from recsys.errors import RecsysError


@pytest.fixture
def layout():
    layout = table_layout()
    activate(layout)
    yield layout
    keras.distribution.set_distribution(None)


@pytest.fixture
def lookup():
    layer = TableLookup(8, 3, n_shards=5, name="items")
    layer.build()
    return layer


@pytest.mark.parametrize(
    ("row", "read"),
    [(0, 0), (7, 7), (8, 0), (9, 0), (-1, 0), (2**31 - 1, 0), (-(2**31), 0)],
    ids=["first", "last", "padding row", "past the padding", "negative", "int32-max", "int32-min"],
)
def test_a_row_outside_the_table_reads_row_zero(lookup, row, read):
    table = np.asarray(lookup.table)
    assert table.shape == (10, 3)
    assert np.array_equal(np.asarray(lookup(np.array([row], np.int32)))[0], table[read])


@pytest.mark.parametrize("n_shards", [2, 4, 8])
def test_the_number_of_shards_changes_no_initial_value(n_shards):
    tables = []
    for n in (1, n_shards):
        layer = TableLookup(13, 4, n_shards=n, seed=5)
        layer.build()
        tables.append(np.asarray(layer.table)[:13])
    assert np.array_equal(*tables)


@pytest.mark.parametrize(
    ("rows", "n_shards", "padded", "n_bytes"),
    [(10, 1, 10, 320), (10, 8, 16, 64), (16, 8, 16, 64), (1, 4, 4, 32)],
)
def test_padding_makes_equal_shards(rows, n_shards, padded, n_bytes):
    spec = TableSpec("t", rows, 8)
    assert spec.padded_rows(n_shards) == padded
    assert spec.bytes_per_device(n_shards) == n_bytes


def test_a_bag_is_the_mean_of_its_entries_and_an_empty_one_is_zero():
    rows = np.array([[1, 2, 0], [0, 0, 0]], np.int32)
    embeddings = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    means = np.asarray(Bag()(rows, embeddings))
    assert np.allclose(means[0], embeddings[0, :2].mean(axis=0))
    assert np.array_equal(means[1], np.zeros(3))


def test_a_bag_with_places_weighs_by_the_softplus_of_what_it_learned():
    bag = Bag(length=2)
    bag.build()
    bag.place.assign(np.log(np.expm1(np.array([3.0, 1.0]))))
    embeddings = np.array([[[1.0], [5.0]]], np.float32)
    assert float(bag(np.array([[4, 9]]), embeddings)[0, 0]) == pytest.approx((3 * 1 + 5) / 4)


class Model(keras.Model):
    def __init__(self, table_name="table"):
        super().__init__()
        self.items = TableLookup(100, 4, n_shards=8, name="items")
        self.dense = keras.layers.Dense(2, name="dense")
        self.items.build()
        if table_name != "table":
            self.items.table._path = f"items/{table_name}"
        self.dense.build((None, 8))
        self.built = True


def test_eight_devices_hold_an_eighth_of_the_table_each(layout):
    (placement,) = prove_placement(Model(), layout)
    assert placement.shards == 8
    assert placement.padded_rows == 104
    assert placement.bytes_per_device == 13 * 4 * 4


def test_a_table_that_matches_no_rule_stops_the_build(layout):
    with pytest.raises(RecsysError, match=r"R301.*'items/rows'.*exactly one layout rule"):
        prove_placement(Model(table_name="rows"), layout)


def test_a_table_that_every_device_holds_whole_stops_the_build(layout):
    keras.distribution.set_distribution(None)
    with pytest.raises(RecsysError, match=r"R302.*208 bytes of table 'items'"):
        prove_placement(Model(), layout)


def test_a_tower_that_a_rule_would_split_stops_the_build(layout):
    layout[r"dense/kernel"] = ("devices", None)
    with pytest.raises(RecsysError, match=r"R301.*'dense/kernel'.*no table"):
        prove_placement(Model(), layout)
