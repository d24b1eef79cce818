"""Asks a bundle, by raw user ids, and answers with titles."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recsys.bundles.bundle import check_k, read_contents
from recsys.errors import UsageError
from recsys.serving.saved_model import ask, load_saved_model, needed


@dataclasses.dataclass(frozen=True)
class Item:
    """An item as people see it.

    Attributes:
        id: Id of the item.
        title: Its name; the id where it has none.
    """

    id: str
    title: str


@dataclasses.dataclass(frozen=True)
class ScoredItem(Item):
    """An item that is recommended.

    Attributes:
        score: Similarity of the user's and the item's embedding, a cosine is in [-1..1];
            or the item's share of all positives [0..1].
    """

    score: float


@dataclasses.dataclass(frozen=True)
class Recommendations:
    """The answer for one user.

    Attributes:
        user_id: Id of the user.
        known: Whether the data of the bundle hold the user.
        source: What the answer rests on, one of `user`, `history`, `features` and
            `popularity`; of the last, the scores are the items' shares of all positives.
        history: What the user did, the newest first.
        items: What is recommended, the best first; nothing of the history, unless the
            bundle's config includes repeats. Fewer than were asked for where the catalogue
            has no more.
    """

    user_id: str
    known: bool
    source: str
    history: list[Item]
    items: list[ScoredItem]


class Recommender:
    """Recommends from a bundle.

    Loading takes seconds; while TensorFlow starts, its chatter on stderr is dropped.

    Args:
        bundle: Folder of a bundle, as `recsys.bundles.versions.latest` finds it.

    Attributes:
        max_k: Most items of an answer.
        example_users: A few users that the bundle knows.

    Raises:
        RecsysError: The bundle is damaged, or TensorFlow is missing or can't load it.
    """

    def __init__(self, bundle: Path) -> None:
        contents = read_contents(bundle)
        self.max_k, self._excludes_seen = contents.max_k, contents.excludes_seen
        table = contents.catalogue
        self._titles = dict(zip(table["id"].to_pylist(), table["title"].to_pylist(), strict=True))
        self.example_users = contents.example_users
        self._model = load_saved_model(bundle)

    def recommend(self, user_ids: Sequence[str], k: int) -> list[Recommendations]:
        """Returns the best `k` items of each of `user_ids`, known or not.

        What a user has seen is left out, unless the bundle's config includes repeats.

        Raises:
            UsageError: A user id is no text (R540), or `k` is out of range (R541).
        """
        check_k(k, self.max_k)
        if not user_ids:
            return []
        ids = [_normal(user_id) for user_id in user_ids]
        histories = self._histories(ids)
        answer = ask(
            self._model,
            "recommend",
            user_id=ids,
            history=[[""]] * len(ids),
            exclude_seen=[self._excludes_seen] * len(ids),
        )
        sources = needed(answer, "recommend", "source")
        return [
            Recommendations(
                user_id,
                bool(answer["known"][n]),
                sources[n].decode(),
                histories[n],
                self._items(answer["candidate_ids"][n][:k], answer["scores"][n][:k]),
            )
            for n, user_id in enumerate(ids)
        ]

    def _items(self, ids: np.ndarray, scores: np.ndarray) -> list[ScoredItem]:
        return [
            ScoredItem(*self._id_and_title(id_), float(score))
            for id_, score in zip(ids, scores, strict=True)
            if id_
        ]

    def _histories(self, user_ids: Sequence[str]) -> list[list[Item]]:
        answer = ask(self._model, "stored_history", user_id=list(user_ids))
        return [
            [Item(*self._id_and_title(id_)) for id_ in ids if id_] for ids in answer["item_ids"]
        ]

    def _id_and_title(self, id_: bytes) -> tuple[str, str]:
        text = id_.decode()
        return text, self._titles.get(text, text)


def _normal(user_id: str) -> str:
    """Returns an id as the ingest writes it.

    Raises:
        UsageError: It can't be written as UTF-8: what a terminal brings may be no text.
    """
    try:
        user_id.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "R540",
            "A user id must be text in UTF-8.",
            "Write the id as the data have it.",
            user_id,
        ) from None
    return unicodedata.normalize("NFC", user_id.strip())
