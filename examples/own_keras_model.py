"""A DLRM on the embedding engine: any Keras model, plain `compile` and `fit`.

Synthetic clicks in the shape of Criteo's: 13 numbers and 26 ids an impression, tables of up
to a million rows. A step costs what its batch costs, and the first one checks that it does.

    KERAS_BACKEND=jax python examples/own_keras_model.py
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/own_keras_model.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import keras_rs
import numpy as np

from recsys import embedding

DIM, DENSE, BATCH = 16, 13, 1024
ROWS = [10 ** (2 + n % 5) for n in range(26)]  # 100 to a million ids a feature.
TABLES = {
    f"c{n}": embedding.TableConfig(f"c{n}", rows, DIM, optimizer=embedding.RowWiseAdagrad(0.3))
    for n, rows in enumerate(ROWS)
}


class DLRM(embedding.SparseModel):
    """Deep learning recommendation model (Naumov et al., arXiv:1906.00091)."""

    def __init__(self):
        super().__init__(name="dlrm")
        shapes = (None,), (None, DIM)
        self.embedding = embedding.ShardedEmbedding(
            {name: embedding.FeatureConfig(name, table, *shapes) for name, table in TABLES.items()}
        )
        self.bottom = keras.Sequential([keras.layers.Dense(n, "relu") for n in (64, DIM)])
        self.dot = keras_rs.layers.DotInteraction()
        self.top = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])

    def call(self, inputs):
        """Returns the logit of a click `[batch, 1]`."""
        dense = self.bottom(inputs["dense"])
        rows = self.embedding({name: inputs[name] for name in TABLES})
        pairs = self.dot([dense, *rows.values()])
        return self.top(keras.ops.concatenate([dense, pairs], axis=-1))


def clicks(n, seed):
    """Returns features of `n` impressions and whether each was clicked `[n, 1]`."""
    rng = np.random.default_rng(seed)
    x = {f"c{i}": (rows * rng.random(n) ** 3).astype(np.int64) for i, rows in enumerate(ROWS)}
    x["dense"] = rng.lognormal(size=(n, DENSE)).astype(np.float32)
    taste = np.sin(x["c0"]) * np.sin(x["c5"])  # What there is to learn: two ids together.
    logit = 4 * taste + np.log(x["dense"][:, 0])
    return x, (rng.random(n) < 1 / (1 + np.exp(-logit)))[:, None].astype(np.float32)


def main(steps=100):
    """Trains, and returns the AUC on impressions that the model has not seen."""
    keras.utils.set_random_seed(0)
    layout = embedding.table_layout(list(TABLES.values()))
    embedding.activate(layout)
    model = DLRM()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=[keras.metrics.AUC(from_logits=True)])
    model.fit(*clicks(steps * BATCH, seed=1), batch_size=BATCH, epochs=1, verbose=2)
    for placement in embedding.verify_placement(model, layout):
        print(f"{placement.table}: {placement.rows:,} rows, {placement.shards} shards")
    print(model.step_proof)
    return model.evaluate(*clicks(8 * BATCH, seed=2), batch_size=BATCH, verbose=0)[1]


if __name__ == "__main__":
    print(f"AUC {main():.3f}")
