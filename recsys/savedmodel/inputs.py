"""Inputs of a bundle's graph: from ids and raw columns to rows, inside the graph.

The graph does not hold ids: as a constant they could exceed the 2 GB of a protobuf, and a hash
table of strings takes minutes and gigabytes to load. It holds two fingerprints of each id in
variables, 16 bytes per id.

All raw columns are text `[batch, any]`, padded with the empty string: numbers in decimal notation;
dates as seconds since 1970, UTC, as years, or in ISO 8601. They are parsed as in the ingest, so
that a raw value has the same token rows in training and in serving. The client must normalise texts
to Unicode NFC, which TensorFlow can't, and split lists. A value that the ingest would reject is an
error of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from recsys.data.sources.values import NUMBER
from recsys.data.sources.vectors import BETWEEN, ENDS
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.savedmodel.event_columns import CLOCK, DAY, ISO, WHOLE
from recsys.savedmodel.signatures import raw_inputs
from recsys.savedmodel.variables import constant

_FIRST_BUCKETS, _SECOND_BUCKETS = 2**63 - 1, 2**31 - 1
_SECOND_KEY = (0x9AE16A3B2F90404F >> 1, 0xC3A5C85C97CB3127 >> 1)
_TRIES = 8
_BLOCK = 1 << 16


# --- ids


class IdTable(tf.Module):
    """A table from ids to numbers; unknown ids have the number 0.

    An id is found by a binary search for a 63-bit fingerprint, and verified by another fingerprint
    of 31 bits. Both are SipHashes (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012)
    with different keys. An unknown id is mistaken for one of the `n` ids with probability `n /
    2^94`, below 2^-60 for `n` below 2^34. The 63-bit fingerprints of the ids are unique: the
    constructor tries keys until they are.

    Args:
        ids: Ids `[n]`, text, unique.
        numbers: Number of each id `[n]`, at least 1.

    Raises:
        RecsysError: An id occurs twice (R527).
    """

    def __init__(self, ids: pa.Array | Sequence[str], numbers: np.ndarray) -> None:
        super().__init__(name="id_table")
        self._key, first, order = _sorted(ids)
        second = _hashed(ids, _SECOND_BUCKETS, _SECOND_KEY).astype(np.int32)[order]
        values = np.asarray(numbers, np.int32)[order]
        # A sentinel after all others, so that each search ends inside the table; no id has this
        # fingerprint.
        self._first = constant(np.append(first, np.int64(_FIRST_BUCKETS)), tf.int64)
        self._second = constant(np.append(second, np.int32(_SECOND_BUCKETS)), tf.int32)
        self._numbers = constant(np.append(values, np.int32(0)), tf.int32)

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the numbers `[...]` int32 of `ids` `[...]`."""
        flat = tf.reshape(ids, [-1])
        first = tf.strings.to_hash_bucket_strong(flat, _FIRST_BUCKETS, self._key)
        second = tf.strings.to_hash_bucket_strong(flat, _SECOND_BUCKETS, _SECOND_KEY)
        # Read first: gathering from a variable copies it each time.
        known = tf.convert_to_tensor(self._first)
        # `tf.searchsorted` fails for empty input.
        places = tf.raw_ops.LowerBound(sorted_inputs=known[None], values=first[None])[0]
        is_same = tf.gather(known, places) == first
        is_same &= tf.gather(self._second, places) == tf.cast(second, tf.int32)
        numbers = tf.where(is_same, tf.gather(self._numbers, places), 0)
        return tf.reshape(numbers, tf.shape(ids))


def _sorted(ids: pa.Array | Sequence[str]) -> tuple[tuple[int, int], np.ndarray, np.ndarray]:
    """Returns a key without collisions, the sorted fingerprints, and the order of the ids."""
    for number in range(_TRIES):
        key = (number, 0)
        hashes = _hashed(ids, _FIRST_BUCKETS, key)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        twins = np.flatnonzero(hashes[1:] == hashes[:-1])
        if not len(twins):
            return key, hashes, order
    rule = "The ids of a table must be unique."
    cure = "Report this as a bug, with the run's log."
    raise RecsysError("R527", rule, cure, str(ids[int(order[twins[0]])]))


