"""Objects in a bucket: conditional writes, faults of the store, credentials, and refused URLs."""

import pytest
from s3_server import SECRET, dropped, proxied, s3, s3_address, slow, truncated, unavailable

from recsys.errors import RecsysError, UsageError
from recsys.storage.bucket import Bucket, ConflictError

__all__ = ["s3", "s3_address"]


def test_a_written_object_is_read_listed_and_deleted_under_its_prefix(s3, tmp_path):
    bucket, file = Bucket(f"{s3}/a b/č/"), tmp_path / "file"
    file.write_bytes(bytes(12 << 20))  # In several parts.
    bucket.write("x/1%2F", b"12345")
    bucket.write("x/2", file)
    assert [(e.key, e.size) for e in bucket.list("x")] == [("x/1%2F", 5), ("x/2", 12 << 20)]
    assert sum(map(len, bucket.stream("x/2"))) == 12 << 20
    with bucket.open(bucket.head("x/1%2F")) as opened:
        opened.seek(-3, 2)
        assert opened.read() == b"345"
    bucket.delete(["x/1%2F", "x/2", "x/none"])
    assert not list(bucket.list())
    assert bucket.head("x/2") is None


def test_a_conditional_write_succeeds_only_on_the_content_that_was_read(s3):
    bucket = Bucket(s3)
    first = bucket.write_if("m", b"1", None)
    with pytest.raises(ConflictError, match="R622"):
        bucket.write_if("m", b"2", None)
    second = bucket.write_if("m", b"3", first)
    for before in (first, None):
        with pytest.raises(ConflictError):
            bucket.write_if("m", b"4", before)
    bucket.write_if("m", b"5", second)
    bucket.delete(["m"])
    with pytest.raises(ConflictError):
        bucket.write_if("m", b"6", second)
    with pytest.raises(FileNotFoundError):
        bucket.read("m")


@pytest.mark.parametrize("fault", [unavailable, dropped, truncated, slow])
def test_faults_of_the_store_are_overcome_by_repeated_requests(s3, s3_address, monkeypatch, fault):
    seen = {}

    def twice(handler, content):
        key = (handler.command, handler.path)
        seen[key] = seen.get(key, 0) + 1
        return fault(handler, content) if seen[key] < 3 else content

    with proxied(s3_address, twice) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        bucket, content = Bucket(s3), b"abc" * 100_000
        bucket.write("x", content)
        first = bucket.write_if("m", b"1", None)  # The first try was carried out, if dropped.
        bucket.write_if("m", b"2", first)
        assert bucket.read("m")[0] == b"2"
        assert b"".join(bucket.stream("x")) == content
        assert [entry.key for entry in bucket.list()] == ["m", "x"]


def test_without_credentials_server_or_bucket_the_error_is_one_sentence(s3, monkeypatch):
    with pytest.raises(RecsysError, match=r"R620.*bucket of 's3://none' must exist"):
        list(Bucket("s3://none").list())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(RecsysError, match=r"R620.*must answer.*HTTP error") as error:
        Bucket(s3, retries=1).head("x")
    assert SECRET not in str(error.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RecsysError, match=r"R621.*no credentials were found"):
        Bucket(s3, retries=1).head("x")


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_not_in_the_error(s3, s3_address, monkeypatch, status):
    def refused(handler, content):
        body = f"<Error><Code>SignatureDoesNotMatch</Code><Key>{SECRET}</Key></Error>".encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with proxied(s3_address, refused) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(RecsysError, match=rf"R621.*status {status}") as error:
            Bucket(s3).read("x")
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "url",
    ["hdfs://host/a", "file:///tmp/a", "s3://", "s3:/b/c", "s3://key:secret@b/c", "s3://b?x=1"],
)
def test_a_url_that_is_not_supported_is_refused_without_its_credentials(url):
    with pytest.raises(UsageError, match="R112") as error:
        Bucket(url)
    assert "secret" not in str(error.value)
