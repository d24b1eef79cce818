"""Real servers behind sources: Postgres, and Kafka by Maven; nothing is lost or read twice."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from shop_tables import Kafka, N, data_config, events, stored, stored_csv
from waiting import wait_for

from recsys.data.ingest.spans import check_sources
from recsys.errors import RecsysError

pytestmark = pytest.mark.engines
SECRET = "planted-4711"  # noqa: S105 looked for in what is written


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# --- Postgres


@pytest.fixture
def postgres(tmp_path, monkeypatch):
    """URI of a server that wants a password."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found or os.geteuid() != 0:
        pytest.skip("needs Debian's postgresql, and root to start it as its user")
    folder, port = Path("/tmp") / f"pg-{os.getpid()}", free_port()  # noqa: S108 of its user
    folder.mkdir()
    shutil.chown(folder, "postgres")
    (folder / "password").write_text(SECRET)
    shutil.chown(folder / "password", "postgres")
    run = {"check": True, "user": "postgres", "cwd": folder, "stdout": subprocess.DEVNULL}
    asked = ["--auth=scram-sha-256", f"--pwfile={folder}/password", "--username=shop"]
    subprocess.run([found[-1] / "initdb", "-D", folder / "data", *asked], **run)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    control = [found[-1] / "pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log"]
    subprocess.run([*control, "-o", options, "start"], **run)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    yield f"postgresql://shop@127.0.0.1:{port}/postgres"
    subprocess.run([*control, "-m", "immediate", "stop"], **run)
    shutil.rmtree(folder)


def test_a_query_of_postgres_gives_the_store_of_a_file(postgres, tmp_path, monkeypatch):
    dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi", reason="needs the extra `sql`")
    with dbapi.connect(postgres) as database, database.cursor() as cursor:
        cursor.adbc_ingest("events", events(), mode="create")
        database.commit()
    query = (
        "SELECT \"user\", item, to_timestamp(time) AT TIME ZONE 'UTC' AS time,"
        " time::numeric AS amount, 1 / (time - time) AS note FROM events"
    )
    source = {"type": "sql", "driver": "postgresql", "uri": postgres, "query": query}
    found, facts = stored(tmp_path / "out", tmp_path / "segments", format=source)
    assert found == stored_csv(tmp_path)[0]
    assert (facts["read"], facts["rejected"]) == (N, N // 100)
    assert facts["snapshot"]["columns"] == ["user", "item", "time"]
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        assert SECRET.encode() not in file.read_bytes()
    monkeypatch.setenv("PGPASSWORD", f"wrong-{SECRET}")
    for changed, words in [
        ({}, "authentication failed"),
        ({"uri": "postgresql://shop@127.0.0.1:1/postgres"}, "refused"),
    ]:
        with pytest.raises(RecsysError, match=f"R249.*{words}") as caught:
            check_sources(data_config(format=source | changed))
        assert SECRET not in str(caught.value)


# --- Kafka


def answers(port):
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    asked = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    try:
        return asked.list_topics(timeout=2).brokers
    except KafkaException:
        return {}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """Address of a broker with topics of two partitions."""
    pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")
    if not (shutil.which("java") and shutil.which("mvn")):
        pytest.skip("needs java and mvn")
    folder, jars = tmp_path_factory.mktemp("kafka"), Path.home() / ".cache/recsys-tests/kafka-4.1.1"
    if not jars.exists():
        pom = Path(__file__).with_name("kafka-pom.xml")
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
        subprocess.run(["mvn", "-q", "-B", "-f", pom, *copy], check=True)
        shutil.move(folder / "jars", jars)
    port, controller = free_port(), free_port()
    (folder / "server.properties").write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={folder}/log\n"
        "num.partitions=2\noffsets.topic.replication.factor=1\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
    )
    java = ["java", "-Xmx300m", "-cp", f"{jars}/*"]
    format_ = ["format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", folder / "server.properties"]
    subprocess.run([*java, "kafka.tools.StorageTool", *format_], check=True)
    with (folder / "out").open("wb") as out:
        server = subprocess.Popen(
            [*java, "kafka.Kafka", folder / "server.properties"], stdout=out, stderr=out
        )
    try:
        wait_for(lambda: answers(port), 180)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_a_kill_in_the_middle_of_a_night_loses_nothing_and_repeats_nothing(kafka, tmp_path):
    topic, cache, n = Kafka(kafka, "killed"), tmp_path / "segments", 60_000
    nights = tmp_path / "landed" / "interactions" / "killed"
    code = (
        "import json, sys; from shop_tables import stored;"
        " stored(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))"
    )
    words = [tmp_path / "out", cache, json.dumps(topic.source)]
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ["PYTHONPATH"]])
    for night in range(3):
        topic.add(events(night * n // 3, (night + 1) * n // 3))
        child = subprocess.Popen(
            [sys.executable, "-c", code, *words], env={**os.environ, "PYTHONPATH": path}
        )
        begun = f".{night:08d}-*/*.jsonl"
        wait_for(lambda begun=begun: any(p.stat().st_size for p in nights.glob(begun)), 300)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert not (nights / f"{night:08d}").exists()
        _, facts = stored(tmp_path / "out", cache, **topic.source)
    assert [night["rows"] for night in facts["spans"]] == [n // 3] * 3
    assert (facts["read"], facts["duplicates"]) == (n, 0)
    found, _ = stored(tmp_path / "again", cache, **topic.source)
    assert found == stored_csv(tmp_path, n)[0]


def test_deleted_messages_are_named_and_open_transactions_are_read_once_committed(kafka, tmp_path):
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    topic, cache = Kafka(kafka, "kept"), tmp_path / "segments"
    topic.add(events(0, 800))
    writer = Producer({"bootstrap.servers": kafka, "transactional.id": "t"})
    writer.init_transactions()
    writer.begin_transaction()
    for row in events(800, 900).to_pylist():
        writer.produce("kept", json.dumps(row).encode(), partition=0)
    writer.flush()
    assert stored(tmp_path / "out", cache, **topic.source)[1]["read"] == 800
    writer.commit_transaction()  # Readers see it a moment later.
    wait_for(lambda: stored(tmp_path / "out", cache, **topic.source)[1]["read"] == 900, 60)
    assert stored(tmp_path / "out", cache, **topic.source)[1]["duplicates"] == 0
    topic.add(events(900, 1_000))
    admin = AdminClient({"bootstrap.servers": kafka})
    for done in admin.delete_records([TopicPartition("kept", 1, 410)]).values():
        done.result()
    with pytest.raises(RecsysError, match=r"R286.*partition 1 .* 400 to 409 \(10 messages\)"):
        stored(tmp_path / "out", cache, **topic.source)
    source = {"format": topic.source["format"] | {"lost": "go_on"}}
    assert stored(tmp_path / "out", cache, **source)[1]["read"] == 990
