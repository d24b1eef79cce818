"""The answers of the JSON API behind the page, by one version of the model."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recsys.bundles.signatures import Arrays
from recsys.serving.retriever import FILTERED, RECOMMEND, Retriever, as_texts, query_inputs
from recsys.serving.server.http_errors import BAD_REQUEST, NOT_FOUND, HttpError

_SHOWN_HISTORY = 100


class PageAnswers:
    """Answers one request by one version, and tells how long it took.

    Args:
        model: The version.
    """

    def __init__(self, model: Retriever) -> None:
        self.model, self.catalogue = model, model.catalogue
        self._started = time.perf_counter()

    def answer(self, **fields: Any) -> dict[str, Any]:
        """Returns `fields` with the version that answered, and its time [ms]."""
        milliseconds = (time.perf_counter() - self._started) * 1e3
        return {"version": self.model.version, "milliseconds": round(milliseconds, 3), **fields}

    def users(self, prefix: str, n: int) -> dict[str, Any]:
        """Returns users by the beginning of their ids."""
        ids = self.catalogue.find_users(_normal(prefix), n)
        return self.answer(users=[{"id": id_} for id_ in ids])

    def items(self, words: str, n: int) -> dict[str, Any]:
        """Returns items by words of their titles."""
        return self.answer(items=self.catalogue.find_items(_normal(words), n))

    def tokens(self, filter_: str, words: str, n: int) -> dict[str, Any]:
        """Returns names of tokens that a filter takes, those of the most items first.

        Raises:
            HttpError: There is no such filter.
        """
        self._check_filters([filter_])
        names = self.model.filters.tokens(filter_, _normal(words), n)
        return self.answer(tokens=[{"id": name} for name in names])

    def similar(self, item: str, k: int) -> dict[str, Any]:
        """Returns the items most like one.

        Raises:
            HttpError: There is no such item.
        """
        [row] = self.catalogue.item_rows([_normal(item)])
        if not row:
            raise HttpError(
                NOT_FOUND,
                "R567",
                "The item must be in the catalogue of the model.",
                "GET /api/items?words=… finds items.",
                item,
            )
        [shown] = self.catalogue.shown([row])
        return self.answer(item=shown, items=self.catalogue.similar(row, k))

    def recommend(
        self,
        user: str,
        taste: Sequence[str],
        exclude: Sequence[str],
        only: Mapping[str, Sequence[str]],
        k: int,
        *,
        is_new_only: bool | None = None,
    ) -> dict[str, Any]:
        """Returns the best items of a user, or of a taste.

        Args:
            user: Id of the user; empty for nobody.
            taste: Items in place of what is stored of the user, the newest first.
            exclude: Items that are left out of the answer.
            only: Names of tokens by filter; every item has one of each filter.
            k: How many items.
            is_new_only: Whether what the user did is left out too; None: as the model
                has it.

        Raises:
            HttpError: The model can't give so many, or has no such filter.
        """
        self._check_filters(only)
        taste, exclude = [_normal(id_) for id_ in taste], [_normal(id_) for id_ in exclude]
        inputs = query_inputs(
            self.model.signatures,
            [_normal(user)],
            is_new_only=self.model.excludes_seen if is_new_only is None else is_new_only,
            history=taste,
            exclude=exclude,
            only={name: [_normal(token) for token in tokens] for name, tokens in only.items()},
        )
        known = self._history(user)
        outputs = self.model.ask(FILTERED if "exclude_ids" in inputs else RECOMMEND, inputs)
        kept = self._kept(outputs, set(as_texts(exclude).tolist()), k)
        rows = self.catalogue.item_rows([id_ for id_, _ in kept])
        of_taste = self.catalogue.item_rows(taste)
        unknown = [id_ for id_, row in zip(taste, of_taste, strict=True) if not row]
        return self.answer(
            known=bool(outputs["known"][0]),
            source=outputs["source"][0].decode() if "source" in outputs else "",
            history=self.catalogue.shown(row for row in (of_taste or known) if row),
            unknown_items=unknown,
            items=self.catalogue.shown(rows, [score for _, score in kept]),
        )

    def _kept(self, outputs: Arrays, left_out: set[bytes], k: int) -> list[tuple[str, float]]:
        """Returns at most `k` ids with their scores; older bundles leave nothing out."""
        ids, scores = outputs["candidate_ids"][0], outputs["scores"][0]
        if k > len(ids):
            raise HttpError(
                BAD_REQUEST,
                "R567",
                f"This model answers with at most {len(ids)} items.",
                "Ask for fewer, or set export.k in the config and run again: recsys run.",
                k,
            )
        pairs = zip(ids.tolist(), scores.tolist(), strict=True)
        return [(id_.decode(), score) for id_, score in pairs if id_ and id_ not in left_out][:k]

    def filters(self) -> dict[str, str]:
        """Returns the feature of each filter."""
        return self.model.filters.feature_of if FILTERED in self.model.signatures else {}

    def _check_filters(self, names: Iterable[str]) -> None:
        known = self.filters()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise HttpError(
                BAD_REQUEST,
                "R567",
                f"A filter must be one of {', '.join(known) or 'none: the model has none'}.",
                "GET /api/about lists them.",
                unknown[0],
            )

    def _history(self, user: str) -> list[int]:
        """Returns the item rows of what is stored of a user, the newest first."""
        if not user:
            return []
        outputs = self.model.ask("stored_history", {"user_id": as_texts([_normal(user)])})
        ids = [id_.decode() for id_ in outputs["item_ids"][0] if id_]
        return self.catalogue.item_rows(ids[:_SHOWN_HISTORY])


def _normal(text: str) -> str:
    """Returns an id as the ingest writes it."""
    return unicodedata.normalize("NFC", text)
