"""The frequency filter of BSARec, for every position of a history."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.models.layers import InputDtypeLayer


@keras.saving.register_keras_serializable(package="recsys")
class FrequencyFilter(InputDtypeLayer):
    """Low frequencies of a history plus its high frequencies, rescaled by learned weights.

    `low + s² (x - low)` with a learned vector s (BSARec: Shin et al., "An Attentive Inductive Bias
    for Sequential Recommendation beyond the Self-Attention", AAAI 2024, equations 8 and 9).

    BSARec takes the Fourier transform of the whole padded history, so older entries depend on newer
    ones, and it trains only the newest entry. Here each entry gets what BSARec computes for the
    newest entry of the history up to it, so an encoder can train at every position. The low-pass
    filter at the end of a window is a sum over its entries, whose weights are precomputed.

    Args:
        length: Length of the window, which zeros precede if the history is shorter [items].
        share: Weight of the output beside that of attention (0..1).
        frequencies: Number of low frequencies, including the mean; at most `length // 2 + 1`.
        seed: Seed of the initial weights.
    """

    def __init__(
        self, length: int, share: float, frequencies: int, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.length, self.share, self.frequencies, self.seed = length, share, frequencies, seed

    def build(self, input_shape: Any) -> None:
        """Creates the weights for entries `[..., dim]`."""
        normal = keras.initializers.RandomNormal(stddev=1.0, seed=self.seed)
        self.scale = self.add_weight(name="scale", shape=(input_shape[-1],), initializer=normal)

    def call(
        self, x: keras.KerasTensor, seen: keras.KerasTensor, mask: keras.KerasTensor
    ) -> keras.KerasTensor:
        """Returns the filtered entries `[batch, n, dim]`, in the dtype of `x`.

        Args:
            x: Entries to filter `[batch, n, dim]`.
            seen: All entries, the newest first `[batch, length, dim]`.
            mask: Whether an entry of `seen` is in the history up to an entry of `x`, including
                itself, bool `[batch, n, length]`.
        """
        lag = ops.maximum(ops.cumsum(ops.cast(mask, "int32"), axis=-1) - 1, 0)
        weights = ops.where(mask, ops.take(self._low_pass(), lag, axis=0), 0.0)
        low = ops.matmul(ops.cast(weights, x.dtype), seen)
        return low + ops.cast(ops.square(self.scale), x.dtype) * (x - low)

    def _low_pass(self) -> np.ndarray:
        """Returns the weight of each lag in the last output of the low-pass filter `[length]`."""
        spectrum = np.zeros(self.length // 2 + 1)
        spectrum[: self.frequencies] = 1.0
        return np.fft.irfft(spectrum, self.length).astype(np.float32)
