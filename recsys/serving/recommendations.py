"""A loaded bundle in Python: recommendations or scores by raw ids, with tables for notebooks.

Example:
    >>> bundle = recsys.load_bundle("recsys-root/serving/movielens")
    >>> bundle.recommend(user="42", k=10)
    >>> bundle.recommend(users=["1", "2"], k=10, exclude=["50"]).to_pandas()
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from recsys.bundles.bundle import MANIFEST, wrong_answers
from recsys.bundles.publishing import latest
from recsys.errors import UsageError
from recsys.formats import html_table
from recsys.savedmodel.signatures import SCORE
from recsys.serving.label_scorer import LabelScorer, RankQuery
from recsys.serving.opening import open_bundle
from recsys.serving.ranking import ItemSequence, RankedItem, Ranking
from recsys.serving.served_model import (
    RETRIEVER,
    RankedRows,
    Retriever,
    Scorer,
    ServedModel,
    check_k,
    events_of,
    normal_id,
    text_of,
)

History = Sequence[str | int | Mapping[str, Any]]
"""Items of a history: ids, or objects with the id `item` and attributes by raw column."""

_SHOWN_USERS = 3
_COLUMNS = ("score", "id", "title")


@dataclasses.dataclass(frozen=True)
class Item:
    """An item with its title.

    Attributes:
        id: Id of the item.
        title: Title; the id if it has no title.
    """

    id: str
    title: str


@dataclasses.dataclass(frozen=True)
class ScoredItem(Item):
    """A recommended item.

    Attributes:
        score: Dot product or cosine [-1..1] of the user's and the item's embeddings; for the source
            `popularity` the item's share of all positives [0..1]. The score of a pair is that of
            its ranker, a formula of the labels.
        scores: Of a pair, the predicted labels, and the score of the `retriever`.
    """

    score: float
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, repr=False)
class Recommendations(ItemSequence[ScoredItem]):
    """The answer for one user.

    Attributes:
        user_id: Id of the user; empty without a user.
        known: Whether the data of the bundle contain the user.
        source: Information that the answer is based on: `user`, `history`, `features` or
            `popularity`.
        history: History items that the answer is based on, the newest first.
        items: Recommended items, the best first; fewer than `k` if the catalogue has no more.
        stage: Stage that ordered the items, `retriever` or `ranker`.
        missing: Of a pair, number of missing values by column of the context; a default is in their
            place.
        unknown: Of a pair, number of values that training didn't see by column of the context.
    """

    user_id: str
    known: bool
    source: str
    history: list[Item]
    items: list[ScoredItem]
    stage: str = RETRIEVER
    missing: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unknown: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        width = max([len(item.id) for item in self.items], default=0)
        rows = [f"{item.score:10.4f}  {item.id:{width}}  {item.title}" for item in self.items]
        return "\n".join([self._heading(self._basis), *(rows or ["(no item is left)"])])

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._heading(self._basis))}</p>{_html(_COLUMNS, self.to_rows())}"

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns `rank`, `id`, `title` and `score` of each item, and its `scores`."""
        return [
            {"rank": rank, "id": item.id, "title": item.title, "score": item.score, **item.scores}
            for rank, item in enumerate(self.items, 1)
        ]

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with a row for each item; requires pandas."""
        return _frame(self.to_rows(), ("rank", "id", "title", "score"))

    @property
    def _basis(self) -> str:
        return f"source: {self.source or 'unknown'}"


class RecommendationList(list[Recommendations]):
    """The answers for several users, in the order of the request."""

    def __repr__(self) -> str:
        shown = [repr(answer) for answer in self[:_SHOWN_USERS]]
        n_more = len(self) - _SHOWN_USERS
        return "\n\n".join([*shown, *([f"… and {n_more} more users"] if n_more > 0 else [])])

    def _repr_html_(self) -> str:
        return _html(("user_id", "rank", *_COLUMNS), self.to_rows())

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns `user_id`, and the row of `Recommendations`, of each item of each user."""
        return [{"user_id": answer.user_id, **row} for answer in self for row in answer.to_rows()]

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with a row for each item of each user; requires pandas."""
        return _frame(self.to_rows(), ("user_id", "rank", "id", "title", "score"))


class _Query(TypedDict, total=False):
    """Options of `LoadedBundle.recommend`, for one user or several."""

    k: int
    history: History
    context: Mapping[str, Any] | None
    features: Mapping[str, Sequence[str] | str] | None
    exclude: Sequence[str | int]
    filters: Mapping[str, Sequence[str] | str] | None
    exclude_seen: bool | None


class LoadedBundle:
    """A loaded bundle, which recommends items or scores pairs. Thread-safe.

    Args:
        model: Retriever or scorer of the bundle.

    Attributes:
        model: Retriever or scorer of the bundle.
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    @property
    def retriever(self) -> Retriever:
        """The retriever of the bundle.

        Raises:
            UsageError: The bundle answers scores (R545).
        """
        if not isinstance(self.model, Retriever):
            raise wrong_answers(self.path, self.model.answers, "lists")
        return self.model

    @property
    def path(self) -> Path:
        """Folder of the bundle."""
        return self.model.bundle

    def score(self, **inputs: Any) -> np.ndarray:
        """Returns scores `[n]` float32 of rows, from a bundle that answers scores.

        Args:
            **inputs: Values of each row by input of the signature `score`, such as `user_id` and
                `item_id`: lists of `n` texts or numbers, or of equally long lists.

        Raises:
            UsageError: The bundle answers lists (R545), an input is missing or unknown (R549), or a
                value is invalid (R540, R563).
        """
        return self._scorer.score(inputs)

    def rank(
        self,
        user: str | int,
        items: Sequence[str | int],
        *,
        k: int | None = None,
        context: Mapping[str, Any] | None = None,
        history: History = (),
        features: Mapping[str, Sequence[str] | str] | None = None,
        **inputs: Any,
    ) -> Ranking:
        """Returns items with their scores, the best first, from a bundle that answers scores.

        Args:
            user: Id of the user; the empty id means no user.
            items: Ids of the items to rank.
            k: Number of items to return; None: all.
            context: Values by raw column of events, such as `{"device": "phone"}`: one, or a list
                of one per item. `columns` lists the columns. A default is in place of a missing or
                unknown value.
            history: Items, the newest first, in place of the stored history: ids, or objects such
                as `{"item": 50, "device": "phone"}`.
            features: Raw values of the user by column, in place of the stored features.
            **inputs: Other inputs of the signature `score` of a bundle without labels, one value
                each for all rows.

        Raises:
            UsageError: The bundle answers lists (R545), an id is invalid (R540), `k` is below 1
                (R541), or a column or input is unknown, missing or invalid (R549).
        """
        ids = _ids(items)
        if isinstance(scorer := self.model.scorer, LabelScorer):
            if inputs:
                rule = "A bundle that predicts labels takes values as context, history or features."
                raise UsageError("R549", rule, "Write context={NAME: value}.", sorted(inputs))
            columns = {name: _texts(values) for name, values in (features or {}).items()}
            given = [history] if isinstance(history, Mapping) else list(_listed(history))
            query = RankQuery(_id(user), ids, k, context or {}, given, columns)
            return Ranking.of(query.user, ids, scorer.rank(query))
        others = {"history": history, "features": features}
        inputs |= {name: value for name, value in others.items() if value} | dict(context or {})
        scored = self._scorer.rank(_id(user), ids, k, inputs)
        found = [RankedItem(id_, {SCORE: score}) for id_, score in scored]
        return Ranking(_id(user), None, (SCORE,), found)

    @property
    def _scorer(self) -> Scorer:
        if isinstance(self.model, LabelScorer):
            rule = f"score needs the signature 'score', which {str(self.path)!r} doesn't have."
            raise UsageError("R545", rule, "Use rank.", list(self.model.signatures))
        if not isinstance(self.model, Scorer):
            raise wrong_answers(self.path, self.model.answers, "scores")
        return self.model

    @property
    def max_k(self) -> int:
        """Maximum number of items of an answer."""
        return self.retriever.max_k

    @property
    def filters(self) -> list[str]:
        """Names of the item features that `recommend` can filter by."""
        return list(self.retriever.filters.feature_of.values())

    @property
    def columns(self) -> dict[str, list[str]]:
        """Raw columns of events that the model reads, of the `context` and of the `history`."""
        events = getattr(self.model, "events", None) or self.retriever.events
        return {"context": [*events.context], "history": [*events.history]}

    @property
    def example_users(self) -> list[str]:
        """Ids of a few known users."""
        users: list[str] = self.retriever.catalogue.user_ids.slice(0, _SHOWN_USERS).to_pylist()
        return users

    def __repr__(self) -> str:
        if isinstance(self.model, Scorer):
            names = ", ".join(self.model.signatures[SCORE])
            return f"<Bundle {str(self.path)!r}: scores of {names}>"
        if isinstance(self.model, LabelScorer):
            return f"<Bundle {str(self.path)!r}: ranks by {', '.join(self.model.labels)}>"
        catalogue = self.retriever.catalogue
        users, n_items = len(catalogue.user_ids), int(catalogue.is_item.sum())
        return (
            f"<Bundle {str(self.path)!r}: {users:,} users, {n_items:,} items, k up to {self.max_k}>"
        )

    @overload
    def recommend(
        self, user: str | int = ..., *, users: None = ..., **query: Unpack[_Query]
    ) -> Recommendations: ...
    @overload
    def recommend(
        self, user: str | int = ..., *, users: Sequence[str | int], **query: Unpack[_Query]
    ) -> RecommendationList: ...
    def recommend(
        self,
        user: str | int = "",
        *,
        users: Sequence[str | int] | None = None,
        k: int = 10,
        history: History = (),
        context: Mapping[str, Any] | None = None,
        features: Mapping[str, Sequence[str] | str] | None = None,
        exclude: Sequence[str | int] = (),
        filters: Mapping[str, Sequence[str] | str] | None = None,
        exclude_seen: bool | None = None,
    ) -> Recommendations | RecommendationList:
        """Returns the best items for a user, for several users, or for a given history.

        Ids are text or integers, and are normalised as in the ingest. A single id may replace a
        list of one.

        Args:
            user: Id of the user; unknown users get popular items.
            users: Ids of several users, in place of `user`.
            k: Number of items per user.
            history: Items, the newest first, in place of the stored history: ids, or objects such
                as `{"item": 50, "device": "phone"}`, with values by raw column of events.
            context: Values of the query by raw column, such as `{"device": "phone"}`. The column of
                the times of events is the query time: seconds since 1970, UTC, ISO 8601, or a
                `datetime`; see docs/serving.md for its default. `columns` lists the columns.
            features: Raw values of the user by column, in place of the stored features.
            exclude: Ids of items to exclude.
            filters: Token names by feature, such as `{"genres": ["drama"]}`. A recommended item has
                at least one of the tokens of each feature.
            exclude_seen: Whether to exclude items of the user's history; None: the default of the
                bundle.

        Raises:
            UsageError: An id is invalid, or both `user` and `users` are given (R540); `k` is out of
                range (R541); no item has the value of a filter (R537); a feature or column is
                unknown, or a value can't be parsed (R549).
        """
        if users is not None and user != "":
            rule = "Either user or users must be given, not both."
            raise UsageError("R540", rule, "Leave one of them out.", user)
        ids = _ids(user if users is None else users)
        given = [history] if isinstance(history, Mapping) else _listed(history)
        items, attributes = events_of(given, _id)
        exclude = _ids(exclude)
        if not ids:
            return RecommendationList()
        input_of = {feature: name for name, feature in self.retriever.filters.feature_of.items()}
        rule = "Items can be filtered by features whose tokens have names"
        _check_names(rule, filters or {}, input_of)
        columns = self.retriever.user_columns
        _check_names("Raw values are taken of the columns of the users", features or {}, columns)
        of_query = {name: [text_of(value)] for name, value in (context or {}).items()}
        inputs = self.retriever.query_inputs(
            ids,
            history=items,
            exclude=exclude,
            only={input_of[name]: _texts(tokens) for name, tokens in (filters or {}).items()},
            columns={name: _texts(values) for name, values in (features or {}).items()},
            exclude_seen=exclude_seen,
            context=of_query,
            attributes=attributes,
        )
        ranked = self.retriever.rank(inputs, k, is_batch=len(ids) > 1)
        liked = self.retriever.catalogue.item_rows(items)
        histories = [liked] * len(ids) if liked else self.retriever.histories(ids)
        scorer = self.model.scorer
        replaced = scorer.defaults(of_query) if isinstance(scorer, LabelScorer) else ({}, {})
        answers = RecommendationList(
            Recommendations(
                user_id=id_,
                known=bool(ranked.known[place]),
                source=ranked.source[place].decode(),
                history=[Item(*self._names(row)) for row in histories[place] if row],
                items=self._items(ranked, place),
                stage=ranked.stage,
                missing=replaced[0],
                unknown=replaced[1],
            )
            for place, id_ in enumerate(ids)
        )
        return answers[0] if users is None else answers

    def _items(self, ranked: RankedRows, place: int) -> list[ScoredItem]:
        """Returns the items of one answer."""
        more = {name: values[place].tolist() for name, values in ranked.more.items()}
        scored = zip(ranked.rows[place].tolist(), ranked.scores[place].tolist(), strict=True)
        return [
            ScoredItem(*self._names(row), score, {name: x[at] for name, x in more.items()})
            for at, (row, score) in enumerate(scored)
            if row
        ]

    def retrieve(self, user: str | int = "", **query: Unpack[_Query]) -> Recommendations:
        """Returns the best items for a user by the first stage of a pair alone.

        Its rules don't apply. Any other bundle that answers lists answers as `recommend`.

        Args:
            user: Id of the user; unknown users get popular items.
            **query: Other arguments of `recommend`.

        Raises:
            UsageError: As `recommend`.
        """
        return LoadedBundle(self.retriever.first).recommend(user, **query)

    def similar(self, item: str | int, k: int = 10) -> list[ScoredItem]:
        """Returns the `k` items whose embeddings have the largest cosine with an item's.

        Raises:
            UsageError: There is no such item (R567), or `k` is below 1 (R541).
        """
        check_k(k)
        [row] = self.retriever.catalogue.item_rows([_id(item)])
        if not row:
            rule = "The item must be in the catalogue of the model."
            raise UsageError("R567", rule, "Write the id as in the data.", item)
        rows = self.retriever.catalogue.similar(row, k)
        return [ScoredItem(row["id"], row["title"] or row["id"], row["score"]) for row in rows]

    def _names(self, row: int) -> tuple[str, str]:
        """Returns the id and the title of an item."""
        catalogue = self.retriever.catalogue
        id_: str = catalogue.items.ids_of_rows[row].as_py()
        return id_, catalogue.titles[row].as_py() or id_


