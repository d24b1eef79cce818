"""Output on a terminal: text, progress bars and errors.

Control characters and markup in data are printed as text. An error is one red sentence on stderr,
never a traceback.
"""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import rich.console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from recsys.errors import RecsysError, visible
from recsys.system.files import storage_error

_WIDTH = 100
"""Line width if there is no terminal [characters]."""


class Console(rich.console.Console):
    """A console that escapes control characters and does not interpret markup or emoji.

    Args:
        options: Arguments of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        plain = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(**{**plain, **options})
        if not (self.is_terminal or "width" in options or "COLUMNS" in os.environ):
            self.width = _WIDTH

    def write_line(self, line: str, style: str = "", *, head: str | Text = "") -> None:
        """Prints a line, which a terminal shows broken at spaces only: a path stays whole.

        Args:
            line: Text of the line.
            style: Style of the text.
            head: Printed before the text, which a terminal indents by the width of it.
        """
        lines, indent = [line], " " * min(len(head), self.width // 2)
        if self.is_terminal:
            width = self.width - len(indent)
            lines = textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        text = Text(f"\n{indent}").join(Text(part, style) for part in lines)
        self.print(Text.assemble(head, text), soft_wrap=True)

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the segments to print, with control characters in their text escaped.

        No-break spaces become spaces, so that the output can be searched.
        """
        for segment in super().render(renderable, options):
            if segment.control is None:
                text = visible(segment.text, but="\n").replace("\N{NO-BREAK SPACE}", " ")
                yield Segment(text, segment.style)
            else:
                yield segment


class _Bars(Progress):
    """Progress bars that leave no output behind; rich prints an empty line without a terminal."""

    def stop(self) -> None:
        if not self.disable:
            super().stop()


def progress_bar(console: Console, *first: ProgressColumn) -> Progress:
    """Returns a progress bar with the field `text`; disabled without a terminal.

    Args:
        console: Console to print to.
        *first: Columns before the description.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    return _Bars(*first, *columns, console=console, transient=True, disable=not console.is_terminal)


# --- errors


@contextmanager
def one_sentence() -> Iterator[None]:
    """Ends the program with one sentence if its block raises an error.

    The exit code is the error's own, and 1 for an unexpected error, whose traceback goes to a
    file that the sentence names.
    """
    try:
        yield
    except RecsysError as error:
        failure = error
    except OSError as error:
        failure = storage_error(error)
    except Exception as error:  # noqa: BLE001 the last stop before the user
        failure = _unforeseen(error)
    else:
        return
    print_error(str(failure))
    sys.exit(failure.exit_code)


@contextmanager
def log_of_failure(name: str) -> Iterator[IO[bytes]]:
    """Yields a log file; of an error it names the file, without one it removes it.

    Args:
        name: Prefix of the file name.
    """
    with tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log", delete=False) as log:
        try:
            yield log.file
        except RecsysError:
            print(f"Log: {visible(log.name)}", file=sys.stderr)
            raise
    Path(log.name).unlink()


def print_error(sentence: str) -> None:
    """Prints `sentence` on stderr, in red on a terminal."""
    Console(stderr=True).write_line(sentence, "red")


def _unforeseen(error: Exception) -> RecsysError:
    """Returns the error of a bug, whose traceback is written to a file."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="recsys-", suffix=".log", delete=False, errors="backslashreplace"
    ) as file:
        file.writelines([" ".join(sys.argv), "\n\n", *traceback.format_exception(error)])
    return RecsysError(
        "R900",
        "The program ended with an unexpected error.",
        f"Please report it with {file.name}.",
        error,
    )
