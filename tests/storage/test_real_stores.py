"""Roots on other stores than moto's S3: versitygw, azurite, and Google's API (`gcs_server`)."""

import base64
import datetime as dt
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import closing, contextmanager

import pytest
from s3_server import gs

from recsys.errors import BusyError, RecsysError
from recsys.storage import working_folder
from recsys.storage.bucket import Bucket, ConflictError
from recsys.storage.working_folder import fetched, local_folder, written

__all__ = ["gs"]
INSTALL = {
    "versitygw": "go install github.com/versity/versitygw/cmd/versitygw@latest",
    "azurite-blob": "npm install --global azurite",
}
# The public account of Azure's emulators.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ACCOUNT = "devstoreaccount1"


@contextmanager
def server(*words, port):
    """Runs a server until the end of the block, once it listens."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}: {INSTALL[words[0]]}")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(300):
                with closing(socket.socket()) as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield
        finally:
            process.kill()


def make_container(port):
    now = f"{dt.datetime.now(dt.UTC):%a, %d %b %Y %H:%M:%S} GMT"
    signed = (
        f"PUT{chr(10) * 12}x-ms-date:{now}\nx-ms-version:2021-08-06\n"
        f"/{ACCOUNT}/{ACCOUNT}/runs\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": now,
        "x-ms-version": "2021-08-06",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    url = f"http://127.0.0.1:{port}/{ACCOUNT}/runs?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()


@pytest.fixture(params=["gs", *(pytest.param(x, marks=pytest.mark.engines) for x in ("s3", "az"))])
def url(request, tmp_path, monkeypatch):
    if request.param == "gs":
        yield f"{request.getfixturevalue('gs')}/x"
        return
    if request.param == "s3":
        (tmp_path / "store" / "runs").mkdir(parents=True)
        words = ("--access", "test", "--secret", KEY, "--port", "127.0.0.1:7077", "posix")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:7077")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        with server("versitygw", *words, str(tmp_path / "store"), port=7077):
            yield "s3://runs/x"
        return
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    words = ("--inMemoryPersistence", "--skipApiVersionCheck", "--silent")
    with server("azurite-blob", *words, port=10000):
        make_container(10000)
        yield "az://runs/x"


def test_a_root_is_written_read_and_kept_from_second_writers(url, tmp_path, monkeypatch):
    monkeypatch.setenv("RECSYS_CACHE", str(tmp_path / "a"))
    root = local_folder(url)
    big = os.urandom(20 << 20)
    with written(root) as commit:
        (root / "serving/m/1").mkdir(parents=True)
        (root / "serving/m/1/big").write_bytes(big)
        (root / "a").write_bytes(b"1")
        commit()
        (root / "a").write_bytes(b"2")
        monkeypatch.setenv("RECSYS_CACHE", str(tmp_path / "b"))
        other = local_folder(url)
        with pytest.raises(BusyError, match="R601"), written(other):
            pass
    assert (fetched(other) / "a").read_bytes() == b"2"
    assert (other / "serving/m/1/big").read_bytes() == big
    bucket = Bucket(url)
    first = bucket.write_if("m", b"1", None)
    with pytest.raises(ConflictError):
        bucket.write_if("m", b"2", None)
    second = bucket.write_if("m", b"3", first)
    with pytest.raises(ConflictError):
        bucket.write_if("m", b"4", first)
    bucket.write_if("m", b"5", second)
    bucket.delete(["m", "none"])
    assert [entry.key for entry in bucket.list("serving")] == ["serving/m/1/big"]
    with pytest.raises(RecsysError, match=r"R620.*must exist"):
        list(Bucket(f"{url[:2]}://none").list())
    assert working_folder.home_of(other) == url
