"""The `preprocessing_fn` of items and of users: raw columns → token rows.

Transform names it by its dotted path, so nothing is copied or packaged. A token row
is 1 or more; 0 is padding. What is missing or unknown has no token.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

from recsys.config import Feature
from recsys.data.tokens import BETWEEN_WORDS, bag_width

PREPROCESSING_FN = "recsys.data.ingest.transform_features.preprocessing_fn"

_DAY_S = 86_400


def preprocessing_fn(
    inputs: Mapping[str, Any], custom_config: Mapping[str, Any]
) -> dict[str, tf.Tensor]:
    """Returns the id and, for each feature, its token rows `[batch, width]` int64.

    Args:
        inputs: Raw columns: text, float32 for numbers, int64 for dates [seconds since
            1970, UTC]. Empty text, NaN and the lowest int64 are missing values.
        custom_config: `id`: name of the column of the id; `features`: list of
            `{"column": name in the examples, "feature": Feature}` as JSON values.
    """
    name = custom_config["id"]
    outputs = {name: _ragged(inputs[name])[:, :1].to_tensor("", shape=[None, 1])[:, 0]}
    for part in custom_config["features"]:
        feature = Feature.model_validate(part["feature"])
        values = _ragged(inputs[part["column"]])
        bags = _TOKENS[feature.kind](values, feature)
        outputs[feature.name] = bags.to_tensor(0, shape=[None, bag_width(feature)])
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


def _category(values: tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    return _rows(_stripped(values)[:, :1], feature)


def _categories(values: tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    return _rows(_stripped(values), feature)


def _words(values: tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    texts = values[:, :1].to_tensor("", shape=[None, 1])[:, 0]
    lower = tf.strings.lower(texts, encoding="utf-8")
    return _rows(tf.strings.split(tf.strings.regex_replace(lower, BETWEEN_WORDS, " ")), feature)


def _number(values: tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    known = tf.ragged.boolean_mask(values, tf.math.is_finite(values))
    return _buckets(known[:, :1], feature)


def _date(values: tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    known = tf.ragged.boolean_mask(values, values != tf.int64.min)[:, :1]
    days = tf.ragged.map_flat_values(tf.math.floordiv, known, _DAY_S)
    months = tf.ragged.map_flat_values(_month, days) + feature.buckets
    return tf.concat([_buckets(days, feature), months], axis=1)


_TOKENS = {
    "category": _category,
    "categories": _categories,
    "words": _words,
    "number": _number,
    "date": _date,
}


def _stripped(values: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the texts without blanks around them; the empty ones are left out."""
    texts = tf.ragged.map_flat_values(tf.strings.strip, values)
    return tf.ragged.boolean_mask(texts, tf.not_equal(texts, ""))


def _rows(tokens: tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    """Returns the rows of tokens; unknown ones are left out."""
    if feature.hash_buckets is not None:
        hashed = tf.strings.to_hash_bucket_fast(tokens.flat_values, feature.hash_buckets)
        return tokens.with_flat_values(1 + hashed)
    found = tft.compute_and_apply_vocabulary(
        tokens.to_sparse(),
        default_value=-1,
        frequency_threshold=feature.min_count,
        vocab_filename=feature.name,
    )
    rows = tokens.with_flat_values(1 + found.values)
    return tf.ragged.boolean_mask(rows, rows > 0)


def _buckets(values: tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    """Returns the bucket of each number, from 1 on, of equally many values of the data."""
    bucket = tft.bucketize(values.to_sparse(), feature.buckets, name=f"{feature.name}_quantiles")
    return values.with_flat_values(1 + bucket.values)


def _month(days: tf.Tensor) -> tf.Tensor:
    """Returns the months [1..12] of days since 1970-01-01, in the Gregorian calendar.

    Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    """
    day_of_era = tf.math.floormod(days + 719_468, 146_097)
    leap_days = day_of_era // 1460 - day_of_era // 36_524 + day_of_era // 146_096
    year_of_era = (day_of_era - leap_days) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    from_march = (5 * day_of_year + 2) // 153
    return tf.where(from_march < 10, from_march + 3, from_march - 9)
