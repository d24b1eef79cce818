"""Every kind of towers on eight devices: the same loss and weights as on one."""

import keras
import numpy as np
import pytest
from tower_models import BARE, POOLINGS, batch, run

from recsys.config import TwoTowerConfig
from recsys.embedding import Adagrad, activate, table_layout, verify_placement
from recsys.models import ModelSpec, TwoTower

pytestmark = pytest.mark.slow

USERS, ITEMS = 5000, 6000


def after_steps(options, devices):
    """Returns the losses of two steps, the weights after them and what these give."""
    config = TwoTowerConfig(dim=8, history=5, table_placement="row", **options)
    spec = ModelSpec(config=config, user_rows=USERS, item_rows=ITEMS, features=())
    tables = TwoTower.make_tables(spec, Adagrad(0.1))
    layout = None
    if devices > 1:
        layout = table_layout(list(tables.values()))
        activate(layout)
    model = TwoTower(spec, tables, seed=3)
    model.build()
    model.compile(optimizer=keras.optimizers.SGD(0.5), jit_compile=True)
    if layout is not None:
        placements = verify_placement(model, layout)
        assert {placement.shards for placement in placements} == {8}
    batches = [batch(n=16, m=24, seed=seed) for seed in range(2)]
    losses = [model.train_on_batch(x, return_dict=True)["loss"] for x in batches]
    # Tables are larger than what a step reads of them, so the proof is of something.
    assert set(model.step_proof.tables) == set(tables)
    weights = {v.path: np.asarray(v.value) for v in model.trainable_variables}
    tables_now = model.embedding.get_embedding_tables()
    return losses, {**weights, **tables_now, "served": run(model, "embed_query", batches[0])}


def test_one_and_eight_devices_train_alike():
    options = {**BARE, **POOLINGS["two blocks"], "item_bias": True}
    losses, expected = after_steps(options, 1)
    on_eight, found = after_steps(options, 8)
    np.testing.assert_allclose(on_eight, losses, atol=1e-5)
    assert found.keys() == expected.keys()
    for path, weights in expected.items():
        np.testing.assert_allclose(found[path], weights, atol=1e-5, err_msg=path)
