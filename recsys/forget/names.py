"""Removes user ids from texts, JSON and reports.

In structured files every user id is found. In free text an id is searched as a word if it is
distinctive (`is_distinctive`): `7` is not.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from recsys.data.forgotten import words_of

GONE = "[forgotten]"
"""Replacement of an id in a text."""
USER_COLUMN = "user_id"
_LEAST, _LEAST_DIGITS = 4, 7
_ARTICLE = re.compile(r'<article class="person">\s*<h3>User (.*?) <span.*?</article>\s*', re.S)
_LETTER = re.compile(r'<p class="letter">.*?<code>(.*?)</code></p>\s*', re.S)
_STATISTICS = re.compile(
    rf"<tr>\s*<th[^>]*>{USER_COLUMN}</th>.*?</tr>|<tbody>\s*<tr[^>]*><th[^>]*>{USER_COLUMN}</th>"
    r".*?</tbody>",
    re.S,
)


def is_distinctive(id_: str) -> bool:
    """Returns whether an id is unambiguous in free text: not a short word or number."""
    return len(id_) >= (_LEAST_DIGITS if id_.isdecimal() else _LEAST)


class Names:
    """User ids to remove.

    Args:
        ids: The ids, as in the vocabularies.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = frozenset(ids)
        distinctive = {id_ for id_ in self.ids if is_distinctive(id_)}
        spelled = {
            text
            for id_ in distinctive
            for text in (
                id_,
                json.dumps(id_)[1:-1],
                html.escape(id_),
                html.escape(id_, quote=False),
                id_.replace("'", "''"),
            )
        }
        words = "|".join(map(re.escape, sorted(spelled, key=len, reverse=True)))
        self._words = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None

    def without_words(self, text: str) -> str:
        """Returns a text without the distinctive ids."""
        return text if self._words is None else self._words.sub(GONE, text)

    def in_row(self, row: str) -> bool:
        """Returns whether a raw row has one of the ids as a cell or a word."""
        return not self.ids.isdisjoint(words_of(row))

    def without_json(self, value: Any, name: str = "") -> Any:
        """Returns JSON without entries about the ids.

        Removes list entries about a user: objects with this `user_id`, dead letters with it in
        their row, frequent values of the column of user ids, and examples of new or evicted users.

        Args:
            value: The JSON.
            name: Key of the value, or name of the column that it describes.
        """
        if isinstance(value, str):
            return self.without_words(value)
        if isinstance(value, Mapping):
            column = str(value.get("name") or name)
            column = name if name == "users" else column
            return {
                self.without_words(key): self.without_json(
                    part, key if key in ("users", "items") else column
                )
                for key, part in value.items()
            }
        if isinstance(value, list):
            kept = [part for part in value if not self._is_about(part, name)]
            return [self.without_json(part, name) for part in kept]
        return value

    def _is_about(self, part: Any, name: str) -> bool:
        if isinstance(part, Mapping):
            row = part.get("row")
            return part.get(USER_COLUMN) in self.ids or (isinstance(row, str) and self.in_row(row))
        if isinstance(part, list):
            return bool(part) and name == USER_COLUMN and part[0] in self.ids
        return isinstance(part, str) and name == "users" and part in self.ids

    def without_html(self, page: str) -> str:
        """Returns a report without examples of these users, and without the ids."""

        def emptied(match: re.Match[str]) -> str:
            return "" if html.unescape(match[1]) in self.ids else match[0]

        def without_letter(match: re.Match[str]) -> str:
            return "" if self.in_row(html.unescape(match[1])) else match[0]

        def without_values(match: re.Match[str]) -> str:
            words = "|".join(re.escape(html.escape(id_)) for id_ in self.ids)
            return re.sub(
                rf"(?<=[:,>] )(?:{words})(?= \()|(?<=>)(?:{words})(?= \()", GONE, match[0]
            )

        page = _LETTER.sub(without_letter, _ARTICLE.sub(emptied, page))
        return self.without_words(_STATISTICS.sub(without_values, page))
