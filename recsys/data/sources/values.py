"""Converts a raw column of any Arrow type to plain values; invalid values become null.

Nothing is guessed: text that doesn't match completely is null. What formats write in
different ways comes out equal: 7, 7.0 as a double and "7" are one id, "007" is another.
"""

from __future__ import annotations

import datetime as dt
import functools
import unicodedata
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import TimestampUnit
from recsys.data.sources.written_times import written_times

_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_DAY_S = 86_400
# Up to 8,999,999,999,999,999,999, which fits in 64 bits.
_WHOLE = r"^[+-]?([0-9]{1,18}|[0-8][0-9]{18})(\.0*)?$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
# All that Python's str.strip() takes away, of ASCII.
_ASCII_BLANKS = " \t\n\v\f\r\x1c\x1d\x1e\x1f"
_EXACT = 2.0**53


def to_ids(column: pa.Array) -> pa.Array:
    """Returns ids as text `[n]`: trimmed, in Unicode's NFC, null where there is none.

    Whole numbers become decimal text, doubles too where they are whole.
    """
    return _by_value(column, _ids)


def to_text(column: pa.Array) -> pa.Array:
    """Returns text `[n]` in Unicode's NFC; null stays null."""
    return _by_value(column, _text)


def to_numbers(column: pa.Array, decimal: str = ".") -> pa.Array:
    """Returns float32 numbers `[n]`, null where there is no finite one.

    Args:
        column: Numbers, or text of numbers.
        decimal: What stands before the decimals of a text, a point or a comma.
    """
    return _by_value(column, _numbers if decimal == "." else _comma_numbers)


def to_times(column: pa.Array, unit: TimestampUnit, format_: str | None = None) -> pa.Array:
    """Returns times `[n]` int64 [whole seconds since 1970, UTC], null where there is none.

    Args:
        column: Numbers or text of numbers in `unit`; ISO 8601 text; or values of an
            Arrow type for time, which need no unit. Without an offset they are UTC.
        unit: What numbers and text mean.
        format_: How text is written, as Python's strptime has it; `None`: as `unit` says.
    """
    return _by_value(column, functools.partial(_times, unit=unit, format_=format_))


def to_lists(column: pa.Array, separator: str) -> pa.Array:
    """Returns lists of text `[n]`, trimmed and in NFC, without empty ones; null as empty.

    Args:
        column: Lists, or text whose parts stand between separators.
        separator: What stands between two parts of a text.
    """
    column = _decoded(column)
    if not _is_list(column.type):
        column = pc.split_pattern(pc.fill_null(to_text(column), ""), separator)
    parts = to_ids(column.flatten())
    parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
    kept = parts.is_valid()
    counts = np.bincount(parents[kept.to_numpy(zero_copy_only=False)], minlength=len(column))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), parts.filter(kept))


def is_ascii(text: pa.Array) -> bool:
    """Returns whether a column of text holds ASCII alone."""
    return not len(text) or _text_bytes(text).isascii()


def has_byte(text: pa.Array, byte: bytes) -> bool:
    """Returns whether a byte stands anywhere in a column of text."""
    return bool(len(text)) and byte in _text_bytes(text)


# --- one value a row


