"""A served pair: a retriever finds candidates, and a ranker puts them in order.

The candidates are `ranker.candidates` items of the retriever, after the filters of the request and
the rules of the config. The signature `rank` predicts their labels and the score that orders them.
If it is late or fails, the retriever's order is kept.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.errors import UsageError
from recsys.pair.lists import normalised
from recsys.savedmodel.signatures import (
    LIST_PADDING,
    LIST_RANK,
    LIST_SCORE,
    RANK,
    SCORE,
    Arrays,
    SavedModelGraph,
)
from recsys.serving.catalogue_search import CatalogueSearch
from recsys.serving.label_scorer import LabelScorer
from recsys.serving.served_model import (
    FILTERED,
    ITEM,
    RANKER,
    RECOMMEND,
    RETRIEVER,
    RankedRows,
    Retriever,
    check_k,
)

_LOG = logging.getLogger("recsys.serve")
RETRIEVE = "retrieve"
"""Name of the served signature that answers by the first stage alone."""
_TOGETHER = 32
"""Number of users whose candidates are ranked in one call."""
_NO_ITEM = b"\0"
"""A value of a filter that no item has."""


@dataclasses.dataclass(frozen=True)
class SecondStage:
    """Options of the second stage, the field `ranker` of a manifest.

    Attributes:
        labels: Names of the labels.
        candidates: Number of items that are ranked.
        deadline_ms: Time that ranking may take for each user of a request to the server [ms].
        diversity: Weight of the similarity to the items above [0..1).
        max_per_value: Highest number of items with the same value, by feature.
        only: Values of which an item must have one, by feature.
    """

    labels: Sequence[str]
    candidates: int
    deadline_ms: float
    diversity: float = 0.0
    max_per_value: Mapping[str, int] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> SecondStage:
        """Returns the options of a bundle."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: manifest["ranker"][name] for name in names})


