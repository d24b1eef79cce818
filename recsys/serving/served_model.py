"""A loaded bundle: the interface of the server, batch files and Python.

A `Retriever` recommends. The SavedModel embeds a query and returns the items that its user has
seen (`prepare_query`). The items are ranked here by exact float32 dot products, or by an index if
that is faster. The SavedModel answers queries without any information, by popularity. Inputs and
outputs are the same as of `recommend` and `recommend_filtered` in
`recsys.tasks.retrieval.serving.graph`.

A `Scorer` scores pairs of users and items. For a `LabelScorer` see `recsys.serving.label_scorer`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from recsys.bundles.bundle import answers_of, check_answers, verify
from recsys.bundles.publishing import is_version
from recsys.data.sources.values import plain_id
from recsys.data.transitions import TransitionScores
from recsys.errors import UsageError
from recsys.index.search import Best, Ranker, read_index
from recsys.ragged import RaggedRows
from recsys.savedmodel.event_columns import EventColumns
from recsys.savedmodel.signatures import (
    DTYPES,
    NO_SCORE,
    ONLY,
    POPULAR,
    POPULARITY,
    SCORE,
    Arrays,
    SavedModelGraph,
    Signature,
)
from recsys.serving.catalogue_search import CatalogueSearch, ItemFilters

RECOMMEND, FILTERED, PREPARE = "recommend", "recommend_filtered", "prepare_query"
RETRIEVER, RANKER = "retriever", "ranker"
"""Stages of an answer."""
_EXCLUDED = "exclude_ids"
_OWN = ("user_id", "history", "exclude_seen")
_HISTORY_BLOCK = 512
"""Number of users whose histories are read at a time; the result is as wide as the longest."""
_POPULAR_BLOCK = 64
"""Number of queries that the SavedModel ranks at a time; it scores all items for each."""


class ServedModel:
    """The signatures of a bundle. Thread-safe.

    Args:
        graph: The signatures.
        bundle: Folder of the bundle.

    Attributes:
        bundle: Folder of the bundle.
        signatures: Inputs of each signature.
        version: Number of the published version; 0 for an unpublished bundle.
    """

    answers: ClassVar[str]
    """Output of the signatures, as in the manifest."""
    joined: ClassVar[frozenset[str]] = frozenset()
    """Signatures whose small requests may be batched, padded to a common length."""

    def __init__(self, graph: SavedModelGraph, bundle: Path) -> None:
        self._graph, self.bundle = graph, bundle
        self.signatures: dict[str, Signature] = dict(graph.signatures)
        self.version = int(bundle.name) if is_version(bundle.name) else 0

    @property
    def metadata(self) -> dict[str, Any]:
        """Signatures in TensorFlow Serving's JSON form."""
        return self._graph.metadata

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature.

        Args:
            signature: Name of the signature.
            inputs: All of its inputs, in its dtypes and shapes; text as bytes in object arrays.

        Raises:
            UnreadableInputsError: The signature can't read their content (R563).
        """
        return self._graph.ask(signature, inputs)

    def check_inputs(self, inputs: Arrays) -> None:
        """Raises a UsageError for values without a possible answer."""

    @property
    def scorer(self) -> ServedModel:
        """The part of the bundle that scores given items; by default all of it."""
        return self


# --- lists of items


@dataclasses.dataclass(frozen=True)
class RankedRows:
    """Answers to a batch of queries, in item rows.

    Attributes:
        rows: Item rows `[n, k]` int32, the best first, padded with 0.
        scores: Their scores `[n, k]` float32, padded with `-inf`.
        known: Whether the data contain the user `[n]` bool.
        source: Source of each answer `[n]` bytes, see `recsys.savedmodel.signatures`.
        more: Other scores of the items `[n, k]` float32 by name, see `recsys.serving.pair`.
        stage: Stage that ordered the items.
    """

    rows: np.ndarray
    scores: np.ndarray
    known: np.ndarray
    source: np.ndarray
    more: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    stage: str = RETRIEVER


class Retriever(ServedModel):
    """Recommends the items of one bundle. Thread-safe.

    Args:
        graph: The signatures of the bundle.
        catalogue: Users and items of the bundle by name.
        max_k: Maximum number of items of an answer.
        ranker: Ranks the items.
        excludes_seen: Whether seen items are excluded by default.
        bundle: Folder of the bundle.
        events: Raw columns of events that the bundle reads.
        transitions: What is added to the dot products for pairs of items; None: nothing.

    Attributes:
        filters: The filters by named features of the items.
        events: Raw columns of events that the bundle reads.
        queries: Inputs of the signatures that `query_inputs` returns.
    """

    answers = "lists"
    joined = frozenset({RECOMMEND, FILTERED})

    def __init__(
        self,
        graph: SavedModelGraph,
        catalogue: CatalogueSearch,
        max_k: int,
        ranker: Ranker,
        *,
        excludes_seen: bool = True,
        bundle: Path = Path(),
        events: EventColumns | None = None,
        transitions: TransitionScores | None = None,
    ) -> None:
        super().__init__(graph, bundle)
        self._transitions = transitions
        self._ranker, self.events = ranker, events or EventColumns()
        self.catalogue, self.max_k, self.excludes_seen = catalogue, max_k, excludes_seen
        self.signatures = self.queries = _with_ranking(graph.signatures)
        self.filters = ItemFilters(catalogue.features, catalogue.items.n_rows)

    @classmethod
    def open(cls, bundle: Path) -> Retriever:
        """Loads a bundle, after a check of all its files.

        Raises:
            RecsysError: The bundle is damaged (R501 … R503), a file is missing (R544), FAISS is
                missing (R580), or TensorFlow is missing (R542) or can't load it (R543).
            UsageError: The bundle answers scores (R545).
        """
        manifest = verify(bundle)
        check_answers(bundle, answers_of(manifest), cls.answers)
        catalogue = CatalogueSearch.open(bundle, manifest["direction_width"])
        graph, max_k = SavedModelGraph(bundle), manifest["k"]
        items = np.ascontiguousarray(catalogue.embeddings), catalogue.is_item
        ranker = Ranker(*items, *(read_index(bundle, *items) or ()))
        # Reads the embeddings once, so that the first request doesn't wait for the disk.
        query = np.zeros((1, catalogue.embeddings.shape[1]), np.float32)
        ranker.best(query, RaggedRows.empty(1), max_k)
        return cls(
            graph,
            catalogue,
            max_k,
            ranker,
            excludes_seen=manifest.get("repeats", "exclude") == "exclude",
            bundle=bundle,
            events=EventColumns.of_manifest(manifest),
            transitions=TransitionScores.load(bundle),
            **cls._options(manifest),
        )

    @classmethod
    def _options(cls, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns other arguments of the constructor."""
        return {}

    @property
    def first(self) -> Retriever:
        """The retriever of a pair, or this one."""
        return self

    @property
    def user_columns(self) -> list[str]:
        """Names of the inputs for raw values of users."""
        known = (*_OWN, *self.events.inputs)
        return [name for name in self.queries[RECOMMEND] if name not in known]

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature as `ServedModel.ask`, but ranks items here."""
        if signature not in (RECOMMEND, FILTERED):
            return super().ask(signature, inputs)
        ranked = self.rank(inputs, self.max_k)
        scores = {"scores": ranked.scores, **ranked.more}
        stage = np.full(len(ranked.known), ranked.stage.encode(), object)
        return {
            "candidate_ids": self._as_ids(ranked.rows),
            **{name: np.where(ranked.rows > 0, x, NO_SCORE) for name, x in scores.items()},
            "known": ranked.known,
            "source": ranked.source,
            **({"stage": stage} if ranked.more else {}),
        }

    def check_inputs(self, inputs: Arrays) -> None:
        """Checks that some item has each value of a filter.

        Raises:
            UsageError: No item has a value (R537).
        """
        wanted = {name: x for name, x in inputs.items() if name.startswith(ONLY)}
        self.filters.check_values({name: dict.fromkeys(x.ravel()) for name, x in wanted.items()})

    def query_inputs(
        self,
        user_ids: Sequence[str],
        *,
        history: Sequence[str] = (),
        exclude: Sequence[str] = (),
        only: Mapping[str, Sequence[str]] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        exclude_seen: bool | None = None,
        context: Mapping[str, Sequence[str]] | None = None,
        attributes: Mapping[str, Sequence[str]] | None = None,
    ) -> Arrays:
        """Returns the inputs of `recommend`, or of `recommend_filtered` if items are filtered.

        Args:
            user_ids: Ids `[n]`; they may be unknown; the empty id means no user.
            history: Item ids in place of the stored histories, the newest first.
            exclude: Ids of items to exclude.
            only: Token names by filter; a recommended item has one of each filter's tokens.
            columns: Raw values of the users by input, in place of the stored features.
            exclude_seen: Whether to exclude seen items; None: the default of the bundle.
            context: Raw values of the query by column: one, or one for each user.
            attributes: Raw values of the events of `history` by column, in its order.

        Raises:
            UsageError: A text can't be encoded in UTF-8 (R540), the model doesn't read a column of
                events or can't parse a value (R549), or no item has the value of a filter (R537).
        """
        n = len(user_ids)
        texts = {"history": history, _EXCLUDED: exclude, **(only or {}), **(columns or {})}
        texts |= self.events.of_history(attributes or {}, len(history))
        names = self.queries[FILTERED if exclude or only else RECOMMEND]
        # Padding means the stored history or features.
        inputs = {name: np.tile(as_texts(texts.get(name) or [""]), (n, 1)) for name in names}
        self.filters.check_values({name: inputs[name][0] for name in only or {}})
        for name, values in self.events.of_context(context or {}).items():
            inputs[name] = np.tile(as_texts(values)[:, None], (n if len(values) == 1 else 1, 1))
        inputs["user_id"] = as_texts(user_ids)
        is_excluded = self.excludes_seen if exclude_seen is None else exclude_seen
        inputs["exclude_seen"] = np.full(n, is_excluded)
        return inputs

    def rank(self, inputs: Arrays, k: int, *, is_batch: bool = False) -> RankedRows:
        """Returns the best `k` items for queries.

        Args:
            inputs: Result of `query_inputs`.
            k: Number of items per query.
            is_batch: Whether to search exactly on all cores; else this thread searches, with the
                index if there is one.

        Raises:
            UsageError: `k` is out of range (R541).
        """
        check_k(k, self.max_k)
        return self._retrieved(inputs, k, is_batch=is_batch)

    def _retrieved(self, inputs: Arrays, k: int, *, is_batch: bool) -> RankedRows:
        names = self.signatures[PREPARE]
        query = self._graph.ask(PREPARE, {name: inputs[name] for name in names})
        n = len(query["known"])
        rows = np.zeros((n, k), np.int32)
        scores = np.full((n, k), -np.inf, np.float32)
        hidden = RaggedRows(query["seen_rows"].astype(np.int32), query["seen_offsets"])
        if _EXCLUDED in inputs:
            hidden = self._with_excluded(hidden, inputs[_EXCLUDED])
        is_popular = query["source"] == POPULARITY.encode()
        cores = len(os.sched_getaffinity(0))
        exact = functools.partial(self._ranker.exact, threads=cores)
        best: Callable[..., Best] = exact if is_batch else self._ranker.best
        added = None
        if self._transitions is not None:
            added = self._transitions.of_histories(query["history_rows"])
            best = functools.partial(self._ranker.with_added, best)
        for at, allowed in self.filters.groups(inputs, np.flatnonzero(~is_popular)):
            of_group = {} if added is None else {"added": added[at]}
            rows[at], scores[at] = best(
                query["embedding"][at], hidden.select(at), k, allowed, **of_group
            )
        alike = self._alike(inputs, np.flatnonzero(is_popular), hidden)
        for start in range(0, len(alike), _POPULAR_BLOCK):
            groups = alike[start : start + _POPULAR_BLOCK]
            popular = self._by_popularity(inputs, [places[0] for places in groups], k)
            for number, places in enumerate(groups):
                rows[places], scores[places] = popular[0][number], popular[1][number]
        return RankedRows(rows, scores, query["known"], query["source"])

    def histories(self, user_ids: Sequence[str]) -> list[list[int]]:
        """Returns the item rows of users' stored histories, the newest first."""
        histories = []
        for start in range(0, len(user_ids), _HISTORY_BLOCK):
            ids = as_texts(user_ids[start : start + _HISTORY_BLOCK])
            outputs = self._graph.ask("stored_history", {"user_id": ids})
            histories += [self._rows(row[row != b""]) for row in outputs["item_ids"]]
        return histories

    def _alike(self, inputs: Arrays, at: np.ndarray, hidden: RaggedRows) -> list[list[int]]:
        """Returns the indices `at`, grouped by equal answers by popularity."""
        names = [name for name in self.filters.feature_of if name in inputs]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place in at.tolist():
            filters = (tuple(inputs[name][place].tolist()) for name in names)
            start, end = hidden.offsets[place : place + 2]
            groups.setdefault((hidden.rows[start:end].tobytes(), *filters), []).append(place)
        return list(groups.values())

    def _by_popularity(
        self, inputs: Arrays, at: list[int], k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the SavedModel's best rows `[at, k]` by popularity, and their scores."""
        signature = FILTERED if _EXCLUDED in inputs else RECOMMEND
        chosen = {name: x[at] for name, x in inputs.items()}
        if POPULAR in self._graph.signatures:
            signature, nothing = POPULAR, np.full((len(at), 1), b"", object)
            names = self._graph.signatures[POPULAR]
            chosen = {name: chosen.get(name, nothing) for name in names}
        outputs = self._graph.ask(signature, chosen)
        ids = outputs["candidate_ids"][:, :k]
        rows = np.reshape(self._rows(ids.ravel()), ids.shape)
        return rows, np.where(rows > 0, outputs["scores"][:, :k], -np.inf)

    def _with_excluded(self, hidden: RaggedRows, ids: np.ndarray) -> RaggedRows:
        """Returns the hidden rows of each query, including the rows of `ids` `[n, any]`."""
        is_id = ids != b""
        owner = np.concatenate([hidden.owner(), np.nonzero(is_id)[0]])
        rows = np.concatenate([hidden.rows, np.asarray(self._rows(ids[is_id]), np.int32)])
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=len(hidden))
        return RaggedRows(rows[order], np.concatenate([[0], np.cumsum(counts)]))

    def _rows(self, ids: Iterable[bytes]) -> list[int]:
        """Returns the rows of item ids; 0 for unknown ids."""
        return self.catalogue.item_rows([id_.decode(errors="replace") for id_ in ids])

    def _as_ids(self, rows: np.ndarray) -> np.ndarray:
        """Returns the ids of rows of any shape as bytes; empty for rows without an item."""
        ids = self.catalogue.items.ids_of_rows.take(pa.array(rows.ravel()))
        out = np.empty(rows.size, object)
        out[:] = ids.fill_null("").cast(pa.large_binary()).to_pylist()
        return out.reshape(rows.shape)


