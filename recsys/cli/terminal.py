"""Console output; control characters and markup in data are printed as text."""

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
    """A console that escapes control characters and does not interpret markup or emoji.

    Args:
        options: Arguments of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        plain = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(**{**plain, **options})

    def write_line(self, text: str, style: str = "") -> None:
        """Prints a line that only the terminal wraps, so that it can be copied whole."""
        self.print(Text(text, style), soft_wrap=True)

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the segments to print, with control characters in their text escaped."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(visible(segment.text, but="\n"), segment.style)
            else:
                yield segment


def fitted_console(width: int, *, stderr: bool = False) -> Console:
    """Returns a console as wide as its terminal or COLUMNS, otherwise of the given width.

    Args:
        width: Line width in a file or a pipe [characters].
        stderr: Whether to write to stderr instead of stdout.
    """
    is_known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if is_known else width)


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


def titled_table(title: str, *headings: str, numbers: Collection[str] = ()) -> Table:
    """Returns a table with a bold, left-aligned title.

    Args:
        title: Title of the table.
        *headings: Column headings.
        numbers: Headings of right-aligned columns.
    """
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for heading in headings:
        # Long values are wrapped, so that no digits are lost.
        side: Literal["left", "right"] = "right" if heading in numbers else "left"
        table.add_column(Text(heading), justify=side, overflow="fold")
    return table


def plain_size(n_bytes: Any) -> str:
    """Returns a size such as `3.4 MB`, with a plain space so that output can be searched."""
    return size(n_bytes).replace("\N{NO-BREAK SPACE}", " ")
