"""Texts of a raw column inside the graph, read as the ingest reads them.

What `recsys.data.entities` takes from text is taken here too, so that one raw value is
one token row in training and in serving. Two things are the client's: Unicode's normal
form C, which TensorFlow can't make, and the parts of a list, one by one. What the ingest
would reject is an error of the request.
"""

from __future__ import annotations

import tensorflow as tf

# All that Unicode calls a blank: RE2's \s is ASCII without \v.
_BLANKS = r"[\s\v\pZ\x{1c}-\x{1f}\x{85}]+"
_WHOLE = r"[0-9]{1,18}(\.0*)?"
_DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?"
_ZONE = r"(Z|[+-][0-9]{2}:[0-9]{2}| UTC)?"
_ISO = rf"{_DAY}([T ]{_TIME}{_ZONE})?"
_DAY_S = 86_400
_YEARS = (1000, 3000)


def trimmed(texts: tf.Tensor) -> tf.Tensor:
    """Returns texts `[n]` without blanks around them."""
    return tf.strings.regex_replace(texts, f"^{_BLANKS}|{_BLANKS}$", "")


def numbers(texts: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the numbers that `texts` `[n]` are, rounded once from float64; NaN for none."""
    texts = tf.strings.regex_replace(trimmed(texts), r"^\+", "")
    # 0x10 is 16 to TensorFlow, and no number to the ingest.
    texts = tf.strings.regex_replace(texts, "[xX]", "?")
    texts = tf.where(texts == "", "nan", texts)
    return tf.cast(tf.strings.to_number(texts, tf.float64), dtype)


def seconds(texts: tf.Tensor) -> tf.Tensor:
    """Returns the times that `texts` `[n]` are [seconds since 1970, UTC] int64.

    A whole number from 1000 to 3000 is a year, and its first day; any other one is the
    seconds themselves. Other texts are dates in ISO 8601, with a time of day or without;
    without an offset they are UTC. The lowest int64 stands for none.
    """
    texts = trimmed(texts)
    is_iso = tf.strings.regex_full_match(texts, _ISO)
    is_whole = tf.strings.regex_full_match(texts, _WHOLE)
    whole = tf.where(is_whole, tf.strings.regex_replace(texts, r"\.0*$", ""), texts)
    plain = tf.where(texts == "", str(tf.int64.min), tf.where(is_iso, "0", whole))
    number = tf.strings.to_number(plain, tf.int64)
    is_year = (number >= _YEARS[0]) & (number <= _YEARS[1])
    first_day = _days(number, tf.ones_like(number), tf.ones_like(number)) * _DAY_S
    iso = _iso_seconds(tf.where(is_iso, texts, "1970-01-01"))
    return tf.where(is_iso, iso, tf.where(is_year, first_day, number))


def _iso_seconds(texts: tf.Tensor) -> tf.Tensor:
    """Returns the seconds of texts `[n]` that fit `_ISO`."""
    day = _days(*(_part(texts, start, length) for start, length in ((0, 4), (5, 2), (8, 2))))
    clock = tf.strings.regex_replace(texts, rf"^{_DAY}[T ]?", "")
    zone = tf.strings.regex_replace(clock, rf"^({_TIME})?", "")
    # Padded, so that each part is there.
    clock = tf.where(tf.strings.regex_full_match(clock, rf"{_TIME}.*"), clock, "00:00")
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
