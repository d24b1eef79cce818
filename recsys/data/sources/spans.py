"""Spans and versions in file patterns, as TFX's ExampleGen means them.

`{SPAN}` is a number that grows with time, or `{YYYY}`, `{MM}` and `{DD}` are a date, of
which the days since 1970 are the span. `{VERSION}` numbers the versions of one span; the
newest one is read. `{SPAN:2}` stands for two digits.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterable

from recsys.errors import UsageError

_SPEC = re.compile(r"\{(SPAN|VERSION|YYYY|MM|DD)(?::(\d+))?\}")
_ANY_SPEC = re.compile(r"\{[A-Z]+(?::[^}]*)?\}")
_DATE = {"YYYY": 4, "MM": 2, "DD": 2}
_EPOCH = dt.date(1970, 1, 1)


@dataclasses.dataclass(frozen=True)
class SpanPattern:
    """A pattern of files with spans.

    Attributes:
        pattern: As the config has it.
        as_glob: The glob that matches the files of every span, and maybe others.
        regex: What matches a path, with a group for each part of the span.
    """

    pattern: str
    as_glob: str
    regex: re.Pattern[str]

    @property
    def has_dates(self) -> bool:
        """Whether a span is a day."""
        return "YYYY" in self.regex.groupindex

    def span_of(self, path: str) -> tuple[int, int] | None:
        """Returns span and version of a path; `None` if it has none."""
        match = self.regex.fullmatch(path)
        if match is None:
            return None
        parts = {name: int(text) for name, text in match.groupdict().items()}
        version = parts.get("VERSION", 0)
        if "SPAN" in parts:
            return parts["SPAN"], version
        try:
            day = dt.date(parts["YYYY"], parts["MM"], parts["DD"])
        except ValueError:
            return None
        return (day - _EPOCH).days, version

    def newest(self, paths: Iterable[str]) -> list[tuple[str, tuple[int, int]]]:
        """Returns the files of the newest version of each span, from the oldest span on.

        Where a glob stands before the version, each thing that it matches has versions
        of its own: `eu/span-1/v2` doesn't replace `us/span-1/v1`.

        Args:
            paths: Files that the glob matched; those without a span are left out.

        Returns:
            Each file with its span and version.
        """
        spans = ((path, self.span_of(path)) for path in paths)
        matched = [(path, span) for path, span in spans if span is not None]
        files = sorted(matched, key=lambda file: (file[1], file[0]))
        newest = {(self._series(path), span): version for path, (span, version) in files}
        return [file for file in files if newest[self._series(file[0]), file[1][0]] == file[1][1]]

    def _series(self, path: str) -> str:
        """Returns what stands before the version of a path; versions count within it."""
        match = self.regex.fullmatch(path)
        if match is None or "VERSION" not in match.groupdict():
            return ""
        return path[: match.start("VERSION")]


def day_name(span: int) -> str:
    """Returns the date of a span that is a day, as ISO 8601 has it."""
    return (_EPOCH + dt.timedelta(days=span)).isoformat()


def span_pattern(pattern: str) -> SpanPattern | None:
    """Returns the spans of a pattern; `None` if it has none.

    Raises:
        UsageError: The parts of a span don't make one.
    """
    names = [match[1] for match in _SPEC.finditer(pattern)]
    unknown = [text for text in _ANY_SPEC.findall(pattern) if not _SPEC.fullmatch(text)]
    has_date = any(name in _DATE for name in names)
    is_right = (
        not unknown
        and len(names) == len(set(names))
        and not (has_date and not set(_DATE) <= set(names))
        and has_date + ("SPAN" in names) == (1 if names else 0)
    )
    if not is_right:
        raise UsageError(
            "R251",
            "A pattern with spans must hold {SPAN}, or {YYYY}, {MM} and {DD}, each once, "
            "and may hold {VERSION}.",
            "Write for example logs/{YYYY}-{MM}-{DD}/*.parquet or span-{SPAN}/v{VERSION}/*.",
            pattern,
        )
    if not names:
        return None
    return SpanPattern(pattern, _SPEC.sub("*", pattern), _regex(pattern))


def _regex(pattern: str) -> re.Pattern[str]:
    parts, at = [], 0
    for match in _SPEC.finditer(pattern):
        width = match[2] or _DATE.get(match[1])
        digits = rf"\d{{{width}}}" if width else r"\d+"
        parts += [_glob_regex(pattern[at : match.start()]), f"(?P<{match[1]}>{digits})"]
        at = match.end()
    return re.compile("".join([*parts, _glob_regex(pattern[at:])]), re.DOTALL)


_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]")
_GLOB_REGEX = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _glob_regex(text: str) -> str:
    """Returns the regular expression of a part of a glob."""
    parts, at = [], 0
    for match in _GLOB.finditer(text):
        parts.append(re.escape(text[at : match.start()]))
        sign = match[0]
        parts.append(_GLOB_REGEX.get(sign) or _set_regex(sign))
        at = match.end()
    return "".join([*parts, re.escape(text[at:])])


def _set_regex(sign: str) -> str:
    inner = sign[1:-1].replace("\\", "\\\\")
    return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
