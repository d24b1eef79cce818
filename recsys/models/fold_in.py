"""Users solved from their histories at query time, as implicit ALS folds in new users."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.models.encoders import HistoryEncoder
from recsys.registry import register_encoder


@register_encoder("fold_in")
@keras.saving.register_keras_serializable(package="recsys")
class FoldIn(HistoryEncoder):
    """Solves for the user vector with the least loss, given the trained item vectors.

    Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM 2008,
    equation 4. For the n items y of a history, `G = mean y yᵀ` over the training items, and weights
    w and λ, it solves for u in

        (Σ y yᵀ  +  w n G  +  λ √n I) u  =  Σ y

    which minimises `Σ (1 - u · y)² + w n mean (u · y)² + λ √n |u|²`. This is
    `recsys.losses.least_squares` for one user, except that the squared norm is weighted by the root
    of n (Rendle et al., RecSys 2022, use a power of the frequency, by default the first). An item
    that occurs twice counts twice.

    Args:
        length: Items of a history.
        dim: Width of an item and of the vector [floats].
        negative_weight: The weight w.
        regularisation: The weight λ.
        seed: Unused.
    """

    def __init__(
        self,
        length: int,
        dim: int,
        negative_weight: float = 6.0,
        regularisation: float = 0.6,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(length, dim, seed, **kwargs)
        self.negative_weight, self.regularisation = negative_weight, regularisation

    def build(self, input_shape: Any = None) -> None:
        """Creates the Gramian `[dim, dim]`, which `settle` sets and training doesn't change."""
        self.gramian = self.add_weight(
            name="gramian", shape=(self.dim, self.dim), initializer="zeros", trainable=False
        )

    def settle(self, items: Iterable[np.ndarray]) -> None:
        """Sets the Gramian.

        Args:
            items: Vectors of the training items, in blocks `[n, dim]` float32.
        """
        total, count = np.zeros((self.dim, self.dim)), 0
        for block in items:
            total += block.T @ block
            count += len(block)
        self.gramian.assign((total / max(1, count)).astype(np.float32))

    def call(
        self, items: keras.KerasTensor, rows: keras.KerasTensor, training: bool = False
    ) -> keras.KerasTensor:
        """Returns the solutions `[batch, dim]` float32; 0 for an empty history.

        Args:
            items: Item vectors `[batch, length, dim]` float32.
            rows: Their rows `[batch, length]`; 0 for none.
            training: Ignored.
        """
        is_item = ops.cast(rows > 0, "float32")
        items = items * is_item[..., None]
        n = ops.maximum(ops.sum(is_item, axis=1), 1.0)[:, None, None]
        system = ops.matmul(ops.transpose(items, (0, 2, 1)), items)
        system = system + self.negative_weight * n * ops.convert_to_tensor(self.gramian)
        system = system + self.regularisation * ops.sqrt(n) * ops.eye(self.dim)
        return _solved(system, ops.sum(items, axis=1))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {name: getattr(self, name) for name in ("negative_weight", "regularisation")}
        return {**super().get_config(), **own}


def _solved(system: keras.KerasTensor, sums: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the x `[batch, dim]` of `system` `[batch, dim, dim]` x = `sums` `[batch, dim]`."""
    if _lapack_can_hang():
        return _eliminated(system, sums)
    return ops.solve(system, sums[..., None])[..., 0]


def _lapack_can_hang() -> bool:
    """Returns whether several devices share the threads that LAPACK waits for.

    In jaxlib 0.10, each device's batch of systems holds a thread of the pool while it waits for
    other threads of the same pool. With as many devices as threads this is a deadlock.
    """
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "cpu" and jax.local_device_count() > 1


def _eliminated(system: keras.KerasTensor, sums: keras.KerasTensor) -> keras.KerasTensor:
    """Solves by Gauss-Jordan elimination, without pivoting: the systems are positive definite."""
    rows = ops.concatenate([system, sums[..., None]], axis=-1)
    places = ops.arange(system.shape[1])

    def eliminate(k: keras.KerasTensor, rows: keras.KerasTensor) -> keras.KerasTensor:
        row, column = ops.take(rows, k, axis=1), ops.take(rows, k, axis=2)
        row = row / ops.take(row, k, axis=1)[:, None]
        others = rows - column[..., None] * row[:, None]
        return ops.where((places == k)[None, :, None], row[:, None], others)

    return ops.fori_loop(0, system.shape[1], eliminate, rows)[..., -1]
