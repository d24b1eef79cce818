"""What the token rows of a feature stand for, as text; a file beside its bags.

    <feature>.tokens.parquet    token of each token row [rows]; row 0, padding, is empty

Features whose tokens are hashed have no such file: a row of theirs stands for many.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.errors import RecsysError


def write_token_names(folder: Path, feature: str, names: Sequence[str]) -> None:
    """Writes the names of the token rows `[rows]` of a feature.

    Raises:
        OSError: The disk is full.
    """
    pq.write_table(pa.table({"token": pa.array(names, pa.string())}), _path(folder, feature))


def open_token_names(folder: Path, feature: str, n_rows: int) -> TokenNames | None:
    """Returns the names of the `n_rows` token rows of a feature; None where there are none."""
    path = _path(folder, feature)
    return TokenNames(path, n_rows) if path.exists() else None


class TokenNames(Sequence[str]):
    """Names of token rows, read from their file when the first is asked for.

    Args:
        path: The file that `write_token_names` wrote.
        n_rows: Names that it must hold, that of row 0 included.
    """

    def __init__(self, path: Path, n_rows: int) -> None:
        self._path, self._n_rows = path, n_rows

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, row: Any) -> Any:
        """Returns the name of a token row, or of a slice of them.

        Raises:
            RecsysError: The file is damaged, or is of another table.
        """
        return self._names[row]

    @functools.cached_property
    def _names(self) -> list[str]:
        try:
            names: list[str] = pq.read_table(self._path)["token"].to_pylist()
        except (OSError, ValueError, KeyError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from None
        if len(names) != self._n_rows:
            raise self._damaged(f"{len(names)} names")
        return names

    def _damaged(self, found: str) -> RecsysError:
        return RecsysError(
            "R230",
            f"{str(self._path)!r} must hold a name for each of {self._n_rows} token rows.",
            "Name the folder that the InteractionEncoder wrote, or run again.",
            found,
        )


def _path(folder: Path, feature: str) -> Path:
    return folder / f"{feature}.tokens.parquet"
