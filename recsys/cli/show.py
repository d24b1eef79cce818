"""One way to show a result: tables and lines for people, JSON for programs.

The name of a field is its heading and says its unit: `bytes`, `seconds`, `_s`, `share`,
`interval`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from recsys.cli.terminal import Console
from recsys.errors import visible
from recsys.formats import change, count, duration, figure, share, size, span

Fields = Mapping[str, Any]

_UNITS = {
    "(^|[ _])(bytes|size|freed|kept)(_|$)": size,
    "(^|_)(seconds|s|duration)$": duration,
    "(^|_)share$": share,
    "^(relative|change)$": change,
    "(^|_)interval$": span,
}
_STYLES = {
    "green": ("ok", "yes", "blessed", "best", "served"),
    "yellow": ("warn", "refused"),
    "red": ("fail", "no", "failed", "interrupted"),
}
_STYLE_OF = {word: style for style, words in _STYLES.items() for word in words}
_NUMBER = re.compile(r"[≈<+−-]?\s?\d[\d,.]*( … [+−-]?\d[\d,.]*)?(\s?[^\s\d]{1,3})?$")


def emit(result: Any, *, as_json: bool, people: Fields | None = None, beside: bool = False) -> None:
    """Prints a result on stdout: as a line of JSON, or for people.

    Args:
        result: A mapping or a dataclass of values that JSON has.
        as_json: Whether to print JSON.
        people: The part to show to people; None: all of it.
        beside: Whether people see their part on stderr if JSON is printed.
    """
    if not as_json or beside:
        show(result if people is None else people, Console(stderr=as_json))
    if as_json:
        print(json.dumps(result, default=_plain))


def show(result: Any, console: Console) -> None:
    """Prints a result for people; fields without a value are left out.

    Lists of records and mappings of records become tables, a field that is named `""` or a
    list of sentences becomes lines, and the others are aligned below each other.

    Args:
        result: A mapping or a dataclass.
        console: Console to print to.
    """
    for number, block in enumerate(_blocks(fields_of(result))):
        if number:
            console.print()
        if isinstance(block, tuple):
            title, rows = block
            console.write_line(title, "bold")
            console.print(records(rows, console.width))
            continue
        width = max(len(_heading(name)) for name, _ in block)
        for name, value in block:
            head = Text(f"{_heading(name):<{width}}  " if name else "", "bold")
            for line in value if isinstance(value, list) else [value_text(name, value)]:
                console.write_line(str(line), _style(name, str(line)), head=head)
                head = Text(" " * len(head))


def records(rows: Iterable[Any], width: int) -> Table:
    """Returns a table with a row for each record and a column for each field of them.

    Columns share the width so that the widest are wrapped first, and words and numbers stay
    whole if there is room.

    Args:
        rows: Mappings, dataclasses or named tuples.
        width: Highest width [characters].
    """
    listed = [fields_of(row) for row in rows]
    names = dict.fromkeys(name for row in listed for name in row)
    columns = {name: [value_text(name, row.get(name)) for row in listed] for name in names}
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    table = Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    widths = _widths(columns, width - 2 * (len(columns) - 1))
    for (name, cells), size_ in zip(columns.items(), widths, strict=True):
        side: Any = "right" if _are_numbers(cells) else "left"
        table.add_column(Text(_heading(name)), justify=side, overflow="fold", width=size_)
    for row in zip(*columns.values(), strict=True):
        named = zip(columns, row, strict=True)
        table.add_row(*(Text(text, _style(name, text)) for name, text in named))
    return table


def _widths(columns: Mapping[str, Sequence[str]], room: int) -> list[int]:
    """Returns a width for each column; their sum is at most `room` if that is possible."""
    least, wanted = [], []
    for name, cells in columns.items():
        words = [word for cell in cells for word in cell.split()]
        parts = [*_heading(name).split(), *(cells if _are_numbers(cells) else words)]
        least.append(max(map(cell_len, parts)))
        wanted.append(max(map(cell_len, [_heading(name), *cells])))
    while sum(least) > room and max(least) > 1:
        least[least.index(max(least))] -= 1
    for _ in range(room - sum(least)):
        narrow = [i for i, size_ in enumerate(wanted) if least[i] < size_]
        if narrow:
            least[min(narrow, key=least.__getitem__)] += 1
    return least


def _are_numbers(cells: Iterable[str]) -> bool:
    return all(_NUMBER.match(cell) for cell in cells if cell)


def fields_of(result: Any) -> Fields:
    """Returns the fields of a mapping, a dataclass or a named tuple."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return result._asdict() if hasattr(result, "_asdict") else dict(result)


def value_text(name: str, value: Any) -> str:
    """Returns the text of a value, in the unit that the name of its field says."""
    if value is None or value == "":
        return ""
    for pattern, text_of in _UNITS.items():
        if re.search(pattern, name) and not isinstance(value, str | bool | Mapping):
            return text_of(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return count(value) if isinstance(value, int) else figure(value)
    if _is_record(value):
        # A mapping of sizes has the unit in its own name.
        parts = ((key, value_text(f"{key}_{name}", part)) for key, part in fields_of(value).items())
        return ", ".join(f"{_heading(key)} {text}" for key, text in parts if text)
    if isinstance(value, list | tuple):
        return ", ".join(value_text(name, part) for part in value)
    return visible(str(value))


def _blocks(fields: Fields) -> Iterable[tuple[str, list[Any]] | list[tuple[str, Any]]]:
    """Yields the title and rows of each table, and lists of the other fields between them."""
    facts: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if value is None or value in ("", [], (), {}):
            continue
        rows = _rows(value)
        if rows is None:
            facts.append((name, value))
            continue
        if facts:
            yield facts
            facts = []
        yield _heading(name), rows
    if facts:
        yield facts


def _rows(value: Any) -> list[Any] | None:
    """Returns the rows of a list or mapping of records; None for another value."""
    if isinstance(value, list | tuple) and not hasattr(value, "_asdict"):
        return list(value) if all(map(_is_record, value)) else None
    if isinstance(value, Mapping) and all(map(_is_record, value.values())):
        return [{"": name, **fields_of(row)} for name, row in value.items()]
    return None


def _is_record(value: Any) -> bool:
    is_class = dataclasses.is_dataclass(value) or hasattr(value, "_asdict")
    return isinstance(value, Mapping) or is_class


def _heading(name: str) -> str:
    return re.sub("_s$", " time", name).replace("_", " ")


def _style(name: str, text: str) -> str:
    """Returns the style of a field's text, by the outcome at its start."""
    word = re.split(r"\W", text, maxsplit=1)[0]
    return _STYLE_OF.get(word, "") if name in ("state", "fits") else ""


def _plain(value: Any) -> Any:
    """Returns a dataclass or a path as a JSON value."""
    return str(value) if isinstance(value, Path) else fields_of(value)
