"""Builds the inputs of a model from the rows of users and items.

A row is an address: it may be that of a user or an item that training never saw. Such
a one has no trained embedding, and its features all the same.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Self

import numpy as np

from recsys.config import RetrievalConfig
from recsys.data.catalogue import (
    Catalogue,
    FeatureBags,
    bags_of,
    bags_of_histories,
    open_user_features,
)
from recsys.data.history_facts import Facts, all_of
from recsys.data.input_files import verify_inputs
from recsys.data.vocabulary import UNKNOWN_ROW, Vocabulary, load_kinds


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """Vocabularies and features of users and items, by row.

    Attributes:
        users: Vocabulary of the users.
        items: Vocabulary of the items.
        catalogue: The items.
        user_features: Features of the users.
        kinds: The kinds of events, by number.
    """

    users: Vocabulary
    items: Vocabulary
    catalogue: Catalogue
    user_features: tuple[FeatureBags, ...] = ()
    kinds: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Reads a data folder or a model folder.

        Raises:
            RecsysError: A catalogue is missing, or a file is damaged.
        """
        verify_inputs(folder)
        users, items = (
            Vocabulary.load(folder / "vocabulary" / f"{side}.parquet")
            for side in ("users", "items")
        )
        features = open_user_features(folder / "user_features", users.n_rows)
        catalogue, kinds = Catalogue.open(folder / "catalogue"), load_kinds(folder / "vocabulary")
        return cls(users, items, catalogue, features, kinds)

    def features(self, side: str) -> tuple[FeatureBags, ...]:
        """Returns the features of `users`, or of `items`."""
        return self.user_features if side == "users" else tuple(self.catalogue.features)

    def query(
        self,
        user_row: np.ndarray,
        history: np.ndarray,
        model: RetrievalConfig,
        facts: Facts | None = None,
    ) -> dict[str, Any]:
        """Returns the query's inputs.

        Args:
            user_row: User rows `[b]`.
            history: Item rows `[b, history]`, the newest first, padded with 0.
            model: What the query reads.
            facts: What is told of the items of the histories, each `[b, history]` int32, and of
                the questions `[b]`; what isn't, and is read, is unknown. See
                `recsys.data.history_facts`.
        """
        return {
            "user_row": trained_rows(user_row, self.users),
            "history": trained_rows(history, self.items),
            **all_of(model.query_facts, facts, history),
            **bags_of(self.user_features, user_row),
            **bags_of_histories(self.catalogue.features, history, model),
        }

    def candidate(self, item_row: np.ndarray) -> dict[str, Any]:
        """Returns the candidate's inputs for item rows `[b]`."""
        return {
            "id_row": trained_rows(item_row, self.items),
            **bags_of(self.catalogue.features, item_row),
        }


def trained_rows(rows: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Returns the rows of the table to read for addresses.

    A user or an item without training positives has an address but no trained row:
    row 0, which `id_dropout` trained to stand in, is read in its place. Every caller
    of the model, in training, evaluation and serving, passes its rows through here.

    Args:
        rows: User rows or item rows `[...]`.
        vocabulary: Theirs, with training counts.
    """
    return np.where(vocabulary.row_counts[rows] > 0, rows, UNKNOWN_ROW).astype(np.int32)
