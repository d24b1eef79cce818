"""Converts a raw column of any Arrow type to plain values; invalid values become null.

Nothing is guessed: text that doesn't match completely becomes null. Equal values of different
formats become equal: 7, 7.0 as a double and "7" are the same id; "007" is another.
"""

from __future__ import annotations

import calendar
import datetime as dt
import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import TimestampUnit
from recsys.data.time_format import ZONES, time_pattern

_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Up to 8,999,999,999,999,999,999, which fits in 64 bits.
_WHOLE = r"^[+-]?([0-9]{1,18}|[0-8][0-9]{18})(\.0*)?$"
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
"""Texts of a number."""
# The ASCII characters that Python's str.strip() removes.
_ASCII_BLANKS = " \t\n\v\f\r\x1c\x1d\x1e\x1f"
_INVISIBLE = "\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
# They affect the shape of letters and emoji; at the ends of an id they have no effect.
_JOINERS = "\u200c\u200d"
_AT_ENDS = f"[{_INVISIBLE}{_JOINERS}]+"
INVISIBLE = f"^{_AT_ENDS}|{_AT_ENDS}$|[{_INVISIBLE}]+"
"""Invisible characters of an id, as a pattern for Python and RE2."""
# The first bytes of these characters in UTF-8; few other characters share them.
_INVISIBLE_BYTES = (b"\xe2\x80", b"\xe2\x81", b"\xef\xbb", b"\xc2\xad", b"\xe1\xa0")
_EXACT = 2.0**53
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def to_ids(column: pa.Array) -> pa.Array:
    """Returns ids as text `[n]`: trimmed, in Unicode's NFC, without invisible characters.

    An empty id becomes null. Integers, and doubles without a fraction, become decimal text.
    """
    return _by_value(column, _ids)


def to_text(column: pa.Array) -> pa.Array:
    """Returns text `[n]` in Unicode's NFC; null stays null."""
    return _by_value(column, lambda values: _composed(_written(values)))


def to_words(column: pa.Array) -> pa.Array:
    """Returns text `[n]` in Unicode's NFC, trimmed; null if empty."""
    return _by_value(column, lambda values: _trimmed(_written(values)))


def is_invalid(column: pa.Array, typed: pa.Array) -> pa.Array:
    """Returns which values `[n]` bool became null, and are neither null, NaN, blank nor empty."""
    if not typed.null_count:
        return typed.is_null()
    if pa.types.is_floating(column.type):
        is_there = pc.invert(pc.is_nan(column))
    elif is_list(column.type):
        is_there = pc.greater(pc.list_value_length(column), 0)
    elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        is_there = pc.greater(pc.binary_length(column), 0)
    else:
        is_there = to_words(column).is_valid()
    return pc.and_(typed.is_null(), pc.fill_null(is_there, False))


def to_numbers(column: pa.Array, decimal: str = ".") -> pa.Array:
    """Returns float32 numbers `[n]`; null if there is no finite number.

    Args:
        column: Numbers, or text of numbers.
        decimal: Decimal separator of text, a point or a comma.
    """
    return _by_value(column, functools.partial(_numbers, decimal=decimal))


def to_times(column: pa.Array, unit: TimestampUnit, format_: str | None = None) -> pa.Array:
    """Returns times `[n]` int64 [whole seconds since 1970, UTC]; null if invalid.

    Args:
        column: Numbers or text of numbers in `unit`; ISO 8601 text; or values of an
            Arrow type for time, which need no unit. Without an offset they are UTC.
        unit: Unit of numbers and text.
        format_: Format of text, as in Python's strptime; `None`: see `unit`.
    """
    return _by_value(column, functools.partial(_times, unit=unit, format_=format_))


def to_ranks(column: pa.Array) -> pa.Array:
    """Returns float64 numbers `[n]` that order values (numbers or times); null if invalid.

    Args:
        column: Numbers, text of numbers or of ISO 8601, or an Arrow type for time.
    """
    return _by_value(column, _ranks)


def _ranks(column: pa.Array) -> pa.Array:
    if pa.types.is_temporal(column.type):
        return _times(column, "seconds", None).cast(pa.float64())
    numbers = _doubles(column)
    if pa.types.is_string(column.type):
        numbers = pc.coalesce(numbers, _times(column, "iso8601", None).cast(pa.float64()))
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


