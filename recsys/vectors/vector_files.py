"""The files of item vectors that search engines import, in shards of so many items.

- Parquet: `id`, `embedding` as a list of fixed size, and the columns.
- Vertex AI Vector Search: JSON lines of `id`, `embedding`, `restricts` and
  `numeric_restricts`; deletions are text files of ids under `delete/` ("Input data format
  and structure" and "Filter vector matches" in its documentation).
- Milvus: Parquet of its bulk import ("Prepare source data"), whose vectors are plain lists;
  `schema.json` says how the collection is made, and deletions are lists of ids.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.errors import RecsysError, UsageError
from recsys.vectors.item_vectors import EMBEDDING, ID, TITLE, TYPES, Columns, published

_DELETED_AT_ONCE = 1000


class VectorFiles(abc.ABC):
    """Files of one format, each with as many items as a shard has.

    Args:
        folder: Where to; made.
        columns: The columns beside the vectors, with their types.
        dim: Numbers of a vector.
        shard_rows: Items of a file, at the most.
    """

    suffix: str

    def __init__(self, folder: Path, columns: Columns, dim: int, shard_rows: int) -> None:
        folder.mkdir(parents=True)
        self._folder, self._dim, self._shard_rows = folder, dim, shard_rows
        self._types = {published(name): type_ for name, type_ in columns.items()}
        self._n_files = self._n_rows = 0
        self._opened = ExitStack()

    def write(self, items: pa.Table) -> None:
        """Adds items: `id`, `embedding` and the columns."""
        start = 0
        while start < len(items):
            if not self._n_rows:
                self._open(self._folder / f"part-{self._n_files:05}{self.suffix}")
                self._n_files += 1
            part = items.slice(start, self._shard_rows - self._n_rows)
            self._append(part)
            start += len(part)
            self._n_rows += len(part)
            if self._n_rows == self._shard_rows:
                self._opened.close()
                self._n_rows = 0

    def close(self) -> None:
        """Ends the last file."""
        self._opened.close()

    def abandon(self) -> None:
        """Closes what is open, whatever becomes of it."""
        with suppress(OSError):
            self._opened.close()

    @abc.abstractmethod
    def delete(self, ids: Iterator[pa.Array]) -> None:
        """Writes which items the engine must delete."""

    @abc.abstractmethod
    def _open(self, path: Path) -> None: ...

    @abc.abstractmethod
    def _append(self, items: pa.Table) -> None: ...


class ParquetFiles(VectorFiles):
    """Parquet files."""

    suffix = ".parquet"

    def _schema(self) -> pa.Schema:
        vector = pa.list_(pa.float32(), self._dim)
        columns = {name: TYPES[type_] for name, type_ in self._types.items()}
        return pa.schema({ID: pa.string(), EMBEDDING: vector, **columns})

    def _open(self, path: Path) -> None:
        schema = self._schema()
        # Numbers of vectors hardly repeat: a dictionary of them costs time alone.
        texts = [field.name for field in schema if field.name not in (ID, EMBEDDING)]
        writer = pq.ParquetWriter(path, schema, use_dictionary=texts)
        self._writer = self._opened.enter_context(writer)

    def _append(self, items: pa.Table) -> None:
        self._writer.write_table(items.cast(self._schema()))

    def close(self) -> None:
        """Closes the last file; at least one is written, with the columns."""
        if not self._n_files:
            self._open(self._folder / f"part-00000{self.suffix}")
        super().close()

    def delete(self, ids: Iterator[pa.Array]) -> None:
        """Does nothing: `deleted/` of the publication has them in Parquet."""


class MilvusFiles(ParquetFiles):
    """Parquet files of Milvus' bulk import, and `schema.json`.

    A missing text is the empty one, as a field of Milvus that may be missing wants a newer
    server; a missing number is null.
    """

    def __init__(self, folder: Path, columns: Columns, dim: int, shard_rows: int) -> None:
        super().__init__(folder, columns, dim, shard_rows)
        self._names = {name: name.replace("-", "_") for name in self._types}
        if len(set(self._names.values())) < len(self._names):
            rule = "Names of Milvus' fields have no '-', and must differ without it."
            raise UsageError("R593", rule, "Leave one out: --columns.", sorted(self._names))
        self._longest = dict.fromkeys([ID, *self._types], 1)
        self._most = dict.fromkeys(self._types, 1)

    def _schema(self) -> pa.Schema:
        columns = {self._names[name]: TYPES[type_] for name, type_ in self._types.items()}
        return pa.schema({ID: pa.string(), EMBEDDING: pa.list_(pa.float32()), **columns})

    def _append(self, items: pa.Table) -> None:
        columns = {name: items[name] for name in items.column_names}
        for name, type_ in self._types.items():
            if type_ == "text":
                columns[name] = pc.fill_null(columns[name], "")
            if type_ == "list":
                columns[name] = _without_nulls(columns[name])
                self._most[name] = max(self._most[name], _most(columns[name]))
        for name in self._longest:
            texts = columns[name]
            if pa.types.is_list(texts.type):
                texts = pc.list_flatten(texts)
            if pa.types.is_string(texts.type):
                self._longest[name] = max(self._longest[name], _longest(texts))
        table = pa.table({self._names.get(name, name): x for name, x in columns.items()})
        super()._append(table)

    def close(self) -> None:
        """Ends the last file, and writes the schema.

        Raises:
            RecsysError: A text is longer than Milvus takes, or a list (R594).
        """
        super().close()
        fields: list[dict[str, Any]] = [
            {"name": ID, "type": "VARCHAR", "is_primary": True, **self._length(ID)},
            {"name": EMBEDDING, "type": "FLOAT_VECTOR", "dim": self._dim},
            *(self._field(name, type_) for name, type_ in self._types.items()),
        ]
        schema = {"metric_type": "IP", "fields": fields}
        (self._folder / "schema.json").write_text(json.dumps(schema, indent=1) + "\n")

    def _field(self, name: str, type_: str) -> dict[str, Any]:
        field: dict[str, Any] = {"name": self._names[name]}
        if type_ == "text":
            return {**field, "type": "VARCHAR", **self._length(name)}
        if type_ == "list":
            array = {"type": "ARRAY", "element_type": "VARCHAR", **self._length(name)}
            most = _rounded(name, self._most[name], 8, 4096)
            return {**field, **array, "max_capacity": most}
        return {**field, "type": "INT64" if type_ == "whole" else "DOUBLE", "nullable": True}

    def _length(self, name: str) -> dict[str, int]:
        return {"max_length": _rounded(name, self._longest[name], 256, 65_535)}

    def delete(self, ids: Iterator[pa.Array]) -> None:
        """Writes `delete.jsonl`: a list of at most 1,000 ids a line, for `delete(ids=…)`."""
        with (self._folder / "delete.jsonl").open("w", encoding="utf-8") as file:
            for block in ids:
                for start in range(0, len(block), _DELETED_AT_ONCE):
                    some = block.slice(start, _DELETED_AT_ONCE).to_pylist()
                    file.write(json.dumps(some, ensure_ascii=False) + "\n")


class VertexFiles(VectorFiles):
    """JSON lines of Vertex AI Vector Search.

    Texts and lists are tokens that restrict a search, in a namespace of the column's name;
    numbers are `numeric_restricts`. The title is neither.
    """

    suffix = ".json"
    _most_files = 5000
    _file: TextIO

    def _open(self, path: Path) -> None:
        if self._n_files == self._most_files:
            rule = f"Vector Search takes at most {self._most_files:,} files at once."
            raise RecsysError("R594", rule, "Give --shard-rows a larger number.", self._shard_rows)
        self._file = self._opened.enter_context(path.open("w", encoding="utf-8"))

    def _append(self, items: pa.Table) -> None:
        ids = _lines_of_text(items[ID])
        texts = items[EMBEDDING].combine_chunks()
        vectors = pc.binary_join(_as_texts(texts, self._dim), ",").to_pylist()
        restricts = [_NOTHING] * len(items)
        columns = [
            (name, type_, items[name].to_pylist())
            for name, type_ in self._types.items()
            if name != TITLE
        ]
        if columns:
            rows = zip(*(values for _, _, values in columns), strict=True)
            restricts = [_restricts(columns, row) for row in rows]
        for id_, vector, more in zip(ids, vectors, restricts, strict=True):
            self._file.write(f'{{"id":{json.dumps(id_)},"embedding":[{vector}]{more}}}\n')

    def delete(self, ids: Iterator[pa.Array]) -> None:
        """Writes text files below `delete/`, an id a line."""
        folder = self._folder / "delete"
        for number, block in enumerate(ids):
            folder.mkdir(exist_ok=True)
            lines = "".join(f"{id_}\n" for id_ in _lines_of_text(block))
            (folder / f"part-{number:05}.txt").write_text(lines, encoding="utf-8")


_NOTHING = ""
FORMATS: dict[str, type[VectorFiles]] = {
    "parquet": ParquetFiles,
    "vertex": VertexFiles,
    "milvus": MilvusFiles,
}


def _restricts(columns: Sequence[tuple[str, str, list[Any]]], row: tuple[Any, ...]) -> str:
    """Returns the fields of a record that a search can be restricted by, as JSON."""
    tokens, numbers = [], []
    for (name, type_, _), value in zip(columns, row, strict=True):
        if type_ in ("whole", "number"):
            key = "value_int" if type_ == "whole" else "value_double"
            numbers += [] if value is None else [{"namespace": name, key: value}]
        else:
            allowed = [text for text in ([value] if type_ == "text" else value or []) if text]
            tokens += [{"namespace": name, "allow": allowed}] if allowed else []
    text = f',"restricts":{json.dumps(tokens)}' if tokens else _NOTHING
    return text + (f',"numeric_restricts":{json.dumps(numbers)}' if numbers else _NOTHING)


def _as_texts(vectors: pa.FixedSizeListArray, dim: int) -> pa.ListArray:
    """Returns the numbers of vectors as the shortest texts that mean the same float32."""
    texts = vectors.flatten().cast(pa.string())
    offsets = pa.array(range(0, len(texts) + 1, dim), pa.int32())
    return pa.ListArray.from_arrays(offsets, texts)


def _lines_of_text(ids: pa.Array | pa.ChunkedArray) -> list[str]:
    """Returns ids that can stand on a line each.

    Raises:
        RecsysError: One can't (R594).
    """
    texts: list[str] = ids.to_pylist()
    for text in texts:
        if "\n" in text or "\r" in text:
            rule = "Vector Search deletes by an id a line, so that an id must have no line break."
            raise RecsysError("R594", rule, "Clean the ids, or publish in another format.", text)
    return texts


def _without_nulls(lists: pa.ChunkedArray) -> pa.ChunkedArray:
    empty = pa.scalar([], TYPES["list"])
    return pc.if_else(pc.is_null(lists), empty, lists)


def _most(lists: pa.ChunkedArray) -> int:
    return pc.max(pc.list_value_length(lists)).as_py() or 0


def _longest(texts: pa.ChunkedArray) -> int:
    return pc.max(pc.binary_length(texts)).as_py() or 0


def _rounded(name: str, needed: int, least: int, most: int) -> int:
    """Returns a limit of a field that leaves room for the items to come.

    Raises:
        RecsysError: It is over what Milvus takes (R594).
    """
    if needed > most:
        rule = f"Milvus takes at most {most:,} bytes of a text, and texts of a list; see {name!r}."
        raise RecsysError("R594", rule, "Leave the column out: --columns.", needed)
    return min(most, max(least, 1 << (2 * needed - 1).bit_length()))
