"""The rows of a BigQuery query → Parquet files, which are then read as any other.

Beam's own reader runs the query and reads the result by the Storage API.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions

from recsys.errors import RecsysError

_BATCH_ROWS = 200_000
_LEAST_ROWS = 10_000


def stage_query(query: str, folder: Path, options: PipelineOptions) -> list[str]:
    """Runs a query and writes its rows as Parquet files.

    Args:
        query: Standard SQL.
        folder: Where to, made where there is none.
        options: Options of the Beam pipeline; `--project` names the project that pays.

    Returns:
        The files, sorted.

    Raises:
        RecsysError: There are no credentials or no client, the query fails, or it
            returns no row.
    """
    reader = _reader(query)
    try:
        return stage_rows(reader, folder, options)
    except RecsysError:
        raise
    except Exception as error:
        raise _failed(error) from error


def stage_rows(reader: beam.PTransform, folder: Path, options: PipelineOptions) -> list[str]:
    """Writes rows as Parquet files.

    Args:
        reader: Makes the rows, a map from column to value each.
        folder: Where to, made where there is none.
        options: Options of the Beam pipeline.

    Returns:
        The files, sorted.

    Raises:
        RecsysError: There is no row.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "written.json"
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | "Read" >> reader
            | "Batch" >> beam.BatchElements(_LEAST_ROWS, _BATCH_ROWS)
            | "Write" >> beam.Map(_write_batch, folder)
            | "Files" >> beam.combiners.ToList()
            # What a worker wrote that died before it said so is not among them.
            | "List" >> beam.Map(_write_list, written)
        )
    files: list[str] = json.loads(written.read_text())
    if not files:
        raise RecsysError(
            "R249",
            "data.interactions.query must return at least one row.",
            "Try the query in the BigQuery console.",
        )
    return files


def to_record_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Returns rows as columns: decimals as numbers, all else in the type that Arrow sees.

    A column whose values are of several types becomes text.
    """
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    return pa.RecordBatch.from_pydict(columns)


def _column(values: list[Any]) -> pa.Array:
    plain = [_plain(value) for value in values]
    try:
        return pa.array(plain)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in plain], pa.string())


def _plain(value: Any) -> Any:
    """Returns a decimal as a number: BigQuery has NUMERIC for whole and for other ones."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _write_batch(rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    file = folder / f"rows-{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_batches([to_record_batch(rows)]), file)
    return str(file)


def _write_list(files: list[str], written: Path) -> None:
    written.write_text(json.dumps(sorted(files)))


def _reader(query: str) -> beam.PTransform:
    """Returns Beam's reader, if the client and credentials for it are there."""
    try:
        import google.auth
        import google.cloud.bigquery_storage  # What DIRECT_READ needs.
        from apache_beam.io.gcp.bigquery import ReadFromBigQuery
    except ImportError as error:
        raise _unavailable(
            "Install them with `uv pip install 'apache-beam[gcp]'`.", error.name
        ) from error
    try:
        google.auth.default()
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise _unavailable(
            "Log in with `gcloud auth application-default login`, or name a key file in"
            " GOOGLE_APPLICATION_CREDENTIALS.",
            _first_line(error),
        ) from error
    return ReadFromBigQuery(
        query=query, use_standard_sql=True, method=ReadFromBigQuery.Method.DIRECT_READ
    )


def _unavailable(cure: str, received: Any) -> RecsysError:
    return RecsysError(
        "R248",
        "data.interactions.query needs Google's clients and credentials for BigQuery.",
        cure,
        received,
    )


def _failed(error: Exception) -> RecsysError:
    return RecsysError(
        "R249",
        "BigQuery must answer data.interactions.query.",
        "Try the query in the console; beam.args may need --project=NAME. The run's log"
        " has the whole answer.",
        f"{type(error).__name__}: {_first_line(error)}",
    )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
