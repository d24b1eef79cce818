"""Console output; control characters and markup in data are printed as text."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import rich.console
from rich.cells import cell_len
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Column, Table
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

    def write_line(self, line: str | Text, style: str = "", *, hang: int | None = None) -> None:
        """Prints a line, which a terminal shows broken at spaces only: a path stays whole.

        Args:
            line: Text of the line.
            style: Style of the whole line.
            hang: Where the parts after the first begin [characters]; None: where the line begins.
        """
        line = Text(line, style) if isinstance(line, str) else line
        if not self.is_terminal:
            self.print(line, soft_wrap=True)
            return
        if hang is None:
            hang = len(line.plain) - len(line.plain.lstrip(" "))
        hang = min(hang, self.width // 2)
        for first, last in _parts(line.plain, self.width, hang):
            indent = Text(" " * hang if first else "")
            self.print(indent + line[first:last], soft_wrap=True)

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the segments to print, with control characters in their text escaped."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(visible(segment.text, but="\n"), segment.style)
            else:
                yield segment


def _parts(text: str, width: int, hang: int) -> Iterator[tuple[int, int]]:
    """Yields first and last place of the parts of `text` that fit, or that no space divides.

    A number and its `%` stay together.
    """
    first = last = 0
    room = width
    for word in re.finditer("[^ ]+(?: %[^ ]*)?", text):
        if last > first and cell_len(text[first : word.end()]) > room:
            yield first, last
            first, room = word.start(), width - hang
        last = word.end()
    yield first, last


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


class _FairTable(Table):
    """A table whose columns share a narrow screen, where rich alone cuts words and numbers.

    Each column has room for its longest word or its longest number, and the rest is shared so
    that the widest are wrapped first. Where that is too much, the outer lines go, or numbers are
    broken at their spaces; where nothing of that helps, the longest words are cut.
    """

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        """Yields the table with the widths of its columns set."""
        room = options.max_width - 3 * len(self.columns) - 1
        tries = ((True, True), (False, True), (True, False), (False, False))
        for has_edge, whole in (*tries, tries[0]):
            sizes = [_sizes(console, options, column, whole=whole) for column in self.columns]
            self.show_edge, left = has_edge, room + (0 if has_edge else 2)
            if sum(size.minimum for size in sizes) <= left:
                break
        for column, width in zip(self.columns, _fair_widths(sizes, left), strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)


def _sizes(
    console: rich.console.Console,
    options: rich.console.ConsoleOptions,
    column: Column,
    *,
    whole: bool,
) -> Measurement:
    """Returns the least and the wanted width of a column [characters].

    The least is that of the longest word, and of the longest cell too where these are numbers,
    if `whole`, or where the column is never wrapped.
    """
    head = Measurement.get(console, options, column.header)
    cells = [Measurement.get(console, options, cell) for cell in column.cells]
    is_whole = column.no_wrap or (whole and column.justify == "right")
    least = (cell.maximum if is_whole else cell.minimum for cell in cells)
    wanted = (cell.maximum for cell in cells)
    return Measurement(max(head.minimum, *least, 1), max(head.maximum, *wanted, 1))


def _fair_widths(sizes: Sequence[Measurement], room: int) -> list[int]:
    """Returns a width for each column; their sum is at most `room` where that is possible."""
    widths = [size.minimum for size in sizes]
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    for _ in range(room - sum(widths)):
        wrapped = [i for i, size in enumerate(sizes) if widths[i] < size.maximum]
        if not wrapped:
            break
        widths[min(wrapped, key=widths.__getitem__)] += 1
    return widths


def titled_table(title: str, *headings: str, numbers: Collection[str] = ()) -> Table:
    """Returns a table with a bold, left-aligned title.

    Args:
        title: Title of the table.
        *headings: Column headings.
        numbers: Headings of right-aligned columns.
    """
    table = _FairTable(title=Text(title), title_justify="left", title_style="bold")
    for heading in headings:
        # Long values are wrapped, so that no digits are lost.
        side: Literal["left", "right"] = "right" if heading in numbers else "left"
        table.add_column(Text(heading), justify=side, overflow="fold")
    return table


def plain_size(n_bytes: Any) -> str:
    """Returns a size such as `3.4 MB`, with a plain space so that output can be searched."""
    return size(n_bytes).replace("\N{NO-BREAK SPACE}", " ")
