"""Attention of candidates over a history.

The score of a candidate doesn't depend on the other candidates of its query. A history `[batch,
length]` has the newest entry first. Padding, at any position, has no weight and no gradient.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.models.encoders import masked_softmax
from recsys.models.layers import InputDtypeLayer, Linear, Mlp
from recsys.models.sequences import AttentionBlock


@keras.saving.register_keras_serializable(package="recsys")
class TargetAttention(InputDtypeLayer):
    """Sum of a history, weighted for each candidate (DIN: Zhou et al., KDD 2018, eq. 3).

    For a candidate c, the vector is `Σ a(h_l, c) h_l`. The activation unit a is an MLP of
    `[h, c, h - c, h * c]` with one output, as in the code of DIN; by default it isn't normalised,
    so that the vector's length tells how much of the history is like the candidate. The default
    activation silu is DIN's Dice without its batch statistics.

    Args:
        widths: Hidden widths of the activation unit, at least one [floats].
        activation: Keras name of the activation of the hidden layers.
        softmax: Whether the weights are a softmax over the history.
        dropout: Dropout rate of the activations after the first layer [0..1).
        seed: Seed of the initial weights and of the dropout.
    """

    def __init__(
        self,
        widths: tuple[int, ...] = (64, 32),
        activation: str = "silu",
        softmax: bool = False,
        dropout: float = 0.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.widths, self.softmax = tuple(widths), softmax
        self.first = Linear(self.widths[0], seed=seed, name="first")
        self.hidden = Mlp(self.widths[1:], seed + 1, activation, dropout, name="hidden")
        self.score = Linear(1, seed=seed + len(self.widths), name="score")
        self._activate = keras.activations.get(activation)

    def build(self, input_shape: Any) -> None:
        """Creates the weights for candidates and histories `[..., dim]`."""
        self.first.build((None, 4 * input_shape[-1]))
        self.hidden.build((None, self.widths[0]))
        self.score.build((None, self.widths[-1]))

    def call(
        self,
        candidates: keras.KerasTensor,
        history: keras.KerasTensor,
        mask: keras.KerasTensor,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Returns the weighted sums, of the shape and dtype of `candidates`.

        Args:
            candidates: Candidates of each query `[batch, n, dim]`, or one each `[batch, dim]`.
            history: Entries of the history `[batch, length, dim]`, in the same dtype.
            mask: Whether an entry is an event `[batch, length]` bool.
            training: Whether to apply dropout.
        """
        if len(candidates.shape) == 2:
            return ops.squeeze(self.call(candidates[:, None], history, mask, training), 1)
        x = self._activate(self._first(candidates, history))
        scores = ops.squeeze(self.score(self.hidden(x, training=training)), -1)
        seen = mask[:, None]
        weights = masked_softmax(scores, seen) if self.softmax else ops.where(seen, scores, 0.0)
        return ops.matmul(ops.cast(weights, history.dtype), history)

    def _first(
        self, candidates: keras.KerasTensor, history: keras.KerasTensor
    ) -> keras.KerasTensor:
        """Returns `first([h, c, h - c, h * c])` of each pair `[batch, n, length, width]`.

        Only the product `h * c` is made for each pair: the rest is linear in h and in c.
        """
        h, c, difference, product = ops.split(ops.convert_to_tensor(self.first.kernel), 4)
        dtype = history.dtype
        of_history = ops.matmul(history, ops.cast(h + difference, dtype))
        of_candidate = ops.matmul(candidates, ops.cast(c - difference, dtype))
        of_candidate = of_candidate + ops.cast(self.first.bias, dtype)
        pairs = candidates[:, :, None] * history[:, None]
        of_pair = ops.matmul(pairs, ops.cast(product, dtype))
        return of_pair + of_candidate[:, :, None] + of_history[:, None]


@keras.saving.register_keras_serializable(package="recsys")
class CandidateBlock(AttentionBlock):
    """A transformer block over a history and candidates, which don't attend to each other.

    An entry of the history attends to itself and to older ones, and a candidate to the whole
    history and itself, with the same weights: this is the mask of M-FALCON (Zhai et al., ICML 2024,
    section 3.3). For n candidates and a history of length l, `l * l + n * (l + 1)` scores are
    computed, none of them between candidates.

    Args:
        dim: Width of an entry [floats].
        heads: Heads; must divide `dim`.
        width: Width of the feed-forward layer [floats].
        dropout: Dropout rate of attention weights and activations [0..1).
        seed: Seed of the initial weights and of the dropout.
    """

    def call(
        self,
        history: keras.KerasTensor,
        candidates: keras.KerasTensor,
        mask: keras.KerasTensor,
        training: bool = False,
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Returns the new states of the history and of the candidates, shaped like the inputs.

        The last block of a model may ignore the history's states, which aren't computed then.

        Args:
            history: Entries of the history `[batch, length, dim]`.
            candidates: Candidates `[batch, n, dim]`, in the same dtype.
            mask: Whether an entry of the history is an event `[batch, length]` bool.
            training: Whether to apply dropout.
        """
        seen = self.of_candidates(history, candidates, mask, training)
        return self.of_history(history, mask, training), seen

    def of_history(
        self, history: keras.KerasTensor, mask: keras.KerasTensor, training: bool = False
    ) -> keras.KerasTensor:
        """Returns the new states of the history, which depend on no candidate; see `call`."""
        past, column = self.norm(history), ops.arange(history.shape[1])
        causal = ops.logical_and(mask[:, None], column[:, None] <= column)
        return self._fed(history, self._attended(past, past, causal, training), training)

    def of_candidates(
        self,
        history: keras.KerasTensor,
        candidates: keras.KerasTensor,
        mask: keras.KerasTensor,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Returns the new states of the candidates; see `call`."""
        x, past = self.norm(candidates), self.norm(history)
        query, key, value = (
            self._in_heads(layer(x)) for layer in (self.query, self.key, self.value)
        )
        past_key, past_value = (self._in_heads(layer(past)) for layer in (self.key, self.value))
        scale = (self.dim // self.heads) ** -0.5
        own = ops.einsum("bnhd,bnhd->bhn", query, key)[..., None]
        scores = ops.concatenate([own, ops.einsum("bnhd,blhd->bhnl", query, past_key)], axis=-1)
        seen = ops.concatenate([ops.ones_like(mask[:, :1]), mask], axis=1)[:, None, None]
        weights = self._drop(masked_softmax(scores * scale, seen), training)
        weights = ops.cast(weights, x.dtype)
        attended = ops.einsum("bhnl,blhd->bnhd", weights[..., 1:], past_value)
        attended = attended + ops.transpose(weights[..., :1], (0, 2, 1, 3)) * value
        attended = ops.reshape(attended, (-1, ops.shape(x)[1], self.dim))
        return self._fed(candidates, self.out(attended), training)
