"""Our engine under measurement: `ShardedEmbedding` in a `SparseModel`, trained by `fit`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from benchmarks.peers import two_tower_dense as dense_keras
from benchmarks.peers.two_tower_case import LEARNING_RATE, StepClock
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


def build(clock: StepClock, optimizer: str, devices: int) -> TwoTower:
    """Returns the model, on as many devices as the case has."""
    n_devices = keras.distribution.get_device_count()
    if n_devices != devices:
        raise ValueError(f"There must be {devices} devices. Received: {n_devices}.")
    configs = {
        side: embedding.TableConfig(
            side,
            clock.rows,
            clock.dim,
            initializer=dense_keras.initial(),
            optimizer=OPTIMIZERS[optimizer](LEARNING_RATE),
            placement="row",
        )
        for side in ("user", "item")
    }

    if devices > 1:
        embedding.activate(embedding.table_layout(list(configs.values())))
    features = {
        side: embedding.FeatureConfig(side, table, (None,), (None, clock.dim))
        for side, table in configs.items()
    }
    return TwoTower(embedding.ShardedEmbedding(features))


def exchanged(model: TwoTower, clock: StepClock, n: int) -> tuple[float, float]:
    """Returns the bytes that one of `n` devices sends in a step, and the least that it could."""
    ids = clock.ids
    table = model.embed.tables[0]

    def owner(rows: Any) -> Any:
        return table.physical(rows) // (table.n_physical // n)

    sent = sent_bytes(compiled_step(model, ids[0]), ids, owner, n)
    return sent, least_bytes(ids, owner, n, clock.dim)


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


def measure(optimizer: str, devices: int, **case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose other fields `StepClock` takes."""
    clock = StepClock(**case)
    model = build(clock, optimizer, devices)
    dense_keras.fit(model, clock)
    variables = [v for table in model.embed.tables for v in table.variables_by_row]
    state_bytes = sum(int(v.value.nbytes) for v in variables)
    sent = exchanged(model, clock, devices) if devices > 1 else (0.0, 0.0)
    return clock.report(state_bytes, ["keras", "jax"], sent)


# --- Bytes that the exchange sends, from the compiled step and the ids, against the least.


Ids = npt.NDArray[np.int32]
Owner = Callable[[Ids], Ids]

_ALL_TO_ALL = re.compile(r" = (\(.*?\)) all-to-all\(")
_PART = re.compile(r"\b(?:s32|f32)\[([\d,]+)\]")
_ITEMSIZE = 4


def sent_by_capacity(hlo: str) -> dict[int, float]:
    """Returns the bytes that a device sends to others in all exchanges of a capacity.

    Args:
        hlo: The compiled step. On a CPU an all-to-all is a tuple of parts
            `[1, capacity, …]`, one for each device, of which one stays at home.
    """
    by_capacity: dict[int, float] = {}
    for result in _ALL_TO_ALL.findall(hlo):
        parts = [[int(d) for d in shape.split(",")] for shape in _PART.findall(result)]
        sent = sum(math.prod(part) for part in parts[1:]) * _ITEMSIZE
        by_capacity[parts[0][1]] = by_capacity.get(parts[0][1], 0.0) + sent
    return by_capacity


def sent_bytes(hlo: str, ids: Ids, owner: Owner, n_devices: int) -> float:
    """Returns the bytes that a device sends to others in a step, on average over the steps.

    Args:
        hlo: The compiled step; its tables must be alike.
        ids: Rows of each table `[steps, tables, batch]` int32.
        owner: Says which device holds each row.
        n_devices: Devices, each with an equal run of the batch.
    """
    by_capacity = sent_by_capacity(hlo)
    capacities = sorted(by_capacity)
    total = 0.0
    for of_table in ids.reshape(-1, ids.shape[-1]):
        fullest = int(_needs(of_table, owner, n_devices).max())
        wide = next((c for c in capacities if c >= fullest), capacities[-1])
        total += by_capacity[wide] / ids.shape[1] * math.ceil(fullest / wide)
    return total / len(ids)


def least_bytes(ids: Ids, owner: Owner, n_devices: int, dim: int) -> float:
    """Returns the least that a device must send in a step, on average over steps and devices.

    Each distinct row of its part of the batch that lives elsewhere comes once, and its
    gradient goes once: rows · dim · 4 bytes, both ways.
    """
    elsewhere = 0.0
    for of_table in ids.reshape(-1, ids.shape[-1]):
        needs = _needs(of_table, owner, n_devices)
        elsewhere += (needs.sum() - np.trace(needs)) / n_devices
    return 2 * elsewhere / len(ids) * dim * _ITEMSIZE


def _needs(of_table: Ids, owner: Owner, n_devices: int) -> npt.NDArray[np.int64]:
    """Returns how many distinct rows each device needs of each other one `[device, owner]`."""
    parts = [np.unique(part) for part in np.split(of_table, n_devices)]
    return np.stack([np.bincount(owner(part), minlength=n_devices) for part in parts])
