"""Our engine under measurement: `ShardedEmbedding` in a `SparseModel`, trained by `fit`."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
from keras import ops

from benchmarks.two_tower_step import dense_keras, traffic
from benchmarks.two_tower_step.case import LEARNING_RATE, Case
from benchmarks.two_tower_step.clock import StepClock, read_case
from recsys import embedding
from recsys.losses import sampled_softmax

OPTIMIZERS = {
    "rowwise_adagrad": embedding.RowWiseAdagrad,
    "adagrad": embedding.Adagrad,
    "sgd": embedding.SGD,
    "lazy_adam": embedding.LazyAdam,
    "ftrl": embedding.Ftrl,
}
TEMPERATURE = 1.0


class TwoTower(embedding.SparseModel):
    """The two towers over sharded tables."""

    def __init__(self, embed: embedding.ShardedEmbedding) -> None:
        super().__init__()
        self.embed = embed
        self.users, self.items = dense_keras.tower(), dense_keras.tower()

    def call(self, ids: dict[str, keras.KerasTensor]) -> dict[str, keras.KerasTensor]:
        """Returns the embeddings `[batch, 64]` of ids `[batch]`."""
        rows = self.embed(ids)
        return {"query": self.users(rows["user"]), "candidate": self.items(rows["item"])}

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        """Returns the in-batch softmax; unlike the peers' it also masks accidental hits."""
        item = ops.cast(x["item"], "int32")
        log_q = ops.zeros(item.shape, "float32")
        return sampled_softmax(y_pred["query"], y_pred["candidate"], item, log_q, TEMPERATURE)


def tables(case: Case) -> dict[str, embedding.TableConfig]:
    """Returns the configs of the two tables."""
    return {
        side: embedding.TableConfig(
            side,
            case.rows,
            case.dim,
            initializer=dense_keras.initial(),
            optimizer=OPTIMIZERS[case.optimizer](LEARNING_RATE),
            placement="row",
        )
        for side in ("user", "item")
    }


def build(case: Case) -> TwoTower:
    """Returns the model, on as many devices as the case has."""
    n_devices = keras.distribution.get_device_count()
    if n_devices != case.devices:
        raise ValueError(f"There must be {case.devices} devices. Received: {n_devices}.")
    configs = tables(case)
    if case.devices > 1:
        embedding.activate(embedding.table_layout(list(configs.values())))
    features = {
        side: embedding.FeatureConfig(side, table, (None,), (None, case.dim))
        for side, table in configs.items()
    }
    return TwoTower(embedding.ShardedEmbedding(features))


def state_bytes(model: TwoTower) -> int:
    """Returns the bytes of the tables and their slots, over all devices."""
    variables = [v for table in model.embed.tables for v in table.variables_by_row]
    return sum(int(v.value.nbytes) for v in variables)


def exchanged(model: TwoTower, case: Case) -> tuple[float, float]:
    """Returns the bytes that a device sends in a step, and the least that it could."""
    ids, n = np.load(case.ids), case.devices
    table = model.embed.tables[0]

    def owner(rows: Any) -> Any:
        return table.physical(rows) // (table.n_physical // n)

    sent = traffic.sent_bytes(compiled_step(model, ids[0]), ids, owner, n)
    return sent, traffic.least_bytes(ids, owner, n, case.dim)


def compiled_step(model: TwoTower, batch: Any) -> str:
    """Returns the program of a training step on `batch` `[2, batch]`, as `fit` compiles it."""
    names = ("trainable", "non_trainable", "optimizer", "metrics")
    state = model._get_jax_state(**{f"{name}_variables": True for name in names})
    distribution = keras.distribution.distribution()
    features = {
        side: keras.distribution.distribute_tensor(ids, distribution.get_data_layout(ids.shape))
        for side, ids in zip(("user", "item"), batch, strict=True)
    }
    step = jax.jit(model.train_step, donate_argnums=0)
    return step.lower(state, (features,)).compile().as_text() or ""


def main() -> None:
    """Measures the case that the command line names."""
    case = read_case()
    clock = StepClock(case)
    model = build(case)
    dense_keras.fit(model, clock)
    traffic = exchanged(model, case) if case.devices > 1 else (0.0, 0.0)
    clock.report(state_bytes(model), ["keras", "jax"], *traffic)


if __name__ == "__main__":
    main()
