"""Trains a model with each row optimizer on the devices of JAX, and saves what came out.

`python all_optimizers.py FILE`. The tables have far more rows than a batch has ids, so that
each step is checked.
"""

import sys

import jax
import keras
import numpy as np

from recsys import embedding
from recsys.embedding import optimizers

ROWS, DIM, BATCH, LENGTH, STEPS = 50_000, 16, 64, 6, 4
SHAPES = {"user": (), "history": (LENGTH,), "item": ()}
CASES = {
    "sgd": (optimizers.SGD(0.1), "sum", "float32"),
    "adagrad": (optimizers.Adagrad(0.1), "max", "float32"),
    "row-wise": (optimizers.RowWiseAdagrad(0.1), "mean", "float32"),
    "bfloat16": (optimizers.RowWiseAdagrad(0.1), "mean", "bfloat16"),
    "adam": (optimizers.LazyAdam(0.01, clipnorm=0.1), "sqrtn", "float32"),
    "ftrl": (optimizers.Ftrl(0.05), "mean", "float32"),
}


class TwoTowers(embedding.SparseModel):
    def __init__(self, optimizer, combiner, dtype):
        super().__init__()
        options = {"optimizer": optimizer, "combiner": combiner, "dtype": dtype}
        users, items = (
            embedding.TableConfig(name, ROWS, DIM, **options) for name in ("users", "items")
        )
        tables = {"user": users, "history": items, "item": items}
        self.embedding = embedding.ShardedEmbedding(
            {
                name: embedding.FeatureConfig(name, table, (None, *SHAPES[name]), (None, DIM))
                for name, table in tables.items()
            }
        )
        self.tower = keras.layers.Dense(DIM)

    def call(self, ids):
        weights = {"user": None, "history": ids["history"] > 0, "item": None}
        rows = self.embedding(ids, weights=weights)
        query = self.tower(keras.ops.concatenate([rows["user"], rows["history"]], axis=-1))
        return keras.ops.matmul(query, keras.ops.transpose(rows["item"]))


def trained(optimizer, combiner, dtype):
    """Returns the tables, and the loss."""
    keras.utils.set_random_seed(0)
    model = TwoTowers(optimizer, combiner, dtype)
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    draw = np.random.default_rng(0)
    ids = {
        name: np.minimum(draw.zipf(1.3, (STEPS * BATCH, *shape)), ROWS - 1)
        for name, shape in SHAPES.items()
    }
    positive = np.arange(STEPS * BATCH) % BATCH
    history = model.fit(ids, positive, batch_size=BATCH, shuffle=False, verbose=0).history
    assert set(model.step_proof.tables) == {"users", "items"}
    tables = model.embedding.get_embedding_tables()
    return {"loss": np.array(history["loss"]), **tables}


def main(path):
    """Writes the results of all cases."""
    found = {}
    with jax.default_matmul_precision("float32"):
        for case, options in CASES.items():
            found |= {f"{case} {name}": array for name, array in trained(*options).items()}
    np.savez(path, platform=np.array(jax.devices()[0].platform), **found)


if __name__ == "__main__":
    main(sys.argv[1])
