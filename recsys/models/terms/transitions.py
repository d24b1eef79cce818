"""Scores of the items that often follow the newest items of a history."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.data.hold_out import KeptEvents
from recsys.data.transitions import TransitionScores, following_items
from recsys.models.inputs import ModelInputs
from recsys.models.terms import Term, assign_scalar
from recsys.registry import register_term


@register_term("transitions")
class TransitionTerm(Term):
    """Adds to the similarity how often an item follows the newest items of the history.

    A pair of training events of a user, the second at most `reach` places after the first, counts
    1 / distance; `T_ij` is the count of i and j divided by `√(n_i n_j) + shrinkage` for items with
    n_i and n_j events, and only the `count` greatest entries of a row are kept. For a history
    h_0, h_1, … with the newest item first, the score of item j is

        similarity + weight · Σ_(p < newest) decay^p T_(h_p, j)

    The vectors are trained without the sum, which isn't a dot product. After training, `weight` is
    chosen on held-back events, see `recsys.tasks.retrieval.training.pair_weight`. The counts are
    replicated on all devices (8 bytes for each of `count` items per item).
    """

    def build(self, input_shape: Any = None) -> None:
        """Creates the following items `[rows, count]`, their weights, and the term's weight."""
        shape = (self.spec.item_rows, self.options.count)
        options: dict[str, Any] = {"initializer": "zeros", "trainable": False}
        self.following = self.add_weight(name="following", shape=shape, dtype="int32", **options)
        self.shares = self.add_weight(name="shares", shape=shape, **options)
        self.weight = self.add_weight(name="weight", shape=(), **options)

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Counts the transitions in the training events."""
        config = self.options
        rows, weights = following_items(
            events, inputs.catalogue.is_item, config.count, config.reach, config.shrinkage
        )
        self.following.assign(rows)
        self.shares.assign(weights)
        if config.weight is not None:
            assign_scalar(self.weight, config.weight)

    @property
    def adapted(self) -> list[Any]:
        """The counts; a warm start keeps `weight` until it is chosen anew."""
        return [self.following, self.shares]

    @property
    def factors(self) -> np.ndarray:
        """Factor of each of the newest entries of a history `[newest]` float32."""
        return np.power(self.options.decay, np.arange(self.options.newest), dtype=np.float32)

    def of_pairs(self) -> TransitionScores | None:
        """Returns the counts times the term's weight; None if it is 0."""
        weight = float(self.weight.value)
        return self.scores().scaled(weight) if weight else None

    def scores(self) -> TransitionScores:
        """Returns the counts, without the term's weight."""
        following, shares = (np.asarray(x.value) for x in (self.following, self.shares))
        return TransitionScores(following, shares, self.factors)

    def of_history(self, history: keras.KerasTensor) -> tuple[Any, Any]:
        """Returns the items that are added to, and what is added to their scores.

        Args:
            history: Item rows `[batch, history]` int32, the newest first, padded with 0.

        Returns:
            Item rows `[batch, newest * count]` int32, padded with 0, which may be repeated; and
            the summands `[batch, newest * count]` float32.
        """
        newest = history[:, : self.options.newest]
        factors = self.weight * self.factors[: newest.shape[1]]
        n = newest.shape[1] * self.options.count
        rows = ops.take(self.following, newest, axis=0)
        added = ops.take(self.shares, newest, axis=0) * factors[:, None]
        return ops.reshape(rows, (-1, n)), ops.reshape(added, (-1, n))
