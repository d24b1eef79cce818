"""Titles and features of items and users by row; features are padded bags, or numbers.

Layout of the folder of a catalogue, or of the users' features, which have no titles:

    features.json       features: name, rows, width, and floats of numbers; as in the config
    titles.parquet      id and title of each item row from 1 on; an empty id is no item
    <feature>.npy       token rows `[rows, width]` int32, 0 is padding; or `[rows, floats]` float32
    <feature>.tokens.parquet    names of the token rows, see `FeatureBags.tokens`

A bundle has `catalogue/items.parquet` instead: ids, titles and named features of the items.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.vocabulary import (
    GROUP_ROWS,
    Vocabulary,
    VocabularyFile,
    as_texts,
    reading_data,
)
from recsys.errors import RecsysError
from recsys.system.files import read_json

SUMMARY, TITLES = "features.json", "titles.parquet"
CATALOGUE = "catalogue/items.parquet"
"""Catalogue of a bundle."""
_RENAMED = {"feature_id": "id", "feature_title": "title"}
"""Features whose names collide with columns of `CATALOGUE`, by their columns."""
_CONTENT = "a catalogue, or the features of the users"
_BATCH = 65_536


class Texts(Sequence[str]):
    """A column of a Parquet file, read into an Arrow array when the first text is needed.

    A Python list would take 64 more bytes per text.

    Args:
        path: The file.
        column: Name of the column.
        n: Number of texts.
        first: Row of the first text in the file; the rows before it are empty.
    """

    def __init__(self, path: Path, column: str, n: int, first: int = 0) -> None:
        self._path, self._column, self._n, self._first = path, column, n, first

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, row: Any) -> Any:
        """Returns the text of a row, or the list of a slice.

        Raises:
            RecsysError: The file is damaged, or has another number of texts (R230).
        """
        texts = self._texts[row]
        return texts.to_pylist() if isinstance(row, slice) else texts.as_py()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, self._n, _BATCH):
            yield from self[start : start + _BATCH]

    def batches(self) -> Iterator[pa.Array]:
        """Yields all texts in batches, without keeping them.

        Raises:
            RecsysError: The file is damaged, or has another number of texts (R230).
        """
        n = self._first
        yield pa.array([""] * n, pa.large_string())
        with (
            reading_data(self._path, f"a column {self._column!r} of strings"),
            pq.ParquetFile(self._path) as file,
        ):
            for batch in file.iter_batches(_BATCH, columns=[self._column]):
                n += len(batch)
                yield batch.column(self._column).cast(pa.large_string())
            if n != self._n:
                raise ValueError(f"{n - self._first} texts of {self._n - self._first}")

    @functools.cached_property
    def _texts(self) -> pa.Array:
        return pa.concat_arrays([*self.batches()])


def are_filled(texts: Sequence[str]) -> np.ndarray:
    """Returns which of `texts` aren't empty `[n]` bool."""
    batches = texts.batches() if isinstance(texts, Texts) else [pa.array(texts, pa.large_string())]
    filled = [pc.not_equal(batch, "").to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate(filled).astype(bool)


@dataclasses.dataclass(frozen=True)
class FeatureBags:
    """One feature of every item, or of every user.

    Attributes:
        name: Name of the feature.
        rows: Rows of its table, row 0 (padding) included; 0 for numbers.
        bags: Token rows of each item row or user row `[rows, width]` int32, or its numbers
            `[rows, floats]` float32.
        tokens: Name of each token row `[rows]`, empty for row 0; None if token rows have no
            names, such as hashed ones. A folder's names are read on first access.
    """

    name: str
    rows: int
    bags: np.ndarray
    tokens: Sequence[str] | None = None

    @property
    def floats(self) -> int:
        """Number of float32 values; 0 for a feature of tokens."""
        return int(self.bags.shape[1]) if self.bags.dtype.kind == "f" else 0

    @property
    def width(self) -> int:
        """Maximum number of tokens; 1 for numbers."""
        return 1 if self.floats else int(self.bags.shape[1])


def bags_of(features: Iterable[FeatureBags], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the token rows or numbers `[b, …]` of `rows` `[b]`, by feature."""
    return {feature.name: np.asarray(feature.bags[rows]) for feature in features}


def of_history(feature: str) -> str:
    """Returns the name of the model input for an item feature of histories."""
    return f"history.{feature}"


def bags_of_histories(
    features: Iterable[FeatureBags], history: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the token rows or numbers of histories' items `[…, width]`, by model input.

    Args:
        features: Features of the items.
        history: Item rows `[…]`.
    """
    return {of_history(f.name): np.asarray(f.bags[history]) for f in features}


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """Ids, titles and features of the items, by item row.

    Attributes:
        ids: Id of each item row `[item rows]`; empty for row 0, shared and free rows, and
            items that have left the data.
        titles: Title of each item row `[item rows]`; the id if it has no title.
        features: The features, in the order of the config.
    """

    ids: Sequence[str]
    titles: Sequence[str]
    features: tuple[FeatureBags, ...]

    @property
    def n_rows(self) -> int:
        """Item rows, row 0 included."""
        return len(self.ids)

    @functools.cached_property
    def is_item(self) -> np.ndarray:
        """Whether each item row is an item that can be recommended `[item rows]` bool."""
        return are_filled(self.ids)

    @classmethod
    def open(cls, folder: Path) -> Catalogue:
        """Opens the catalogue in `folder`; bags are memory-mapped, ids and titles read when used.

        Raises:
            RecsysError: The catalogue is missing or damaged.
        """
        with reading_data(folder, _CONTENT):
            n_rows = pq.read_metadata(folder / TITLES).num_rows + 1
        ids, titles = (Texts(folder / TITLES, name, n_rows, first=1) for name in ("id", "title"))
        return cls(ids, titles, open_features(folder, n_rows))


def open_user_features(folder: Path, n_rows: int) -> tuple[FeatureBags, ...]:
    """Opens the users' features in `folder`, memory-mapped; none if the folder doesn't exist.

    Args:
        folder: Folder that `write_features` wrote.
        n_rows: User rows, row 0 included.

    Raises:
        RecsysError: The folder is damaged, or has another number of rows.
    """
    return open_features(folder, n_rows) if folder.exists() else ()


def open_features(folder: Path, n_rows: int) -> tuple[FeatureBags, ...]:
    """Opens the features in `folder`, memory-mapped.

    Args:
        folder: Folder that `write_features` wrote.
        n_rows: Rows of each feature, row 0 included.

    Raises:
        RecsysError: The folder is damaged, or has another number of rows (R230).
    """
    with reading_data(folder, _CONTENT):
        described = read_json(folder / SUMMARY)["features"]
        features = tuple(
            FeatureBags(
                name=entry["name"],
                rows=entry["rows"],
                bags=np.load(folder / f"{entry['name']}.npy", mmap_mode="r", allow_pickle=False),
                tokens=Texts(names, "token", entry["rows"]) if names.exists() else None,
            )
            for entry in described
            for names in [folder / f"{entry['name']}.tokens.parquet"]
        )
        for feature, entry in zip(features, described, strict=True):
            n = entry.get("floats") or entry["width"]
            if feature.bags.shape != (n_rows, n) or bool(feature.floats) != ("floats" in entry):
                wanted = f"{n} {'numbers' if 'floats' in entry else 'tokens'}"
                shape = f"{feature.name}: shape {feature.bags.shape}"
                raise ValueError(f"{shape} for {n_rows} rows of {wanted}")
    return features


class FeatureSize(NamedTuple):
    """Size of a feature.

    Attributes:
        rows: Rows of its table; 0 for numbers.
        width: Maximum number of tokens.
        floats: Number of float32 values; 0 for tokens.
    """

    rows: int
    width: int
    floats: int = 0

    @property
    def dtype(self) -> type[np.generic]:
        """Type of its values."""
        return np.float32 if self.floats else np.int32


def write_titles(
    folder: Path, items: Vocabulary | VocabularyFile, titles: Iterable[pa.Table | None]
) -> None:
    """Writes the id and the title of each item row from 1 on; the title defaults to the id.

    An item that has left the data gets an empty id, so it is never a candidate.

    Args:
        folder: Folder of the catalogue; made if missing.
        items: Vocabulary of the items.
        titles: For each `GROUP_ROWS` item rows in turn, `row` and `title` of some of them; None or
            the end: no titles.
    """
    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema({"id": pa.string(), "title": pa.string()})
    groups = itertools.chain(titles, itertools.repeat(None))
    with pq.ParquetWriter(folder / TITLES, schema) as writer:
        for number, (lines, titled) in enumerate(zip(items.lines(), groups, strict=False)):
            ids, seen = as_texts(lines["id"]), pc.greater_equal(lines["last_seen"], items.cut)
            is_current = pc.and_(ids.is_valid(), pc.or_(pc.greater(lines["count"], 0), seen))
            names = ids.fill_null("")
            columns = [pc.if_else(is_current, names, ""), names]
            if titled is not None:
                place, last = np.arange(len(ids)), len(ids) + np.arange(len(titled))
                place[titled["row"].to_numpy() - number * GROUP_ROWS] = last
                both = pa.chunked_array([names, as_texts(titled["title"])])
                columns[1] = both.take(pa.array(place))
            texts = [column.cast(pa.string()) for column in columns]
            writer.write_table(pa.table(texts, schema).slice(number == 0))


def write_features(
    folder: Path,
    n_rows: int,
    sizes: Mapping[str, FeatureSize],
    groups: Iterable[pa.Table | None],
    names: Mapping[str, Sequence[str] | None] | None = None,
) -> None:
    """Writes the features of items or users by row; those of a row without values are 0.

    Only one group is held in memory.

    Args:
        folder: Folder of the catalogue, or of the users' features; made if missing.
        n_rows: Number of rows.
        sizes: Size of each feature.
        groups: For each `GROUP_ROWS` rows in turn, `row` and a list of the token rows, or of the
            numbers, of each feature, for some of them; None or the end: no values.
        names: Names of each table's rows, by feature; None for rows without names.

    Raises:
        RecsysError: A token row is outside its table, a number isn't finite, or the number of
            names differs from the number of rows.
        OSError: The disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in (names or {}).items():
        if texts is not None:
            if len(texts) != sizes[name].rows:
                raise _misfit(name, f"{len(texts)} names of {sizes[name].rows} rows")
            table = pa.table({"token": pa.array(list(texts), pa.string())})
            pq.write_table(table, folder / f"{name}.tokens.parquet")
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context((folder / f"{name}.npy").open("wb")) for name in sizes}
        for name, size in sizes.items():
            like = np.zeros((0, size.floats or size.width), size.dtype)
            header = np.lib.format.header_data_from_array_1_0(like)
            shape = {"shape": (n_rows, *like.shape[1:])}
            np.lib.format.write_array_header_1_0(files[name], header | shape)
        every = itertools.chain(groups, itertools.repeat(None))
        for first, group in zip(range(0, n_rows, GROUP_ROWS), every, strict=False):
            for name, size in sizes.items():
                n_lines = min(GROUP_ROWS, n_rows - first)
                lines = np.zeros((n_lines, size.floats or size.width), size.dtype)
                if group is not None:
                    values = _values(name, size, group[name].combine_chunks())
                    lines[group["row"].to_numpy() - first] = values
                files[name].write(lines.data)
    features: list[dict[str, Any]] = []
    for name, size in sizes.items():
        floats = {"floats": size.floats} if size.floats else {}
        features.append({"name": name, "rows": size.rows, "width": size.width, **floats})
    (folder / SUMMARY).write_text(json.dumps({"features": features}, indent=1) + "\n")


def _values(name: str, size: FeatureSize, lists: pa.Array) -> np.ndarray:
    """Returns the token rows `[n, width]`, or numbers `[n, floats]`, of lists of them."""
    values: np.ndarray = lists.flatten().to_numpy().reshape(len(lists), -1)
    if size.floats and not np.isfinite(values).all():
        raise _misfit(name, "numbers that aren't finite")
    if not size.floats and values.size and not 0 <= values.min() <= values.max() < size.rows:
        raise _misfit(name, f"rows {values.min()} … {values.max()} of {size.rows}")
    return values


def _misfit(feature: str, received: str) -> RecsysError:
    return RecsysError(
        "R261",
        f"The tokens of the feature {feature!r} must be rows of its table, with a name each; or its"
        " numbers finite.",
        "Transform's output is damaged or of another run: run again: recsys run.",
        received,
    )


# --- the catalogue of a bundle


def write_catalogue(folder: Path, catalogue: Catalogue) -> None:
    """Writes `catalogue/items.parquet` into the bundle `folder`.

    Its columns are `id` and `title`, and for each feature a list of its token names, in the
    order of the item's bag. A feature whose tokens have no names, such as hashed ones, has no
    column. It has a line for each item row from 1 on; the id is empty for a row that is no
    item. A feature named `id` or `title` has the column `feature_id` or `feature_title`.

    Raises:
        OSError: The disk is full.
        RecsysError: The names of a feature's tokens are damaged (R230).
    """
    path = folder / CATALOGUE
    path.parent.mkdir(exist_ok=True)
    with pq.ParquetWriter(path, catalogue_schema(catalogue)) as writer:
        for batch in catalogue_batches(catalogue, _BATCH):
            writer.write_batch(batch)


def catalogue_schema(catalogue: Catalogue) -> pa.Schema:
    """Returns the schema of `catalogue_batches`: `id`, `title` and the named features."""
    named = [feature for feature in catalogue.features if feature.tokens is not None]
    columns = {feature: column for column, feature in _RENAMED.items()}
    lists = [pa.field(columns.get(f.name, f.name), pa.list_(pa.string())) for f in named]
    return pa.schema([("id", pa.string()), ("title", pa.string()), *lists])


def catalogue_batches(catalogue: Catalogue, n_lines: int) -> Iterator[pa.RecordBatch]:
    """Yields a line for each item row from 1 on, in batches of `n_lines`."""
    named = [feature for feature in catalogue.features if feature.tokens is not None]
    tokens = {f.name: pa.array(list(f.tokens or ()), pa.string()) for f in named}
    for start in range(1, max(2, catalogue.n_rows), n_lines):
        rows = slice(start, start + n_lines)
        texts = [pa.array(x[rows], pa.string()) for x in (catalogue.ids, catalogue.titles)]
        bags = [token_lists(feature, tokens[feature.name], rows) for feature in named]
        yield pa.RecordBatch.from_arrays([*texts, *bags], schema=catalogue_schema(catalogue))


def token_lists(feature: FeatureBags, tokens: pa.Array, rows: slice) -> pa.ListArray:
    """Returns the token names of some items as lists.

    Args:
        feature: The feature.
        tokens: Name of each of its token rows.
        rows: Item rows.
    """
    bags = np.asarray(feature.bags[rows])
    is_there = bags > 0
    offsets = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), tokens.take(pa.array(bags[is_there])))


def read_is_item(bundle: Path) -> np.ndarray:
    """Returns which item rows of a bundle are candidates `[item rows]` bool.

    Raises:
        OSError: There is no `titles.parquet`.
        ValueError: It is damaged.
    """
    ids = pq.read_table(bundle / TITLES, columns=["id"])["id"].combine_chunks()
    is_filled = pc.fill_null(pc.not_equal(ids, ""), False)
    return np.concatenate([[False], is_filled.to_numpy(zero_copy_only=False)])


def read_catalogue(bundle: Path, n_rows: int) -> dict[str, pa.ListArray]:
    """Returns the token names of each item row from 1 on, by feature.

    Raises:
        OSError: The file doesn't exist.
        ValueError: It is damaged.
    """
    table = pq.read_table(bundle / CATALOGUE).drop(["id", "title"])
    if table.num_columns and len(table) != n_rows - 1:
        raise ValueError(f"{len(table)} lines for {n_rows} item rows")
    if not all(pa.types.is_list(field.type) for field in table.schema):
        raise ValueError(f"no lists of names: {table.schema}")
    columns = zip(table.column_names, table.columns, strict=True)
    return {_RENAMED.get(name, name): column.combine_chunks() for name, column in columns}
