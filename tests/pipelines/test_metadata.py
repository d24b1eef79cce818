"""ML Metadata by config: SQLite or a server, and its password nowhere but in the environment."""

import json
import socket

import pytest
from commands import SMALL

pytest.importorskip("ml_metadata", reason="needs the extra `pipeline`")

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2

from pipelines import metadata_store as ours
from pipelines.metadata_store import claim_name
from recsys.config import canonical_json
from recsys.config.load import load_config
from recsys.errors import ConfigError, RecsysError

PASSWORD = "correct-horse"  # noqa: S105


def write(tmp_path, **mysql):
    path = tmp_path / "config.yaml"
    # JSON is YAML.
    path.write_text(SMALL + "metadata: " + json.dumps({"mysql": mysql or None}) + "\n")
    return path


def server(tmp_path, **more):
    given = {"host": "127.0.0.1", "port": 1, "database": "mlmd", "user": "ada", **more}
    return load_config(write(tmp_path, **given))


def test_by_default_it_is_sqlite_under_the_root(tmp_path):
    connection = ours.connection_config(load_config(write(tmp_path)))
    assert connection.sqlite.filename_uri == str(tmp_path / "runs/metadata.sqlite")
    assert connection.WhichOneof("config") == "sqlite"


def test_the_pipeline_gets_the_server_and_not_the_password(tmp_path, monkeypatch):
    monkeypatch.setenv("RECSYS_METADATA_PASSWORD", PASSWORD)
    config = server(tmp_path, ssl={"ca": "ca.pem"})
    compiled = ours.connection_config(config)
    assert (compiled.mysql.host, compiled.mysql.port) == ("127.0.0.1", 1)
    assert compiled.mysql.ssl_options.ca == str(tmp_path / "ca.pem")
    assert compiled.mysql.skip_db_creation
    assert not compiled.mysql.HasField("password")
    assert PASSWORD not in canonical_json(config)
    assert ours.with_password(config).mysql.password == PASSWORD


def test_without_its_variable_nothing_begins(tmp_path, monkeypatch):
    monkeypatch.delenv("RECSYS_METADATA_PASSWORD", raising=False)
    with pytest.raises(RecsysError, match=r"R615.*RECSYS_METADATA_PASSWORD") as caught:
        ours.check_metadata(server(tmp_path))
    assert caught.value.exit_code == 2


def test_a_server_that_is_down_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DOOR", PASSWORD)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        config = server(tmp_path, port=closed.getsockname()[1], password_env="DOOR")  # noqa: S106
        with pytest.raises(RecsysError, match=r"R612.*127\.0\.0\.1:\d+") as caught:
            ours.check_metadata(config)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "mysql",
    [
        {"host": "h", "database": "d", "user": "u", "password": PASSWORD},
        {"host": "h", "database": "d", "user": "u", "password_env": PASSWORD},
    ],
    ids=["password", "password_env"],
)
def test_a_password_in_the_config_is_refused_and_not_shown(tmp_path, mysql):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, **mysql))
    assert "password" in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.fixture
def shared():
    """A database of ML Metadata that several roots use."""
    connection = metadata_store_pb2.ConnectionConfig()
    connection.fake_database.SetInParent()
    return metadata_store.MetadataStore(connection)


def test_a_name_belongs_to_one_root(shared, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for root in (here, there):
        root.mkdir()
    claim_name(shared, "films", here)
    claim_name(shared, "films", here)
    claim_name(shared, "books", there)
    with pytest.raises(RecsysError, match=rf"R616.*belongs to the root '{here}'"):
        claim_name(shared, "films", there)


def test_a_root_that_moved_keeps_its_name(shared, tmp_path):
    (tmp_path / "old").mkdir()
    claim_name(shared, "films", tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    claim_name(shared, "films", tmp_path / "new")
