"""The table sizes of a config: from data, the last run, or the raw files.

A training takes them from its data folder. Without one, they are estimated from the raw files.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.config import Config, DataConfig, InteractionsConfig
from recsys.data.catalogue import SUMMARY
from recsys.data.dataset import FeatureTable, feature_tables
from recsys.data.entities import (
    EntityConfig,
    example_columns,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.event_features import FOLDER as EVENT_FEATURES
from recsys.data.event_features import load_event_features
from recsys.data.hashes import fingerprints
from recsys.data.ingest.spans import read_spans
from recsys.data.sources.pieces import read_all
from recsys.data.sources.values import to_ids
from recsys.errors import RecsysError, UsageError
from recsys.system.files import read_json, undamaged

_MOST_ROWS, _MOST_NEW = 2**31 - 1, 1 << 20
Side = Literal["item", "user"]


@dataclasses.dataclass(frozen=True)
class TableRows:
    """The sizes of a model's tables.

    Attributes:
        rows: Rows of each table, including row 0: `users`, `items`, the features.
        features: The features of items, users and events; their rows are in `rows`.
        source: Origin of the numbers, as text.
        events: Approximate number of events; 0 if the rows were given.
        counts: Number of events of each row of `users` and `items` `[rows]`, if there is a data
            folder.
    """

    rows: Mapping[str, int]
    features: tuple[FeatureTable, ...]
    source: str
    events: int = 0
    counts: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)


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
    features = _features(config.data) if known is None else known.features
    names = ["users", "items", *(feature.name for feature in features if not feature.floats)]
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
        return TableRows(rows, features, "as given")
    known = known or _of_last_run(config, features) or _of_raw_files(config, features)
    rows = {name: overrides.get(name, n) for name, n in known.rows.items()}
    counts = {name: n for name, n in known.counts.items() if name not in overrides}
    source = (
        f"{', '.join(overrides)} as given; others {known.source}" if overrides else known.source
    )
    return dataclasses.replace(known, rows=rows, source=source, counts=counts)


def _features(data: DataConfig) -> tuple[FeatureTable, ...]:
    """Returns the features of a config, without rows."""
    sides: dict[str, Side] = {"items": "item", "users": "user"}
    of_sides = (
        FeatureTable(feature.name, sides[what], 0, feature.width, feature.floats)
        for what, config in data.sides.items()
        for feature in config.features
    )
    of_events = (
        FeatureTable(f.name, f.side, 0, f.width, f.floats, f.is_context, f.is_attribute)
        for f in data.interactions.features
    )
    return (*of_sides, *of_events)


def _described(file: Path, side: Side) -> Iterator[FeatureTable]:
    """Yields the features in a folder."""
    for f in read_json(file)["features"]:
        yield FeatureTable(f["name"], side, int(f["rows"]), int(f["width"]), f.get("floats", 0))


def _of_data(folder: Path) -> TableRows:
    """Returns the table rows of a data folder."""
    rule = f"{str(folder)!r} must be a data folder, with vocabulary/ and catalogue/."
    cure = "Name one that an InteractionEncoder wrote, or leave --data out."
    with undamaged(functools.partial(RecsysError, "R372", rule, cure)):
        features = [*_described(folder / "catalogue" / SUMMARY, "item")]
        if (folder / "user_features").exists():
            features += _described(folder / "user_features" / SUMMARY, "user")
        features += feature_tables((), (), load_event_features(folder / EVENT_FEATURES))
        counts = {
            side: pq.read_table(folder / "vocabulary" / f"{side}.parquet", columns=["count"])
            for side in ("users", "items")
        }
    of_rows = {side: _filled(table["count"]) for side, table in counts.items()}
    rows = {side: len(of_side) for side, of_side in of_rows.items()}
    rows |= {feature.name: feature.rows for feature in features if not feature.floats}
    events = int(of_rows["users"].sum())
    return TableRows(rows, tuple(features), f"from {folder}", events, of_rows)


def _filled(counts: pa.ChunkedArray) -> np.ndarray:
    return cast(np.ndarray, pc.fill_null(counts, 0).to_numpy())


def _of_last_run(config: Config, features: tuple[FeatureTable, ...]) -> TableRows | None:
    """Returns the table rows of the newest data folder with the config's features."""
    folders = config.root_folder.glob("artifacts/InteractionEncoder/data/*")
    numbered = [folder for folder in folders if folder.name.isdecimal()]
    for folder in sorted(numbered, key=lambda folder: int(folder.name), reverse=True):
        try:
            table_rows = _of_data(folder)
        except RecsysError:  # From an interrupted run.
            continue
        if tuple(dataclasses.replace(f, rows=0) for f in table_rows.features) == features:
            return dataclasses.replace(table_rows, source=f"from the last run, {folder}")
    return None


