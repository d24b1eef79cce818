"""Dated data, cut into what was known on the morning after each night.

The good rows of a source are typed once, as the pipeline types them, and written again as
Parquet: a folder for each span of the interactions, and the items and users that have been
heard of by then. Rows that the pipeline would reject are left out here, and counted.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.commit import commit_file
from recsys.config import Config, ItemsConfig, write_feature
from recsys.data.entities import (
    EntityConfig,
    example_columns,
    example_schema,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.features import DateFeature, Feature
from recsys.data.interactions import (
    context_names,
    interaction_columns,
    interaction_schema,
    parse_interactions,
)
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.nights.calendar import Period, as_seconds, periods

LANDING = "landing"
"""Folder of the spans, a folder each with the day that it begins on for its name."""
_EVENTS = "events.parquet"
_PATTERN = "{YYYY}-{MM}-{DD}"

_Parse = Callable[[RawBatch, int], tuple[pa.RecordBatch, pa.RecordBatch]]


@dataclasses.dataclass(frozen=True)
class Replay:
    """Everything that happened, by span, and who was heard of when.

    Attributes:
        days: First day of each span, in order; the first one holds all that came before it.
        events: Typed interactions of each span, as many as `days`.
        entities: Rows of `items` and `users`, where the config has them.
        n_rejected: Rows that the pipeline would reject.
    """

    days: list[dt.date]
    events: list[pa.Table]
    entities: Mapping[str, pa.Table]
    n_rejected: int

    @classmethod
    def read(cls, config: Config, period: Period, n_nights: int | None) -> Replay:
        """Reads the data of a config.

        Args:
            config: Whose `data` is read.
            period: What a night stands for.
            n_nights: Nights; the newest ones, and what came before them is in the span of
                the first one. None: half of the periods that there are.
        """
        source = config.data.interactions
        now = int(time.time())
        events, n_rejected = _read(
            source,
            "interactions",
            interaction_columns(source),
            lambda batch, index: parse_interactions(batch, source, now, index),
            interaction_schema(source),
        )
        sides = {"items": config.data.items, "users": config.data.users}
        entities = {}
        for what, side in sides.items():
            if side is not None:
                entities[what], n = _read_entities(side, what)
                n_rejected += n
        days, spans = _spans(events, period, n_nights)
        return cls(days, spans, entities, n_rejected)

    def __len__(self) -> int:
        return len(self.days)

    def write_span(self, out: Path, night: int) -> Path:
        """Writes the span of a night, whole; returns its file."""
        return _write(self.events[night], span_file(out, self.days[night]))

    def write_entities(self, out: Path, night: int) -> None:
        """Writes the items and users that somebody had to do with until a night ended."""
        for what, table in self.entities.items():
            name = "item_id" if what == "items" else "user_id"
            heard = pa.chunked_array([e[name].combine_chunks() for e in self.events[: night + 1]])
            known = pc.is_in(table[name], value_set=pc.unique(heard))
            _write(table.filter(known), out / f"{what}.parquet")


def span_file(out: Path, day: dt.date) -> Path:
    """Returns the file of the span that begins on a day."""
    return out / LANDING / day.isoformat() / _EVENTS


def replayed(config: Config, out: Path) -> dict[str, Any]:
    """Returns the part `data` of a config that reads what a replay writes into `out`."""
    data = config.model_dump(mode="json")["data"]
    source = config.data.interactions
    names = {"user": "user_id", "item": "item_id", "timestamp": "timestamp"}
    names |= {n: n for n in ("rating", "weight", "event") if getattr(source.columns, n) is not None}
    plain = {"format": "parquet", "csv": {}}
    data["interactions"] |= plain | {
        "files": str(out / LANDING / _PATTERN / _EVENTS),
        "query": None,
        "columns": names,
        "context": context_names(source),
        "timestamp_unit": "seconds",
        "timestamp_format": None,
        "weight_scale": "linear",
        "explode": None,
    }
    for what, side in (("items", config.data.items), ("users", config.data.users)):
        if side is not None:
            data[what] |= plain | {"files": str(out / f"{what}.parquet")} | _columns(side)
    return data


def _columns(side: EntityConfig) -> dict[str, Any]:
    columns = {"item" if isinstance(side, ItemsConfig) else "user": id_column(side)}
    if isinstance(side, ItemsConfig) and side.columns.title is not None:
        columns["title"] = "title"
    of_feature = example_columns(side)
    features = [_as_typed(feature, of_feature[feature.name]) for feature in side.features]
    return {"columns": columns, "features": features}


def _as_typed(feature: Feature, column: str) -> dict[str, Any]:
    """Returns a feature that is made of a typed column, in which dates are no text."""
    changed = {"column": column} | ({"format": None} if isinstance(feature, DateFeature) else {})
    written: dict[str, Any] = write_feature(feature.model_copy(update=changed))
    return written


def _read_entities(side: EntityConfig, what: str) -> tuple[pa.Table, int]:
    return _read(
        side,
        what,
        raw_columns(side),
        lambda batch, index: parse_entities(batch, side, index),
        example_schema(side),
    )


def _read(
    source: Any, what: str, columns: list[str], parse: _Parse, schema: pa.Schema
) -> tuple[pa.Table, int]:
    """Returns the good rows of a source, and how many were bad."""
    good, n_bad = [], 0
    pieces = plan_pieces(source, what, columns)
    number = {file: index for index, file in enumerate(dict.fromkeys(p.file for p in pieces))}
    for piece in pieces:
        for batch in read_piece(piece):
            rows, letters = parse(batch, number[piece.file])
            good.append(rows.select(schema.names))
            n_bad += letters.num_rows
    return pa.Table.from_batches(good, schema), n_bad


def _spans(
    events: pa.Table, period: Period, n_nights: int | None
) -> tuple[list[dt.date], list[pa.Table]]:
    """Returns the first days of the spans, and the events of each."""
    times = events["timestamp"].to_numpy()
    first, last = (dt.datetime.fromtimestamp(int(t), dt.UTC).date() for t in _ends(times))
    days = periods(first, last, period)
    days = days[-(n_nights or -(-len(days) // 2)) :]
    at = np.searchsorted(as_seconds(days[1:]), times, side="right")
    return days, [events.filter(pa.array(at == number)) for number in range(len(days))]


def _ends(times: np.ndarray) -> tuple[int, int]:
    return (int(times.min()), int(times.max())) if len(times) else (0, 0)


def _write(table: pa.Table, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.writing")
    pq.write_table(table, temporary)
    commit_file(temporary, file)
    return file
