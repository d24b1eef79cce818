"""Objects under a URL such as `s3://BUCKET/FOLDER`, in S3, Google Cloud Storage or Azure.

Credentials come from the environment or from the platform, as docs/object_stores.md describes.
Answers of a store may repeat a key or a signature, so no error has their text.
"""

from __future__ import annotations

import datetime as dt
import functools
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from recsys.errors import RecsysError, UsageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")
_NO_CREDENTIALS = re.compile(
    "latest/(api/token|meta-data)|computeMetadata|token request|Account must be specified"
)
_STATUS = re.compile(r"status code: (\d{3})")
_TIMEOUT_S = 60
_RETRIES, _RETRY_S = 12, 180
"""Most retries of a request, and the time after which there is no further one [s]."""
_READ_BYTES = 4 << 20
_MOST_DELETED = 250


class Entry(NamedTuple):
    """An object as it was at one time.

    Attributes:
        key: Its key.
        size: Its size [bytes].
        tag: Changes with its content.
        version: Number of its version, if the store counts them.
    """

    key: str
    size: int
    tag: str | None
    version: str | None


class ConflictError(RecsysError):
    """An object is not as a conditional request expects it (R622)."""


def is_url(path: str | Path) -> bool:
    """Returns whether a path is a URL such as `gs://bucket/file`."""
    return _URL.match(str(path)) is not None


def check_url(url: str) -> None:
    """Checks a URL without a request.

    Raises:
        UsageError: Its scheme is not supported, or it has no bucket or has credentials (R112).
    """
    match = _URL.match(url)
    scheme = match[1] if match else ""
    if scheme not in SCHEMES or not re.match(rf"{scheme}://[^/@?#]+(/[^?#]*)?$", url):
        raise UsageError(
            "R112",
            "A URL must be s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH.",
            "Correct it, or use a local or a mounted folder. Credentials come from the environment"
            " (docs/object_stores.md).",
            url if "@" not in url else f"{scheme}://…@…",
        )


