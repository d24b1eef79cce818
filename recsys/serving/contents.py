"""What a bundle holds beside its SavedModel, as those who ask it need it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.bundle import excludes_seen, read_manifest, verify
from recsys.errors import RecsysError, UsageError


@dataclasses.dataclass(frozen=True)
class Contents:
    """The readable part of a whole bundle.

    Attributes:
        max_k: Candidates of an answer of its `recommend`.
        catalogue: `id` and `title` of each item row from 1 on; an empty id is no item.
        example_users: A few users that it knows.
        excludes_seen: Whether answers leave out what users have seen, by default.
    """

    max_k: int
    catalogue: pa.Table
    example_users: list[str]
    excludes_seen: bool


def read_contents(bundle: Path) -> Contents:
    """Reads a bundle, after a check of all of its files.

    Raises:
        RecsysError: A file is missing or changed (R501 … R503, R514), or the bundle
            lacks what an answer needs (R544).
    """
    verify(bundle)
    try:
        manifest = read_manifest(bundle)
        k = manifest["k"]
        if type(k) is not int or k < 1:
            raise ValueError(f"k {k!r}")
        catalogue = pq.read_table(bundle / "titles.parquet", columns=["id", "title"])
        catalogue = catalogue.cast(pa.schema({"id": pa.string(), "title": pa.string()}))
        users = pq.read_table(bundle / "vocabulary" / "users.parquet", columns=["id"])
        examples = users["id"].drop_null().slice(0, 3).to_pylist()
    except (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException) as error:
        raise RecsysError(
            "R544",
            f"A bundle that is asked must hold k, titles.parquet and vocabulary/users.parquet;"
            f" {str(bundle)!r} doesn't.",
            "Export the model again: recsys export.",
            f"{type(error).__name__}: {error}",
        ) from None
    users_shown = [str(id_) for id_ in examples]
    return Contents(k, catalogue, users_shown, excludes_seen(manifest))


def check_k(k: int, max_k: int) -> None:
    """Raises an error if an answer of a bundle can't have `k` items (R541)."""
    if not 1 <= k <= max_k:
        raise UsageError(
            "R541",
            f"The number of items must be 1 … {max_k}.",
            "Ask for fewer, or set export.k in the config and run again: recsys run.",
            k,
        )
