"""Formats of times as text, compiled to a pattern with one group per part of a time.

The directives are those of Python's strptime. Names of months and days are English, in any
case, in full or as three letters. `%Z` is the name of a zone in `ZONES`.
"""

from __future__ import annotations

import re

_DIRECTIVES = {
    "Y": r"(?P<year>\d{4})",
    "y": r"(?P<short_year>\d{2})",
    "m": r"(?P<month>\d{1,2})",
    "b": r"(?P<month_name>[A-Za-z]{3,9})\.?",
    "B": r"(?P<month_name>[A-Za-z]{3,9})",
    "d": r"\s?(?P<day>\d{1,2})",
    "H": r"(?P<hour>\d{1,2})",
    "I": r"(?P<hour_of_12>\d{1,2})",
    "p": r"(?P<half>[AaPp])\.?[Mm]\.?",
    "M": r"(?P<minute>\d{1,2})",
    "S": r"(?P<second>\d{1,2})",
    "f": r"\d{1,9}",
    "z": r"(?P<offset>[Zz]|[+-]\d{2}:?\d{2})",
    "Z": r"(?P<zone>[A-Za-z]{1,5})",
    "a": r"[A-Za-z]{2,4}\.?",
    "A": r"[A-Za-z]{6,9}",
    "%": "%",
}
_ZONES_AHEAD = {
    0: "utc ut gmt z wet", 60: "cet west bst met", 120: "cest mest eet sast", 180: "eest msk",
    480: "sgt hkt awst", 540: "jst kst", 570: "acst", 600: "aest", 630: "acdt", 660: "aedt",
    720: "nzst", 780: "nzdt", -150: "ndt", -180: "adt", -210: "nst", -240: "ast edt",
    -300: "est cdt", -360: "cst mdt", -420: "mst pdt", -480: "pst akdt", -540: "akst",
    -600: "hst",
}  # fmt: skip
ZONES = {name: minutes for minutes, names in _ZONES_AHEAD.items() for name in names.split()}
"""Offsets of time zones from UTC [minutes], by their names in lower case. North American ones,
including CST, are as in RFC 2822; the ambiguous IST (India, Ireland or Israel) is left out."""
_NEEDED = (("year", "short_year"), ("month", "month_name"), ("day",))
_PART = re.compile(r"%.?|\s+|[^%\s]+", re.DOTALL)


def time_pattern(format_: str) -> str:
    """Returns the regular expression (RE2) for texts in the given format.

    Raises:
        ValueError: The format has an unknown or repeated directive, or lacks year, month or day.
    """
    pattern = "".join(_part(part) for part in _PART.findall(format_))
    try:
        groups = re.compile(pattern).groupindex
    except re.error:
        raise ValueError(
            f"timestamp_format {format_!r} must name each part of a time at most once"
        ) from None
    for names in _NEEDED:
        if not any(name in groups for name in names):
            raise ValueError(
                f"timestamp_format {format_!r} must contain year, month and day, as in %d/%m/%Y or"
                " %B %d, %Y"
            )
    return rf"^\s*{pattern}\s*$"


def _part(part: str) -> str:
    if part.isspace():
        return r"\s+"
    if not part.startswith("%"):
        return re.escape(part)
    if part[1:] not in _DIRECTIVES:
        known = " ".join(f"%{letter}" for letter in _DIRECTIVES)
        raise ValueError(f"timestamp_format contains {part!r}; allowed are {known}")
    return _DIRECTIVES[part[1:]]
