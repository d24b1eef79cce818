"""The table sizes of a config: from data, the last run, or the raw files.

A training takes them from its data folder. Without one, they are estimated from the raw files.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.config import Config, DataConfig, InteractionsConfig
from recsys.data.catalogue import SUMMARY, FeatureSize
from recsys.data.entities import (
    EntityConfig,
    example_columns,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.hash_count import HashCount
from recsys.data.ingest.spans import read_spans
from recsys.data.sources.pieces import read_all
from recsys.data.sources.values import to_ids
from recsys.errors import RecsysError, UsageError
from recsys.system.files import DAMAGE, read_json

_MOST_ROWS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class TableRows:
    """The sizes of a model's tables.

    Attributes:
        rows: Rows of each table, including row 0: `users`, `items`, the features.
        widths: Maximum number of tokens per item or user, by feature of tokens.
        source: Origin of the numbers, as text.
        of_users: Names of the users' features; the others are the items'.
        events: Approximate number of events; 0 if the rows were given.
        counts: Number of events of each row of `users` and `items` `[rows]`, if there is a data
            folder.
        floats: Number of float32 values of each feature without a table.
    """

    rows: Mapping[str, int]
    widths: Mapping[str, int]
    source: str
    of_users: frozenset[str] = frozenset()
    events: int = 0
    counts: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)
    floats: Mapping[str, int] = dataclasses.field(default_factory=dict)


def parse_rows(words: Iterable[str]) -> dict[str, int]:
    """Parses `NAME=N` options into rows by table.

    Raises:
        UsageError: An option has another form, or N is not a number of rows.
    """
    rows = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not name or not 1 <= number <= _MOST_ROWS or not number.is_integer():
            raise UsageError(
                "R371",
                "--rows must read NAME=N, with a whole number of rows in 1 … 2³¹ - 1.",
                "Write, for example, --rows users=1e8.",
                word,
            )
        rows[name] = int(number)
    return rows


def find_rows(config: Config, overrides: Mapping[str, int], data: Path | None = None) -> TableRows:
    """Returns the rows of a config's tables.

    Args:
        config: The run.
        overrides: Rows of some or all tables.
        data: Data folder for the other tables; None: the data folder of the last run under the
            config's root, or else the raw files.

    Raises:
        RecsysError: `data` is not a data folder, or the raw files can't be read.
        UsageError: `overrides` names an unknown table.
    """
    known = None if data is None else _of_data(data)
    features = {what: side.features for what, side in config.data.sides.items()}
    of_sides = [feature for part in features.values() for feature in part]
    widths = {feature.name: feature.width for feature in of_sides if not feature.floats}
    floats = {feature.name: feature.floats for feature in of_sides if feature.floats}
    of_users = frozenset(feature.name for feature in features.get("users", ()))
    names = ["users", "items", *(widths if known is None else known.widths)]
    unknown = [name for name in overrides if name not in names]
    if unknown:
        raise UsageError(
            "R371",
            "--rows must name tables of the model.",
            f"Its tables: {', '.join(names)}.",
            ", ".join(unknown),
        )
    if known is None and set(names) <= set(overrides):
        rows = {name: overrides[name] for name in names}
        return TableRows(rows, widths, "as given", of_users, floats=floats)
    if known is None:
        known = _of_last_run(config, widths, floats)
    if known is None:
        known = _of_raw_files(config, widths, of_users)
        known = dataclasses.replace(known, floats=floats)
    rows = {name: overrides.get(name, n) for name, n in known.rows.items()}
    counts = {name: n for name, n in known.counts.items() if name not in overrides}
    source = (
        f"{', '.join(overrides)} as given; others {known.source}" if overrides else known.source
    )
    return dataclasses.replace(known, rows=rows, source=source, counts=counts)


def _described(file: Path) -> dict[str, FeatureSize]:
    """Returns the sizes of the features in a folder."""
    names = FeatureSize._fields
    features = read_json(file)["features"]
    return {f["name"]: FeatureSize(**{n: int(f[n]) for n in names if n in f}) for f in features}


def _of_data(folder: Path) -> TableRows:
    """Returns the table rows of a data folder."""
    try:
        features = _described(folder / "catalogue" / SUMMARY)
        has_users = (folder / "user_features").exists()
        of_users = _described(folder / "user_features" / SUMMARY) if has_users else {}
        features |= of_users
        counts = {
            side: pq.read_table(folder / "vocabulary" / f"{side}.parquet", columns=["count"])
            for side in ("users", "items")
        }
    except (*DAMAGE, pa.ArrowException) as error:
        raise RecsysError(
            "R372",
            f"{str(folder)!r} must be a data folder, with vocabulary/ and catalogue/.",
            "Name one that an InteractionEncoder wrote, or leave --data out.",
            str(error),
        ) from None
    of_rows = {side: _filled(table["count"]) for side, table in counts.items()}
    rows = {side: len(of_side) for side, of_side in of_rows.items()}
    tokens = {name: size for name, size in features.items() if not size.floats}
    rows |= {name: size.rows for name, size in tokens.items()}
    widths = {name: size.width for name, size in tokens.items()}
    floats = {name: size.floats for name, size in features.items() if size.floats}
    events = int(of_rows["users"].sum())
    return TableRows(rows, widths, f"from {folder}", frozenset(of_users), events, of_rows, floats)


def _filled(counts: pa.ChunkedArray) -> np.ndarray:
    return cast(np.ndarray, pc.fill_null(counts, 0).to_numpy())


def _of_last_run(
    config: Config, widths: Mapping[str, int], floats: Mapping[str, int]
) -> TableRows | None:
    """Returns the table rows of the newest data folder with the config's features."""
    folders = config.root_folder.glob("artifacts/InteractionEncoder/data/*")
    numbered = [folder for folder in folders if folder.name.isdecimal()]
    for folder in sorted(numbered, key=lambda folder: int(folder.name), reverse=True):
        try:
            table_rows = _of_data(folder)
        except RecsysError:  # From an interrupted run.
            continue
        if (table_rows.widths, table_rows.floats) == (widths, floats):
            return dataclasses.replace(table_rows, source=f"from the last run, {folder}")
    return None


