"""The layers that read embedding tables.

This is the place of the sharded engine: `TableLookup` is the only code that reads a
table, and `table` the only variable of one, so sparse updates and an explicit
exchange go in here without a change elsewhere. Today the gather is XLA's and the
gradient is dense, so a step's cost grows with the table.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.embedding.table import TableSpec


@keras.saving.register_keras_serializable(package="recsys")
class TableLookup(keras.layers.Layer):
    """Reads rows of one embedding table; no row reads another's.

    Args:
        rows: Rows that mean something; a row outside 0 … `rows` - 1 reads row 0.
        dim: Width of a row [floats].
        n_shards: Devices that the table is split over; rows are padded to a
            multiple of it.
        seed: Seed of the initial values.
    """

    def __init__(
        self, rows: int, dim: int, n_shards: int = 1, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.rows, self.dim, self.n_shards, self.seed = rows, dim, n_shards, seed

    @property
    def spec(self) -> TableSpec:
        """The table that this layer reads."""
        return TableSpec(self.name, self.rows, self.dim)

    def build(self, input_shape: Any = None) -> None:
        """Creates the table `[padded rows, dim]` float32."""
        self.table = self.add_weight(
            name="table",
            shape=(self.spec.padded_rows(self.n_shards), self.dim),
            # The values of a row don't depend on how many rows follow it, so the
            # padding, and with it the number of devices, changes nothing.
            initializer=keras.initializers.RandomNormal(stddev=0.05, seed=self.seed),
        )

    def call(self, rows: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the embeddings `[..., dim]` float32 of `rows` `[...]` int32."""
        known = ops.logical_and(rows >= 0, rows < self.rows)
        return ops.take(self.table, ops.where(known, rows, 0), axis=0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        names = ("rows", "dim", "n_shards", "seed")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="recsys")
class Bag(keras.layers.Layer):
    """Averages the embeddings of a padded bag; row 0 is padding and counts nothing.

    Args:
        length: Entries of a bag; given, the layer learns a weight for each place
            in it (the newest first, say); left out, all entries weigh the same.
    """

    def __init__(self, length: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights of the places `[length]`, all of them equal at first."""
        if self.length is not None:
            self.place = self.add_weight(name="place", shape=(self.length,), initializer="zeros")

    def call(self, rows: keras.KerasTensor, embeddings: keras.KerasTensor) -> keras.KerasTensor:
        """Returns means `[batch, dim]` of `embeddings` `[batch, length, dim]`.

        Args:
            rows: Rows of the entries `[batch, length]` int32; 0 is padding.
            embeddings: Embedding of each entry. An empty bag gives zeros.
        """
        weights = ops.cast(rows > 0, embeddings.dtype)
        if self.length is not None:
            weights = weights * ops.softplus(self.place)
        total = ops.sum(weights, axis=1, keepdims=True)
        summed = ops.sum(embeddings * weights[..., None], axis=1)
        return summed / ops.where(total > 0, total, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "length": self.length}
