"""The `preprocessing_fn` of the catalogue: raw columns → token rows.

Transform names it by its dotted path, so nothing is copied or packaged.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

from recsys.config import ItemFeature

PREPROCESSING_FN = "components.transform_items.preprocessing_fn"


def preprocessing_fn(
    inputs: Mapping[str, Any], custom_config: Mapping[str, Any]
) -> dict[str, tf.Tensor]:
    """Returns `item_id` and, for each feature, its token rows `[batch, max_tokens]`.

    Args:
        inputs: Raw columns, one text an item.
        custom_config: `features`: list of `{"column": name in the examples,
            "feature": ItemFeature}` as JSON values.
    """
    outputs = {"item_id": _one_text(inputs["item_id"])}
    for part in custom_config["features"]:
        feature = ItemFeature.model_validate(part["feature"])
        outputs[feature.name] = _token_rows(_one_text(inputs[part["column"]]), feature)
    return outputs


def _one_text(column: tf.Tensor | tf.SparseTensor) -> tf.Tensor:
    """Returns the text `[batch]` of a column that holds one an item."""
    if isinstance(column, tf.SparseTensor):
        column = tf.sparse.to_dense(column, default_value="")[:, :1]
    return tf.reshape(column, [-1])


def _token_rows(text: tf.Tensor, feature: ItemFeature) -> tf.Tensor:
    """Returns token rows `[batch, max_tokens]` int64, padded with 0; unknown ones left out."""
    tokens = _words(text) if feature.kind == "words" else _categories(text, feature.separator)
    rows = (
        1
        + tft.compute_and_apply_vocabulary(
            tokens.to_sparse(),
            default_value=-1,
            frequency_threshold=feature.min_count,
            vocab_filename=feature.name,
        ).values
    )
    known = rows > 0
    bags = tf.RaggedTensor.from_value_rowids(
        tf.boolean_mask(rows, known),
        tf.boolean_mask(tokens.value_rowids(), known),
        nrows=tf.size(text, out_type=tf.int64),
        validate=False,
    )
    return bags.to_tensor(default_value=0, shape=[None, feature.max_tokens])


def _categories(text: tf.Tensor, separator: str) -> tf.RaggedTensor:
    tokens = tf.strings.split(text, sep=separator)
    tokens = tf.ragged.map_flat_values(tf.strings.strip, tokens)
    return _without_empty(tokens)


def _words(text: tf.Tensor) -> tf.RaggedTensor:
    lower = tf.strings.lower(text, encoding="utf-8")
    return tf.strings.split(tf.strings.regex_replace(lower, r"[^\pL\pM\pN_]+", " "))


def _without_empty(tokens: tf.RaggedTensor) -> tf.RaggedTensor:
    return tf.ragged.boolean_mask(tokens, tf.not_equal(tokens, ""))
