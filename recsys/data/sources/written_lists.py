"""Lists as text, as written by Python, JSON, NumPy, Java and PostgreSQL: `['a', "b"]`, `{a,b}`."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Possessive quantifiers, for a single pass over the text.
_QUOTED = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
_NUMBER = r"[+-]?\.?\d[\w.+-]*+"
_WORDS = r"""[^\s"'()\[\]{},:](?:[^"()\[\]{},]*+)"""
_ELEMENTS = {
    "[": re.compile(rf"{_QUOTED}|{_WORDS}", re.DOTALL),
    "{": re.compile(rf"{_QUOTED}|{_WORDS}", re.DOTALL),
    # Text in parentheses is a list only with quotes or a second element.
    "(": re.compile(rf"{_QUOTED}|{_NUMBER}", re.DOTALL),
}
_CLOSING = {"[": "]", "{": "}", "(": ")"}
_BETWEEN = re.compile(r"\s*+,?\s*+")
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
    element, at, end = _ELEMENTS[text[0]], 1, len(text) - 1
    found: list[str] = []
    n_quoted = 0
    while at < end and len(found) <= MOST_ELEMENTS:
        between = _BETWEEN.match(text, at, end)
        at = between.end() if between else at
        if at == end:
            break
        match = element.match(text, at, end)
        if match is None:
            return None
        at, value = match.end(), match[0]
        is_quoted = value[0] in "'\""
        n_quoted += is_quoted
        if is_quoted:
            found.append(_unescaped(value[1:-1]))
        elif value.strip() not in _MISSING:
            found.append(value.strip())
    if len(found) == 1 and not n_quoted:  # NumPy separates numbers by blanks.
        words = found[0].split()
        found = words if all(re.fullmatch(_NUMBER, word) for word in words) else found
    if text[0] == "(" and found and not n_quoted and "," not in text:
        return None
    return found


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def plain(escape: re.Match[str]) -> str:
        word = escape[1]
        return chr(int(word[1:], 16)) if len(word) > 1 else _ESCAPES.get(word, word)

    # JSON escapes characters beyond 16 bits as a pair of surrogates.
    units = _ESCAPE.sub(plain, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")
