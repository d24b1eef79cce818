"""Chunks that are too narrow: more rounds, counted, and the same numbers."""

import jax
import keras
import numpy as np
import pytest
from embedding_meshes import (
    Lookup,
    assert_equal,
    bags_of,
    compiled,
    on_mesh,
    read_references,
    step_references,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from recsys.embedding import Adagrad, TableConfig, row_exchange
from recsys.embedding.sharding import SLOTS, padded_rows, physical_rows

ROWS, DIM = 20, 4
MANY = 3 * SLOTS


@pytest.fixture(scope="module")
def eight():
    start = keras.initializers.Constant(0.25)
    table = TableConfig("t", MANY, DIM, initializer=start, optimizer=Adagrad(0.1), placement="row")
    with on_mesh("8", [table]):
        model = compiled(Lookup({"id": table, "bag": table}))
        model.build()
        yield model, [(np.asarray(v.value), v.value.sharding) for v in model.weights]


@pytest.fixture
def wide(eight):
    """A model on eight devices, as it was at first."""
    model, values = eight
    for variable, value in zip(model.weights, values, strict=True):
        variable.assign(jax.device_put(*value))
    return model


def of_one_device(n):
    """Returns n rows that the first of eight devices holds."""
    rows = np.arange(MANY)
    return rows[physical_rows(rows, MANY) < MANY // 8][:n]


@pytest.mark.parametrize(
    ("ids", "extra"),
    [
        # 32 ids for each device, room for 16 in the widest chunk: two rounds.
        (np.tile(of_one_device(32), 8), 1),
        (np.repeat(of_one_device(8), 32), 0),
        (np.arange(256), 0),
        (np.full(256, 5), 0),
        (np.full(256, MANY), 0),
    ],
    ids=["all on one device", "8 a device", "spread", "one hot id", "all unknown"],
)
def test_what_does_not_fit_a_chunk_takes_more_rounds_and_loses_nothing(wide, ids, extra):
    """Numbers are small multiples of powers of 2: no order of summing rounds them."""
    rng = np.random.default_rng(0)
    bags = np.stack([rng.permutation(ids), rng.permutation(ids)], axis=1)
    x = {"id": ids.astype(np.int32), "bag": bags.astype(np.int32)}
    y = (rng.integers(-32, 32, (256, 2 * DIM)) / 16).astype(np.float32)
    references = wide.reference()
    wide.reset_metrics()
    logs = wide.train_on_batch(x, y, return_dict=True)
    assert logs["exchange_overflows"] == extra
    known = bags_of(wide.features, references, x)
    step_references(wide.features, references, known, y)
    assert_equal(wide, references)
    expected = read_references(wide.features, references, known)
    np.testing.assert_allclose(wide.predict_on_batch(x), expected, rtol=1e-6, atol=1e-6)
    wide.reset_metrics()
    assert wide.test_on_batch(x, y, return_dict=True)["exchange_overflows"] == extra


def rows_and_nodes(sharding, bags, options, places):
    """Single ids as rows and bags by nodes: their gradients come to a row by two exchanges."""
    return "rows" if bags.is_single else "nodes"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("max", "auto"), id="ids"),
        pytest.param(("mean", "rows"), id="bags", marks=pytest.mark.thorough),
        pytest.param(("mean", "both"), id="nodes"),
    ],
)
def narrow(request):
    """A model on eight devices whose chunks hold one id: nearly every batch overflows."""
    combiner, exchange = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_exchange.Exchange, "capacities", lambda exchange, n: (1,))
        if exchange == "both":
            patch.setattr("recsys.embedding.exchange.way_of", rows_and_nodes)
            exchange = "nodes"
        table = TableConfig(
            "t", ROWS, DIM, optimizer=Adagrad(0.1), combiner=combiner, placement="row",
            exchange=exchange,
        )  # fmt: skip
        with on_mesh("8", [table], node_devices=4):
            model = compiled(Lookup({"id": table, "bag": table}))
            model.build()
            yield model, {"bag": 2} if exchange == "nodes" else {}


def n_rounds(asked, shard_rows):
    """Number of rounds until every device has its rows, with one row per owner and round."""
    most = 1
    for first in range(0, 8 * shard_rows, shard_rows):
        here = [
            sorted({p - first for p in places if 0 <= p - first < shard_rows}) for places in asked
        ]
        covered, count = 0, 0
        while covered < shard_rows:
            left = [[place for place in places if place >= covered] for places in here]
            covered = min([places[1] for places in left if len(places) > 1], default=shard_rows)
            count += 1
        most = max(most, count)
    return most


def by_part(bags, n_parts):
    """Returns the rows that each of eight devices, or of two nodes, requests."""
    padded = padded_rows(ROWS, 8)
    per_part = len(bags) // n_parts
    return [
        [physical_rows(row, padded) for bag in bags[n : n + per_part] for row, _ in bag]
        for n in range(0, len(bags), per_part)
    ]


@settings(max_examples=30)
@given(
    arrays.arrays(np.int32, 16, elements=st.integers(-1, ROWS)),
    arrays.arrays(np.int32, (16, 3), elements=st.integers(-1, ROWS)),
    arrays.arrays(np.float32, (16, 3), elements=st.sampled_from([0, 1, 0.5])),
)
def test_chunks_of_one_id_give_the_same_numbers(narrow, ids, bags, weights):
    narrow, n_parts = narrow
    references = narrow.reference()
    accumulator = narrow.state()["t"][1]
    references["t"].slots[0] = accumulator.astype(np.float64)
    x = {"id": ids, "bag": bags, "bag_weight": weights}
    y = np.full((16, 2 * DIM), 0.5, np.float32)
    known = bags_of(narrow.features, references, x)
    expected = read_references(narrow.features, references, known)
    np.testing.assert_allclose(narrow.predict_on_batch(x), expected, rtol=1e-6, atol=1e-6)
    narrow.reset_metrics()
    logs = narrow.train_on_batch(x, y, return_dict=True)
    extra = [
        n_rounds(by_part(known[name], n_parts.get(name, 8)), SLOTS // 8) - 1
        for name in ("id", "bag")
    ]
    assert logs["exchange_overflows"] == sum(extra)
    step_references(narrow.features, references, known, y)
    assert_equal(narrow, references)
