"""The events of a shop, as tables of many kinds with the same rows."""

import hashlib
import os
import sqlite3

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from recsys.config import DataConfig
from recsys.stages.ingest import ingest
from recsys.storage.bucket import Bucket

N, START, DAY = 1_000, 1_700_006_400, 86_400
COLUMNS = {"user": "user", "item": "item", "timestamp": "time"}


def events(start=0, stop=N):
    """Events with one bad row in a hundred, in the order of their times."""
    rows = range(start, stop)
    return pa.table(
        {
            "note": [f"note {row} that nobody reads" for row in rows],
            "user": [None if row % 100 == 7 else f"u{row % 37}" for row in rows],
            "item": [f"i{(row * 7) % 53}" for row in rows],
            "time": [START + row * 600 for row in rows],
            "day": [str(START + row * 600 - (START + row * 600) % DAY) for row in rows],
        }
    )


def data_config(**source):
    return DataConfig.model_validate(
        {
            "interactions": {"columns": COLUMNS, **source},
            "eval_share": 0.2,
            "gate": {"max_rejected_share": 0.5},
        },
        strict=False,
    )


def stored(folder, cache=None, **source):
    """Ingests; returns the digest of the store and vocabulary, and the facts of the rows."""
    data = ingest(data_config(**source), folder, cache=cache, progress=False)
    digest = hashlib.sha256()
    for part in ("store", "vocabulary"):
        for file in sorted((folder / part).rglob("*")):
            if file.is_file():
                digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest(), data.facts["interactions"]


def stored_csv(folder, stop=N):
    """The same of a CSV file with the first rows."""
    file = folder / f"events-{stop}.csv"
    pyarrow.csv.write_csv(events(0, stop), file)
    return stored(folder / f"csv-{stop}", files=str(file))


class Hive:
    """Parquet files in folders `day=…`, here or in a bucket."""

    def __init__(self, folder, monkeypatch, url=None):
        self.folder, self.url = folder / "hive", url
        self.source = {"files": f"{url or self.folder}/**/*.parquet", "columns": COLUMNS}

    def add(self, table):
        pq.write_to_dataset(table, self.folder, partition_cols=["day"])
        for file in self.folder.rglob("*.parquet") if self.url else ():
            Bucket(self.url).write(str(file.relative_to(self.folder)), file)


class Delta:
    """A Delta table with partitions, here or in a bucket."""

    def __init__(self, folder, monkeypatch, url=None):
        self.folder = url or folder / "delta"
        self.source = {"format": {"type": "delta", "folder": str(self.folder)}}

    def add(self, table):
        import deltalake

        deltalake.write_deltalake(
            str(self.folder),
            table,
            mode="append",
            partition_by=["day"],
            storage_options={"allow_http": "true"},
        )


class Iceberg:
    """An Iceberg table of a catalog in SQLite, with its files here or in a bucket."""

    def __init__(self, folder, monkeypatch, url=None):
        from pyiceberg.catalog import load_catalog
        from pyiceberg.utils.config import Config

        self.folder = folder / "iceberg"
        self.folder.mkdir()
        monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", f"sqlite:///{self.folder}/catalog.db")
        monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__WAREHOUSE", url or f"file://{self.folder}")
        if url:
            endpoint = os.environ["AWS_ENDPOINT_URL"]
            monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__S3__ENDPOINT", endpoint)
        # It reads the environment when it is imported.
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        self.catalog = load_catalog("shop")
        self.catalog.create_namespace("web")
        table = self.catalog.create_table("web.events", schema=events(0, 1).schema)
        table.update_spec().add_identity("day").commit()
        self.source = {"format": {"type": "iceberg", "catalog": "shop", "table": "web.events"}}

    def add(self, table):
        self.catalog.load_table("web.events").append(table)


class Sql:
    """A table of an SQLite file; the column `note` can't be computed."""

    def __init__(self, folder, monkeypatch):
        self.path = folder / "shop.db"
        self.run("CREATE TABLE events (user TEXT, item TEXT, time INTEGER, day TEXT)", [()])
        query = "SELECT *, abs(-9223372036854775807 - 1) AS note FROM events"
        driver = {"driver": "sqlite", "uri": str(self.path)}
        self.source = {"format": {"type": "sql", "query": query, **driver}}

    def add(self, table):
        rows = table.select(["user", "item", "time", "day"]).to_pylist()
        self.run("INSERT INTO events VALUES (:user, :item, :time, :day)", rows)

    def run(self, statement, rows):
        with sqlite3.connect(self.path) as database:
            database.executemany(statement, rows)
        database.close()


class Kafka:
    """A topic with two partitions."""

    def __init__(self, servers, topic="events"):
        from confluent_kafka import Producer

        self.topic = topic
        self.producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        self.source = {"format": {"type": "kafka", "servers": servers, "topic": topic}}

    def add(self, table):
        import json

        for row in table.to_pylist():
            value = json.dumps(row, indent=1).encode()
            self.producer.produce(self.topic, value, partition=row["time"] // 600 % 2)
        assert self.producer.flush(30) == 0
