"""Errors for users: the rule, the received value and the cure; also for unexpected exceptions."""

from __future__ import annotations

import re
import traceback
from types import FrameType
from typing import Any

_SHOWN_CHARACTERS = 80

# Control characters (C0 and C1), bidirectional and line separators, invisible marks and tags, and
# lone surrogates, as in file names that are not UTF-8. Joiners are kept, since Persian and Hindi
# words and many emoji need them.
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


def shown(text: str, limit: int = 40) -> str:
    """Returns text with control characters escaped, shortened to `limit` characters."""
    return shortened(visible(text[: limit + 1]), limit)


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
        """Returns the error for a dict from `to_json`."""
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


PLUGIN_PACKAGES: set[str] = set()
"""Top-level packages of the plugins; `recsys.registry` adds them."""
_MOST_CHARACTERS = 300
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_OF_KERAS = "Exception encountered when calling"
_OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|[Oo]ut of memory")

Place = tuple[FrameType, int]
"""A frame of a traceback, and its line, from 1."""


def unexpected_error(error: BaseException) -> RecsysError:
    """Returns the error of a stage that raised something other than a `RecsysError` (R610)."""
    told = plugin_error(error, "R610")
    if told is not None:
        return told
    cure = "See the end of the log; if data and config are right, report this as a bug."
    rule = f"The stage raised {_raised(error, [*traceback.walk_tb(error.__traceback__)][-1:])}"
    return RecsysError("R610", rule, _cure_of_memory(error) or cure)


def plugin_error(error: BaseException, code: str) -> RecsysError | None:
    """Returns an error that says what a plugin raised, and where; None if no plugin did."""
    place = plugin_place(error)
    if place is None:
        return None
    cure = "Correct it there; the log has the whole traceback."
    rule = f"The plugin {_module(place[0])} raised {_raised(error, [place])}"
    return RecsysError(code, rule, _cure_of_memory(error) or cure)


def _cure_of_memory(error: BaseException) -> str | None:
    if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
        return None
    return "There was too little memory: lower train.batch_size, or take a larger machine."


def _raised(error: BaseException, places: list[Place]) -> str:
    codes = [(frame.f_code, line) for frame, line in places]
    where = "".join(f", in {code.co_name}, {code.co_filename}:{line}" for code, line in codes)
    return f"{line_of(error).removesuffix('.')}{where}."


def line_of(error: BaseException) -> str:
    """Returns the last line of a traceback: the class of an error and the start of its text."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines()]
    # Keras puts the call before the text, and its arguments after it.
    lines = [line for line in lines if line and not line.startswith(_OF_KERAS)]
    name = type(error).__name__
    return shortened(f"{name}: {lines[0]}" if lines else name, _MOST_CHARACTERS)


def plugin_place(error: BaseException) -> Place | None:
    """Returns the innermost frame of a plugin in an error's traceback, or None."""
    places = traceback.walk_tb(error.__traceback__)
    inside = [x for x in places if _module(x[0]).partition(".")[0] in PLUGIN_PACKAGES]
    return inside[-1] if inside else None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
