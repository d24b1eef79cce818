"""Weights of a feature's tokens: rare tokens count more."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.data.hold_out import KeptEvents
from recsys.models.inputs import ModelInputs
from recsys.models.terms import Term
from recsys.registry import register_term

_BAGS_AT_ONCE = 2**16
"""Bags per block of the count."""


@register_term("bag_weights")
class BagWeights(Term):
    """Weights of a feature's tokens in the mean of a bag: rare tokens count more.

    The weight of a token is its inverse document frequency (Spärck Jones, "A Statistical
    Interpretation of Term Specificity and Its Application in Retrieval", Journal of Documentation
    1972), in the smooth form of scikit-learn,

        w_t = 1 + ln((1 + n) / (1 + n_t))

    for n items (or users), n_t of them with the token. The vector of a bag is Σ w_t e_t / Σ w_t.
    """

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights `[rows]` of each feature, initially 1."""
        self.of_feature = {
            f.name: self.add_weight(
                name=f.name, shape=(f.rows,), initializer="ones", trainable=False
            )
            for f in self.spec.features
            if f.side != "event" and not f.floats
        }

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Counts the weights from the bags of each feature."""
        bags = {f.name: f.bags for f in (*inputs.catalogue.features, *inputs.user_features)}
        for name, weight in self.of_feature.items():
            weight.assign(inverse_frequencies(bags[name], weight.shape[0]))

    @property
    def adapted(self) -> list[Any]:
        """All weights of the term."""
        return list(self.weights)

    def token_weights(self, feature: str, tokens: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns the weights of tokens `[…, width]` int32 of a feature, 0 for padding.

        Features of events have none.
        """
        if feature not in self.of_feature:
            return None
        weights = ops.take(ops.convert_to_tensor(self.of_feature[feature]), tokens, axis=0)
        return ops.where(tokens > 0, weights, 0.0)


def inverse_frequencies(bags: np.ndarray, rows: int) -> np.ndarray:
    """Returns the weight of each token `[rows]` float32.

    Args:
        bags: Token rows `[n, width]`, padded with 0; empty bags are not counted.
        rows: Rows of the feature's table.
    """
    n_of_token, n = np.zeros(rows, np.int64), 0
    for start in range(0, len(bags), _BAGS_AT_ONCE):
        block = np.sort(bags[start : start + _BAGS_AT_ONCE], axis=1)
        is_first = np.diff(block, axis=1, prepend=0) != 0  # Padding comes first.
        n_of_token += np.bincount(block[is_first], minlength=rows)
        n += int(is_first.any(axis=1).sum())
    return (1 + np.log((1 + n) / (1 + n_of_token))).astype(np.float32)
