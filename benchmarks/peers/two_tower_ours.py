"""Our engine under measurement: `ShardedEmbedding` in a `SparseModel`, trained by `fit`."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from benchmarks.peers import two_tower_keras as in_keras
from benchmarks.peers.two_tower_case import LEARNING_RATE, StepClock
from recsys import embedding
from recsys.losses import SampledSoftmax


class TwoTower(embedding.SparseModel):
    """The two towers over sharded tables."""

    def __init__(self, embed: embedding.ShardedEmbedding) -> None:
        super().__init__()
        self.embed = embed
        self.users, self.items = in_keras.tower(), in_keras.tower()

    def call(self, ids: dict[str, keras.KerasTensor]) -> dict[str, keras.KerasTensor]:
        """Returns the embeddings `[batch, 64]` of ids `[batch]`."""
        rows = self.embed(ids)
        return {"query": self.users(rows["user"]), "candidate": self.items(rows["item"])}

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        """Returns the in-batch softmax; unlike the peers' it also masks accidental hits."""
        item = ops.cast(x["item"], "int32")
        log_q = ops.zeros(item.shape, "float32")
        return SampledSoftmax()(y_pred["query"], y_pred["candidate"], item, log_q, temperature=1.0)


def build(clock: StepClock, devices: int) -> TwoTower:
    """Returns the model, on as many devices as the case has."""
    assert keras.distribution.get_device_count() == devices  # noqa: S101
    optimizer = embedding.RowWiseAdagrad(LEARNING_RATE)
    options: dict[str, Any] = {"optimizer": optimizer, "placement": "row"}
    options["initializer"] = in_keras.initial()
    sizes = clock.rows, clock.dim
    tables = [embedding.TableConfig(side, *sizes, **options) for side in in_keras.SIDES]
    if devices > 1:
        embedding.activate(embedding.table_layout(tables))
    shapes = (None,), (None, clock.dim)
    features = {t.name: embedding.FeatureConfig(t.name, t, *shapes) for t in tables}
    return TwoTower(embedding.ShardedEmbedding(features))


def measure(devices: int, **case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose other fields `StepClock` takes."""
    clock = StepClock(**case)
    model = build(clock, devices)
    in_keras.fit(model, clock)
    variables = [v for table in model.embed.tables for v in table.variables_by_row]
    state_bytes = sum(int(v.value.nbytes) for v in variables)
    return clock.report(state_bytes, ["keras", "jax"])
