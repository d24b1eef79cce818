"""Answers of `LoadedBundle.rank`: items with the predicted labels, with tables for notebooks."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from recsys.formats import counted, html_table
from recsys.serving.label_scorer import RankedItems
from recsys.serving.served_model import shortest

ItemT = TypeVar("ItemT")


class ItemSequence(Generic[ItemT]):
    """The items of an answer for one user, the best first."""

    user_id: str
    known: bool | None
    items: list[ItemT]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(self.items)

    def __getitem__(self, place: int) -> ItemT:
        return self.items[place]

    def _heading(self, basis: str) -> str:
        who = f" for user {self.user_id!r}" if self.user_id else ""
        unknown = ", who is not in the data" if self.user_id and self.known is False else ""
        return f"{counted(len(self.items), 'item', 'items')}{who}{unknown} ({basis})"


@dataclasses.dataclass(frozen=True)
class RankedItem:
    """An item with the predicted labels.

    Attributes:
        id: Id of the item.
        scores: Probability or amount of each label, by name.
        known: Whether the data contain the item.
    """

    id: str
    scores: Mapping[str, float]
    known: bool = True

    @property
    def score(self) -> float:
        """Probability or amount of the first label."""
        return next(iter(self.scores.values()))


@dataclasses.dataclass(frozen=True, repr=False)
class Ranking(ItemSequence[RankedItem]):
    """Items in the order of the first label's scores.

    Attributes:
        user_id: Id of the user; empty without a user.
        known: Whether the data of the bundle contain the user; None: the bundle doesn't tell.
        labels: Names of the labels.
        items: The items, the best first.
        missing: Number of missing values by column of the context; a default is in their place.
        unknown: Number of values that training didn't see by column of the context.
    """

    user_id: str
    known: bool | None
    labels: Sequence[str]
    items: list[RankedItem]
    missing: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unknown: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, user: str, items: Sequence[str], ranked: RankedItems) -> Ranking:
        """Returns the answer to a query for a user and items."""
        columns = zip(*map(shortest, ranked.scores.values()), strict=True)
        rows = zip(ranked.places.tolist(), columns, ranked.known_items.tolist(), strict=True)
        return cls(
            user,
            ranked.known,
            tuple(ranked.scores),
            [
                RankedItem(items[place], dict(zip(ranked.scores, scores, strict=True)), known)
                for place, scores, known in rows
            ],
            ranked.missing,
            ranked.unknown,
        )

    def __repr__(self) -> str:
        width = max([len(item.id) for item in self.items], default=0)
        rows = [
            f"{item.id:{width}}" + "".join(f"  {x:10.4f}" for x in item.scores.values())
            for item in self.items
        ]
        return "\n".join([self._heading(", ".join(self.labels)), *rows])

    def _repr_html_(self) -> str:
        columns = ("rank", "id", *self.labels)
        values = ([row[column] for column in columns] for row in self.to_rows())
        heading = html.escape(self._heading(", ".join(self.labels)))
        return f"<p>{heading}</p>{html_table(columns, values, texts=('id',))}"

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns `rank`, `id`, `known`, and the score of each label of each item."""
        return [
            {"rank": rank, "id": item.id, "known": item.known, **item.scores}
            for rank, item in enumerate(self.items, 1)
        ]

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with a row for each item; requires pandas."""
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame(self.to_rows(), columns=["rank", "id", "known", *self.labels])