def to_lists(column: pa.Array, separator: str) -> pa.Array:
    """Returns lists of text `[n]`, trimmed and in NFC, without empty elements; empty for null.

    A value that isn't a list of plain values, but contains objects or lists of lists, becomes
    null.

    Args:
        column: Lists; text of lists as written by Python or JSON; or text with separators.
        separator: Separator of the parts of a text.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_none = None
    if not is_list(column.type):
        column = split_lists(pc.fill_null(to_text(column), ""), separator)
        is_none = column.is_null() if column.null_count else None
    parts = to_words(column.flatten())
    parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
    is_part = parts.is_valid()
    counts = np.bincount(parents[is_part.to_numpy(zero_copy_only=False)], minlength=len(column))
    return lists_of(parts.filter(is_part), counts, is_none)


def lists_of(values: pa.Array, counts: np.ndarray, mask: pa.Array | None = None) -> pa.Array:
    """Returns lists with the given numbers of values `[n]`; null if the mask is true."""
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def list_lengths(lists: pa.Array) -> np.ndarray:
    """Returns the length of each list `[n]` int64; 0 for null."""
    return _numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)


def last_values(lists: pa.Array, mask: np.ndarray) -> pa.Array:
    """Returns the last value of each list `[n]`; null if the mask `[n]` is true."""
    return lists.flatten().take(pa.array(np.cumsum(list_lengths(lists)) - 1, mask=mask))


def is_list(kind: pa.DataType) -> bool:
    """Returns whether a type is any kind of list."""
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def has_byte(text: pa.Array, byte: bytes) -> bool:
    """Returns whether a column of text contains a byte."""
    return bool((_text_bytes(text) == ord(byte)).any())


def _is_ascii(text: pa.Array) -> bool:
    return bool(_text_bytes(text).max(initial=0) < 0x80)


def _text_bytes(text: pa.Array) -> np.ndarray:
    """Returns the bytes of all values of a `string` column, without a copy."""
    _, offsets, data = text.buffers()
    if data is None or not len(text):
        return np.empty(0, np.uint8)
    starts = np.frombuffer(offsets, np.int32, len(text) + 1, 4 * text.offset)
    return np.frombuffer(data, np.uint8)[starts[0] : starts[-1]]


# --- one value per row


def _by_value(column: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Converts a column, via the distinct values of a dictionary, or the single ones of lists."""
    if pa.types.is_dictionary(column.type):
        return convert(_plain(column.dictionary)).take(column.indices)
    return convert(_plain(column))


