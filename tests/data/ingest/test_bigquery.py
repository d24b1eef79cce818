"""The rows of a query as Parquet, with Beam's `Create` where BigQuery's reader stands."""

import datetime as dt
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("apache_beam", reason="needs the extra `pipeline`")

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from recsys.data.ingest import bigquery
from recsys.data.ingest.bigquery import stage_query, stage_rows, to_record_batch
from recsys.data.ingest.tasks import with_local_runner
from recsys.errors import RecsysError

pytestmark = pytest.mark.pipeline

OPTIONS = PipelineOptions(with_local_runner([]))
MOMENT = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC)


def test_types_of_bigquery_become_columns():
    batch = to_record_batch(
        [
            {"user": "007", "item": 12, "time": MOMENT, "price": Decimal("9.50"), "tags": ["a"]},
            {"user": None, "item": None, "time": MOMENT, "price": Decimal(3), "tags": []},
        ]
    )
    assert batch.schema.field("time").type == pa.timestamp("us", "UTC")
    assert batch.to_pydict() == {
        "user": ["007", None],
        "item": [12, None],
        "time": [MOMENT, MOMENT],
        "price": [9.5, 3.0],
        "tags": [["a"], []],
    }


@given(
    st.lists(
        st.fixed_dictionaries(
            {"a": st.none() | st.integers(-(2**63), 2**63 - 1)}, optional={"b": st.text()}
        )
    )
)
def test_rows_come_back_as_they_were(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    expected = [{name: row.get(name) for name in names} for row in rows]
    assert to_record_batch(rows).to_pylist() == (expected if names else [])


def test_a_column_of_several_types_is_text_and_loses_nothing():
    batch = to_record_batch([{"id": 7}, {"id": "007"}, {"id": None}])
    assert batch.column("id").to_pylist() == ["7", "007", None]


def test_all_rows_are_in_the_files_that_are_returned(tmp_path, monkeypatch):
    monkeypatch.setattr(bigquery, "_BATCH_ROWS", 100)
    monkeypatch.setattr(bigquery, "_LEAST_ROWS", 1)
    rows = [{"user": f"u{i % 7}", "item": i, "time": 10**9 + i} for i in range(1_000)]
    files = stage_rows(beam.Create(rows), tmp_path / "staged", OPTIONS)
    assert len(files) > 1
    tables = [pq.read_table(file) for file in files]
    read = pa.concat_tables(tables).sort_by("item").to_pylist()
    assert read == rows


def test_a_file_of_a_worker_that_died_is_not_returned(tmp_path):
    (tmp_path / "rows-of-the-dead.parquet").write_bytes(b"half a fi")
    (file,) = stage_rows(beam.Create([{"user": "u"}]), tmp_path, OPTIONS)
    assert "dead" not in file


def test_no_row_is_an_error(tmp_path):
    with pytest.raises(RecsysError) as caught:
        stage_rows(beam.Create([]), tmp_path, OPTIONS)
    assert caught.value.code == "R249"


def test_without_credentials_one_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(RecsysError) as caught:
        stage_query("SELECT 1", tmp_path, None)
    assert caught.value.code == "R248"
    assert "gcloud auth application-default login" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_clients_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.bigquery_storage", None)
    with pytest.raises(RecsysError) as caught:
        stage_query("SELECT 1", tmp_path, None)
    assert caught.value.code == "R248"
    assert "apache-beam[gcp]" in str(caught.value)


def test_what_bigquery_says_of_a_query_is_shown(tmp_path, monkeypatch):
    def refuse(row):
        raise ValueError("Syntax error: Unexpected keyword FORM at [1:10]\nJob ID 7")

    reader = beam.Create([1]) | beam.Map(refuse)
    monkeypatch.setattr(bigquery, "_reader", lambda query: reader)
    with pytest.raises(RecsysError) as caught:
        stage_query("SELECT * FORM t", tmp_path, None)
    assert caught.value.code == "R249"
    assert "Unexpected keyword FORM" in str(caught.value)