def _of_raw_files(config: Config, widths: Mapping[str, int], of_users: frozenset[str]) -> TableRows:
    try:
        counts, events, left_out = count_raw(config.data)
    except RecsysError as error:
        cure = f"{error.cure} Or say the rows of all tables: --rows users=N --rows items=N …"
        raise RecsysError.from_json({**error.to_json(), "cure": cure}) from None
    source = "counted in the raw files, of which training may use fewer"
    if left_out:
        source += f"; the broken spans {', '.join(left_out)} are left out"
    rows = {name: n + 1 for name, n in counts.items()}
    return TableRows(rows, widths, source, of_users, events)


def count_raw(data: DataConfig) -> tuple[dict[str, int], int, list[str]]:
    """Returns the number of users, items and tokens of each feature, by table.

    Also returns the number of interactions, and the names of broken spans, which a run would set
    aside.

    Raises:
        RecsysError: A file is missing, empty, unreadable, of another format or without a column;
            all spans are empty or broken; or the config has a query in place of files.
    """
    if data.interactions.query is not None:
        raise RecsysError(
            "R257",
            "Rows are counted in files; data.interactions.query names none.",
            "Run once, so that they are counted.",
        )
    ids = {data.interactions.columns.user: HashCount(), data.interactions.columns.item: HashCount()}
    users, items = ids.values()
    tokens: dict[str, int] = {}
    for what, side in data.sides.items():
        tokens |= _count_side(side, what, items if what == "items" else HashCount())

    events = 0

    def count_ids(files: InteractionsConfig) -> None:
        nonlocal events
        for _, batch in read_all(files, "interactions", list(ids)):
            events += batch.columns.num_rows
            for name, counted in ids.items():
                counted.add_texts(to_ids(batch.columns.column(name)))

    left_out, last = read_spans(data.interactions, count_ids)
    if last is not None and not len(users):
        raise last
    return {"users": len(users), "items": len(items), **tokens}, events, left_out


def _count_side(config: EntityConfig, what: str, ids: HashCount) -> dict[str, int]:
    """Adds the ids of items or users to `ids`; returns the rows of each feature without row 0."""
    known = [feature for feature in config.features if feature.has_vocabulary]
    names = example_columns(config)
    counts: dict[str, Counter[str]] = {feature.name: Counter() for feature in config.features}
    for _, batch in read_all(config, what, raw_columns(config)):
        rows, _ = parse_entities(batch, config)
        ids.add_texts(rows.column(id_column(config)))
        for feature in known:
            tokens = feature.split(rows.column(names[feature.name]))
            for entry in pc.value_counts(tokens).to_pylist():
                counts[feature.name][entry["values"]] += entry["counts"]
    n_tokens = {f.name: sum(n >= f.min_count for n in counts[f.name].values()) for f in known}
    tokens = [feature for feature in config.features if not feature.floats]
    return {f.name: f.table_rows(n_tokens.get(f.name, 0)) - 1 for f in tokens}
