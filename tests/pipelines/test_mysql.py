"""ML Metadata on a real MariaDB server, which the test starts on the loopback.

`apt-get install mariadb-server`, or unpack Debian's packages somewhere and name that folder in
RECSYS_TEST_MARIADB.
"""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("ml_metadata", reason="needs the extra `pipeline`")

from metadata_nights import config_of
from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2
from waiting import wait_for

from pipelines.metadata_store import check_metadata, claim_name, open_store, with_password
from recsys.errors import RecsysError

BASE = Path(os.environ.get("RECSYS_TEST_MARIADB", "/"))
DAEMON = BASE / "usr/sbin/mariadbd"
PASSWORD = "correct-horse"  # noqa: S105

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(not DAEMON.exists(), reason="needs MariaDB")]

SETUP = f"""
CREATE DATABASE mlmd; CREATE DATABASE other;
CREATE USER ada@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON mlmd.* TO ada@'127.0.0.1';
CREATE USER root2@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO root2@'127.0.0.1';
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The port of a server with the database `mlmd`, which `ada` may use."""
    folder = tmp_path_factory.mktemp("mariadb")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(BASE / "usr/lib/x86_64-linux-gnu")}
    base = ["--no-defaults", f"--basedir={BASE / 'usr'}", f"--datadir={folder / 'data'}"]
    base.append(f"--lc-messages-dir={BASE / 'usr/share/mysql'}")
    install = BASE / "usr/bin/mariadb-install-db"
    made = [str(install), *base, "--user=root", "--auth-root-authentication-method=normal"]
    subprocess.run(made, env=environment, check=True, capture_output=True)
    port, door = free_port(), folder / "door"
    words = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={door}", "--user=root"]
    with subprocess.Popen(
        [str(DAEMON), *base, *words], env=environment, stderr=subprocess.DEVNULL
    ) as daemon:
        wait_for(door.exists, 60)
        client = [str(BASE / "usr/bin/mariadb"), "--no-defaults", "-uroot", f"-S{door}"]
        subprocess.run(client, input=SETUP, env=environment, check=True, text=True)
        yield port
        daemon.terminate()
    shutil.rmtree(folder / "data")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def config(server, tmp_path, monkeypatch):
    """Makes a config with that server, and sets the password."""

    def make(password=PASSWORD, **changes):
        monkeypatch.setenv("RECSYS_METADATA_PASSWORD", password)
        mysql = {"host": "127.0.0.1", "port": server, "database": "mlmd", "user": "ada"}
        return config_of(tmp_path, metadata={"mysql": {**mysql, **changes}})

    return make


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"password": "wrong"}, "R613"),
        ({"user": "nobody"}, "R613"),
        ({"database": "other"}, "R613"),
        ({"database": "none", "user": "root2"}, "R613"),
        ({"ssl": {"ca": "/etc/ssl/certs/ca-certificates.crt"}}, "R613"),
    ],
    ids=["password", "user", "rights", "database", "tls"],
)
def test_a_refusing_server_is_reported_without_the_password(config, changes, code):
    with pytest.raises(RecsysError, match=code) as caught:
        check_metadata(config(**changes))
    assert PASSWORD not in str(caught.value)


def test_what_one_run_wrote_the_next_one_finds(config):
    made = config()
    check_metadata(made)
    store = metadata_store.MetadataStore(with_password(made))
    kind = metadata_store_pb2.ContextType(name="pipeline")
    store.put_contexts(
        [metadata_store_pb2.Context(name="films", type_id=store.put_context_type(kind))]
    )
    again = open_store(made)
    assert again.get_context_by_type_and_name("pipeline", "films") is not None


def test_two_roots_can_not_share_a_name(config, tmp_path):
    store = metadata_store.MetadataStore(with_password(config()))
    for root in ("a", "b"):
        (tmp_path / root).mkdir()
    claim_name(store, "shared", tmp_path / "a")
    with pytest.raises(RecsysError, match="R616"):
        claim_name(open_store(config()), "shared", tmp_path / "b")
