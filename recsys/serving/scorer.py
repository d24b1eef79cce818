"""Scores pairs of users and items by a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys.bundles.bundle import answers_of, check_answers, verify
from recsys.errors import UsageError
from recsys.savedmodel.loading import SavedModelGraph
from recsys.savedmodel.signatures import DTYPES, SCORE, Arrays
from recsys.serving.retriever import as_texts, check_k
from recsys.serving.served_model import ServedModel

USER, ITEM = "user_id", "item_id"


class Scorer(ServedModel):
    """A bundle whose signature `score` has one output, `score` `[n]` float32.

    Its inputs are by row. `rank` needs `user_id` and `item_id` among them, `[n]` text.
    """

    answers = "scores"

    @classmethod
    def open(cls, bundle: Path) -> Scorer:
        """Loads a bundle, after a check of all its files.

        Raises:
            RecsysError: The bundle is damaged (R501 … R503), or TensorFlow is missing (R542)
                or can't load it (R543).
            UsageError: The bundle answers lists (R545).
        """
        check_answers(bundle, answers_of(verify(bundle)), cls.answers)
        return cls(SavedModelGraph(bundle), bundle)

    def score(self, inputs: Mapping[str, Any]) -> np.ndarray:
        """Returns the scores `[n]` float32 of rows.

        Args:
            inputs: Values of each row by input: texts, numbers, or lists of equal lengths.

        Raises:
            UsageError: An input is missing or unknown (R549), or invalid (R540, R563).
        """
        return self.ask(SCORE, self._arrays(inputs))[SCORE]

    def rank(
        self, user: str, items: Sequence[str], k: int | None, inputs: Mapping[str, Any]
    ) -> list[tuple[str, float]]:
        """Returns the best `k` of `items` with their scores; of equal scores the earlier first.

        Args:
            user: Id of the user.
            items: Ids of the items.
            k: Number of items to return; None: all.
            inputs: Other inputs, one value each for all rows.

        Raises:
            UsageError: As `score`, or `k` is below 1 (R541).
        """
        if k is not None:
            check_k(k)
        n = len(items)
        if not n:
            return []
        repeated = {name: [value] * n for name, value in inputs.items()}
        scores = self.score({USER: [user] * n, ITEM: items, **repeated})
        order = np.argsort(-scores, kind="stable")[:k]
        return [(items[place], float(scores[place])) for place in order.tolist()]

    def _arrays(self, inputs: Mapping[str, Any]) -> Arrays:
        signature = self.signatures[SCORE]
        if inputs.keys() != signature.keys():
            rule = f"The inputs must be {', '.join(sorted(signature))}."
            raise UsageError("R549", rule, "Give each of them, and no other.", sorted(inputs))
        arrays: Arrays = {}
        for name, values in inputs.items():
            array = np.asarray(values)
            if signature[name].dtype == "DT_STRING":
                texts = as_texts(map(str, array.ravel().tolist()))
                arrays[name] = texts.reshape(array.shape)
            else:
                arrays[name] = array.astype(DTYPES[signature[name].dtype])
        return arrays
