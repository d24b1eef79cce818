"""A served ranking model: it predicts the labels of given items for a user.

The signature `rank` takes `user_id` `[b]`, `history` `[b, any]`, raw columns of the users, raw
columns of events (`recsys.savedmodel.event_columns`) and `item_id` `[b, items]`. A column of the
context has one value per query, or one per item. The outputs are one array `[b, items]` per label,
`known` `[b]`, `known_items` `[b, items]` and, in bundles of the task `ranking`, `order`
`[b, items]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from recsys.bundles.bundle import answers_of, check_answers, verify
from recsys.data.event_features import FOLDER, load_event_features
from recsys.errors import UsageError
from recsys.savedmodel.event_columns import Column, EventColumns
from recsys.savedmodel.signatures import (
    DTYPES,
    LIST_PADDING,
    ORDER,
    RANK,
    Arrays,
    SavedModelGraph,
)
from recsys.serving.catalogue_search import CatalogueSearch
from recsys.serving.served_model import (
    ITEM,
    USER,
    ServedModel,
    as_texts,
    check_k,
    events_of,
    text_of,
)

LABELS = "labels"
"""The manifest's field of the names of the labels."""
HISTORY, KNOWN, KNOWN_ITEMS = "history", "known", "known_items"


@dataclasses.dataclass(frozen=True)
class RankQuery:
    """Items to rank for a user, by raw ids and raw values.

    Attributes:
        user: Id of the user; empty: none.
        items: Ids of the items.
        k: Number of items to return; None: all.
        context: Values by raw column of events: one, or a list of one per item.
        history: Items, the newest first, in place of the stored history: ids, or objects with the
            id `item` and attributes by raw column.
        features: Raw values of the user by column, in place of the stored features.
    """

    user: str
    items: Sequence[str]
    k: int | None = None
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    history: Sequence[Any] = ()
    features: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RankedItems:
    """Predicted labels, in the order of the first label's scores.

    Attributes:
        places: Index in the query of each returned item `[k]` int64, the best first.
        scores: Probability or amount of each label `[k]` float32, by name.
        known: Whether the data contain the user.
        known_items: Whether the data contain each item `[k]` bool.
        missing: Number of missing values by column of the context.
        unknown: Number of values that training didn't see by column of the context.
        by_item: Columns of the context with a value for each item.
    """

    places: np.ndarray
    scores: Mapping[str, np.ndarray]
    known: bool
    known_items: np.ndarray
    missing: Mapping[str, int]
    unknown: Mapping[str, int]
    by_item: frozenset[str] = frozenset()