def _of_raw_files(config: Config, features: tuple[FeatureTable, ...]) -> TableRows:
    try:
        counts, events, left_out = count_raw(config.data)
    except RecsysError as error:
        cure = f"{error.cure} Or say the rows of all tables: --rows users=N --rows items=N …"
        raise RecsysError.from_json({**error.to_json(), "cure": cure}) from None
    source = "counted in the raw files, of which training may use fewer"
    if left_out:
        source += f"; the broken spans {', '.join(left_out)} are left out"
    rows = {name: n + 1 for name, n in counts.items()}
    return TableRows(rows, features, source, events)


def count_raw(data: DataConfig) -> tuple[dict[str, int], int, list[str]]:
    """Returns the number of users, items and tokens of each feature, by table.

    Also returns the number of interactions, and the names of broken spans, which a run would set
    aside.

    Raises:
        RecsysError: A file is missing, empty, unreadable, of another format or without a column;
            all spans are empty or broken; or a table's rows are in files only during a run.
    """
    users, items = _DistinctCount(), _DistinctCount()
    ids = {data.interactions.columns.user: users, data.interactions.columns.item: items}
    tokens: dict[str, int] = {}
    for what, side in data.sides.items():
        tokens |= _count_side(side, what, items if what == "items" else _DistinctCount())

    events, texts = (
        0,
        {
            feature.name: Counter[str]()
            for feature in data.interactions.features
            if feature.value == "text"
        },
    )

    def count_ids(files: InteractionsConfig) -> None:
        nonlocal events
        read = [f for f in files.features if f.name in texts]
        columns = dict.fromkeys((*ids, *(feature.column for feature in read)))
        for _, batch in read_all(files, "interactions", list(columns)):
            events += batch.columns.num_rows
            for name, counted in ids.items():
                counted.add(to_ids(batch.columns.column(name)))
            for feature in read:
                for entry in pc.value_counts(to_ids(batch.columns.column(feature.column))):
                    texts[feature.name][entry["values"].as_py()] += entry["counts"].as_py()

    left_out, last = read_spans(data.interactions, count_ids)
    if last is not None and not len(users):
        raise last
    for feature in data.interactions.features:
        if not feature.floats:
            learned = feature.learn(_counted(texts.get(feature.name, Counter())), None)
            tokens[feature.name] = feature.table_rows(learned) - 1
    return {"users": len(users), "items": len(items), **tokens}, events, left_out


class _DistinctCount:
    """Counts distinct texts by their hashes."""

    def __init__(self) -> None:
        self._hashes, self._n_new = [np.zeros(0, np.uint64)], 0

    def add(self, texts: pa.Array) -> None:
        """Adds texts `[n]`, except nulls."""
        self._hashes.append(fingerprints(pc.unique(texts).drop_null().cast(pa.large_string())))
        self._n_new += len(self._hashes[-1])
        # So rarely that the total work is linear in the number of hashes.
        if self._n_new > max(_MOST_NEW, len(self._hashes[0])):
            len(self)

    def __len__(self) -> int:
        self._hashes, self._n_new = [np.unique(np.concatenate(self._hashes))], 0
        return len(self._hashes[0])


def _counted(texts: Counter[str]) -> pa.Table:
    """Returns `value` and `count`, as `EventFeature.learn` takes them."""
    known = sorted(text for text in texts if text)
    counts = [texts[text] for text in known]
    return pa.table({"value": pa.array(known, pa.string()), "count": pa.array(counts, pa.int64())})


def _count_side(config: EntityConfig, what: str, ids: _DistinctCount) -> dict[str, int]:
    """Adds the ids of items or users to `ids`; returns the rows of each feature without row 0."""
    known = [feature for feature in config.features if feature.has_vocabulary]
    names = example_columns(config)
    counts: dict[str, Counter[str]] = {feature.name: Counter() for feature in config.features}
    for _, batch in read_all(config, what, raw_columns(config)):
        rows, _ = parse_entities(batch, config)
        ids.add(rows.column(id_column(config)))
        for feature in known:
            tokens = feature.split(rows.column(names[feature.name]))
            for entry in pc.value_counts(tokens).to_pylist():
                counts[feature.name][entry["values"]] += entry["counts"]
    n_tokens = {f.name: sum(n >= f.min_count for n in counts[f.name].values()) for f in known}
    tokens = [feature for feature in config.features if not feature.floats]
    return {f.name: f.table_rows(n_tokens.get(f.name, 0)) - 1 for f in tokens}
