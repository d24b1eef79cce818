"""The rows of a BigQuery query as Parquet files.

Beam's own source runs the query and reads the result with the Storage API.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions

from recsys.data.ingest.tasks import to_json_list, with_local_runner
from recsys.errors import RecsysError

_LEAST_ROWS, _BATCH_ROWS = 10_000, 200_000
_NEEDED = "data.interactions.query needs Google's clients and credentials for BigQuery."


def stage_query(query: str, folder: Path, like: beam.Pipeline | None) -> list[str]:
    """Runs a query and writes its rows as Parquet files.

    Args:
        query: Standard SQL.
        folder: Folder to write to, created if missing.
        like: A pipeline whose options are used, `--project` is the project that is billed; None:
            no options.

    Returns:
        The files, sorted.

    Raises:
        RecsysError: There are no credentials or no client, the query fails, or it
            returns no row.
    """
    reader = _reader(query)
    options = PipelineOptions(with_local_runner([])) if like is None else like.options
    try:
        return stage_rows(reader, folder, options)
    except RecsysError:
        raise
    except Exception as error:
        raise RecsysError(
            "R249",
            "BigQuery must answer data.interactions.query.",
            "Try the query in the console; beam.args may need --project=NAME. The run's log"
            " has the whole answer.",
            f"{type(error).__name__}: {_first_line(error)}",
        ) from error


def stage_rows(reader: beam.PTransform, folder: Path, options: PipelineOptions) -> list[str]:
    """Writes rows as Parquet files; returns the files, sorted.

    Args:
        reader: Yields rows as maps from column to value.
        folder: Folder to write to, created if missing.
        options: Options of the Beam pipeline.

    Raises:
        RecsysError: There are no rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with beam.Pipeline(options=options) as pipeline:
        batches = pipeline | "Read" >> reader | beam.BatchElements(_LEAST_ROWS, _BATCH_ROWS)
        files = batches | "Write" >> beam.FlatMap(functools.partial(_write_batch, folder))
        # Files of a worker that died before it reported them are not included.
        listed = to_json_list(files, folder)
    written = sorted(listed())
    if not written:
        raise RecsysError(
            "R249",
            "data.interactions.query must return at least one row.",
            "Try the query in the BigQuery console.",
        )
    return written


def to_record_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Returns rows as columns, with decimals as numbers and other types inferred by Arrow.

    A column with values of several types becomes text.
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
    """Returns a decimal as int or float: BigQuery's NUMERIC holds both."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _write_batch(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    file = folder / f"rows-{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_batches([to_record_batch(rows)]), file)
    yield str(file)


def _reader(query: str) -> beam.PTransform:
    """Returns Beam's BigQuery source; checks that its client and credentials are available."""
    try:
        import google.auth
        import google.cloud.bigquery_storage  # Required by DIRECT_READ.
        from apache_beam.io.gcp.bigquery import ReadFromBigQuery
    except ImportError as error:
        cure = "Install them with `uv pip install 'apache-beam[gcp]'`."
        raise RecsysError("R248", _NEEDED, cure, error.name) from error
    try:
        google.auth.default()
    except google.auth.exceptions.DefaultCredentialsError as error:
        cure = (
            "Log in with `gcloud auth application-default login`, or name a key file in"
            " GOOGLE_APPLICATION_CREDENTIALS."
        )
        raise RecsysError("R248", _NEEDED, cure, _first_line(error)) from error
    return ReadFromBigQuery(
        query=query, use_standard_sql=True, method=ReadFromBigQuery.Method.DIRECT_READ
    )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
