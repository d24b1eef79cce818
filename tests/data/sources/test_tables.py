"""Tables of other systems: the same store as that of files with their rows, at one snapshot."""

import io
import json
import os
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from s3_server import s3, s3_address
from shop_tables import Delta, Hive, Iceberg, Kafka, N, Sql, data_config, events, stored, stored_csv

from recsys.config.load import load_config
from recsys.data.forgotten import Forgotten
from recsys.data.ingest.landed import forget_in_landed, pin_sources
from recsys.data.ingest.spans import check_sources
from recsys.errors import RecsysError
from recsys.storage.bucket import Bucket

__all__ = ["s3", "s3_address"]
HALF = N // 2


@pytest.fixture
def servers():
    """Addresses of a broker in this process, which librdkafka has for tests."""
    kafka = pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")
    broker = kafka.Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = broker.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{one.host}:{one.port}" for one in brokers)
    del broker  # It ends with its client.


def made(kind, folder, monkeypatch, *url):
    packages = {Delta: "deltalake", Iceberg: "pyiceberg", Sql: "adbc_driver_sqlite"}
    if kind in packages:
        pytest.importorskip(packages[kind], reason="needs the extras of sources")
    return kind(folder, monkeypatch, *url)


def without_notes(content):
    """Returns a Parquet file with the column `note` overwritten."""
    group = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
    names = [group.column(at).path_in_schema for at in range(group.num_columns)]
    chunk = group.column(names.index("note"))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    stop = start + chunk.total_compressed_size
    return content[:start] + b"\xff" * (stop - start) + content[stop:]


def damage_notes(folder):
    """Overwrites the column `note` of all Parquet files below a folder; returns their number."""
    files = list(Path(folder).rglob("*.parquet"))
    for file in files:
        file.write_bytes(without_notes(file.read_bytes()))
    return len(files)


