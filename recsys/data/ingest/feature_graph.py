"""The TensorFlow graph of features: raw columns of items or of users → token rows.

Transform names `preprocessing_fn` by its dotted path, so nothing is copied or packaged. What
a feature's tokens are is said by its class (`recsys.data.features`); the functions below make
rows of them. A token row is 1 or more; 0 is padding. What is missing or unknown has no token.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

from recsys import registry
from recsys.config import read_feature
from recsys.data.features import Feature

PREPROCESSING_FN = "recsys.data.ingest.feature_graph.preprocessing_fn"

_DAY_S = 86_400


def preprocessing_fn(
    inputs: Mapping[str, Any], custom_config: Mapping[str, Any]
) -> dict[str, tf.Tensor]:
    """Returns the id and, for each feature, its token rows `[batch, width]` int64.

    Args:
        inputs: Raw columns: text, float32 for numbers, int64 for dates [seconds since
            1970, UTC]. Empty text, NaN and the lowest int64 are missing values.
        custom_config: `id`: name of the column of the id; `features`: what
            `recsys.data.entities.feature_settings` returns.
    """
    name = custom_config["id"]
    outputs = {name: _ragged(inputs[name])[:, :1].to_tensor("", shape=[None, 1])[:, 0]}
    for part in custom_config["features"]:
        registry.load_plugins(part.get("modules", ()))
        feature: Feature = read_feature(part["feature"])
        bags = feature.tokens(_ragged(inputs[part["column"]]))
        bags = tf.cast(bags, tf.int64)
        outputs[feature.name] = bags.to_tensor(0, shape=[None, feature.width])
    return outputs


def _ragged(column: tf.Tensor | tf.SparseTensor | tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the values of each row of a column, however the schema has it."""
    if isinstance(column, tf.RaggedTensor):
        return column
    if isinstance(column, tf.SparseTensor):
        return tf.RaggedTensor.from_sparse(column)
    # A committed schema may have fixed how many values a row has; 1 where it has no shape.
    width = column.shape[1:].num_elements()
    return tf.RaggedTensor.from_tensor(tf.reshape(column, [-1, width]))


# --- values


def stripped(values: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the texts without blanks around them; the empty ones are left out."""
    texts = tf.ragged.map_flat_values(tf.strings.strip, values)
    return tf.ragged.boolean_mask(texts, tf.not_equal(texts, ""))


def words(values: tf.RaggedTensor, between: str) -> tf.RaggedTensor:
    """Returns the lower-cased words of the first text of each row.

    Args:
        values: Texts `[batch, any]`.
        between: What stands between two words (RE2).
    """
    texts = values[:, :1].to_tensor("", shape=[None, 1])[:, 0]
    lower = tf.strings.lower(texts, encoding="utf-8")
    return tf.strings.split(tf.strings.regex_replace(lower, between, " "))


def finite(values: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the finite numbers."""
    return tf.ragged.boolean_mask(values, tf.math.is_finite(values))


def days(values: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the days since 1970 of times [seconds since 1970, UTC]."""
    known = tf.ragged.boolean_mask(values, values != tf.int64.min)
    return tf.ragged.map_flat_values(tf.math.floordiv, known, _DAY_S)


# --- rows


def vocabulary_rows(tokens: tf.RaggedTensor, name: str, min_count: int) -> tf.RaggedTensor:
    """Returns the rows of tokens; unknown ones are left out.

    Args:
        tokens: Texts `[batch, any]`.
        name: Name of the vocabulary: that of the feature.
        min_count: Occurrences in the data from which on a token is known.
    """
    indices = tft.compute_and_apply_vocabulary(
        tokens.to_sparse(),
        default_value=-1,
        frequency_threshold=min_count,
        vocab_filename=name,
    )
    rows = tokens.with_flat_values(1 + indices.values)
    return tf.ragged.boolean_mask(rows, rows > 0)


def hashed_rows(tokens: tf.RaggedTensor, n_buckets: int) -> tf.RaggedTensor:
    """Returns a row for each token, by hash, from 1 to `n_buckets`."""
    return tokens.with_flat_values(
        1 + tf.strings.to_hash_bucket_fast(tokens.flat_values, n_buckets)
    )


def bucket_rows(values: tf.RaggedTensor, n_buckets: int, name: str) -> tf.RaggedTensor:
    """Returns the bucket of each number, from 1 on, of equally many values of the data."""
    bucket = tft.bucketize(values.to_sparse(), n_buckets, name=f"{name}_quantiles")
    return values.with_flat_values(1 + bucket.values)


def months(values: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the months [1..12] of days since 1970-01-01, in the Gregorian calendar.

    Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    """
    return tf.ragged.map_flat_values(_month, values)


def joined(*rows: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the rows of several bags in one."""
    return tf.concat([tf.cast(bag, tf.int64) for bag in rows], axis=1)


def _month(days: tf.Tensor) -> tf.Tensor:
    day_of_era = tf.math.floormod(days + 719_468, 146_097)
    leap_days = day_of_era // 1460 - day_of_era // 36_524 + day_of_era // 146_096
    year_of_era = (day_of_era - leap_days) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    from_march = (5 * day_of_year + 2) // 153
    return tf.where(from_march < 10, from_march + 3, from_march - 9)