def _with_ranking(signatures: Mapping[str, Signature]) -> dict[str, Signature]:
    """Adds the ranking signatures, which a SavedModel without vectors lacks."""
    if POPULAR not in signatures:
        return dict(signatures)
    query = signatures[PREPARE]
    return {**signatures, RECOMMEND: query, FILTERED: {**query, **signatures[POPULAR]}}


# --- scores of pairs


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


# --- ids and numbers of items


def as_texts(texts: Iterable[str]) -> np.ndarray:
    """Returns texts `[n]` in the normal form of the ingest, as bytes; keeps NULs at the end.

    Raises:
        UsageError: One can't be encoded in UTF-8 (R540), such as bytes from a terminal.
    """
    encoded = [(text if text.isascii() else normal_id(text)).encode() for text in texts]
    array = np.empty(len(encoded), object)
    array[:] = encoded
    return array


EVENT_ITEM = "item"
"""Key of the id in an object of a history."""


def events_of(
    history: Iterable[Any], read: Callable[[Any], str] = str
) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the ids of a history's items, and the attributes of its events by column.

    Args:
        history: Ids, or objects with the id `item` and attributes by raw column.
        read: Returns an id as text; raises an error if it is none.

    Raises:
        UsageError: An object has no id (R540).
    """
    events = [one if isinstance(one, Mapping) else {EVENT_ITEM: one} for one in history]
    for event in events:
        if EVENT_ITEM not in event:
            rule = f"An object of a history must have the key {EVENT_ITEM!r}."
            raise UsageError("R540", rule, 'Write it as {"item": "50", …}.', sorted(event))
    names = dict.fromkeys(name for event in events for name in event if name != EVENT_ITEM)
    attributes = {name: [text_of(event.get(name)) for event in events] for name in names}
    return [read(event[EVENT_ITEM]) for event in events], attributes


def text_of(value: Any) -> str:
    """Returns a raw value as the text that a client sends; empty for None and NaN."""
    if isinstance(value, list | tuple | np.ndarray):  # A vector.
        return " ".join(map(str, value))
    if isinstance(value, bool | np.bool_):
        return str(value).lower()  # As in JSON.
    is_missing = value is None or (isinstance(value, float | np.floating) and np.isnan(value))
    return "" if is_missing else str(value)


def shortest(values: np.ndarray) -> list[Any]:
    """Returns float32 numbers, each as the float with the shortest text that reads back as it."""
    numbers: list[Any] = values.astype("U").astype(np.float64).tolist()
    return numbers


def check_k(k: Any, most: int | None = None) -> None:
    """Checks the number of requested items.

    Raises:
        UsageError: It is not an integer from 1 to `most` (R541).
    """
    is_whole = isinstance(k, Integral) and not isinstance(k, bool)
    if not is_whole or k < 1 or (most is not None and k > most):
        rule = f"The number of items must be an integer in 1 … {most}."
        cure = "Request fewer, or raise export.k in the config and run again: recsys run."
        if most is None:
            rule, cure = "The number of items must be a whole one, 1 or more.", "Ask for more."
        raise UsageError("R541", rule, cure, k)


def normal_id(id_: str) -> str:
    """Returns an id in the normal form of the ingest.

    Raises:
        UsageError: It can't be encoded in UTF-8 (R540).
    """
    try:
        id_.encode()
    except UnicodeEncodeError:
        rule, cure = "An id must be text in UTF-8.", "Write the id as the data have it."
        raise UsageError("R540", rule, cure, id_) from None
    return plain_id(id_)