@pytest.mark.parametrize("kind", [Hive, Delta, Iceberg, Sql])
def test_a_table_gives_the_store_of_a_file_and_only_the_columns_in_use_are_read(
    kind, tmp_path, monkeypatch
):
    table = made(kind, tmp_path, monkeypatch)
    table.add(events(0, HALF))
    table.add(events(HALF))
    if kind is not Sql:
        assert damage_notes(table.folder) > 2
    expected, facts = stored_csv(tmp_path)
    found, its = stored(tmp_path / "out", **table.source)
    assert found == expected
    assert [its[key] for key in ("read", "rejected", "good")] == [N, N // 100, facts["good"]]
    assert its["by_reason"] == facts["by_reason"]


@pytest.mark.parametrize("kind", [Hive, Delta, Iceberg])
def test_only_the_columns_in_use_of_a_table_in_a_bucket_are_read(kind, s3, tmp_path, monkeypatch):
    bucket = Bucket(f"{s3}/table")
    table = made(kind, tmp_path, monkeypatch, bucket.url)
    table.add(events(0, HALF))
    table.add(events(HALF))
    files = [entry.key for entry in bucket.list() if entry.key.endswith(".parquet")]
    assert len(files) > 2
    for key in files:
        bucket.write(key, without_notes(bucket.read(key)[0]))
    found, facts = stored(tmp_path / "out", **table.source)
    assert found == stored_csv(tmp_path)[0]
    assert facts["read"] == N


@pytest.mark.parametrize("kind", [Delta, Iceberg, Sql])
def test_a_pinned_table_stays_as_it_was_and_a_new_snapshot_is_read_anew(
    kind, tmp_path, monkeypatch
):
    pytest.importorskip("tfx", reason="needs the extra `pipeline`")
    from pipelines.retrieval_pipeline import create_pipeline

    table = made(kind, tmp_path, monkeypatch)
    table.add(events(0, HALF))
    write_config(tmp_path, table.source)

    def keys():
        gen = create_pipeline(load_config(tmp_path / "c.yaml")).components[0]
        return {key: gen.exec_properties[key] for key in ("config", "files_digest")}

    first = keys()
    assert keys() == first
    pinned = pin_sources(data_config(**table.source), tmp_path / "landed").interactions
    table.add(events(HALF))
    assert keys()["files_digest"] != first["files_digest"]
    expected, _ = stored_csv(tmp_path, HALF)
    own = {"files": pinned.files, "format": pinned.model_dump()["format"]}
    found, facts = stored(tmp_path / "out", **own)
    assert found == expected
    assert facts["snapshot"]


def write_config(folder, source):
    interactions = {"columns": {"user": "user", "item": "item", "timestamp": "time"}, **source}
    raw = {"name": "shop", "root": "root", "data": {"interactions": interactions}}
    (folder / "c.yaml").write_text(yaml.safe_dump(raw))


def test_nights_of_a_topic_add_up_to_the_store_of_all_messages(servers, tmp_path):
    topic, cache = Kafka(servers), tmp_path / "segments"
    topic.add(events(0, HALF))
    stored(tmp_path / "out", cache, **topic.source)
    nights = tmp_path / "landed" / "interactions" / "events"
    (nights / ".00000001-abc").mkdir()  # Of a killed run.
    topic.add(events(HALF))
    found, facts = stored(tmp_path / "out", cache, **topic.source)
    expected, _ = stored_csv(tmp_path)
    assert found == expected
    assert [facts[key] for key in ("read", "rejected", "duplicates")] == [N, N // 100, 0]
    assert [(night["state"], night["rows"]) for night in facts["spans"]] == [
        ("reused", HALF),
        ("read", HALF),
    ]
    half = {"start": HALF // 2, "stop": HALF}
    assert {**facts["snapshot"]["partitions"], "0": half, "1": half} == (
        facts["snapshot"]["partitions"]
    )
    first = next(iter(facts["examples"].values()))[0]
    partition, offset = Path(first["file"]).stem.split("-")[1:]
    row = json.loads(first["row"])
    assert row["time"] // 600 % 2 == int(partition)
    assert (row["time"] - 1_700_006_400) // 1_200 == int(offset) + first["line"] - 1
    assert stored(tmp_path / "out", cache, **topic.source)[0] == expected
    assert len(list(nights.iterdir())) == 2


def test_messages_without_a_value_and_far_apart_keep_their_offsets(tmp_path):
    from recsys.data.sources.kafka_source import _Lines

    lines = _Lines(tmp_path, "t-0")
    for offset, value in [(5, b'{\n"a": 1}'), (6, None), (9, b"{}"), (5_000, b"{}")]:
        lines.write(offset, value)
    lines.close()
    assert (tmp_path / "t-0-5.jsonl").read_bytes() == b'{ "a": 1}\n\n\n\n{}\n'
    assert (tmp_path / "t-0-5000.jsonl").read_bytes() == b"{}\n"


def test_offsets_that_are_gone_are_named(servers, tmp_path):
    topic, cache = Kafka(servers), tmp_path / "segments"
    topic.add(events(0, 400))
    stored(tmp_path / "out", cache, **topic.source)
    manifest = tmp_path / "landed/interactions/events/00000000/landed.json"
    landed = json.loads(manifest.read_text())
    for changed, code, words in [
        ({"partitions": {"0": {"stop": 1_000}}}, "R285", "offset 1,000"),
        ({"cluster": "another"}, "R285", "another"),
        ({"partitions": {"0": {"stop": -50}}}, "R286", r"-50 to -1 \(50 messages\)"),
    ]:
        manifest.write_text(json.dumps(landed | changed))
        with pytest.raises(RecsysError, match=f"{code}.*{words}"):
            stored(tmp_path / "out", cache, **topic.source)
    source = {"format": topic.source["format"] | {"lost": "go_on"}}
    assert stored(tmp_path / "out", cache, **source)[1]["read"] == 800


@pytest.mark.parametrize(
    ("format_", "code", "words"),
    [
        ({"type": "delta", "folder": "/no/table"}, "R249", "/no/table"),
        ({"type": "iceberg", "table": "web.none", "catalog": "nowhere"}, "R249", "nowhere"),
        ({"type": "sql", "driver": "none", "query": "SELECT 1"}, "R248", "adbc_driver_none"),
        (
            {"type": "sql", "driver": "sqlite", "query": "SELECT * FROM t"},
            "R249",
            "no such table: t",
        ),
        (
            {"type": "sql", "driver": "sqlite", "query": "SELECT 1 AS user, 2 AS item"},
            "R203",
            "'time'",
        ),
        ({"type": "kafka", "servers": "localhost:1", "topic": "t"}, "R249", "localhost:1"),
    ],
)
def test_what_can_not_be_read_is_named_before_the_run(format_, code, words, monkeypatch):
    monkeypatch.setattr("recsys.data.sources.kafka_source._ANSWER_S", 1.0)
    with pytest.raises(RecsysError) as caught:
        check_sources(data_config(format=format_))
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


SECRET = "planted-4711"  # noqa: S105 looked for in messages


@pytest.mark.parametrize(
    "options",
    [
        {"type": "sql", "driver": "postgresql", "query": "SELECT 1", "uri": f"pg://me:{SECRET}@db"},
        {"type": "sql", "driver": "postgresql", "query": "SELECT 1", "uri": f"password={SECRET}"},
        {"type": "sql", "driver": "x", "query": "SELECT 1", "options": {"a.token": SECRET}},
        {"type": "kafka", "servers": "s", "topic": "t", "options": {"sasl.password": SECRET}},
    ],
)
def test_a_secret_in_a_config_is_refused_and_not_repeated(options, tmp_path):
    write_config(tmp_path, {"format": options})
    with pytest.raises(RecsysError, match="environment variable") as caught:
        load_config(tmp_path / "c.yaml")
    assert SECRET not in str(caught.value)


def test_a_secret_of_the_environment_is_neither_shown_nor_stored(tmp_path, monkeypatch):
    table = made(Sql, tmp_path, monkeypatch)
    table.add(events(0, 200))
    secret = tmp_path / SECRET
    os.rename(table.path, secret)
    monkeypatch.setenv("SHOP", str(secret))
    source = {"format": table.source["format"] | {"uri": "$SHOP"}}
    stored(tmp_path / "out", tmp_path / "segments", **source)
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file != secret]
    assert len(written) > 20
    assert not [file for file in written if SECRET.encode() in file.read_bytes()]
    monkeypatch.setenv("SHOP", f"/no/{SECRET}/folder")
    with pytest.raises(RecsysError, match="R249") as caught:
        check_sources(data_config(**source))
    assert SECRET not in str(caught.value)


# --- forgotten users


def bytes_of(folder):
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def forgetting(folder, person, **source):
    Forgotten.new().with_users([person]).save(folder / "forgotten.txt")
    forget = str(folder / "forgotten.txt")
    return data_config(**source).model_copy(update={"forget": forget})


def test_rows_of_a_forgotten_user_leave_a_landed_query_and_do_not_come_back(tmp_path, monkeypatch):
    table, landed = made(Sql, tmp_path, monkeypatch), tmp_path / "landed"
    table.add(events(0, HALF))
    pin_sources(data_config(**table.source), landed)
    assert b"u36" in bytes_of(landed)
    data = forgetting(tmp_path, "u36", **table.source)
    assert forget_in_landed(landed, data) == (1, [])
    assert forget_in_landed(landed, data) == (0, [])
    file = landed / "interactions" / "rows.parquet"
    expected = [row for row in events(0, HALF)["user"].to_pylist() if row != "u36"]
    assert pq.read_table(file)["user"].to_pylist() == expected
    assert json.loads(file.with_name("landed.json").read_text())["rows"] == len(expected)
    pin_sources(data, landed)
    assert b"u36" not in bytes_of(landed)
    assert pq.read_table(file)["user"].to_pylist() == expected


def test_messages_of_a_forgotten_user_leave_all_nights_and_others_keep_their_offsets(
    servers, tmp_path
):
    topic, landed = Kafka(servers), tmp_path / "landed"
    topic.add(events(0, HALF))
    topic.producer.produce("events", b'{"user": "u36", "item"', partition=0)  # Damaged.
    pin_sources(data_config(**topic.source), landed)
    (first,) = landed.rglob("events-0-0.jsonl")
    before = first.read_bytes().splitlines()
    assert b"u36" in bytes_of(landed)
    (first.parent / f".{first.name}.4711").write_bytes(first.read_bytes())  # Of a killed call.
    data = forgetting(tmp_path, "u36", **topic.source)
    assert forget_in_landed(landed, data) == (2, [])
    assert forget_in_landed(landed, data) == (0, [])
    topic.add(events(HALF))
    pinned = pin_sources(data, landed).interactions
    assert b"u36" not in bytes_of(landed)
    kept = [b"" if b'"u36"' in line else line for line in before]
    assert first.read_bytes().splitlines() == kept
    own = {"files": pinned.files, "format": "jsonl"}
    assert stored(tmp_path / "out", **own)[1]["read"] == sum(
        user != "u36" for user in events()["user"].to_pylist()
    )


def test_a_night_of_forgotten_users_alone_is_read_as_an_empty_one(servers, tmp_path):
    topic, landed = Kafka(servers), tmp_path / "landed"
    rows = events(0, HALF)
    topic.add(rows)
    pin_sources(data_config(**topic.source), landed)
    data = forgetting(tmp_path, "u36", **topic.source)
    topic.add(rows.filter(pc.equal(rows["user"], "u36")))
    pinned = pin_sources(data, landed).interactions
    forget_in_landed(landed, data)
    assert len(list(landed.rglob("landed.json"))) == 2
    own = {"files": pinned.files, "format": "jsonl"}
    n_left = sum(user != "u36" for user in rows["user"].to_pylist())
    assert stored(tmp_path / "out", **own)[1]["read"] == n_left
