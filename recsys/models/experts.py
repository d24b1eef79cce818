"""Heads for several labels: towers of labels, and the experts of MMoE and PLE below them.

`MixtureOfExperts` and `ProgressiveExtraction` return a state of each label, from which
`LabelTowers` computes its logit. `LabelTowers` over one state of all labels is the model with a
shared bottom.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.models.layers import InputDtypeLayer, Linear, Mlp


@keras.saving.register_keras_serializable(package="recsys")
class LabelTowers(InputDtypeLayer):
    """An MLP with one logit for each label.

    Args:
        labels: Number of labels.
        widths: Hidden widths [floats]; empty for one linear layer.
        activation: Keras name of the activation of the hidden layers.
        dropout: Dropout rate of the activations [0..1).
        seed: Seed of the initial weights and of the dropout.
    """

    def __init__(
        self,
        labels: int,
        widths: tuple[int, ...] = (),
        activation: str = "relu",
        dropout: float = 0.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden = Mlp(widths, seed, activation, dropout, (labels,), name="hidden")
        self.logit = Linear(1, seed=seed + len(widths), copies=(labels,), name="logit")

    def build(self, input_shape: Any) -> None:
        """Creates the weights for states `[…, in]`."""
        self.hidden.build(input_shape)
        self.logit.build((None, (input_shape[-1], *self.hidden.widths)[-1]))

    def call(self, x: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        """Returns logits `[batch, labels]` float32.

        Args:
            x: A state of each label `[batch, labels, in]`, or one of all labels `[batch, in]`.
            training: Whether to apply dropout.
        """
        if len(x.shape) == 3:
            x = ops.transpose(x, (1, 0, 2))
        logits = self.logit(self.hidden(x, training=training))  # [labels, batch, 1]
        return ops.cast(ops.transpose(logits[..., 0]), "float32")


@keras.saving.register_keras_serializable(package="recsys")
class MixtureOfExperts(InputDtypeLayer):
    """Shared experts, mixed for each label (MMoE: Ma et al., KDD 2018, eq. 6 and 7).

    For an input x, experts f_i and label k, the state is `Σ_i g_k(x)_i f_i(x)` with the gate
    `g_k(x) = softmax(W_k x)`.

    Args:
        labels: Number of labels.
        experts: Number of experts.
        widths: Widths of the layers of an expert, at least one [floats].
        activation: Keras name of the activation of all layers.
        dropout: Dropout rate of the activations [0..1).
        seed: Seed of the initial weights and of the dropout.
    """

    def __init__(
        self,
        labels: int,
        experts: int = 4,
        widths: tuple[int, ...] = (64,),
        activation: str = "relu",
        dropout: float = 0.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.experts = Mlp(widths, seed, activation, dropout, (experts,), name="experts")
        self.gate = Linear(
            experts, use_bias=False, seed=seed + len(widths), copies=(labels,), name="gate"
        )

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[batch, in]`."""
        self.experts.build(input_shape)
        self.gate.build(input_shape)

    def call(self, x: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        """Returns states `[batch, labels, widths[-1]]` of `x` `[batch, in]`, in its dtype."""
        shares = _shares(self.gate(x))  # [labels, batch, experts]
        return ops.einsum("kbe,ebw->bkw", shares, self.experts(x, training=training))


@keras.saving.register_keras_serializable(package="recsys")
class ProgressiveExtraction(InputDtypeLayer):
    """Experts of each label and shared ones, level by level (PLE: Tang et al., RecSys 2020).

    At a level, a label's state is the mixture of its own and the shared experts, and the shared
    state the mixture of all experts (eq. 5 to 7). The gates are softmaxes of linear maps of the
    states of the level before; at the first level, all states are the input. The last level has no
    shared state. One level is the paper's CGC.

    Args:
        labels: Number of labels.
        levels: Number of levels.
        own_experts: Number of experts of a label, at each level.
        shared_experts: Number of shared experts, at each level.
        widths: Widths of the layers of an expert, at least one [floats].
        activation: Keras name of the activation of all layers.
        dropout: Dropout rate of the activations [0..1).
        seed: Seed of the initial weights and of the dropout.
    """

    def __init__(
        self,
        labels: int,
        levels: int = 2,
        own_experts: int = 2,
        shared_experts: int = 2,
        widths: tuple[int, ...] = (64,),
        activation: str = "relu",
        dropout: float = 0.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        step = 2 * len(widths) + 2  # Seeds of a level.
        self.levels = [
            _ExtractionLevel(
                labels,
                own_experts,
                shared_experts,
                tuple(widths),
                activation=activation,
                dropout=dropout,
                is_last=level == levels - 1,
                seed=seed + step * level,
                name=f"level_{level}",
            )
            for level in range(levels)
        ]

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[batch, in]`."""
        for level in self.levels:
            level.build(input_shape)
            input_shape = (None, level.own.widths[-1])

    def call(self, x: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        """Returns states `[batch, labels, widths[-1]]` of `x` `[batch, in]`, in its dtype."""
        states, shared = x, x
        for level in self.levels:
            states, shared = level(states, shared, training=training)
        return ops.transpose(states, (1, 0, 2))


class _ExtractionLevel(InputDtypeLayer):
    """One level of `ProgressiveExtraction`."""

    def __init__(
        self,
        labels: int,
        own_experts: int,
        shared_experts: int,
        widths: tuple[int, ...],
        activation: str,
        dropout: float,
        is_last: bool,
        seed: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.n_own, self.n_shared = own_experts, shared_experts
        n = len(widths)
        own, shared = (labels, own_experts), (shared_experts,)
        self.own = Mlp(widths, seed, activation, dropout, own, name="own")
        self.shared = Mlp(widths, seed + n, activation, dropout, shared, name="shared")
        self.gate = Linear(
            own_experts + shared_experts,
            use_bias=False,
            seed=seed + 2 * n,
            copies=(labels,),
            name="gate",
        )
        self.shared_gate = (
            None
            if is_last
            else Linear(
                labels * own_experts + shared_experts,
                use_bias=False,
                seed=seed + 2 * n + 1,
                name="shared_gate",
            )
        )

    def build(self, input_shape: Any, *_: Any) -> None:
        """Creates the weights for states `[…, in]`."""
        for layer in (self.own, self.shared, self.gate, self.shared_gate):
            if layer is not None:
                layer.build(input_shape)

    def call(
        self, states: keras.KerasTensor, shared: keras.KerasTensor, training: bool = False
    ) -> tuple[keras.KerasTensor, keras.KerasTensor | None]:
        """Returns the new states of the labels `[labels, batch, width]`, and the shared one.

        Args:
            states: States of the labels `[labels, batch, in]`, or one of all `[batch, in]`.
            shared: Shared state `[batch, in]`.
            training: Whether to apply dropout.
        """
        of_experts = states if len(states.shape) == 2 else states[:, None]
        own = self.own(of_experts, training=training)  # [labels, own experts, batch, width]
        common = self.shared(shared, training=training)  # [shared experts, batch, width]
        shares = _shares(self.gate(states))
        of_own, of_common = shares[..., : self.n_own], shares[..., self.n_own :]
        mixed = ops.einsum("kbe,kebw->kbw", of_own, own)
        mixed = mixed + ops.einsum("kbe,ebw->kbw", of_common, common)
        if self.shared_gate is None:
            return mixed, None
        shares = _shares(self.shared_gate(shared))
        of_own, of_common = shares[:, : -self.n_shared], shares[:, -self.n_shared :]
        of_own = ops.reshape(of_own, (-1, *own.shape[:2]))
        together = ops.einsum("bke,kebw->bw", of_own, own)
        return mixed, together + ops.einsum("be,ebw->bw", of_common, common)


def _shares(logits: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the softmax of `logits` `[..., experts]`, computed in float32, in their dtype."""
    return ops.cast(ops.softmax(ops.cast(logits, "float32")), logits.dtype)
