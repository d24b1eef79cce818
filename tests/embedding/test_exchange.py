"""Every optimizer and placement against float64 loops."""

import numpy as np
import pytest
from embedding_meshes import (
    NATIVE,
    Lookup,
    compiled,
    on_mesh,
    row_operations,
    train_both,
)

from recsys.embedding import (
    SGD,
    Adagrad,
    Ftrl,
    LazyAdam,
    RowWiseAdagrad,
    TableConfig,
)

ROWS, DIM, BATCH, LENGTH = 20, 4, 16, 4
OPTIMIZERS = {
    "sgd": SGD(0.1, weight_decay=0.1),
    "adagrad": Adagrad(0.2),
    "row_wise_adagrad": RowWiseAdagrad(0.2, clipnorm=0.05),
    "lazy_adam": LazyAdam(0.02),
    "ftrl": Ftrl(0.2, l1_regularization_strength=0.002, l2_shrinkage_regularization_strength=0.1),
}
COMBINERS = ("sum", "mean", "sqrtn", "max")
PAIRS = [(o, COMBINERS[n % 4]) for n, o in enumerate(OPTIMIZERS)]
# Each placement on some mesh, both kinds of row operations.
CASES = [
    pytest.param(("row", "8", "native"), marks=NATIVE.marks),
    ("column", "2×2", "pure"),
    ("replicated", "2×2", "pure"),
    pytest.param(("row", "one device", "native"), marks=[*NATIVE.marks, pytest.mark.thorough]),
    pytest.param(("row", "2×2", "pure"), marks=pytest.mark.thorough),
]


def tables(placement):
    return [
        TableConfig(f"{o}_{c}", ROWS, DIM, optimizer=OPTIMIZERS[o], combiner=c, placement=placement)
        for o, c in PAIRS
    ]


def batches(names, n):
    """Random bags, and what goes wrong: each once in every batch."""
    rng = np.random.default_rng(5)
    for _ in range(n):
        x = {}
        for name in names:
            ids = rng.integers(0, ROWS, (BATCH, LENGTH))
            # Quarters, so that weights which cancel out do so exactly in any order.
            weight = rng.choice([0, 0.5, 0.75, 1, 2, -0.25], (BATCH, LENGTH))
            ids[0] = 7  # Duplicates in a bag, and one id
            ids[[1, 5, 9, 13], 0] = 7  # on every device.
            ids[2], ids[3, :2] = [-1, ROWS, 2**31 - 1, -(2**31)], ROWS + 3
            weight[4] = 0
            weight[6] = [1, -1, 0.5, -0.5]
            weight[7, 1:] = [np.nan, np.inf, -np.inf]
            x[name], x[f"{name}_weight"] = ids.astype(np.int32), weight.astype(np.float32)
        yield x, rng.normal(size=(BATCH, DIM * len(names))).astype(np.float32)


@pytest.fixture(scope="module", params=CASES, ids=", ".join)
def trained(request):
    placement, mesh, kind = request.param
    features = {t.name: t for t in tables(placement)}
    with on_mesh(mesh, features.values()), row_operations(kind):
        model = compiled(Lookup(features, seed=3))
        model.build()
        references = model.reference()
        steps = list(batches(features, 3))
        train_both(model, references, steps)
        return model.state(), references


@pytest.mark.parametrize(("optimizer", "combiner"), PAIRS)
def test_a_table_on_any_mesh_is_what_the_mathematics_says(trained, optimizer, combiner):
    state, references = trained
    name = f"{optimizer}_{combiner}"
    reference = references[name]
    for found, expected in zip(state[name], [reference.weights, *reference.slots], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