def _plain(column: pa.Array) -> pa.Array:
    """Returns a column of single values, with text as `string`."""
    kind = column.type
    if is_list(kind):  # Lists of one value become that value, others null.
        return _plain(last_values(column, list_lengths(column) != 1))
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_fixed_size_binary(kind):
        return _plain(column.cast(pa.binary()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([_decoded(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    return pa.nulls(len(column), pa.string()) if pa.types.is_nested(kind) else column


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


# --- text and ids


def _ids(column: pa.Array) -> pa.Array:
    text = _written(column)
    content = b"" if _is_ascii(text) else _text_bytes(text).tobytes()
    if any(part in content for part in _INVISIBLE_BYTES):
        text = pc.replace_substring_regex(pc.utf8_trim_whitespace(text), INVISIBLE, "")
    return _trimmed(text)


_POINT_ZERO = r"^(\s*[+-]?[0-9]+)\.0(\s*)$"


def without_point_zero(texts: pa.Array) -> pa.Array:
    """Returns texts `[n]` with 13 for 13.0, which data frames write if any id is missing."""
    if not has_byte(texts, b"."):
        return texts
    return pc.replace_substring_regex(texts, _POINT_ZERO, r"\1\2")


def all_have_point_zero(texts: pa.Array) -> bool:
    """Returns whether all texts, except empty ones and NaN, are integers with `.0`."""
    known = texts.filter(pc.invert(pc.match_substring_regex(texts, r"^\s*(nan|NaN)?\s*$")))
    fits = pc.match_substring_regex(known, _POINT_ZERO)
    return len(known) > 0 and bool(pc.all(fits).as_py())


def plain_id(text: str) -> str:
    """Returns one id as `to_ids` does, without trimming."""
    text = text if text.isascii() else re.sub(INVISIBLE, "", text)
    return unicodedata.normalize("NFC", text)


def _trimmed(text: pa.Array) -> pa.Array:
    if _is_ascii(text):
        text = pc.ascii_trim(text, _ASCII_BLANKS)
    else:
        text = _composed(pc.utf8_trim_whitespace(text))
    is_empty = pc.equal(pc.binary_length(text), 0)
    return pc.if_else(is_empty, pa.scalar(None, pa.string()), text) if _any(is_empty) else text


def _composed(text: pa.Array) -> pa.Array:
    """Returns text in NFC. Arrow's `utf8_normalize` only decomposes (18.1, even with NFC)."""
    if _is_ascii(text):
        return text
    encoded = text.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if all(unicodedata.is_normalized("NFC", value) for value in values):
        return text
    composed = [unicodedata.normalize("NFC", value) for value in values]
    return pa.array(composed, pa.string()).take(encoded.indices)


def _written(column: pa.Array) -> pa.Array:
    """Returns plain values as decimal text."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _written_floats(column.cast(pa.float64()))
    if pa.types.is_decimal(kind):
        text = column.cast(pa.string())
        if _any(pc.match_substring(text, "E")):
            plain = [None if value is None else f"{value:f}" for value in column.to_pylist()]
            text = pa.array(plain, pa.string())
        return pc.replace_substring_regex(text, r"\.0*$|(\.[0-9]*[1-9])0+$", r"\1")
    return column.cast(pa.string())


def _written_floats(column: pa.Array) -> pa.Array:
    """Returns doubles as text; integers have no point, and NaN and infinities become null."""
    column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float64()))
    is_whole = pc.and_(pc.equal(column, pc.trunc(column)), pc.less(pc.abs(column), 2.0**63))
    whole = pc.if_else(is_whole, column, pa.scalar(None, pa.float64()))
    whole = whole.cast(pa.int64(), safe=False).cast(pa.string())
    if not _any(pc.invert(is_whole)):
        return whole
    others = [None if value is None else repr(value) for value in column.to_pylist()]
    return pc.coalesce(whole, pa.array(others, pa.string()))


# --- numbers


def _numbers(column: pa.Array, decimal: str) -> pa.Array:
    if decimal == "," and pa.types.is_string(column.type):  # Then a point is invalid.
        text = pc.if_else(pc.match_substring(column, "."), None, column)
        column = pc.replace_substring(text, ",", ".")
    numbers = _doubles(column).cast(pa.float32())
    is_finite = pc.is_finite(numbers)
    if numbers.null_count == 0 and pc.all(is_finite, min_count=0).as_py():
        return numbers
    return pc.if_else(is_finite, numbers, pa.scalar(None, pa.float32()))


def _doubles(column: pa.Array) -> pa.Array:
    """Returns numbers as float64; null for text that is no number."""
    kind = column.type
    if pa.types.is_string(kind):
        return _parsed(column, pa.float64(), NUMBER)
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.float64())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64(), safe=False)
    return pa.nulls(len(column), pa.float64())


def _parsed(text: pa.Array, kind: pa.DataType, pattern: str) -> pa.Array:
    """Returns the numbers in texts; null if the pattern doesn't match.

    Most columns only contain numbers: the texts are matched one by one only if that fails.
    """
    if not has_byte(text, b"x") and not has_byte(text, b"X"):  # Arrow reads 0x10 as 16.
        try:
            return text.cast(kind)
        except pa.ArrowInvalid:
            pass
    trimmed = pc.utf8_trim_whitespace(text)
    fits = pc.match_substring_regex(trimmed, pattern)
    fitting = pc.if_else(fits, trimmed, pa.scalar(None, pa.string()))
    zeros = r"|\.0*$" if pa.types.is_integer(kind) else ""
    return pc.replace_substring_regex(fitting, rf"^\+{zeros}", "").cast(kind)


# --- times


def _times(column: pa.Array, unit: TimestampUnit, format_: str | None) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _floored(column.cast(pa.int64()), _TICKS[kind.unit])
    if pa.types.is_date(kind):
        return _floored(column.cast(pa.date64()).cast(pa.int64()), 1000)
    if format_ is not None:
        return written_times(column.cast(pa.string()), format_)
    if unit == "iso8601":
        is_text = pa.types.is_string(kind)
        return _iso_times(column) if is_text else pa.nulls(len(column), pa.int64())
    ticks = _UNITS[unit]
    if pa.types.is_string(kind):
        whole = _floored(_parsed(column, pa.int64(), _WHOLE), ticks)
        if whole.null_count == 0:
            return whole
        return pc.coalesce(whole, _float_times(_parsed(column, pa.float64(), NUMBER), ticks))
    if pa.types.is_integer(kind):
        if kind == pa.uint64():
            fits = pc.less(column, pa.scalar(2**63, pa.uint64()))
            column = pc.if_else(fits, column, pa.scalar(None, pa.uint64()))
        return _floored(column.cast(pa.int64()), ticks)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _float_times(column.cast(pa.float64(), safe=False), ticks)
    return pa.nulls(len(column), pa.int64())


def _floored(numbers: pa.Array, ticks: int) -> pa.Array:
    """Converts integer ticks to whole seconds, rounded down also before 1970."""
    if ticks == 1:
        return numbers
    values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return pa.array(values // ticks, pa.int64(), mask=_numpy(numbers.is_null()))


def _float_times(numbers: pa.Array, ticks: int) -> pa.Array:
    """Converts fractional ticks to whole seconds, rounded down."""
    seconds = pc.floor(pc.divide(numbers, float(ticks)))
    fits = pc.and_(pc.is_finite(seconds), pc.less(pc.abs(seconds), _EXACT))
    return pc.if_else(fits, seconds, pa.scalar(None, pa.float64())).cast(pa.int64())


def _iso_times(text: pa.Array) -> pa.Array:
    """Returns the seconds of ISO 8601 texts, with Arrow if all have one of its two forms."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return _floored(text.cast(kind).cast(pa.int64()), 10**6)
        except pa.ArrowInvalid:
            continue
    return _of_unique(pc.utf8_trim_whitespace(text), _iso_seconds)


def _iso_seconds(text: str) -> int | None:
    try:
        moment = dt.datetime.fromisoformat(text.removesuffix(" UTC"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return int((moment - _EPOCH).total_seconds() // 1)
    except (ValueError, OverflowError):
        return None


def _of_unique(text: pa.Array, convert: Callable[[str], int | None]) -> pa.Array:
    """Converts texts to int64 `[n]`, each distinct one once."""
    encoded = text.dictionary_encode()
    values = [convert(value) for value in encoded.dictionary.to_pylist()]
    return pa.array(values, pa.int64()).take(encoded.indices)


# --- times in a format such as `31/12/2023 10:00`

_MONTHS = {name.lower(): at for at, name in enumerate(calendar.month_name) if name}
_MONTHS |= {name[:3]: at for name, at in _MONTHS.items()} | {"sept": 9}
_NO_ZONE = 1 << 20


def written_times(text: pa.Array, format_: str) -> pa.Array:
    """Returns times `[n]` int64 [whole seconds since 1970, UTC]; null for invalid text.

    Args:
        text: Text `[n]`; without an offset it is UTC.
        format_: Its format, as in Python's strptime.
    """
    matches = pc.extract_regex(text, _re2(format_))
    parts = {field.name: matches.field(field.name) for field in matches.type}

    def part(name: str, convert: Callable[[str], int] = lambda digits: int(digits or 0)) -> Any:
        if name not in parts:
            return np.zeros(len(text), np.int64)
        return _numpy(_of_unique(pc.fill_null(parts[name], ""), convert))

    short = part("short_year")
    year = part("year") if "year" in parts else short + np.where(short >= 69, 1900, 2000)
    month = part("month") + part("month_name", lambda name: _MONTHS.get(name.lower(), 0))
    day, hour, minute, second = map(part, ("day", "hour", "minute", "second"))
    if "hour_of_12" in parts:
        hour, is_later = part("hour_of_12"), part("half", lambda half: int(half in "Pp"))
        hour = np.where((hour >= 1) & (hour <= 12), hour % 12 + 12 * is_later, -1)
    ahead = part("offset", _offset) + 60 * part("zone", _zone)
    first = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = first.astype("datetime64[D]").astype(np.int64)
    n_days = (first + 1).astype("datetime64[D]").astype(np.int64) - days
    fits = _numpy(matches.is_valid()) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= n_days)
    fits &= (hour >= 0) & (hour < 24) & (minute < 60) & (second < 60) & (ahead < _NO_ZONE)
    seconds = (((days + day - 1) * 24 + hour) * 60 + minute) * 60 + second
    return pa.array(seconds - ahead, pa.int64(), mask=~fits)


@functools.cache
def _re2(format_: str) -> str:
    # Unlike Python's re, RE2 doesn't accept an unused group or an escaped blank.
    return re.sub(r"\\([^\w.+*?()\[\]{}|^$\\])", r"\1", time_pattern(format_))


def _zone(name: str) -> int:
    """Returns the offset of a zone from UTC [minutes]."""
    return ZONES.get(name.lower(), _NO_ZONE)


def _offset(text: str) -> int:
    """Returns the offset of a time from UTC [seconds]."""
    digits = text[1:].replace(":", "")
    seconds = 3600 * int(digits[:2]) + 60 * int(digits[2:]) if digits else 0
    return -seconds if text.startswith("-") else seconds


def _numpy(column: pa.Array) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False)


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags, min_count=0).as_py())


# --- lists as text, as written by Python, JSON, NumPy, Java and PostgreSQL: `['a', "b"]`, `{a,b}`

_QUOTED = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\")"""
_NUMBER = r"[+-]?\.?\d[\w.+-]*+"
_WORDS = r"""[^\s"'()\[\]{},:](?:[^"()\[\]{},]*+)"""
# Text in parentheses is a list only with quotes or a second element.
_ELEMENTS = {"[": _WORDS, "{": _WORDS, "(": _NUMBER}
_CLOSING = {"[": "]", "{": "}", "(": ")"}
_MAY_BE_LIST = r"^\s*[\[({]"
_NESTED = re.compile(r"""\s*[\[({]\s*(?:[\[({]|(?:"[^"]*"|'[^']*')\s*:)""")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
MOST_ELEMENTS = 1 << 20
"""Maximum number of elements in a list as text, to limit memory."""
_MISSING = ("None", "null", "NULL", "nan", "NaN")


def split_lists(texts: pa.Array, separator: str | None) -> pa.Array:
    """Returns the lists in texts `[n]`; null for a list whose elements aren't plain values.

    Args:
        texts: Text, without nulls.
        separator: Separator of the parts of other texts; None: each is one part.
    """
    may_be_list = pc.match_substring_regex(texts, _MAY_BE_LIST)
    plain = texts.filter(pc.invert(may_be_list))
    lists = _split(plain, separator)
    if len(plain) == len(texts):
        return lists
    encoded = texts.filter(may_be_list).dictionary_encode()
    parsed = [_elements(text, separator) for text in encoded.dictionary.to_pylist()]
    written = pa.array(parsed, pa.list_(pa.string())).take(encoded.indices)
    order = np.argsort(np.argsort(may_be_list.to_numpy(zero_copy_only=False), kind="stable"))
    return pa.concat_arrays([lists, written]).take(pa.array(order))


def _split(texts: pa.Array, separator: str | None) -> pa.Array:
    if separator is not None:
        return pc.split_pattern(texts, separator)
    return pa.ListArray.from_arrays(pa.array(np.arange(len(texts) + 1, dtype=np.int32)), texts)


def _elements(text: str, separator: str | None) -> list[str] | None:
    """Returns the elements of a list, or else the parts; None for lists of lists or objects."""
    elements = read_list(text)
    if elements is not None:
        return elements if len(elements) <= MOST_ELEMENTS else None
    if is_nested(text) or (separator is not None and text.count(separator) >= MOST_ELEMENTS):
        return None
    return [text] if separator is None else text.split(separator)


def is_nested(text: str) -> bool:
    """Returns whether a text is an object, or a list of lists or objects."""
    text = text.strip()
    return text.endswith(tuple(_CLOSING.values())) and _NESTED.match(text) is not None


def read_list(text: str) -> list[str] | None:
    """Returns the elements of a list of plain values, except missing ones; None for other text."""
    text = text.strip()
    if len(text) < 2 or _CLOSING.get(text[0]) != text[-1]:
        return None
    elements, element = _list_patterns(_ELEMENTS[text[0]])
    if not elements.fullmatch(text, 1, len(text) - 1):
        return None
    words = [word.strip() for word in element.findall(text, 1, len(text) - 1)]
    n_quoted = sum(word[0] in "'\"" for word in words)
    found = [
        _unescaped(word[1:-1]) if word[0] in "'\"" else word
        for word in words
        if word not in _MISSING
    ]
    if len(found) == 1 and not n_quoted:  # NumPy separates numbers by blanks.
        words = found[0].split()
        found = words if all(re.fullmatch(_NUMBER, word) for word in words) else found
    if text[0] == "(" and found and not n_quoted and "," not in text:
        return None
    return found


@functools.cache
def _list_patterns(plain: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns the patterns of all elements of a list, and of one, quoted or plain."""
    element = rf"{_QUOTED}|{plain}"
    # Possessive quantifiers, for a single pass over the text.
    elements = rf"(?:\s*+,?\s*+(?:{element}))*+\s*+,?\s*+"
    return re.compile(elements, re.DOTALL), re.compile(element, re.DOTALL)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def plain(escape: re.Match[str]) -> str:
        word = escape[1]
        return chr(int(word[1:], 16)) if len(word) > 1 else _ESCAPES.get(word, word)

    # JSON escapes characters beyond 16 bits as a pair of surrogates.
    units = _ESCAPE.sub(plain, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")
