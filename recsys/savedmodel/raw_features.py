"""The Transform graphs inside the bundle: raw columns to token rows.

A raw column is text `[batch, any]`, padded with the empty string, whatever it holds:
numbers as people write them; dates as seconds since 1970, UTC, as years, or in ISO 8601.
Each is read as the ingest reads it, so that one raw value is one token row in training and
in serving. Two things are the client's: Unicode's normal form C, which TensorFlow can't
make, and the parts of a list, one by one. What the ingest would reject is an error of the
request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from recsys.data.event_log import AGES, LEAST_WEIGHTS, OLDEST, UNKNOWN
from recsys.data.sources.values import NUMBER
from recsys.errors import RecsysError
from recsys.savedmodel.signatures import CLOCK, DAY, ISO, WHOLE, raw_inputs

# All that Unicode calls a blank: RE2's \s is ASCII without \v.
_BLANKS = r"[\s\v\pZ\x{1c}-\x{1f}\x{85}]+"
_DAY_S = 86_400
_YEARS = (1000, 3000)


def trimmed(texts: tf.Tensor) -> tf.Tensor:
    """Returns texts `[n]` without blanks around them."""
    return tf.strings.regex_replace(texts, f"^{_BLANKS}|{_BLANKS}$", "")


def numbers(name: str, texts: tf.Tensor, rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the numbers that `texts` `[n]` are, rounded once from float64; NaN for empty ones.

    What the ingest would take for no number is refused: other texts, as `0x10` or `nan`, which
    TensorFlow reads, and numbers that are too large.

    Args:
        name: The input, for the message.
        texts: The texts.
        rows: Row of the request that each text is of `[n]`, for the message.
        dtype: Type of the numbers.
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


def fact_of_numbers(name: str, texts: tf.Tensor) -> tf.Tensor:
    """Returns the fact of events `[b, n]` int32 that texts `[b, n]` hold.

    The empty one is unknown; an age below 0 is 0.

    Args:
        name: The fact, of `recsys.data.event_log`.
        texts: Numbers: ages [s], or weights.
    """
    dtype = tf.float64 if name == AGES else tf.float32
    shape = tf.shape(texts)
    number = numbers(name, tf.reshape(texts, [-1]), _rows(shape), dtype)
    number = tf.reshape(number, shape)
    if name == AGES:
        fact = tf.cast(tf.clip_by_value(number, 0.0, float(OLDEST)), tf.int32)
    else:
        fact = tf.reduce_sum(tf.cast(number[..., None] >= LEAST_WEIGHTS, tf.int32), axis=-1)
    return tf.where(tf.math.is_nan(number), UNKNOWN, fact)


def _rows(shape: tf.Tensor) -> tf.Tensor:
    """Returns the row of each value of a tensor of `shape` `[2]`, one after the other."""
    return tf.repeat(tf.range(shape[0]), shape[1])


def first_of(texts: tf.Tensor) -> tf.Tensor:
    """Returns the first of texts `[b, any]` in each row `[b]`, `""` where there is none."""
    return tf.strings.reduce_join(texts[:, :1], axis=1)


def minutes_of_texts(texts: tf.Tensor) -> tf.Tensor:
    """Returns the minutes since 1970 of the first of texts `[b, any]`, `[b]` int32.

    See `recsys.data.event_log.minutes`; `UNKNOWN` stands for no time.
    """
    moment = seconds(first_of(texts))
    minute = tf.cast(tf.clip_by_value(moment // 60, 0, tf.int32.max), tf.int32)
    return tf.where(moment == tf.int64.min, UNKNOWN, minute)


def seconds(texts: tf.Tensor) -> tf.Tensor:
    """Returns the times that `texts` `[n]` are [seconds since 1970, UTC] int64.

    A whole number from 1000 to 3000 is a year, and its first day; any other one is the
    seconds themselves. Other texts are dates in ISO 8601, with a time of day or without;
    without an offset they are UTC. The lowest int64 stands for none.
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
    """Returns the seconds of texts `[n]` that fit `ISO`."""
    day = _days(*(_part(texts, start, length) for start, length in ((0, 4), (5, 2), (8, 2))))
    clock = tf.strings.regex_replace(texts, rf"^{DAY}[T ]?", "")
    zone = tf.strings.regex_replace(clock, rf"^({CLOCK})?", "")
    # Padded, so that each part is there.
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
    """Turns raw columns into token rows with the very graph that made the stored ones.

    Args:
        folder: A TFT transform output; its `transform_fn/` is a SavedModel.
        id_column: `item_id` or `user_id`.
        widths: Tokens of each feature that the tower reads.
    """

    def __init__(self, folder: Path, id_column: str, widths: Mapping[str, int]) -> None:
        super().__init__(name=f"raw_features_by_{id_column}")
        self.graph = _load(folder)
        self._function = self.graph.transform_fn
        # Sorted, since TensorFlow reads them from a map in an order that is another each time.
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
        """The raw columns that it reads, beside the id, by the names of inputs."""
        return tuple(self._column_of)

    def or_stored(
        self, ids: tf.Tensor, raw: Mapping[str, tf.Tensor], stored: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns token rows `[b, width]` int32 by feature.

        Args:
            ids: Ids `[b]`.
            raw: Raw columns `[b, any]`, by `columns`.
            stored: Token rows `[b, width]` to read where all columns of a row are empty.
        """
        is_given = [tf.reduce_any(column != "", axis=1) for column in raw.values()]
        one_is_given = tf.reduce_any(is_given, axis=0)
        fresh = self._bags(ids, raw)
        return {
            name: tf.where(one_is_given[:, None], fresh[name], bag) for name, bag in stored.items()
        }

    def _bags(self, ids: tf.Tensor, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        columns = {self._column_of[name]: column for name, column in raw.items()}
        columns[self._id_column] = ids[:, None]
        typed = {name: _as(name, columns[name], spec) for name, spec in self._specs.items()}
        outputs = self._function(typed)
        return {name: _padded(outputs[name], width) for name, width in self._widths.items()}


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
    """Returns a text column `[b, any]` as the graph wants it."""
    values = tf.ragged.boolean_mask(column, column != "")
    if isinstance(spec, tf.SparseTensorSpec | tf.RaggedTensorSpec):
        typed = _typed(name, values.values, values.value_rowids(), spec.dtype)
        lists = values.with_values(typed)
        return lists.to_sparse() if isinstance(spec, tf.SparseTensorSpec) else lists
    # Where the schema has a shape the graph has a place for so many values, mostly one.
    width = spec.shape[1:].num_elements()
    first = tf.reshape(values[:, :width].to_tensor("", shape=[None, width]), [-1])
    rows = _rows(tf.stack([tf.shape(column)[0], width]))
    return tf.reshape(_typed(name, first, rows, spec.dtype), [-1, *spec.shape[1:]])


def _typed(name: str, texts: tf.Tensor, rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the values of `texts` `[n]`; for an empty one what the graph takes for missing."""
    if dtype == tf.string:
        return trimmed(texts)
    return numbers(name, texts, rows, dtype) if dtype.is_floating else seconds(texts)


def _padded(bag: tf.Tensor, width: int) -> tf.Tensor:
    """Returns a bag as `[b, width]` int32."""
    return tf.ensure_shape(tf.cast(bag, tf.int32), [None, width])
