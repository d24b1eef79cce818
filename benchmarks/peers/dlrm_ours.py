"""A DLRM over our engine under measurement, trained by `fit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from benchmarks.peers.dlrm_case import BOTTOM, LEARNING_RATE, TABLES, TOP, examples
from benchmarks.peers.two_tower_case import INITIAL, StepClock
from recsys import embedding
from recsys.models.interactions import DotInteraction

NAMES = [f"c{n}" for n in range(TABLES)]


class DLRM(embedding.SparseModel):
    """The layers over `embed`, from ids by name to rows."""

    def __init__(self, embed: Any, dim: int) -> None:
        super().__init__()
        self.embed, self.dim = embed, dim
        self.bottom, self.top = (
            keras.Sequential([keras.layers.Dense(n, "relu") for n in widths])
            for widths in (BOTTOM, TOP)
        )
        self.pairs, self.out = DotInteraction(), keras.layers.Dense(1)

    def call(self, x: dict[str, Any]) -> Any:
        """Returns the logits `[batch]`."""
        bottom = self.bottom(x["numbers"])
        rows = list(self.embed({name: x[name] for name in NAMES}).values())
        pairs = self.pairs(ops.stack([bottom, *rows], axis=1))
        return self.out(self.top(ops.concatenate([bottom, pairs], axis=-1)))[:, 0]


def plain_tables(rows: int, dim: int) -> keras.Model:
    """Returns Keras' tables as a model from ids by name to rows."""
    ids = {name: keras.Input((), dtype="int32", name=name) for name in NAMES}
    tables = {name: keras.layers.Embedding(rows, dim, _initial(n)) for n, name in enumerate(NAMES)}
    return keras.Model(ids, {name: tables[name](ids[name]) for name in NAMES})


def sharded_tables(rows: int, dim: int, optimizer: Any) -> embedding.ShardedEmbedding:
    """Returns our tables."""
    tables = [
        embedding.TableConfig(
            name, rows, dim, optimizer=optimizer, placement="row", initializer=_initial(n)
        )
        for n, name in enumerate(NAMES)
    ]
    shapes = (None,), (None, dim)
    return embedding.ShardedEmbedding(
        {t.name: embedding.FeatureConfig(t.name, t, *shapes) for t in tables}
    )


def _initial(seed: int) -> keras.initializers.Initializer:
    return keras.initializers.RandomUniform(-INITIAL, INITIAL, seed=seed)


def fit(model: keras.Model, clock: StepClock) -> None:
    """Trains `model` until all is measured."""

    def batches() -> Iterator[tuple[dict[str, Any], Any]]:
        for ids, numbers, label in examples(clock):
            yield {**dict(zip(NAMES, ids, strict=True)), "numbers": numbers}, label

    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adagrad(LEARNING_RATE), loss, jit_compile=True)
    model.fit(batches(), epochs=1, verbose=0, callbacks=[clock.callback(keras)])


def measure(devices: int, **case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose other fields `StepClock` takes."""
    clock = StepClock(**case)
    assert keras.distribution.get_device_count() == devices  # noqa: S101
    embed = sharded_tables(clock.rows, clock.dim, embedding.RowWiseAdagrad(LEARNING_RATE))
    fit(DLRM(embed, clock.dim), clock)
    variables = [v for table in embed.tables for v in table.variables_by_row]
    return clock.report(sum(int(v.value.nbytes) for v in variables), ["keras", "jax"])


def losses(plain: bool, **case: Any) -> list[float]:
    """Returns the loss of each step, with Adagrad for all weights and equal initial ones."""
    clock = StepClock(**case)
    keras.utils.set_random_seed(0)
    sizes = clock.rows, clock.dim
    embed = (
        plain_tables(*sizes) if plain else sharded_tables(*sizes, embedding.Adagrad(LEARNING_RATE))
    )
    fit(DLRM(embed, clock.dim), clock)
    return [float(loss) for loss in clock.report(0, [])["losses"]]