class LabelScorer(ServedModel):
    """Predicts labels of items. Thread-safe.

    Args:
        graph: The signatures of the bundle.
        bundle: Folder of the bundle.
        labels: Names of the labels; items are ordered by the first.
        events: Raw columns of events that the bundle reads.
        catalogue: Users and items of the bundle by name.

    Attributes:
        labels: Names of the labels.
        events: Raw columns of events that the bundle reads.
        catalogue: Users and items of the bundle by name.
    """

    answers = "scores"

    def __init__(
        self,
        graph: SavedModelGraph,
        bundle: Path,
        labels: Sequence[str],
        events: EventColumns,
        catalogue: CatalogueSearch,
    ) -> None:
        super().__init__(graph, bundle)
        self.labels, self.events, self.catalogue = tuple(labels), events, catalogue
        self._tokens = _tokens_of(bundle, events)

    @classmethod
    def open(cls, bundle: Path) -> LabelScorer:
        """Loads a bundle, after a check of all its files.

        Raises:
            RecsysError: The bundle is damaged (R501 … R503), a file is missing (R544), or
                TensorFlow is missing (R542) or can't load it (R543).
            UsageError: The bundle answers lists (R545).
        """
        manifest = verify(bundle)
        check_answers(bundle, answers_of(manifest), cls.answers)
        catalogue = CatalogueSearch.open(bundle, has_embeddings=False)
        events = EventColumns.of_manifest(manifest)
        return cls(SavedModelGraph(bundle), bundle, manifest[LABELS], events, catalogue)

    @property
    def user_columns(self) -> list[str]:
        """Names of the inputs for raw values of users."""
        known = (USER, ITEM, HISTORY, *self.events.inputs)
        inputs = self.signatures[RANK].items()
        return [n for n, spec in inputs if n not in known and spec.dtype == "DT_STRING"]

    def rank(self, query: RankQuery) -> RankedItems:
        """Returns the predicted labels of the best items; of equal scores the earlier first.

        Raises:
            UsageError: An id is invalid (R540), `k` is below 1 (R541), or a column is unknown, has
                an invalid value or another number of values than there are items (R549).
        """
        if query.k is not None:
            check_k(query.k)
        n, by_item = len(query.items), set[str]()
        context = {}
        for name, value in query.context.items():
            if self._is_by_item(name, value, n):
                by_item.add(name)
            context[name] = [text_of(x) for x in (value if name in by_item else [value])]
        outputs = self.ask(RANK, self._inputs(query, context))
        scores = {label: outputs[label][0] for label in self.labels}
        order = outputs[ORDER][0] if ORDER in outputs else scores[self.labels[0]]
        places = np.argsort(-order[:n], kind="stable")[: query.k]
        return RankedItems(
            places,
            {label: values[places] for label, values in scores.items()},
            bool(outputs[KNOWN][0]),
            outputs[KNOWN_ITEMS][0][places],
            *self.defaults(context),
            frozenset(by_item),
        )

    def _inputs(self, query: RankQuery, context: Mapping[str, Sequence[str]]) -> Arrays:
        """Returns the inputs of `rank`; padding means the stored history or features."""
        for name in query.features:
            if name not in self.user_columns:
                rule = f"The model must read the column {name!r} of the users."
                known = ", ".join(self.user_columns) or "none"
                raise UsageError("R549", rule, f"Leave it out; the model reads {known}.", name)
        history, attributes = events_of(query.history, text_of)
        texts = {
            ITEM: query.items,
            HISTORY: history,
            **query.features,
            **self.events.of_history(attributes, len(history)),
            **self.events.of_context(context),
        }
        inputs = {
            name: as_texts(texts.get(name) or [""])[None]
            if spec.dtype == "DT_STRING"
            else np.full((1, 1), LIST_PADDING[name], DTYPES[spec.dtype])
            for name, spec in self.signatures[RANK].items()
        }
        return {**inputs, USER: as_texts([query.user])}

    def _is_by_item(self, name: str, value: Any, n: int) -> bool:
        """Returns whether a column of the context has a value for each of `n` items.

        Raises:
            UsageError: A list has another length than the items (R549).
        """
        column = self.events.context.get(name)
        is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        is_list = is_list and not _is_vector(column, value)
        if is_list and len(value) != n:
            rule = f"{name} must have one value, or a list of one value for each of the {n} items."
            raise UsageError("R549", rule, 'Write "" for an unknown value.', f"{len(value)} values")
        return is_list

    def defaults(
        self, context: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the numbers of missing and of unknown values, by column with any."""
        missing, unknown = {}, {}
        for name in self.events.context:
            texts = [text.strip() for text in context.get(name, [""])]
            missing[name] = texts.count("")
            if name in self._tokens:
                is_known = self._tokens[name].__contains__
                unknown[name] = len(texts) - missing[name] - sum(map(is_known, texts))
        return tuple({name: n for name, n in one.items() if n} for one in (missing, unknown))  # type: ignore[return-value]


def _is_vector(column: Column | None, value: Iterable[Any]) -> bool:
    """Returns whether a list is a single vector."""
    is_vector = column is not None and column.type == "vector"
    return is_vector and all(isinstance(number, Real) for number in value)


def _tokens_of(bundle: Path, events: EventColumns) -> dict[str, frozenset[str]]:
    """Returns the texts that training knows, by column of the context whose tokens have names."""
    tokens: dict[str, frozenset[str]] = {}
    for one in load_event_features(bundle / FOLDER):
        column = one.feature.column
        if column is not None and column in events.context and one.feature.value == "text":
            names = one.feature.token_names(one.learned)
            if names is not None:
                tokens[column] = tokens.get(column, frozenset()) | {*names} - {""}
    return tokens
