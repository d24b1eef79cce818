"""How many different ids and tokens the raw files hold, without a run.

Files are streamed, and nothing is touched row by row. What a run leaves out later is
counted here: damaged rows, users without a training positive, items listed twice. So a
vocabulary is never larger than these counts say, and mostly little smaller.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import DataConfig, InteractionsConfig, SourceConfig
from recsys.data.entities import (
    EntityConfig,
    example_columns,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.ingest.span_report import unreadable_span
from recsys.data.ingest.window import has_spans, read_window, restrict
from recsys.data.sources.pieces import EMPTY
from recsys.data.ingest.span_report import unreadable_span
from recsys.data.ingest.window import has_spans, read_window, restrict
from recsys.data.sources.pieces import EMPTY
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import to_ids
from recsys.errors import RecsysError, UsageError

_LOOSE = 1 << 20


@dataclasses.dataclass(frozen=True)
class RawCounts:
    """What raw files hold.

    Attributes:
        rows: Users, items and tokens of each feature, by table.
        left_out: Names of spans that are broken, which a run would set aside.
    """

    rows: dict[str, int]
    left_out: tuple[str, ...] = ()


def count_raw(data: DataConfig) -> RawCounts:
    """Returns how many users, items and tokens of each feature there are.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, is of another
            format, or lacks a column; or a query takes the place of files. A span may be
            empty, and broken where a run would set it aside, but not all of them.
    """
    if data.interactions.query is not None:
        raise RecsysError(
            "R257",
            "Rows are counted in files; data.interactions.query names none.",
            "Run once, so that they are known.",
        )
    users, items = Distinct(), Distinct()
    tokens: dict[str, int] = {}
    if data.items is not None:
        tokens |= _count_side(data.items, "items", items)
    if data.users is not None:
        tokens |= _count_side(data.users, "users", Distinct())
    left_out = _count_interactions(data.interactions, users, items)
    return RawCounts({"users": len(users), "items": len(items), **tokens}, left_out)


def _count_interactions(
    config: InteractionsConfig, users: Distinct, items: Distinct
) -> tuple[str, ...]:
    """Adds the ids of the interactions; returns the names of the spans that can't be read."""
    if not has_spans(config):
        _count_ids(config, users, items)
        return ()
    left_out: list[str] = []
    last: RecsysError | None = None
    for span in read_window(config):
        for path in span.paths:
            try:
                _count_ids(restrict(config, [path]), users, items)
            except UsageError:
                raise
            except RecsysError as error:
                last = error
                if error.code == EMPTY:
                    continue
                if config.bad_spans == "stop":
                    raise unreadable_span(span.name, path, error) from error
                left_out.append(span.name)
                break
    if last is not None and not len(users):
        raise last
    return tuple(left_out)


def _count_ids(config: InteractionsConfig, users: Distinct, items: Distinct) -> None:
    user, item = config.columns.user, config.columns.item
    for batch in _batches(config, "interactions", [user, item]):
        users.add(to_ids(batch.columns.column(user)))
        items.add(to_ids(batch.columns.column(item)))


def _count_side(config: EntityConfig, what: str, ids: Distinct) -> dict[str, int]:
    """Adds the ids of items or users to `ids`; returns the rows of each feature without row 0."""
    known = [feature for feature in config.features if feature.has_vocabulary]
    names = example_columns(config)
    counts: dict[str, Counter[str]] = {feature.name: Counter() for feature in known}
    for batch in _batches(config, what, raw_columns(config)):
        rows, _ = parse_entities(batch, config)
        ids.add(rows.column(id_column(config)))
        for feature in known:
            tokens = feature.split(rows.column(names[feature.name]))
            for entry in pc.value_counts(tokens).to_pylist():
                counts[feature.name][entry["values"]] += entry["counts"]
    n_tokens = {
        feature.name: sum(n >= feature.min_count for n in counts[feature.name].values())
        for feature in known
    }
    return {f.name: f.table_rows(n_tokens.get(f.name, 0)) - 1 for f in config.features}


def _batches(source: SourceConfig, what: str, columns: list[str]) -> Iterator[RawBatch]:
    for piece in plan_pieces(source, what, columns):
        yield from read_piece(piece)


class Distinct:
    """Counts different texts; those that are empty or null don't count."""

    def __init__(self) -> None:
        self._known = pa.array([], pa.large_string())
        self._loose: list[pa.Array] = []
        self._n_loose = 0

    def add(self, texts: pa.Array) -> None:
        """Adds texts `[n]`."""
        unique = pc.unique(texts).cast(pa.large_string())
        self._loose.append(unique)
        self._n_loose += len(unique)
        # Seldom enough that the work grows with the texts alone.
        if self._n_loose > max(_LOOSE, len(self._known)):
            self._join()

    def _join(self) -> None:
        known = pc.unique(pa.chunked_array([self._known, *self._loose]))
        is_one = pc.fill_null(pc.not_equal(known, ""), False)
        self._known, self._loose, self._n_loose = known.filter(is_one), [], 0

    def __len__(self) -> int:
        self._join()
        return len(self._known)