def _hashed(ids: pa.Array | Sequence[str], buckets: int, key: tuple[int, int]) -> np.ndarray:
    """Returns the fingerprints `[n]` int64 of ids, block by block."""
    hashes = np.empty(len(ids), np.int64)
    for start in range(0, len(ids), _BLOCK):
        part = ids[start : start + _BLOCK]
        texts = part.to_pylist() if isinstance(part, pa.Array) else list(part)
        block = tf.strings.to_hash_bucket_strong(tf.constant(texts, tf.string), buckets, key)
        hashes[start : start + len(texts)] = block.numpy()
    return hashes


class VocabularyRows(tf.Module):
    """Rows of ids inside the graph, as `Vocabulary.rows` returns them.

    Args:
        vocabulary: Users or items.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(name="vocabulary_rows")
        self._table = IdTable(vocabulary.own_ids.drop_null(), np.flatnonzero(vocabulary.has_id()))
        self._n_hash_rows = vocabulary.first_own_row - 1

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns rows `[...]` int32 of `ids` `[...]` text; 0 for the empty id."""
        return self.rows_and_known(ids)[0]

    def rows_and_known(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns rows `[...]` int32, and which ids have a row of their own `[...]` bool."""
        rows = self._table.lookup(ids)
        return tf.where(rows > 0, rows, hash_rows(ids, self._n_hash_rows)), rows > 0

    def known(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns which of `ids` `[...]` have a row of their own `[...]` bool."""
        return self._table.lookup(ids) > 0


def places_of(ids: Sequence[str], first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the index `[n]` int64 of each of `ids` `[n]` in a saved table; -1 if missing.

    Args:
        ids: Ids, text.
        first: Sorted 63-bit fingerprints of the table; the key is found by trial.
        second: 31-bit fingerprints of the table.
    """
    places = np.full(len(ids), -1, np.int64)
    again = _hashed(ids, _SECOND_BUCKETS, _SECOND_KEY)
    for number in range(_TRIES):
        hashes = _hashed(ids, _FIRST_BUCKETS, (number, 0))
        found = np.minimum(np.searchsorted(first, hashes), len(first) - 1)
        is_same = (first[found] == hashes) & (second[found] == again)
        places[is_same] = found[is_same]
    return places


def hash_rows(ids: tf.Tensor, n_hash_rows: int) -> tf.Tensor:
    """Returns the row of each id that has no row of its own, as `Vocabulary.rows`, `[...]`.

    Args:
        ids: Ids `[...]`; the empty id has row 0.
        n_hash_rows: Number of hash rows; without any, the row is 0.
    """
    if not n_hash_rows:
        return tf.zeros_like(ids, tf.int32)
    hashed = 1 + tf.strings.to_hash_bucket_fast(ids, n_hash_rows)
    return tf.where(ids == "", 0, tf.cast(hashed, tf.int32))


# --- raw columns

# Unicode white space: RE2's \s is only ASCII, without \v.
_BLANKS = r"[\s\v\pZ\x{1c}-\x{1f}\x{85}]+"
_DAY_S = 86_400
_YEARS = (1000, 3000)


def trimmed(texts: tf.Tensor) -> tf.Tensor:
    """Returns texts `[n]` without surrounding white space."""
    return tf.strings.regex_replace(texts, f"^{_BLANKS}|{_BLANKS}$", "")


def numbers(name: str, texts: tf.Tensor, rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the numbers in `texts` `[n]`, rounded once from float64; NaN for empty texts.

    Fails for texts that the ingest rejects: too large numbers, and other texts such as `0x10` or
    `nan`, which TensorFlow would accept.

    Args:
        name: Name of the input, for the message.
        texts: The texts.
        rows: Row of each text in the request `[n]`, for the message.
        dtype: Dtype of the result.
    """
    texts = trimmed(texts)
    is_number = tf.strings.regex_full_match(texts, NUMBER)
    read = tf.where(is_number, tf.strings.regex_replace(texts, r"^\+", ""), "nan")
    found = tf.cast(tf.strings.to_number(read, tf.float64), dtype)
    bad = tf.where((texts != "") & ~tf.math.is_finite(found))[:1, 0]
    rule = f"The input {name} must hold finite numbers. Received in row"
    said = [rule, tf.gather(rows, bad), ":", tf.gather(texts, bad)]
    with tf.control_dependencies([tf.debugging.Assert(tf.size(bad) == 0, said)]):
        return tf.identity(found)


def typed(name: str, value: str, texts: tf.Tensor, length: int = 0) -> tf.Tensor:
    """Returns the values of texts `[b, n]`, the empty text as the value for a missing one.

    Args:
        name: Name of the input, for messages.
        value: `text`; `number`: float32, NaN is missing; `time`: int64 [seconds since 1970, UTC],
            the lowest is missing; or `vector`: `[b, n, length]` float32, NaN is missing.
        texts: The texts; of vectors as `recsys.data.sources.vectors` reads them.
        length: Length of vectors.
    """
    flat, shape = tf.reshape(texts, [-1]), tf.shape(texts)
    if value == "vector":
        return tf.reshape(_vectors(name, flat, length), [shape[0], shape[1], length])
    if value == "text":
        found = trimmed(flat)
    elif value == "number":
        found = numbers(name, flat, _rows(shape), tf.float32)
    else:
        found = seconds(flat)
    return tf.reshape(found, shape)


def _vectors(name: str, texts: tf.Tensor, length: int) -> tf.Tensor:
    """Returns the vectors `[n, length]` of texts `[n]`; fails for other lengths."""
    parts = tf.strings.split(
        tf.strings.regex_replace(tf.strings.regex_replace(texts, ENDS, ""), BETWEEN, " ")
    )
    sizes = parts.row_lengths()
    rule = f"The input {name} must hold vectors of {length} numbers."
    is_right = tf.reduce_all((sizes == length) | (sizes == 0))
    with tf.control_dependencies([tf.debugging.Assert(is_right, [rule])]):
        found = numbers(name, parts.values, parts.value_rowids(), tf.float32)
    return parts.with_values(found).to_tensor(np.float32(np.nan), shape=[None, length])


def _rows(shape: tf.Tensor) -> tf.Tensor:
    """Returns the row of each value of a flattened tensor of `shape` `[2]`."""
    return tf.repeat(tf.range(shape[0]), shape[1])


def seconds(texts: tf.Tensor) -> tf.Tensor:
    """Returns the times in `texts` `[n]`, int64 [seconds since 1970, UTC].

    An integer from 1000 to 3000 is a year, meaning its first day; other integers are seconds. Other
    texts are ISO 8601 dates with an optional time of day, in UTC unless they have an offset. The
    lowest int64 means missing.
    """
    texts = trimmed(texts)
    is_iso = tf.strings.regex_full_match(texts, ISO)
    is_whole = tf.strings.regex_full_match(texts, WHOLE)
    whole = tf.where(is_whole, tf.strings.regex_replace(texts, r"\.0*$", ""), texts)
    plain = tf.where(texts == "", str(tf.int64.min), tf.where(is_iso, "0", whole))
    number = tf.strings.to_number(plain, tf.int64)
    is_year = (number >= _YEARS[0]) & (number <= _YEARS[1])
    first_day = _days(number, tf.ones_like(number), tf.ones_like(number)) * _DAY_S
    iso = _iso_seconds(tf.where(is_iso, texts, "1970-01-01"))
    return tf.where(is_iso, iso, tf.where(is_year, first_day, number))


def _iso_seconds(texts: tf.Tensor) -> tf.Tensor:
    """Returns the seconds of texts `[n]` that match `ISO`."""
    day = _days(*(_part(texts, start, length) for start, length in ((0, 4), (5, 2), (8, 2))))
    clock = tf.strings.regex_replace(texts, rf"^{DAY}[T ]?", "")
    zone = tf.strings.regex_replace(clock, rf"^({CLOCK})?", "")
    # Padded, so that no part is missing.
    clock = tf.where(tf.strings.regex_full_match(clock, rf"{CLOCK}.*"), clock, "00:00")
    has_seconds = tf.strings.regex_full_match(clock, r".{5}:.*")
    clock = tf.where(has_seconds, clock, tf.strings.substr(clock, 0, 5) + ":00")
    hours, minutes, rest = (_part(clock, start, 2) for start in (0, 3, 6))
    has_offset = tf.strings.regex_full_match(zone, r"[+-].{5}")
    zone = tf.where(has_offset, zone, "+00:00")
    offset = _part(zone, 1, 2) * 3600 + _part(zone, 4, 2) * 60
    offset = tf.where(tf.strings.substr(zone, 0, 1) == "-", -offset, offset)
    return day * _DAY_S + hours * 3600 + minutes * 60 + rest - offset


def _part(texts: tf.Tensor, start: int, length: int) -> tf.Tensor:
    return tf.strings.to_number(tf.strings.substr(texts, start, length), tf.int64)


def _days(year: tf.Tensor, month: tf.Tensor, day: tf.Tensor) -> tf.Tensor:
    """Returns the days since 1970-01-01 of dates in the Gregorian calendar, int64.

    Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil.
    """
    year = tf.where(month <= 2, year - 1, year)
    era = tf.math.floordiv(year, 400)
    year_of_era = year - era * 400
    from_march = tf.math.floormod(month + 9, 12)
    day_of_year = (153 * from_march + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


class RawFeatures(tf.Module):
    """Maps raw columns to token rows and numbers by the graph that made the stored ones.

    Args:
        folder: A TFT transform output; its `transform_fn/` is a SavedModel.
        id_column: `item_id` or `user_id`.
        widths: Number of tokens or numbers that the model reads, by feature.
    """

    def __init__(self, folder: Path, id_column: str, widths: Mapping[str, int]) -> None:
        super().__init__(name=f"raw_features_by_{id_column}")
        self.graph = _load(folder)
        self._function = self.graph.transform_fn
        # Sorted, since TensorFlow returns them in a different order each time.
        specs: dict[str, Any] = self._function.structured_input_signature[0][0]
        self._specs = dict(sorted(specs.items()))
        self._id_column, self._widths = id_column, dict(widths)
        self._column_of = raw_inputs(sorted(set(self._specs) - {id_column}))
        missing = sorted({id_column, *widths} - set(self._function.structured_outputs))
        if missing:
            rule = (
                f"The transform graph in {str(folder)!r} must give {id_column!r} and every"
                " feature of the model."
            )
            cure = "Export with the transform graphs of the model's data."
            raise RecsysError("R523", rule, cure, missing)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the inputs that hold raw columns, without the id."""
        return tuple(self._column_of)

    def or_stored(
        self, ids: tf.Tensor, raw: Mapping[str, tf.Tensor], stored: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns token rows `[b, width]` int32, or numbers float32, by feature.

        Args:
            ids: Ids `[b]`.
            raw: Raw columns `[b, any]` by name in `columns`.
            stored: Token rows or numbers `[b, width]` for rows whose columns are all empty.
        """
        is_given = [tf.reduce_any(column != "", axis=1) for column in raw.values()]
        one_is_given = tf.reduce_any(is_given, axis=0)
        columns = {self._column_of[name]: column for name, column in raw.items()}
        columns[self._id_column] = ids[:, None]
        typed = {name: _as(name, columns[name], spec) for name, spec in self._specs.items()}
        outputs = self._function(typed)
        fresh = {
            name: tf.ensure_shape(tf.cast(outputs[name], bag.dtype), [None, self._widths[name]])
            for name, bag in stored.items()
        }
        return {
            name: tf.where(one_is_given[:, None], fresh[name], bag) for name, bag in stored.items()
        }


def text_columns(names: Iterable[str]) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of a signature that takes raw columns."""
    return {name: tf.TensorSpec([None, None], tf.string, name) for name in names}


def _load(folder: Path) -> Any:
    try:
        return tf.saved_model.load(str(folder / "transform_fn"))
    except (OSError, ValueError) as error:
        rule = f"{str(folder)!r} must contain the output of Transform."
        cure = "Name the folder that contains transform_fn/, or remove the option."
        raise RecsysError("R522", rule, cure, str(error)) from None


def _as(name: str, column: tf.Tensor, spec: Any) -> Any:
    """Returns a text column `[b, any]` in the form that the graph expects."""
    values = tf.ragged.boolean_mask(column, column != "")
    if isinstance(spec, tf.SparseTensorSpec | tf.RaggedTensorSpec):
        typed = _typed(name, values.values, values.value_rowids(), spec.dtype)
        lists = values.with_values(typed)
        return lists.to_sparse() if isinstance(spec, tf.SparseTensorSpec) else lists
    # With a shape in the schema, the graph expects a fixed number of values, mostly one.
    width = spec.shape[1:].num_elements()
    first = tf.reshape(values[:, :width].to_tensor("", shape=[None, width]), [-1])
    rows = _rows(tf.stack([tf.shape(column)[0], width]))
    return tf.reshape(_typed(name, first, rows, spec.dtype), [-1, *spec.shape[1:]])


def _typed(name: str, texts: tf.Tensor, rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the values of `texts` `[n]`; the graph's missing value for empty texts."""
    if dtype == tf.string:
        return trimmed(texts)
    return numbers(name, texts, rows, dtype) if dtype.is_floating else seconds(texts)
