"""Asks a bundle, by raw user ids, and answers with titles."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from recsys.errors import UsageError
from recsys.serving.contents import check_k, read_contents
from recsys.serving.loading import load_saved_model
from recsys.serving.signatures import ask


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
        score: Similarity of the user's and the item's embedding; a cosine is in [-1..1].
    """

    score: float


@dataclasses.dataclass(frozen=True)
class Recommendations:
    """The answer for one user.

    Attributes:
        user_id: Id of the user.
        history: What the user did, the newest first.
        items: What is recommended, the best first; nothing of the history. Fewer
            than were asked for where the catalogue has no more.
    """

    user_id: str
    history: list[Item]
    items: list[ScoredItem]


class Recommender:
    """Recommends from a bundle.

    Loading takes seconds; while TensorFlow starts, its chatter on stderr is dropped.

    Args:
        bundle: Folder of a bundle, as `recsys.bundle.latest` finds it.

    Raises:
        RecsysError: The bundle is damaged, or TensorFlow is missing or can't load it.
    """

    def __init__(self, bundle: Path) -> None:
        contents = read_contents(bundle)
        self.max_k = contents.max_k
        table = contents.catalogue
        self._titles = dict(zip(table["id"].to_pylist(), table["title"].to_pylist(), strict=True))
        self._example_users = contents.example_users
        self._model = load_saved_model(bundle)

    def recommend(self, user_ids: Sequence[str], k: int) -> list[Recommendations]:
        """Returns the best `k` unseen items of each of `user_ids`.

        Raises:
            UsageError: A user is unknown, or `k` is out of range.
        """
        check_k(k, self.max_k)
        if not user_ids:
            return []
        histories = self._histories(user_ids)
        answer = ask(
            self._model,
            "recommend",
            user_id=list(user_ids),
            history=[[""]] * len(user_ids),
            exclude_seen=[True] * len(user_ids),
        )
        items = [
            [
                ScoredItem(*self._id_and_title(id_), float(score))
                for id_, score in zip(ids[:k], scores[:k], strict=True)
                if id_
            ]
            for ids, scores in zip(answer["candidate_ids"], answer["scores"], strict=True)
        ]
        return [
            Recommendations(user_id, history, best)
            for user_id, history, best in zip(user_ids, histories, items, strict=True)
        ]

    def _histories(self, user_ids: Sequence[str]) -> list[list[Item]]:
        for user_id in user_ids:
            if not _is_text(user_id):  # Which the data hold alone.
                raise self._unknown(user_id)
        answer = ask(self._model, "stored_history", user_id=list(user_ids))
        for user_id, is_known in zip(user_ids, answer["known"], strict=True):
            if not is_known:
                raise self._unknown(user_id)
        return [
            [Item(*self._id_and_title(id_)) for id_ in ids if id_] for ids in answer["item_ids"]
        ]

    def _id_and_title(self, id_: bytes) -> tuple[str, str]:
        text = id_.decode()
        return text, self._titles.get(text, text)

    def _unknown(self, user_id: str) -> UsageError:
        examples = ", ".join(repr(id_) for id_ in self._example_users)
        return UsageError(
            "R540",
            "The user must be in the data of the bundle: with a positive interaction, or"
            " in the users' file.",
            f"Take a user id of the interactions, such as {examples};"
            " after new data came in, run again: recsys run.",
            user_id,
        )


def _is_text(user_id: str) -> bool:
    """Returns whether an id can be written as UTF-8; what a terminal brings may be none."""
    try:
        user_id.encode()
    except UnicodeEncodeError:
        return False
    return True
