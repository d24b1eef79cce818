"""The file of `data.forget`: salted hashes of the users that every ingest leaves out.

    recsys forget 1 <salt>      a random salt, in hexadecimal
    <hash>                      keyed BLAKE2b of a user id in UTF-8, one per line, sorted

The file contains no ids, but anyone who has it can test whether an id is in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import to_ids
from recsys.errors import RecsysError
from recsys.system.files import commit_text, open_regular

LeaveOut = Callable[[RawBatch], tuple[RawBatch, int]]
"""Returns a batch without the rows to leave out, and their number."""

_HEADER = re.compile("recsys forget 1 ([0-9a-f]{32})")
_HASH = re.compile("[0-9a-f]{32}")
_WORDS = (re.compile(r"""[^\s,;|"'{}\[\]():=<>]+"""), re.compile(r"[^,;|\t]+"))


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """Hashes of the users to leave out.

    Attributes:
        salt: Salt of the hashes, in hexadecimal.
        hashes: The hashes, in hexadecimal.
    """

    salt: str
    hashes: frozenset[str]

    @classmethod
    def new(cls) -> Self:
        """Returns an empty list with a new salt."""
        return cls(secrets.token_hex(16), frozenset())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file that `save` wrote.

        Raises:
            RecsysError: The file is missing or damaged (R931).
        """
        try:
            with open_regular(path) as file:
                header, *lines = file.read().decode("ascii").splitlines()
            match, bad = _HEADER.fullmatch(header), [x for x in lines if not _HASH.fullmatch(x)]
            received = "another first line" if match is None else f"the line {bad[:1]}"
            if match is not None and not bad:
                return cls(match[1], frozenset(lines))
        except (OSError, ValueError) as error:
            received = getattr(error, "strerror", None) or str(error)
        raise RecsysError(
            "R931",
            f"{str(path)!r}, which data.forget names, must be a whole file of forgotten users.",
            "Restore it: without it the users in it would be read again. If no user was forgotten"
            " yet, leave out data.forget until recsys forget needs it.",
            received,
        )

    def save(self, path: Path) -> None:
        """Writes the list atomically, synced to disk."""
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_text("\n".join([f"recsys forget 1 {self.salt}", *sorted(self.hashes)]) + "\n", path)

    def with_users(self, ids: Iterable[str]) -> Self:
        """Returns the list with more users."""
        return dataclasses.replace(self, hashes=self.hashes | {self.hash_of(id_) for id_ in ids})

    def hash_of(self, id_: str) -> str:
        """Returns the hash of a user id."""
        key = bytes.fromhex(self.salt)
        return hashlib.blake2b(id_.encode(), key=key, digest_size=16).hexdigest()

    def digest(self) -> str:
        """Returns a digest of the list, for cache keys."""
        content = "\n".join([self.salt, *sorted(self.hashes)])
        return hashlib.sha256(content.encode()).hexdigest()

    def contains(self, ids: pa.Array) -> np.ndarray:
        """Returns which of `ids` `[n]` are in the list, `[n]` bool."""
        coded = ids.dictionary_encode()
        known = [self.hash_of(id_) in self.hashes for id_ in coded.dictionary.to_pylist()]
        codes = pc.fill_null(coded.indices, len(known)).to_numpy(zero_copy_only=False)
        return np.array([*known, False])[codes]

    def find(self, column: str, batch: RawBatch) -> tuple[np.ndarray, np.ndarray]:
        """Returns which rows of a batch are of these users `[n]`, and which rejected ones `[m]`.

        Rejected rows have no user id: they are if any word in them is in the list.

        Args:
            column: Raw column of the user id.
            batch: The rows.
        """
        texts = batch.rejected.column("row").to_pylist()
        named = [any(self.hash_of(word) in self.hashes for word in words_of(row)) for row in texts]
        return self.contains(to_ids(batch.columns.column(column))), np.array(named, bool)

    def leave_out(self, column: str, batch: RawBatch) -> tuple[RawBatch, int]:
        """Returns a batch without the rows that `find` finds, and their number."""
        is_left_out, is_named = self.find(column, batch)
        if not is_left_out.any() and not is_named.any():
            return batch, 0
        rejected = batch.rejected.filter(pa.array(~is_named))
        kept = dataclasses.replace(batch.take(~is_left_out), rejected=rejected)
        return kept, int(is_left_out.sum() + is_named.sum())


def words_of(row: str) -> set[str]:
    """Returns the cells and words of a raw row, any of which may be an id."""
    return {word.strip(" \"'\n") for pattern in _WORDS for word in pattern.findall(row)}


def digest_of(path: str | None) -> list[str]:
    """Returns the part of a cache key for the file of `data.forget`; empty without one."""
    return [] if path is None else [Forgotten.load(path).digest()]
