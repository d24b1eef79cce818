# /// script
# requires-python = "==3.11.*"
# dependencies = ["keras==3.15.1", "jax==0.10.2", "numpy>=2,<3"]
# ///
"""`keras.layers.Embedding` on JAX, as it comes."""

import keras

from benchmarks.peers import two_tower_dense as dense_keras
from benchmarks.peers.two_tower_case import Case, StepClock


class Tables(keras.layers.Layer):
    """A table for each side."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.tables = {
            side: keras.layers.Embedding(rows, dim, dense_keras.initial(), name=side)
            for side in ("user", "item")
        }

    def call(self, ids: dict[str, keras.KerasTensor]) -> dict[str, keras.KerasTensor]:
        """Returns the rows `[batch, dim]` of ids `[batch]`."""
        return {side: self.tables[side](ids[side]) for side in self.tables}


def main() -> None:
    """Measures the case that the command line names."""
    case = Case.from_command()
    clock = StepClock(case)
    dense_keras.fit(dense_keras.TwoTower(Tables(case.rows, case.dim)), clock)
    clock.report(dense_keras.dense_state_bytes(clock), ["keras", "jax"])


if __name__ == "__main__":
    main()
