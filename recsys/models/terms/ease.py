"""Scores of the items that go together with those of the history, in closed form."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import ops

from recsys.data.ease import ease_vectors
from recsys.data.hold_out import KeptEvents
from recsys.models.inputs import ModelInputs
from recsys.models.terms import Tensors, Term, assign_scalar
from recsys.registry import register_term

_PART = 32
"""Number of items of a history whose vectors are read at a time, to bound the memory."""


@register_term("ease")
class EaseTerm(Term):
    """Adds to the similarity what EASE predicts from the history.

    Each item has a vector F (`recsys.data.ease`), and the score of item j for a history h_1, …,
    h_n is

        similarity + weight · Σ_p F_(h_p) · F_j / (1 - |F_j|²)

    The summands are those of EASE (Steck, WWW 2019) without the smallest singular values of the
    user-item matrix, except that an item also adds to itself, which matters only if repeats are
    recommended. They are dot products, so that an index and a vector database know them.

    The vectors know the label of each training example, so the towers train without the term.
    After training, `weight` is chosen on held-back events, see
    `recsys.tasks.retrieval.training.pair_weight`. F is replicated on all devices.
    """

    in_training: ClassVar[bool] = False

    def build(self, input_shape: Any = None) -> None:
        """Creates F `[rows, rank]`, and the term's weight."""
        options: dict[str, Any] = {"initializer": "zeros", "trainable": False}
        shape = (self.spec.item_rows, self.options.rank)
        self.vectors = self.add_weight(name="vectors", shape=shape, **options)
        self.weight = self.add_weight(name="weight", shape=(), **options)

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Computes F from the training events."""
        config = self.options
        self.vectors.assign(
            ease_vectors(events, inputs.catalogue.is_item, config.rank, config.regularisation)
        )
        if config.weight is not None:
            assign_scalar(self.weight, config.weight)

    @property
    def adapted(self) -> list[Any]:
        """F; a warm start keeps `weight` until it is chosen anew."""
        return [self.vectors]

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the sums `[batch, rank]` over the history, times the weight."""
        history, total = read["history"], 0.0
        for start in range(0, history.shape[1], _PART):
            part = ops.take(self.vectors, history[:, start : start + _PART], axis=0)
            total = total + ops.sum(part, axis=1)
        return self.weight * total

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the vectors `[candidates, rank]` that the sums are multiplied by."""
        own = ops.take(self.vectors, read["id_row"], axis=0)
        return own / (1.0 - ops.sum(ops.square(own), axis=1, keepdims=True))
