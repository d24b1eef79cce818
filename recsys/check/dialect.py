"""How a file is written, told by evidence over many lines."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from recsys import registry
from recsys.check.names import role_words
from recsys.check.tables import Table, understand_table
from recsys.config import CsvFormat, EventSource, ListOfEvents
from recsys.data.sources.csv_source import CsvSource
from recsys.data.sources.detection import format_of_name
from recsys.data.sources.files import Section, SourceFile, match_files
from recsys.data.sources.jsonl_source import JsonLinesSource
from recsys.data.sources.pieces import open_source
from recsys.data.sources.streams import (
    START_BYTES,
    compression_of,
    open_bytes,
    read_some,
    wide_encoding,
)

_LOOK_BYTES = 4 << 20
_MOST_COLUMNS = 500


@dataclasses.dataclass(frozen=True)
class Understood:
    """How the files of a source are written.

    Attributes:
        source: What reads them.
        files: The files.
        format: Their format.
        compression: Their compression; empty: none.
        columns: Names of the columns that a config can name.
        evidence: What was seen, a sentence each.
        types: Types of columns that the header tells, as RecBole writes them.
    """

    source: EventSource
    files: list[SourceFile]
    format: str
    compression: str
    columns: list[str]
    evidence: list[str]
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def has_header(self) -> bool:
        """Returns whether the columns have names of their own."""
        return not self.source.csv.names

    def with_events(self, events: ListOfEvents, reason: str) -> Understood:
        """Returns the same files as rows with a list of events each."""
        source = self.source.model_copy(update={"explode": events})
        return dataclasses.replace(self, source=source, evidence=[*self.evidence, reason])


def understand(patterns: Sequence[str], what: str) -> Understood:
    """Looks at the first of some files.

    Args:
        patterns: Paths or globs.
        what: What they hold, for errors: `interactions`, `items` or `users`.

    Raises:
        RecsysError: They can't be read, or can't be understood.
    """
    source = EventSource(files=tuple(patterns))
    files = match_files(source, what)
    path, size = files[0].path, files[0].size
    start = read_some(Section(path, 0, size), START_BYTES)
    compression = compression_of(path, start)
    start = read_some(open_bytes(path, 0, size, compression), _LOOK_BYTES)
    encoding, why = _encoding(start)
    source = source.model_copy(update={"csv": CsvFormat(encoding=encoding)})
    file = open_source(files[0], source)
    table = Table(CsvFormat(), [], [])
    counts: Counter[str] = Counter()
    if isinstance(file.source, CsvSource):
        text = read_some(file.source.open(file), _LOOK_BYTES)
        may_be_lists = what == "interactions"
        table = understand_table(path, text, encoding, may_be_lists=may_be_lists)
        counts = Counter(table.names)
        columns = [name for name in table.names if name.strip() and counts[name] == 1]
        if len(columns) < len(table.names):
            table.evidence.append("left out: columns without a name, or with that of another")
        table.evidence.append(why)
    elif isinstance(file.source, JsonLinesSource):
        counts = file.source.count_names(file)
        columns = list(counts)
        if wide_encoding(start[:START_BYTES]):
            table = Table(CsvFormat(encoding=encoding), [], [why])
    else:
        columns = file.source.column_names(file)
    if len(columns) > _MOST_COLUMNS:
        n_left_out = len(columns) - _MOST_COLUMNS
        table.evidence.append(f"left out: {n_left_out:,} of {len(columns):,} columns")
        columns = _likely_columns(columns, counts)
    format_ = registry.name_of("source", file.source)
    source = source.model_copy(update={"csv": table.csv, "explode": table.explode})
    if format_of_name(path) is None:
        source = source.model_copy(update={"format": format_})
    evidence, types = table.evidence, table.types
    return Understood(source, files, format_, compression or "", columns, evidence, types)


def _likely_columns(columns: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """Returns as many columns as are looked at: those whose names or numbers say most."""
    likely = sorted(columns, key=lambda name: (-counts.get(name, 1), not role_words(name)))
    kept = set(likely[:_MOST_COLUMNS])
    return [name for name in columns if name in kept]


def _encoding(start: bytes) -> tuple[str, str]:
    """Returns the encoding of a text, and what tells it."""
    wide = wide_encoding(start[:START_BYTES])
    if wide is not None:
        why = "it begins with its mark" if wide == "utf-16" else "every other byte is NUL"
        return wide, f"encoding {wide}: {why}"
    lines = [line for line in start.split(b"\n")[:-1] or [start] if not line.isascii()]
    if not lines:
        return "utf-8", "encoding utf-8: all is ASCII so far"
    n_good = sum(_is_utf8(line) for line in lines)
    if 2 * n_good >= len(lines):
        return "utf-8", f"encoding utf-8: {n_good:,} of {len(lines):,} lines beyond ASCII are"
    has_cp1252 = any(0x80 <= byte < 0xA0 for line in lines for byte in line)
    name = "cp1252" if has_cp1252 else "latin-1"
    return name, f"encoding {name}: {len(lines) - n_good:,} lines are no UTF-8"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
