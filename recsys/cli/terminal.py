"""The console for messages to people, on which control characters of data are visible."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from typing import Any, Literal

import rich.console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from recsys.errors import visible
from recsys.formats import size


class Console(rich.console.Console):
    """A console on which controls are visible, and `[red]` or `:smile:` are text.

    Args:
        options: As rich's console has them.
    """

    def __init__(self, **options: Any) -> None:
        plain = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(**{**plain, **options})

    def write_line(self, text: str, style: str = "") -> None:
        """Prints a line, which the terminal wraps, so that it can be copied whole."""
        self.print(Text(text, style), soft_wrap=True)

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the parts of what is printed; their styles alone become controls."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(visible(segment.text, but="\n"), segment.style)
            else:
                yield segment


def fitted_console(width: int, *, stderr: bool = False) -> Console:
    """Returns a console as wide as its terminal, or as COLUMNS; elsewhere it has `width`.

    Args:
        width: Characters of a line in a file or a pipe.
        stderr: Write to stderr instead of stdout.
    """
    is_known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if is_known else width)


class _Bars(Progress):
    """Bars that leave nothing behind; rich would print an empty line where there is no terminal."""

    def stop(self) -> None:
        if not self.disable:
            super().stop()


def progress_bar(console: Console, *first: ProgressColumn) -> Progress:
    """Returns bars with a description, the time and the field `text`; none without a terminal.

    Args:
        console: Where they go.
        *first: Columns before the description.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    return _Bars(*first, *columns, console=console, transient=True, disable=not console.is_terminal)


def titled_table(title: str, *headings: str, numbers: Collection[str] = ()) -> Table:
    """Returns a table below a bold title on the left.

    Args:
        title: The title.
        *headings: Headings of the columns.
        numbers: Those whose values stand on the right.
    """
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for heading in headings:
        # What is too long goes on in the next line rather than lose digits.
        side: Literal["left", "right"] = "right" if heading in numbers else "left"
        table.add_column(Text(heading), justify=side, overflow="fold")
    return table


def plain_size(n_bytes: Any) -> str:
    """Returns `3.4 MB` with a plain space, so that the output can be searched."""
    return size(n_bytes).replace("\N{NO-BREAK SPACE}", " ")
