"""TensorFlow operations with which feature classes turn raw values into token rows or numbers.

The classes in `recsys.data.features` define the tokens of a feature; these functions map them to
rows. A token row is at least 1; 0 is padding. Missing and unknown values have no token.
"""

from __future__ import annotations

import tensorflow as tf
import tensorflow_transform as tft

from recsys.data import encoding_graphs
from recsys.data.event_features.times import month_of
from recsys.data.feature_options import NumberOptions
from recsys.data.split import DAY_S

MOST_CODES = 1 << 62
"""Number of hashes of texts that crosses hash again."""

# --- values


def stripped(values: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the texts without surrounding whitespace; empty texts are left out."""
    texts = tf.ragged.map_flat_values(tf.strings.strip, values)
    return tf.ragged.boolean_mask(texts, tf.not_equal(texts, ""))


def words(values: tf.RaggedTensor, between: str) -> tf.RaggedTensor:
    """Returns the lower-cased words of the first text of each row.

    Args:
        values: Texts `[batch, any]`.
        between: Pattern of the text between two words (RE2).
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
    return tf.ragged.map_flat_values(tf.math.floordiv, known, DAY_S)


# --- rows


def vocabulary_rows(tokens: tf.RaggedTensor, name: str, min_count: int) -> tf.RaggedTensor:
    """Returns the rows of tokens; unknown tokens are left out.

    Args:
        tokens: Texts `[batch, any]`.
        name: Name of the vocabulary, which is the feature's name.
        min_count: Minimum number of occurrences of a known token.
    """
    indices = tft.compute_and_apply_vocabulary(
        tokens.to_sparse(),
        default_value=-1,
        frequency_threshold=min_count if min_count > 1 else None,  # TFT warns about 1.
        vocab_filename=name,
    )
    rows = tokens.with_flat_values(1 + indices.values)
    return tf.ragged.boolean_mask(rows, rows > 0)


def hashed_rows(tokens: tf.RaggedTensor, n_buckets: int) -> tf.RaggedTensor:
    """Returns the row of each token by hash, from 1 to `n_buckets`."""
    return tokens.with_flat_values(
        1 + tf.strings.to_hash_bucket_fast(tokens.flat_values, n_buckets)
    )


def bucket_rows(values: tf.RaggedTensor, n_buckets: int, name: str) -> tf.RaggedTensor:
    """Returns the quantile bucket of each number, from 1 on."""
    bucket = tft.bucketize(values.to_sparse(), n_buckets, name=f"{name}_quantiles")
    return values.with_flat_values(1 + bucket.values)


def crossed_rows(codes: tf.RaggedTensor, n_parts: int, n_buckets: int) -> tf.RaggedTensor:
    """Returns the hash row of each pair; none if one of the `n_parts` codes is missing."""
    rows = encoding_graphs.crossed(codes.to_tensor(0, shape=[None, n_parts]), n_buckets)[:, None]
    return tf.RaggedTensor.from_tensor(rows, padding=0)


def months(values: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the months [1..12] of days since 1970-01-01."""
    return tf.ragged.map_flat_values(lambda days: 1 + month_of(days), values)


def joined(*rows: tf.RaggedTensor) -> tf.RaggedTensor:
    """Concatenates the token rows of several bags."""
    return tf.concat([tf.cast(bag, tf.int64) for bag in rows], axis=1)


# --- numbers


def numbers(values: tf.RaggedTensor, options: NumberOptions) -> tf.Tensor:
    """Returns numbers `[batch, options.floats]` float32.

    Args:
        values: At most one number in each row.
        options: The encoding.
    """
    x = values.to_tensor(float("nan"), shape=[None, 1])[:, 0]
    scaled = encoding_graphs.scaled(values.flat_values, options)
    learned = {"mean": tft.mean(scaled), "deviation": tf.sqrt(tft.var(scaled))}
    encoded = encoding_graphs.encode_number(options, x, learned)
    return tf.ensure_shape(encoded, [None, options.floats])


def vectors(values: tf.RaggedTensor, length: int) -> tf.Tensor:
    """Returns vectors `[batch, length]` with a last number of 1; zeros for an empty row.

    Another number of numbers is an error.
    """
    fits = tf.reduce_all(values.row_lengths() <= length)
    rule = f"A vector must have {length} numbers."
    with tf.control_dependencies([tf.debugging.Assert(fits, [rule])]):
        padded = values.to_tensor(float("nan"), shape=[None, length])
    return encoding_graphs.encode_vectors(padded, length)
