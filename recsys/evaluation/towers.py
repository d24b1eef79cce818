"""What a model computes, of whichever kind it is: its items, and how it is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError


@dataclasses.dataclass(frozen=True)
class Towers:
    """A model in its own rows.

    Attributes:
        items: Vocabulary of its items.
        candidates: Item embeddings `[item rows, dim]` float32, which may be written to.
        history: Items of a history that it reads.
        queries: From ids of users `[n]` text and item rows `[n, history]` int32, the
            newest first, padded with 0, to embeddings `[n, dim]` float32.
    """

    items: Vocabulary
    candidates: np.ndarray
    history: int
    queries: Callable[[pa.Array, np.ndarray], np.ndarray]


def check_numbers(name: str, *embeddings: np.ndarray) -> None:
    """Checks that embeddings `[n, dim]` are finite.

    Args:
        name: Whose they are, for the message.
        *embeddings: The embeddings.

    Raises:
        RecsysError: Some are NaN or infinite (R402).
    """
    for embedded in embeddings:
        bad = int((~np.isfinite(embedded)).any(axis=1).sum())
        if bad:
            raise RecsysError(
                "R402",
                f"Every embedding of {name} must be finite, else ranks mean nothing.",
                "Train again with lower learning rates.",
                f"{bad} of {len(embedded)} embeddings are not",
            )
