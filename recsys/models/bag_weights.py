"""Weights of a feature's tokens in the mean of a bag: a rare token says more than a common one.

The weight of a token is its inverse document frequency (Spärck Jones, "A Statistical
Interpretation of Term Specificity and Its Application in Retrieval", Journal of Documentation
1972), in the smooth form of scikit-learn,

    w_t = 1 + ln((1 + n) / (1 + n_t))

with n items (or users), of which n_t have the token. The vector of a bag is Σ w_t e_t / Σ w_t.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.data.catalogue import FeatureBags

_BLOCK = 2**16
"""Bags that are counted at once."""


@keras.saving.register_keras_serializable(package="recsys")
class BagWeights(keras.layers.Layer):
    """Keeps the weight of each token of each feature.

    They are counted from the bags and not trained. As weights of the model they are saved,
    restored and exported with it.

    Args:
        rows: Rows of each feature's table, row 0 (padding) included.
    """

    def __init__(self, rows: Mapping[str, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows = dict(rows)

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights `[rows]` of each feature, 1."""
        self.of_feature = {
            name: self.add_weight(name=name, shape=(n,), initializer="ones", trainable=False)
            for name, n in self.rows.items()
        }

    def adapt(self, features: Mapping[str, FeatureBags]) -> None:
        """Counts the weights from the bags of each feature."""
        for name, weight in self.of_feature.items():
            weight.assign(inverse_frequencies(features[name].bags, self.rows[name]))

    def of_tokens(self, name: str, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weights of tokens `[..., width]` int32 of a feature, 0 for padding."""
        weights = ops.take(ops.convert_to_tensor(self.of_feature[name]), tokens, axis=0)
        return ops.where(tokens > 0, weights, 0.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "rows": self.rows}


def inverse_frequencies(bags: np.ndarray, rows: int) -> np.ndarray:
    """Returns the weight of each token `[rows]` float32.

    Args:
        bags: Token rows `[n, width]`, 0 is padding; empty bags are not counted.
        rows: Rows of the feature's table.
    """
    n_of_token, n = np.zeros(rows, np.int64), 0
    for start in range(0, len(bags), _BLOCK):
        block = np.sort(bags[start : start + _BLOCK], axis=1)
        is_first = np.diff(block, axis=1, prepend=0) != 0  # Padding is in front.
        n_of_token += np.bincount(block[is_first], minlength=rows)
        n += int(is_first.any(axis=1).sum())
    return (1 + np.log((1 + n) / (1 + n_of_token))).astype(np.float32)