def load_bundle(path: str | Path) -> LoadedBundle:
    """Loads a bundle; takes seconds.

    A SavedModel is a program: load only bundles from sources that you trust.

    Args:
        path: Folder of a bundle, or of published versions; then the newest version is loaded.

    Raises:
        RecsysError: The bundle is damaged (R501 … R503), a file is missing (R544), or TensorFlow is
            missing (R542) or can't load it (R543).
    """
    folder = Path(path)
    return LoadedBundle(open_bundle(folder if (folder / MANIFEST).exists() else latest(folder)))


def _id(id_: Any) -> str:
    """Returns an id in the normal form of the ingest.

    Raises:
        UsageError: It is neither text nor an integer (R540).
    """
    is_whole = isinstance(id_, Integral) or (isinstance(id_, Real) and float(id_).is_integer())
    if is_whole and not isinstance(id_, bool):
        id_ = str(int(id_))  # pandas converts 7 to 7.0 in a column with missing values.
    if not isinstance(id_, str):
        rule, cure = "An id must be text, or a whole number.", "Write the id as the data have it."
        raise UsageError("R540", rule, cure, id_)
    return normal_id(id_.strip())


def _ids(ids: Any) -> list[str]:
    return [_id(id_) for id_ in _listed(ids)]


def _texts(values: Any) -> list[str]:
    return [str(value) for value in _listed(values)]


def _listed(values: Any) -> Iterable[Any]:
    """Returns a single value as a list of one; a text is a single value."""
    return (
        [values] if isinstance(values, str | bytes) or not isinstance(values, Iterable) else values
    )


def _check_names(rule: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            listed = ", ".join(known) or "there are none"
            raise UsageError("R549", f"{rule}: {listed}.", "Name one of them.", name)


def _html(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    values = ([row[column] for column in columns] for row in rows)
    return html_table(columns, values, texts=("user_id", "id", "title"))


def _frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> Any:
    import pandas as pd  # type: ignore[import-untyped]

    more = rows[0] if rows else ()
    return pd.DataFrame(rows, columns=[*dict.fromkeys([*columns, *more])])
