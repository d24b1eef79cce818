"""Errors that nobody foresaw, in one sentence: what was raised, and where in a plugin."""

from __future__ import annotations

import re
import traceback
from typing import NamedTuple

from recsys.errors import RecsysError, shortened

PLUGIN_PACKAGES: set[str] = set()
"""Top-level packages of the plugins; `recsys.registry` adds them."""
_MOST_CHARACTERS = 300
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_OF_KERAS = "Exception encountered when calling"
_OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|[Oo]ut of memory")


class Place(NamedTuple):
    """A line of code that was running.

    Attributes:
        file: Path of the source.
        line: Its number, from 1.
        function: The function that it is in.
        module: Name of its module.
    """

    file: str
    line: int
    function: str
    module: str


def unexpected_error(error: BaseException) -> RecsysError:
    """Returns the error of a stage that raised something other than a `RecsysError` (R610)."""
    told = plugin_error(error, "R610")
    if told is not None:
        return told
    cure = "See the end of the log; if data and config are right, report this as a bug."
    rule = f"The stage raised {_raised(error, places_of(error)[-1:])}"
    return RecsysError("R610", rule, _cure_of_memory(error) or cure)


def plugin_error(error: BaseException, code: str) -> RecsysError | None:
    """Returns an error that says what a plugin raised, and where; None if none did."""
    place = plugin_place(error)
    if place is None:
        return None
    cure = "Correct it there; the log has the whole traceback."
    rule = f"The plugin {place.module} raised {_raised(error, [place])}"
    return RecsysError(code, rule, _cure_of_memory(error) or cure)


def _cure_of_memory(error: BaseException) -> str | None:
    if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
        return None
    return "There was too little memory: lower train.batch_size, or take a larger machine."


def _raised(error: BaseException, places: list[Place]) -> str:
    where = "".join(f", in {x.function}, {x.file}:{x.line}" for x in places)
    return f"{line_of(error).removesuffix('.')}{where}."


def line_of(error: BaseException) -> str:
    """Returns the last line of a traceback: the class of an error and the start of its text."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines()]
    # Keras puts the call before the text, and the call's arguments behind it.
    lines = [line for line in lines if line and not line.startswith(_OF_KERAS)]
    name = type(error).__name__
    return shortened(f"{name}: {lines[0]}" if lines else name, _MOST_CHARACTERS)


def plugin_place(error: BaseException) -> Place | None:
    """Returns the innermost line of a plugin in the traceback of an error; None without one."""
    inside = [x for x in places_of(error) if x.module.partition(".")[0] in PLUGIN_PACKAGES]
    return inside[-1] if inside else None


def places_of(error: BaseException) -> list[Place]:
    """Returns the lines of the traceback of an error, the innermost last."""
    return [
        Place(
            frame.f_code.co_filename,
            line,
            frame.f_code.co_name,
            frame.f_globals.get("__name__", ""),
        )
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
