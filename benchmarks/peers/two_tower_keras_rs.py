# /// script
# requires-python = "==3.11.*"
# dependencies = ["keras-rs==0.4.0", "keras==3.15.1", "jax==0.10.2", "numpy>=2,<3"]
# ///
"""`keras_rs.layers.DistributedEmbedding` on JAX, which off TPU has dense gradients."""

import keras_rs

from benchmarks.peers import two_tower_dense as dense_keras
from benchmarks.peers.two_tower_case import Case, StepClock


def tables(rows: int, dim: int) -> keras_rs.layers.DistributedEmbedding:
    """Returns the layer with a table for each side."""
    configs = {}
    for side in ("user", "item"):
        table = keras_rs.layers.TableConfig(
            side, rows, dim, initializer=dense_keras.initial(), optimizer="adagrad"
        )
        configs[side] = keras_rs.layers.FeatureConfig(side, table, (None,), (None, dim))
    return keras_rs.layers.DistributedEmbedding(configs)


def main() -> None:
    """Measures the case that the command line names."""
    case = Case.from_command()
    clock = StepClock(case)
    dense_keras.fit(dense_keras.TwoTower(tables(case.rows, case.dim)), clock)
    clock.report(dense_keras.dense_state_bytes(clock), ["keras-rs", "keras", "jax"])


if __name__ == "__main__":
    main()