def _by_value(column: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Converts a column; one of few different values by these, one of lists by its single ones."""
    if pa.types.is_dictionary(column.type):
        return convert(_plain(column.dictionary)).take(column.indices)
    return convert(_plain(column))


def _plain(column: pa.Array) -> pa.Array:
    """Returns a column of single values, text as `string`."""
    kind = column.type
    if _is_list(kind):
        return _plain(_single(column))
    if pa.types.is_dictionary(kind):
        return _plain(_decoded(column))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _decoded_text(column)
    if pa.types.is_fixed_size_binary(kind):
        return _decoded_text(column.cast(pa.binary()))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_nested(kind):
        return pa.nulls(len(column), pa.string())
    return column


def _single(column: pa.Array) -> pa.Array:
    """Returns the value of each list that has one `[n]`; null for the others."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    place = pa.array(ends - 1, mask=lengths != 1)
    return column.flatten().take(place)


def _decoded(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return column.dictionary.take(column.indices)
    return column


def _decoded_text(column: pa.Array) -> pa.Array:
    """Returns binary as text; null where it isn't UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decode(value) for value in column.to_pylist()], pa.string())


def _decode(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


# --- text and ids


def _ids(column: pa.Array) -> pa.Array:
    text = _written(column)
    if is_ascii(text):
        text = pc.ascii_trim(text, _ASCII_BLANKS)
    else:
        text = _composed(pc.utf8_trim_whitespace(text))
    is_empty = pc.equal(pc.binary_length(text), 0)
    return pc.if_else(is_empty, pa.scalar(None, pa.string()), text) if _any(is_empty) else text


def _text(column: pa.Array) -> pa.Array:
    text = _written(column)
    return text if is_ascii(text) else _composed(text)


def _composed(text: pa.Array) -> pa.Array:
    """Returns text in NFC. Arrow's own `utf8_normalize` only decomposes (18.1, with NFC too)."""
    encoded = text.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if all(unicodedata.is_normalized("NFC", value) for value in values):
        return text
    composed = [unicodedata.normalize("NFC", value) for value in values]
    return pa.array(composed, pa.string()).take(encoded.indices)


def _written(column: pa.Array) -> pa.Array:
    """Returns plain values as people write them."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _written_floats(column.cast(pa.float64()))
    if pa.types.is_decimal(kind):
        text = column.cast(pa.string())
        if _any(pc.fill_null(pc.match_substring(text, "E"), False)):
            plain = [None if value is None else f"{value:f}" for value in column.to_pylist()]
            text = pa.array(plain, pa.string())
        return pc.replace_substring_regex(text, r"\.0*$|(\.[0-9]*[1-9])0+$", r"\1")
    return column.cast(pa.string())


def _written_floats(column: pa.Array) -> pa.Array:
    """Returns doubles as text: whole ones without a point, none for what is no number."""
    column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float64()))
    is_whole = pc.and_(pc.equal(column, pc.trunc(column)), pc.less(pc.abs(column), 2.0**63))
    whole = pc.if_else(is_whole, column, pa.scalar(None, pa.float64()))
    whole = whole.cast(pa.int64(), safe=False).cast(pa.string())
    if not _any(pc.invert(pc.fill_null(is_whole, True))):
        return whole
    others = [None if value is None else repr(value) for value in column.to_pylist()]
    return pc.coalesce(whole, pa.array(others, pa.string()))


# --- numbers


def _numbers(column: pa.Array) -> pa.Array:
    numbers = _doubles(column).cast(pa.float32())
    is_finite = pc.is_finite(numbers)
    if numbers.null_count == 0 and pc.all(is_finite, min_count=0).as_py():
        return numbers
    return pc.if_else(is_finite, numbers, pa.scalar(None, pa.float32()))


def _comma_numbers(column: pa.Array) -> pa.Array:
    """Returns numbers whose text has a comma before the decimals; a point is in none."""
    if not pa.types.is_string(column.type):
        return _numbers(column)
    text = pc.if_else(pc.match_substring(column, "."), None, column)
    return _numbers(pc.replace_substring(text, ",", "."))


def _doubles(column: pa.Array) -> pa.Array:
    """Returns numbers as float64, null where a text is none."""
    kind = column.type
    if pa.types.is_string(kind):
        return _parsed(column, pa.float64(), _NUMBER)
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.float64())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64(), safe=False)
    return pa.nulls(len(column), pa.float64())


def _parsed(text: pa.Array, kind: pa.DataType, pattern: str) -> pa.Array:
    """Returns the numbers that texts are, null where the pattern doesn't fit.

    Most columns are numbers alone: only where that fails every text is looked at.
    """
    if not has_byte(text, b"x") and not has_byte(text, b"X"):  # 0x10 is 16 to Arrow.
        try:
            return text.cast(kind)
        except pa.ArrowInvalid:
            pass
    trimmed = pc.utf8_trim_whitespace(text)
    fits = pc.fill_null(pc.match_substring_regex(trimmed, pattern), False)
    fitting = trimmed.filter(fits)
    if pa.types.is_integer(kind):
        fitting = pc.replace_substring_regex(fitting, r"^\+|\.0*$", "")
    else:
        fitting = pc.replace_substring_regex(fitting, r"^\+", "")
    return _spread(fitting.cast(kind), fits)


def _spread(values: pa.Array, where: pa.Array) -> pa.Array:
    """Returns values at the places where there is one `[n]`; null elsewhere."""
    is_there = where.to_numpy(zero_copy_only=False)
    place = np.cumsum(is_there) - 1
    return values.take(pa.array(place, mask=~is_there))


# --- times


def _times(column: pa.Array, unit: TimestampUnit, format_: str | None) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _floored(column.cast(pa.int64()), _ticks_of(kind.unit))
    if pa.types.is_date64(kind):
        return _floored(column.cast(pa.int64()), 1000)
    if pa.types.is_date(kind):
        days = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        return pc.multiply(days, _DAY_S)
    if format_ is not None:
        return written_times(column.cast(pa.string()), format_)
    if pa.types.is_string(kind):
        return _iso_times(column) if unit == "iso8601" else _text_times(column, _UNITS[unit])
    if unit == "iso8601":
        return pa.nulls(len(column), pa.int64())
    if pa.types.is_integer(kind):
        return _floored(_int64(column), _UNITS[unit])
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _float_times(column.cast(pa.float64(), safe=False), _UNITS[unit])
    return pa.nulls(len(column), pa.int64())


def _ticks_of(unit: str) -> int:
    return {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]


def _int64(column: pa.Array) -> pa.Array:
    """Returns whole numbers as int64, null where one is too large."""
    if column.type == pa.uint64():
        fits = pc.less(column, pa.scalar(2**63, pa.uint64()))
        column = pc.if_else(fits, column, pa.scalar(None, pa.uint64()))
    return column.cast(pa.int64())


def _floored(numbers: pa.Array, ticks: int) -> pa.Array:
    """Returns whole seconds of a number of ticks; of before 1970 too."""
    if ticks == 1:
        return numbers
    values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    mask = numbers.is_null().to_numpy(zero_copy_only=False) if numbers.null_count else None
    return pa.array(values // ticks, pa.int64(), mask=mask)


def _text_times(text: pa.Array, ticks: int) -> pa.Array:
    whole = _parsed(text, pa.int64(), _WHOLE)
    if not whole.null_count:
        return _floored(whole, ticks)
    is_other = pc.and_(whole.is_null(), text.is_valid())
    others = _parsed(text.filter(is_other), pa.float64(), _NUMBER)
    fractions = _spread(_float_times(others, ticks), is_other)
    return pc.coalesce(_floored(whole, ticks), fractions)


def _float_times(numbers: pa.Array, ticks: int) -> pa.Array:
    """Returns whole seconds of a number of ticks with a fraction."""
    seconds = pc.floor(pc.divide(numbers, float(ticks)))
    fits = pc.and_(pc.is_finite(seconds), pc.less(pc.abs(seconds), _EXACT))
    return pc.if_else(fits, seconds, pa.scalar(None, pa.float64())).cast(pa.int64())


def _iso_times(text: pa.Array) -> pa.Array:
    """Returns the seconds of ISO 8601 texts; by Arrow where all are of its two forms."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return _floored(text.cast(kind).cast(pa.int64()), 10**6)
        except pa.ArrowInvalid:
            continue
    unique = pc.dictionary_encode(pc.utf8_trim_whitespace(text))
    seconds = [_iso_seconds(value) for value in unique.dictionary.to_pylist()]
    return pa.array(seconds, pa.int64()).take(unique.indices)


def _iso_seconds(text: str) -> int | None:
    text = text.removesuffix(" UTC")
    try:
        moment = dt.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return int((moment - _EPOCH).total_seconds() // 1)
    except (ValueError, OverflowError):
        return None


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


# --- bytes of a column


def _text_bytes(text: pa.Array) -> bytes:
    """Returns the bytes of all values of a `string` column."""
    _, offsets, data = text.buffers()
    if data is None:
        return b""
    starts = np.frombuffer(offsets, np.int32, len(text) + 1, 4 * text.offset)
    content: bytes = data.slice(int(starts[0]), int(starts[-1] - starts[0])).to_pybytes()
    return content


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags, min_count=0).as_py())
