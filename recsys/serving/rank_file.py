"""Rankings for a file of users with items, written atomically as Parquet."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import is_list, to_ids, to_lists, to_text
from recsys.errors import UsageError
from recsys.savedmodel.event_columns import CONTEXT
from recsys.serving.batch_file import Report, detect, writing
from recsys.serving.label_scorer import HISTORY, LabelScorer, RankedItems, RankQuery

ITEMS = "items"
"""Column of the items to rank."""
_PIECE_BYTES = 256 << 10
_SEPARATOR = ","


@dataclasses.dataclass
class RankedFile:
    """The result for a file of users with items.

    Attributes:
        out: The rankings.
        rejected_file: Dead letters of rows that can't be ranked; None if there are none.
        rows: Number of rankings.
        items: Number of ranked items.
        unknown: Number of users that the bundle doesn't know.
        rejected: Number of rows that can't be ranked.
        seconds: Time taken [s].
    """

    out: str
    rejected_file: str | None = None
    rows: int = 0
    items: int = 0
    unknown: int = 0
    rejected: int = 0
    seconds: float = 0.0


def rank_file(
    scorer: LabelScorer,
    file: Path,
    out: Path,
    *,
    column: str | None = None,
    k: int | None = None,
    context: Mapping[str, Any] | None = None,
    report: Report = lambda _rows, _bytes: None,
) -> RankedFile:
    """Writes rankings for the rows of a file, in its order, atomically to `out`.

    A row has a user, `items`, and optionally `history` and columns `context_<column>`: a value, or
    a list of one per item. `out` has `user_id`, `item_ids`, the best first, their scores
    `score_<label>`, and `known`.

    Args:
        scorer: The loaded bundle.
        file: The file, in a format that the ingestion reads.
        out: Parquet file to write or replace.
        column: Column of the users; None: the first.
        k: Number of items to return of each row; None: all.
        context: Context of all rows by column; columns of the file take precedence.
        report: Progress callback.

    Raises:
        UsageError: A file is missing, or `out` is a folder (R546).
        RecsysError: The file can't be read.
    """
    if not file.is_file() or out.is_dir():
        rule = "Rankings need a file of users with items, and a file to write."
        raise UsageError("R546", rule, "Name both: FILE --out OUT.parquet.", [str(file), str(out)])
    done, schema = RankedFile(str(out)), _schema(scorer)
    with (
        writing(done, lambda path: pq.ParquetWriter(path, schema)) as (writer, rejects),
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
    ):
        for batch, user, n_bytes in _batches(file, column):
            queries = _queries(batch, user, k, context or {})
            answers = list(threads.map(_answer, itertools.repeat(scorer), queries))
            rows = [
                _row(*pair) for pair in zip(queries, answers, strict=True) if _is_ranked(pair[1])
            ]
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
            errors = [str(one) if isinstance(one, UsageError) else None for one in answers]
            is_bad = pa.array([error is not None for error in errors], pa.bool_())
            letters = batch.reject(is_bad, [error for error in errors if error is not None])
            rejects.write_batch(letters)
            done.rejected += len(letters)
            done.rows += len(rows)
            done.items += sum(len(row["item_ids"]) for row in rows)
            done.unknown += sum(not row["known"] for row in rows)
            report(len(rows), n_bytes)
    return done


def _schema(scorer: LabelScorer) -> pa.Schema:
    scores = [(f"score_{label}", pa.list_(pa.float32())) for label in scorer.labels]
    items = ("item_ids", pa.list_(pa.string()))
    return pa.schema([("user_id", pa.string()), items, *scores, ("known", pa.bool_())])


def _batches(file: Path, column: str | None) -> Iterator[tuple[RawBatch, str, int]]:
    """Yields the rows, the column of the users, and the number of bytes read."""
    source, user, names = detect(str(file), column)
    read = [n for n in names if n in (ITEMS, HISTORY) or n.startswith(CONTEXT)]
    columns = list(dict.fromkeys([user, ITEMS, *read]))
    for piece in plan_pieces(source, "rankings", columns, _PIECE_BYTES, [user]):
        n_bytes = piece.n_bytes
        for batch in read_piece(piece):
            yield batch, user, n_bytes
            n_bytes = 0


def _queries(
    batch: RawBatch, user: str, k: int | None, context: Mapping[str, Any]
) -> list[RankQuery]:
    columns = {name: batch.columns.column(name) for name in batch.columns.schema.names}
    users = to_ids(columns[user]).fill_null("").to_pylist()
    items, histories = (
        to_lists(columns[name], _SEPARATOR).fill_null([]).to_pylist()
        if name in columns
        else [[]] * len(users)
        for name in (ITEMS, HISTORY)
    )
    given = {
        name.removeprefix(CONTEXT): _values(column)
        for name, column in columns.items()
        if name.startswith(CONTEXT)
    }
    return [
        RankQuery(
            users[row],
            items[row],
            k,
            {**context, **{name: values[row] for name, values in given.items()}},
            histories[row],
        )
        for row in range(len(users))
    ]


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = (column if is_list(column.type) else to_text(column)).to_pylist()
    return values


def _answer(scorer: LabelScorer, query: RankQuery) -> RankedItems | UsageError:
    try:
        return scorer.rank(query)
    except UsageError as error:
        return error


def _is_ranked(answer: RankedItems | UsageError) -> bool:
    return isinstance(answer, RankedItems)


def _row(query: RankQuery, answer: Any) -> dict[str, Any]:
    scores = {f"score_{label}": np.asarray(x) for label, x in answer.scores.items()}
    ids = [query.items[place] for place in answer.places.tolist()]
    return {"user_id": query.user, "item_ids": ids, **scores, "known": answer.known}
