"""Scores of the items that go together with those of the history, in closed form."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from recsys.data.ease import as_candidates, ease_vectors, token_means
from recsys.data.hold_out import KeptEvents
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.models.inputs import ModelInputs
from recsys.models.terms import Tensors, Term, assign_scalar
from recsys.registry import register_term

_MOST_TOKENS = 20_000
"""Maximum number of tokens of a feature whose means are computed, `rank` floats each."""
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

    An item without training events has no F. In place of F_j / (1 - |F_j|²), it has the mean of
    its tokens' means over the training events; rare tokens count more.
    """

    in_training: ClassVar[bool] = False

    def build(self, input_shape: Any = None) -> None:
        """Creates F `[rows, rank]`, and the term's weight."""
        options: dict[str, Any] = {"initializer": "zeros", "trainable": False}
        shape = (self.spec.item_rows, self.options.rank)
        self.vectors = self.add_weight(name="vectors", shape=shape, **options)
        self.weight = self.add_weight(name="weight", shape=(), **options)
        self.of_tokens = {
            f.name: (
                self.add_weight(name=f"{f.name}.means", shape=(f.rows, shape[1]), **options),
                self.add_weight(name=f"{f.name}.weights", shape=(f.rows,), **options),
            )
            for f in self.spec.features
            if f.side == "item" and 0 < f.rows <= _MOST_TOKENS
        }

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Computes F from the training events."""
        config, is_item = self.options, inputs.catalogue.is_item
        vectors = ease_vectors(events, is_item, config.rank, config.regularisation)
        self.vectors.assign(vectors)
        candidates, counts = as_candidates(vectors), inputs.items.row_counts * is_item
        for feature in inputs.catalogue.features:
            if feature.name in self.of_tokens:
                known = token_means(candidates, counts, np.asarray(feature.bags), feature.rows)
                for variable, values in zip(self.of_tokens[feature.name], known, strict=True):
                    variable.assign(values)
        if config.weight is not None:
            assign_scalar(self.weight, config.weight)

    @property
    def adapted(self) -> list[Any]:
        """F, and what is known of tokens; a warm start keeps `weight` until it is chosen anew."""
        return [self.vectors, *itertools.chain.from_iterable(self.of_tokens.values())]

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
        own = own / (1.0 - ops.sum(ops.square(own), axis=1, keepdims=True))
        is_new = ops.equal(read["id_row"], UNKNOWN_ROW)[:, None]
        return ops.where(is_new, self._of_new(read), own) if self.of_tokens else own

    def _of_new(self, read: Tensors) -> keras.KerasTensor:
        """Returns the mean of tokens' means `[candidates, rank]`."""
        total, weights = 0.0, 1e-6
        for name, (means, weight) in self.of_tokens.items():
            for place in range(read[name].shape[1]):
                token = read[name][:, place]
                share = ops.take(weight, token)[:, None]
                total = total + share * ops.take(means, token, axis=0)
                weights = weights + share
        return total / weights