class Pair(Retriever):
    """Recommends the items of a bundle with a retriever and a ranker. Thread-safe.

    Args:
        graph: The signatures of the bundle.
        catalogue: Users and items of the bundle by name.
        *arguments: Other arguments of `Retriever`.
        second: Options of the second stage.
        **named: Other arguments of `Retriever`.

    Attributes:
        count: Called with what ordered lists and their number: `ranker`, or `late` or `failed` if
            that is the retriever. It is set in a server, where ranking has a deadline.
        n_candidates: Number of items that the ranker orders.
    """

    joined = frozenset()  # Ranking takes most of the time, and doesn't gain from it.

    def __init__(
        self,
        graph: SavedModelGraph,
        catalogue: CatalogueSearch,
        *arguments: Any,
        second: SecondStage,
        **named: Any,
    ) -> None:
        super().__init__(graph, catalogue, *arguments, **named)
        self._first = Retriever(graph, catalogue, *arguments, **named)
        self._second = second
        self.n_candidates = min(second.candidates, int(catalogue.is_item.sum()))
        self.count: Callable[[str, int], None] | None = None
        labels = (SCORE, *second.labels)
        self._scorer = LabelScorer(graph, self.bundle, labels, self.events, catalogue)
        self._threads = ThreadPoolExecutor(thread_name_prefix="recsys-rank")
        texts = {
            name: spec
            for name, spec in graph.signatures.get(RANK, {}).items()
            if spec.dtype == "DT_STRING" and name != ITEM
        }
        self.queries = {n: {**texts, **self.signatures[n]} for n in (RECOMMEND, FILTERED)}
        self.signatures[RETRIEVE] = self.signatures[FILTERED]

    @classmethod
    def _options(cls, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return {"second": SecondStage.of_manifest(manifest)}

    @property
    def first(self) -> Retriever:
        """The retriever, which ignores the rules of the second stage."""
        return self._first

    @property
    def scorer(self) -> LabelScorer:
        """Predicts the labels of given items."""
        return self._scorer

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature.

        Lists are the pair's, but that of `retrieve`, and the default one, which the SavedModel
        makes.
        """
        if signature == RETRIEVE:
            return self._first.ask(FILTERED, inputs)
        return super().ask(signature, inputs)

    def rank(self, inputs: Arrays, k: int, *, is_batch: bool = False) -> RankedRows:
        """Returns the best `k` items for queries; see `Retriever.rank`.

        `more` of the result has the predicted labels and the score of the retriever.
        """
        check_k(k, self.max_k)
        inputs = self._with_rules(inputs)
        found = self._retrieved(inputs, max(k, self.n_candidates), is_batch=is_batch)
        predicted = self._predicted(inputs, found, is_batch=is_batch)
        stage = RETRIEVER if predicted is None else RANKER
        predicted = predicted or {}
        scores = predicted.pop(SCORE, found.scores)
        scores = np.where(found.rows > 0, scores, -np.inf)
        order = np.full((len(scores), k), -1)
        for number, (rows, of_rows) in enumerate(zip(found.rows, scores, strict=True)):
            chosen = self._ordered(rows, of_rows, k)
            order[number, : len(chosen)] = chosen

        def taken(values: np.ndarray, padding: float = -np.inf) -> np.ndarray:
            return np.where(order >= 0, np.take_along_axis(values, order, axis=1), padding)

        more = {RETRIEVER: found.scores, **predicted}
        return RankedRows(
            taken(found.rows, 0),
            taken(scores),
            found.known,
            found.source,
            {name: taken(x) for name, x in more.items()},
            stage,
        )

    def _with_rules(self, inputs: Arrays) -> Arrays:
        """Returns inputs whose filters allow only what the rules allow too."""
        if not self._second.only:
            return inputs
        n = len(inputs["user_id"])
        nothing = np.full((n, 1), b"", object)
        inputs = {name: inputs.get(name, nothing) for name in {**self.queries[FILTERED], **inputs}}
        for name, feature in self.filters.feature_of.items():
            if feature in self._second.only:
                rule = [value.encode() for value in self._second.only[feature]]
                wanted = [self._both(rule, row) for row in inputs[name].tolist()]
                inputs[name] = np.full((n, len(rule)), b"", object)
                for row, values in zip(inputs[name], wanted, strict=True):
                    row[: len(values)] = values
        return inputs

    @staticmethod
    def _both(rule: list[bytes], asked: list[bytes]) -> list[bytes]:
        """Returns the values of a rule that a request allows, or one that no item has."""
        named = {value for value in asked if value}
        return [value for value in rule if not named or value in named] or [_NO_ITEM]

    def _predicted(self, inputs: Arrays, found: RankedRows, *, is_batch: bool) -> Arrays | None:
        """Returns the score and the labels of candidates `[n, candidates]`, or None without."""
        call = functools.partial(self._predict, inputs, found)
        if self.count is None or is_batch:
            return call()
        # A running thread can't be stopped; its result is dropped.
        future = self._threads.submit(call)
        reason = RANKER
        try:
            return future.result(self._second.deadline_ms / 1e3 * max(1, len(found.rows)))
        except UsageError:
            raise
        except TimeoutError:
            future.cancel()
            reason = "late"
        except Exception as error:  # noqa: BLE001 any failure of the ranker; the retriever answers
            _LOG.error("the ranker failed: %s: %s", type(error).__name__, error)
            reason = "failed"
        finally:
            self.count(reason, len(found.rows))
        return None

    def _predict(self, inputs: Arrays, found: RankedRows) -> Arrays:
        parts = [
            self._predict_some({name: x[part] for name, x in inputs.items()}, found, part)
            for start in range(0, max(1, len(found.rows)), _TOGETHER)
            for part in [slice(start, start + _TOGETHER)]
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _predict_some(self, inputs: Arrays, found: RankedRows, part: slice) -> Arrays:
        rows = found.rows[part]
        rank = np.broadcast_to(np.arange(1, rows.shape[1] + 1, dtype=np.float32), rows.shape)
        asked = {
            **inputs,
            ITEM: self._as_ids(rows),
            LIST_RANK: np.where(rows > 0, rank, np.float32(LIST_PADDING[LIST_RANK])),
            LIST_SCORE: normalised(found.scores[part]).astype(np.float32),
        }
        nothing = np.full((len(rows), 1), b"", object)
        names = self._graph.signatures[RANK]
        outputs = self._graph.ask(RANK, {name: asked.get(name, nothing) for name in names})
        return {name: outputs[name] for name in self._scorer.labels}

    def _ordered(self, rows: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
        """Returns the indices of the best items of one query, the best first, at most `k`."""
        second, n = self._second, int((rows > 0).sum())
        groups = [
            (self.catalogue.features[name].take(pa.array(rows[:n] - 1)).to_pylist(), most)
            for name, most in second.max_per_value.items()
        ]
        vectors = self.catalogue.directions(rows[:n]) if second.diversity else None
        return diverse(scores[:n], k, second.diversity, vectors, groups)


def diverse(
    scores: np.ndarray,
    k: int,
    diversity: float,
    vectors: np.ndarray | None,
    groups: Sequence[tuple[list[list[str]], int]],
) -> np.ndarray:
    """Returns the indices of up to `k` items, the best first; ties go to the lower index.

    Each next item has the highest `(1 - d) s - d c`, with `s` its score, 0 for the lowest and 1 for
    the highest of all, and `c` the largest cosine with an item before, at least 0 (maximal marginal
    relevance: Carbonell and Goldstein, SIGIR 1998).

    Args:
        scores: Scores of the items `[n]`.
        k: Number of items.
        diversity: Weight d [0..1).
        vectors: Unit vectors of the items `[n, dim]`; only read if d is above 0.
        groups: Values of each item `[n]`, and the highest number of items that share one.
    """
    if vectors is None and not groups:
        return np.argsort(-scores, kind="stable")[:k]
    low, high = (scores.min(), scores.max()) if len(scores) else (0.0, 0.0)
    gain = (1 - diversity) * (scores.astype(np.float64) - low) / ((high - low) or 1.0)
    closest, chosen = np.zeros(len(scores)), list[int]()
    counts = [collections.Counter[str]() for _ in groups]
    while len(chosen) < k and np.isfinite(gain).any():
        best = int(np.argmax(gain - diversity * closest))
        chosen.append(best)
        gain[best] = -np.inf
        if vectors is not None:
            np.maximum(closest, vectors @ vectors[best], out=closest)
        for (values, most), count in zip(groups, counts, strict=True):
            count.update(values[best])
            full = {value for value in values[best] if count[value] >= most}
            if full:
                gain[[not full.isdisjoint(of_item) for of_item in values]] = -np.inf
    return np.array(chosen, int)
