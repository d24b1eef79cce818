"""Guesses the encoding of a text that isn't UTF-8, and lists alternatives."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Sequence

from recsys.data.inspect.names import shown

_SAMPLE_BYTES = 1 << 16
_NEARLY_ALL = 0.99
_LEAST_SCORE = 0.15
_MOST_OTHERS = 3
_ALSO_LATIN = ("cp1250", "cp1254")  # Central European and Turkish.
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]+")
_WORD = re.compile(r"[^\s,;|\t]*[^\x00-\x7f\s,;|][^\s,;|\t]*")


def guess_encoding(lines: Sequence[bytes]) -> tuple[str, list[str]]:
    """Returns the likeliest encoding of non-ASCII lines, and the alternatives.

    The score of an encoding is the share of decoded characters that are common in its
    languages.
    """
    lines = _first(lines)
    scores = {name: score(lines, name) for name, score in _SCORES.items()}
    best = max(scores, key=lambda name: scores[name])  # The first of equals.
    others = sorted(scores, key=lambda name: -scores[name])
    others = [name for name in others if name != best and scores[name] >= _LEAST_SCORE]
    if best == "cp1252":
        others = [*_ALSO_LATIN, *others]
        if not any(0x80 <= byte < 0xA0 for line in lines for byte in line):
            best = "latin-1"
    return best, others[:_MOST_OTHERS]


def reading(lines: Sequence[bytes], name: str) -> str:
    """Returns a non-ASCII word as decoded with an encoding, and the encoding's name."""
    words = (_WORD.search(line.decode(name, "replace")) for line in lines)
    word = next((match[0] for match in words if match), "")
    return f"{name} ({shown(word, 24)})"


def _first(lines: Sequence[bytes]) -> list[bytes]:
    sizes = itertools.accumulate(len(line) for line in lines)
    return [line for line, size in zip(lines, sizes, strict=True) if size <= _SAMPLE_BYTES] or [
        lines[0][:_SAMPLE_BYTES]
    ]


def _latin(lines: Sequence[bytes], name: str) -> float:
    """Returns the share of non-ASCII bytes that are single or in pairs, as in `café`."""
    del name
    runs = [len(run) for line in lines for run in _BEYOND_ASCII.findall(line)]
    return sum(n for n in runs if n <= 2) / max(1, sum(runs))


def _by_share(is_common: Callable[[str], bool]) -> Callable[[Sequence[bytes], str], float]:
    """Returns a score: the share of common characters, or 0 if too many lines are invalid."""

    def score(lines: Sequence[bytes], name: str) -> float:
        texts = [line.decode(name, "replace") for line in lines]
        if sum("\ufffd" not in text for text in texts) < _NEARLY_ALL * len(texts):
            return 0.0
        letters = [char for text in texts for char in text if char > "\x7f"]
        return sum(map(is_common, letters)) / max(1, len(letters))

    return score


def _is_kana(char: str) -> bool:
    return "\u3040" <= char <= "\u30ff"


def _japanese(lines: Sequence[bytes], name: str) -> float:
    """Returns the share of kana and common kanji; halved without kana, as it is hardly Japanese."""
    share = _by_share(lambda char: _is_kana(char) or _has_lead(char, "euc_jp", 0xB0, 0xCF))
    has_kana = any(_is_kana(char) for line in lines for char in line.decode(name, "replace"))
    return share(lines, name) * (1.0 if has_kana else 0.5)


def _has_lead(char: str, encoding: str, low: int, high: int) -> bool:
    """Returns whether the first of two bytes of a character is in the range of common ones."""
    code = char.encode(encoding, "ignore")
    return len(code) == 2 and low <= code[0] <= high


def _cyrillic(lines: Sequence[bytes], name: str) -> float:
    """Returns the share of lower-case Cyrillic letters, with a penalty next to Latin letters."""
    share = _by_share(
        lambda char: char.islower() and unicodedata.name(char, "").startswith("CYRILLIC")
    )
    return share(lines, name) * (1.0 - _latin(lines, name))


_SCORES: dict[str, Callable[[Sequence[bytes], str], float]] = {
    "cp1252": _latin,
    "euc_kr": _by_share(lambda char: "\uac00" <= char <= "\ud7a3"),
    "gb18030": _by_share(lambda char: _has_lead(char, "gb2312", 0xB0, 0xD7)),
    "big5": _by_share(lambda char: _has_lead(char, "big5", 0xA4, 0xC6)),
    "cp932": _japanese,
    "euc_jp": _japanese,
    "cp1251": _cyrillic,
    "koi8-r": _cyrillic,
}
