"""Errors for users: the rule, the received value, and the cure."""

from __future__ import annotations

import re
from typing import Any

_SHOWN_CHARACTERS = 80


# Control characters (C0 and C1), bidirectional and line separators, invisible marks and tags, and
# lone surrogates, as in file names that are not UTF-8. Joiners are kept: Persian and Hindi words
# and many emoji need them.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str, but: str = "") -> str:
    r"""Returns the text with control characters escaped, such as `\x1b`.

    Args:
        text: Untrusted text, such as data or file names.
        but: Control characters to keep, such as the line feed of multi-line text.
    """
    return _HIDDEN.sub(lambda sign: sign[0] if sign[0] in but else ascii(sign[0])[1:-1], text)


def shortened(text: str, most: int) -> str:
    """Returns the text, truncated with an ellipsis to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class RecsysError(Exception):
    """An error with a code, the broken rule, the received value and the cure.

    The text has one form: ``[R201] rule Received: repr. cure``. The code is an
    anchor in `docs/errors.md`.

    Args:
        code: `R` and three digits, an anchor in `docs/errors.md`.
        rule: The condition that must hold, as a sentence.
        cure: How to resolve the error, as a sentence.
        received: The received value, shown with `repr` in at most 80 characters.
            Omitted from the text if not given.
    """

    exit_code = 1

    def __init__(self, code: str, rule: str, cure: str, received: Any = ...) -> None:
        self.code = code
        self.rule = rule
        self.cure = cure
        self.received = None if received is ... else shortened(repr(received), _SHOWN_CHARACTERS)
        super().__init__(self._text())

    def _text(self) -> str:
        received = "" if self.received is None else f" Received: {self.received}."
        return visible(f"[{self.code}] {self.rule}{received} {self.cure}")

    def to_json(self) -> dict[str, str | int | None]:
        """Returns the error as a JSON-serializable dict, to pass it between processes."""
        return {
            "code": self.code,
            "rule": self.rule,
            "cure": self.cure,
            "received": self.received,
            "exit_code": self.exit_code,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> RecsysError:
        """Returns the error of a dict from `to_json`."""
        kinds = {kind.exit_code: kind for kind in (UsageError, BusyError)}
        kind = kinds.get(fields.get("exit_code", 1), RecsysError)
        error = kind(fields["code"], fields["rule"], fields["cure"])
        error.received = fields.get("received")
        error.args = (error._text(),)
        return error


class UsageError(RecsysError):
    """An error in the command line or the config (exit code 2)."""

    exit_code = 2


class BusyError(RecsysError):
    """A resource is in use by another process; try again later (exit code 75, `EX_TEMPFAIL`)."""

    exit_code = 75


class ConfigError(UsageError):
    """A config file or an override is invalid; the message names the key."""
