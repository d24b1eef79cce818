"""The schema in a Parquet footer, read before Arrow does: a deep one ends its process.

The footer is a struct of Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md); its
field 2 lists the schema depth first, each element with its number of children in field 5
(https://github.com/apache/parquet-format, `FileMetaData` and `SchemaElement`).
"""

from __future__ import annotations

from collections.abc import Iterator

from recsys.data.sources.files import Section
from recsys.data.sources.streams import most_bytes, read_some
from recsys.errors import RecsysError

MOST_DEEP = 100
_END = 8
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    0, 1, 2, 3, 7, 8, 9, 10, 11, 12,
)  # fmt: skip
_SCHEMA, _N_CHILDREN = 2, 5


def check_footer(file: str, size: int) -> None:
    """Raises an error if the schema of a Parquet file is nested too deep.

    What can't be read as a footer is left to Arrow, which says what is wrong with it.

    Args:
        file: The file.
        size: Its size [bytes].
    """
    footer = _footer(file, size)
    try:
        depth = _Thrift(footer).schema_depth()
    except (IndexError, ValueError):
        return
    if depth > MOST_DEEP:
        raise RecsysError(
            "R253",
            f"{file!r} must be a Parquet file whose columns are nested at most {MOST_DEEP} deep.",
            "Look who wrote it; no table is like that.",
            f"more than {MOST_DEEP} deep",
        )


def _footer(file: str, size: int) -> bytes:
    with Section(file, max(0, size - _END), size) as section:
        end = read_some(section, _END)
    n_bytes = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or n_bytes > size - _END:
        return b""
    with Section(file, size - _END - n_bytes, size - _END) as section:
        return read_some(section, min(n_bytes, most_bytes(0)))


class _Thrift:
    """Reads a struct of Thrift's compact protocol from its start."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def schema_depth(self) -> int:
        """Returns how deep the schema of a footer is nested, or one more than may be."""
        for number, kind in self._fields():
            if number == _SCHEMA and kind == _LIST:
                return self._depth()
            self._skip(kind)
        return 0

    def _depth(self) -> int:
        """Returns the depth of elements that stand depth first."""
        n_elements, _ = self._list_head()
        left: list[int] = []  # Children still to come, of each element around.
        deepest = 0
        for _ in range(n_elements):
            while left and left[-1] == 0:
                left.pop()
            if left:
                left[-1] -= 1
            n_children = self._n_children()
            if n_children > 0:
                left.append(n_children)
            deepest = max(deepest, len(left))
            if deepest > MOST_DEEP:
                break
        return deepest

    def _n_children(self) -> int:
        n_children = 0
        for number, kind in self._fields():
            if number == _N_CHILDREN and kind in (4, 5, 6):
                value = self._varint()
                n_children = value >> 1 if value % 2 == 0 else -1
            else:
                self._skip(kind)
        return n_children

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Yields number and type of each field; the caller reads its value."""
        number = 0
        while (head := self._byte()) & 0x0F != _STOP:
            if head >> 4:
                number += head >> 4
            else:
                value = self._varint()
                number = (value >> 1) ^ -(value & 1)
            yield number, head & 0x0F

    def _skip(self, kind: int, depth: int = 0) -> None:
        if depth > MOST_DEEP:
            raise ValueError("nested too deep")
        if kind in (_TRUE, _FALSE):
            return
        if kind in (_BYTE, _DOUBLE):
            self._at += 1 if kind == _BYTE else 8
        elif kind in (4, 5, 6):
            self._varint()
        elif kind == _BINARY:
            n_bytes = self._varint()
            self._at += n_bytes
        elif kind in (_LIST, _SET):
            n_elements, of = self._list_head()
            for _ in range(n_elements):
                self._skip_element(of, depth + 1)
        elif kind == _MAP:
            self._skip_map(depth)
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner, depth + 1)
        else:
            raise ValueError("no type of Thrift")

    def _skip_map(self, depth: int) -> None:
        n_entries = self._varint()
        kinds = self._byte() if n_entries else 0
        for _ in range(n_entries):
            self._skip_element(kinds >> 4, depth + 1)
            self._skip_element(kinds & 0x0F, depth + 1)

    def _skip_element(self, kind: int, depth: int) -> None:
        """Skips an element of a list; a truth value takes a byte there."""
        if kind in (_TRUE, _FALSE):
            kind = _BYTE
        if self._at >= len(self._data):
            raise IndexError
        self._skip(kind, depth)

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        n_elements = head >> 4
        return (self._varint() if n_elements == 15 else n_elements), head & 0x0F

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("no number of Thrift")