class Bucket:
    """The objects under a URL; every key is relative to it.

    Requests that fail for a while (no connection, 5xx, 429) are repeated for up to three minutes.

    Args:
        url: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`.
        retries: Most retries of a request.

    Raises:
        UsageError: The URL is not supported (R112).
        RecsysError: Credentials are incomplete (R621).
    """

    def __init__(self, url: str, retries: int = _RETRIES) -> None:
        check_url(url)
        self.url = url.rstrip("/")
        with self._explained(""):
            self._store = _open(self.url, retries)

    def head(self, key: str) -> Entry | None:
        """Returns an object's size and tag; None if there is none."""
        import obstore

        try:
            with self._explained(key):
                return _entry(obstore.head(self._store, key))
        except FileNotFoundError:
            return None

    def read(self, key: str) -> tuple[bytes, Entry]:
        """Returns the content of an object.

        Raises:
            FileNotFoundError: There is none.
        """
        import obstore

        with self._explained(key):
            found = obstore.get(self._store, key)
            return bytes(found.bytes()), _entry(found.meta)

    def read_range(self, entry: Entry, start: int, stop: int) -> bytes:
        """Returns the bytes from `start` to `stop` of an object that must not have changed.

        Raises:
            FileNotFoundError: It is gone.
            ConflictError: It has changed.
        """
        import obstore

        with self._explained(entry.key):
            wanted: Any = {"range": (start, stop), "if_match": entry.tag}
            return bytes(obstore.get(self._store, entry.key, options=wanted).bytes())

    def stream(self, key: str) -> Iterator[bytes]:
        """Yields the content of an object in chunks.

        Raises:
            FileNotFoundError: There is none.
        """
        import obstore

        with self._explained(key):
            yield from map(bytes, obstore.get(self._store, key).stream(_READ_BYTES))

    def open(self, entry: Entry) -> BinaryIO:
        """Opens an object as a seekable file for reading."""
        return io.BufferedReader(_Reader(self, entry), _READ_BYTES)

    def write(self, key: str, content: bytes | Path) -> None:
        """Writes an object."""
        import obstore

        with self._explained(key):
            obstore.put(self._store, key, content)

    def write_if(self, key: str, content: bytes, before: Entry | None) -> Entry:
        """Writes an object if it is as it was `before`.

        Args:
            key: Key of the object.
            content: Its new content, unlike that of any other writer.
            before: The object to replace; None: there must be none.

        Raises:
            ConflictError: Another writer was faster.
        """
        import obstore

        try:
            with self._explained(key):
                mode: Any = "create"
                if before is not None:
                    known = {"e_tag": before.tag, "version": before.version}
                    mode = {name: value for name, value in known.items() if value is not None}
                put = obstore.put(self._store, key, content, mode=mode)
                return Entry(key, len(content), put["e_tag"], put["version"])
        except (ConflictError, FileNotFoundError) as error:
            with suppress(FileNotFoundError):  # The answer to an earlier try may have been lost.
                found, entry = self.read(key)
                if found == content:
                    return entry
            if isinstance(error, ConflictError):
                raise
            raise self._conflict(key) from None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yields the objects below a prefix, which must be empty or end with a folder's name."""
        import obstore

        with self._explained(prefix):
            for chunk in obstore.list(self._store, prefix.rstrip("/") or None):
                yield from map(_entry, chunk)

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that don't exist are ignored."""
        import obstore

        keys = sorted(keys)
        for start in range(0, len(keys), _MOST_DELETED):
            part = keys[start : start + _MOST_DELETED]
            try:
                with self._explained(part[0]):
                    obstore.delete(self._store, part)
            except FileNotFoundError:
                if len(part) > 1:  # Some stores stop at the first that is missing.
                    for key in part:
                        self.delete([key])

    def at(self, key: str) -> str:
        """Returns the URL of an object."""
        return f"{self.url}/{key}" if key else self.url

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        """Turns errors of a request into ours; FileNotFoundError stays."""
        from obstore import exceptions

        conflicts = exceptions.AlreadyExistsError, exceptions.PreconditionError
        refused = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
        try:
            yield
        except FileNotFoundError as error:
            if not _NO_BUCKET.search(str(error)):
                raise FileNotFoundError(f"no object {self.at(key)!r}") from None
            raise self._no_bucket() from None
        except conflicts:
            raise self._conflict(key) from None
        except refused as error:
            raise self._refused(str(error)) from None
        except (exceptions.BaseError, ValueError, OSError) as error:
            text = str(error)
            if _NO_BUCKET.search(text):
                raise self._no_bucket() from None
            if _NO_CREDENTIALS.search(text):
                raise self._refused("no credentials were found") from None
            rule = f"The object store must answer to requests for {self.at(key)!r}."
            cure = "Check its address and the network, and run again; the work so far is kept."
            raise RecsysError("R620", rule, cure, _short(text)) from None

    def _no_bucket(self) -> RecsysError:
        rule = f"The bucket of {self.url!r} must exist."
        return RecsysError("R620", rule, "Create it, or correct the URL.")

    def _conflict(self, key: str) -> ConflictError:
        rule = f"{self.at(key)!r} must not be changed by another program meanwhile."
        return ConflictError("R622", rule, "Let the other program end, and run again.")

    def _refused(self, text: str) -> RecsysError:
        return RecsysError(
            "R621",
            f"The credentials of this process must allow it to use {self.url!r}.",
            "Set them as the object store documents it, in the environment or by the platform"
            " (docs/object_stores.md), and run again.",
            _short(text),
        )


class _Reader(io.RawIOBase):
    """The bytes of an object, by requests of ranges."""

    def __init__(self, bucket: Bucket, entry: Entry) -> None:
        super().__init__()
        self._bucket, self._entry, self._at = bucket, entry, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._entry.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        stop = min(self._at + len(view), self._entry.size)
        if stop <= self._at:
            return 0
        content = self._bucket.read_range(self._entry, self._at, stop)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


@functools.lru_cache(64)
def _bucket(url: str) -> Bucket:
    return Bucket(url)


def located(url: str) -> tuple[Bucket, str]:
    """Returns the bucket of an object's URL, and its key; buckets are kept.

    Raises:
        UsageError: The URL is not supported (R112).
    """
    check_url(url)
    scheme, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    return _bucket(f"{scheme}://{name}"), key


def _open(url: str, retries: int) -> ObjectStore:
    from obstore.store import from_url

    return from_url(
        url,
        # A plain HTTP address is only used if the environment names one.
        client_options={"allow_http": True, "timeout": dt.timedelta(seconds=_TIMEOUT_S)},
        retry_config={"max_retries": retries, "retry_timeout": dt.timedelta(seconds=_RETRY_S)},
    )


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["e_tag"], meta["version"])


def _short(text: str) -> str:
    """Returns the status in an error's text, or its kind, without what may be secret."""
    status = _STATUS.search(text)
    if status is not None:
        return f"status {status[1]}"
    found = re.search(r"no credentials were found|HTTP error: [a-z ]+|timed out", text)
    return found[0] if found else "an unknown answer"
