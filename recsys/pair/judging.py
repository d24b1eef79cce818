"""The judging side of a pair: the ranker orders the retriever's candidates of each query.

Statistics of users are as of the query, like its history, which a request can bring with labels;
those of items are as of the cut, as a bundle's are as of its data. Filters, caps and diversity of
`ranker` are rules of serving, and are not applied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pyarrow as pa

from recsys.data.dataset import Data
from recsys.data.event_features.statistics import Statistic
from recsys.data.event_log import input_dtype
from recsys.data.statistics import StatisticsState
from recsys.data.statistics_before import StatisticsBefore
from recsys.distributed.coordination import meet
from recsys.kernels.rank_jobs import RankResults
from recsys.metrics.rankings import Recall
from recsys.models.inference import ListInference, ScoreInference
from recsys.models.ranking_model import RETRIEVER
from recsys.pair.folder import RANKER, ranker_of, read_pair
from recsys.pair.lists import list_features, normalised
from recsys.pair.score import Score
from recsys.ragged import slices
from recsys.tasks.judging_side import Progress
from recsys.tasks.model_folder import load_model
from recsys.tasks.ranking.calibration_file import load_calibration
from recsys.tasks.ranking.judging import systems as ranking
from recsys.tasks.ranking.probe import check_probe
from recsys.tasks.ranking.rows import Read, is_row_feature, model_inputs
from recsys.tasks.retrieval.judging.case import Case, Measured
from recsys.tasks.retrieval.judging.queries import Queries
from recsys.tasks.retrieval.judging.side import RetrievalJudging
from recsys.tasks.retrieval.judging.systems import Reranker, System

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh

_BLOCK_ITEMS = 2**16
"""Number of items of lists that a bundle scores at a time."""
_BIAS = (
    "The lists are judged by what users took from the lists of an earlier system. An item that it"
    " didn't show counts as a miss, so a ranker that departs from it is underrated."
)


Lists = Callable[[Callable[[np.ndarray], Read], int, int], Iterator[np.ndarray]]
"""Yields the predictions `[b, items, labels]` of lists, given a function that reads the lists at
indices `[b]` in the rows of the ranker, the number of lists, and their length."""


class Ranker(Reranker):
    """The ranker of a pair on a data folder.

    Args:
        predictor: The ranker.
        lists: Its predictions for lists.
        candidates: Number of candidates of a query.
        formula: The score that orders them.
        name: Display name.
        data: The data folder.

    Attributes:
        of_rows: The same ranker as a system of its task, which predicts labels of rows.

    Raises:
        RecsysError: It shares no item with the data (R403), or was trained on events that are held
            out in the data (R411).
    """

    def __init__(
        self,
        predictor: ranking.Predictor,
        lists: Lists,
        candidates: int,
        formula: Score,
        name: str,
        data: Data,
    ) -> None:
        self.candidates, self._formula, self._data, self._lists = candidates, formula, data, lists
        self.of_rows, self._predictor = ranking.System(name, predictor, data), predictor
        self.inputs = tuple(x.name for x in predictor.inputs.event_inputs(predictor.config))
        has_statistics = any(map(is_row_feature, data.event_features))
        self._at_cut = StatisticsState.open(data.folder, "cut") if has_statistics else None
        of_users = [
            one
            for one in data.event_features
            if isinstance(one.feature, Statistic) and one.feature.is_of_users
        ]
        sources = data.catalogue, data.users, data.items
        self._before = StatisticsBefore(data.store, "eval", *sources, of_users)

    def scores(
        self,
        user_ids: pa.Array,
        queries: Queries,
        lists: RankResults,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Returns the scores `[n, candidates]` float32 of the first items, -inf at padding."""
        items, of_retriever = (x[:, : self.candidates] for x in (lists.top, lists.top_scores))
        user_row = self._data.users.rows(user_ids)
        length = max(1, self._predictor.config.history)

        def read(which: np.ndarray) -> Read:
            part, item_row = queries.select(which), items[which]
            found = {
                "user_row": user_row[which],
                "item_row": item_row,
                "history": part.histories(length),
                **part.given(self.inputs, length),
                **self._statistics(part, user_row[which], item_row),
            }
            own = self.of_rows.own(found, lambda: user_ids.take(pa.array(which)))
            return {**own, RETRIEVER: self._of_retriever(of_retriever[which])}

        n, n_items = items.shape
        scores, done = np.empty((n, n_items), np.float32), 0
        for block in self._lists(read, n, n_items) if n_items else ():
            of_labels = zip(self._predictor.labels, np.moveaxis(block, -1, 0), strict=True)
            scores[done : done + len(block)] = self._formula.value(dict(of_labels))
            done += len(block)
            if progress is not None:
                progress(done, n)
        return np.where(np.isneginf(of_retriever), -np.inf, scores)

    def _statistics(self, queries: Queries, user_row: np.ndarray, item_row: np.ndarray) -> Read:
        if self._at_cut is None:
            return {}
        n, items = item_row.shape[1], item_row.ravel()
        found = self._at_cut.features(user_row.repeat(n), items, self._data.catalogue)
        if queries.time is not None:
            found |= self._before.features(queries.user.repeat(n), items, queries.time.repeat(n))
        return {
            name: x.astype(input_dtype(x.dtype)).reshape(*item_row.shape, *x.shape[1:])
            for name, x in found.items()
        }

    def _of_retriever(self, scores: np.ndarray) -> np.ndarray:
        """Returns what a list says of its items `[b, items, 3]` float32, 0 at padding."""
        rank = np.where(np.isneginf(scores), 0, np.arange(1, scores.shape[1] + 1))
        rank, score = rank.astype(np.float32), normalised(scores).astype(np.float32)
        return np.asarray(list_features(rank, score, self.candidates), np.float32)


def open_folder(folder: Path, name: str, data: Data, mesh: DeviceMesh | None) -> Ranker:
    """Reads the ranker's folder of a pair.

    Args:
        folder: The folder.
        name: Display name.
        data: The data folder.
        mesh: Devices to split tables over; None: this process holds them whole.

    Raises:
        RecsysError: It is damaged (R310, R396), computes other numbers than in training (R311), or
            shares no item with the data (R403).
    """
    pair, trained = read_pair(folder), load_model(folder, mesh=mesh)
    calibration = load_calibration(folder, trained.model.label_names)
    meet()  # The processes may read at different speeds.
    by_rows, by_lists = ScoreInference(trained.model), ListInference(trained.model)
    check_probe(folder, by_rows, trained.inputs)
    config = trained.model.spec.config
    # The retriever's layout may be active when this model scores.
    layout: Any = keras.distribution.distribution()

    def lists(read: Callable[[np.ndarray], Read], n: int, n_items: int) -> Iterator[np.ndarray]:
        def inputs(which: np.ndarray) -> Read:
            return model_inputs(read(which), trained.inputs, config)

        with contextlib.nullcontext() if layout is None else layout.scope():
            for block in by_lists.blocks(inputs, n, n_items):
                yield ranking.calibrated(trained.model, block, calibration)

    predictor = ranking.of_model(by_rows, trained.inputs, calibration)
    return Ranker(predictor, lists, pair.candidates, pair.formula, name, data)


def open_bundle(bundle: Path, fields: Mapping[str, Any], name: str, data: Data) -> Ranker:
    """Reads the ranker in the bundle of a pair.

    Args:
        bundle: The bundle.
        fields: `ranker` of its manifest.
        name: Display name.
        data: The data folder.

    Raises:
        RecsysError: It lacks something that the evaluation needs (R409), or shares no item with the
            data (R403).
    """
    predictor = ranking.open_bundle(bundle, fields)
    of_items = {one.name for one in predictor.inputs.event_features if is_row_feature(one)}
    of_items |= {"item_row", RETRIEVER}

    def lists(read: Callable[[np.ndarray], Read], n: int, n_items: int) -> Iterator[np.ndarray]:
        for block in slices(n, max(1, _BLOCK_ITEMS // n_items)):
            rows = {
                name: x.reshape(-1, *x.shape[2:]) if name in of_items else x.repeat(n_items, axis=0)
                for name, x in read(np.arange(block.start, block.stop)).items()
            }
            n_rows = (block.stop - block.start) * n_items
            found = [*predictor.blocks(functools.partial(_taken, rows), n_rows)]
            yield np.concatenate(found).reshape(-1, n_items, len(predictor.labels))

    score = Score.parse(fields["score"], predictor.labels)
    return Ranker(predictor, lists, fields["candidates"], score, name, data)


def _taken(rows: Read, at: np.ndarray) -> Read:
    return {name: x[at] for name, x in rows.items()}


@dataclasses.dataclass(frozen=True)
class MeasuredPair(Measured):
    """The values of a pair.

    Attributes:
        retriever: The values of its retriever alone, on the same queries.
        candidates: Number of candidates of a query.
    """

    retriever: Measured
    candidates: int


class PairJudging(RetrievalJudging):
    """Ranks the held-out events of each query by the retriever, then its candidates by the ranker.

    Systems without a ranker are measured as those of retrieval.
    """

    def open_folder(self, folder: Path, name: str, mesh: DeviceMesh | None) -> System:
        """Returns the system for a pair, or for the model folder of a retriever."""
        system = super().open_folder(folder, name, mesh)
        if (ranker := ranker_of(folder)) is not None:
            system.reranker = open_folder(ranker, name, self.data, mesh)
        return system

    def open_bundle(
        self, bundle: Path, manifest: Mapping[str, Any], name: str, mesh: DeviceMesh | None
    ) -> System:
        """Returns the system for the bundle of a pair, or of a retriever."""
        system = super().open_bundle(bundle, manifest, name, mesh)
        if (fields := manifest.get(RANKER)) is not None:
            system.reranker = open_bundle(bundle, fields, name, self.data)
        return system

    def measure(self, system: System, case: Case, progress: Progress | None) -> Measured:
        """Ranks the positives by a system's scores; random negatives only by the retriever's."""
        if system.reranker is None or case.sampled_negatives is not None:
            return super().measure(system, case, progress)
        started, queries, n = time.monotonic(), case.queries, system.reranker.candidates
        user_ids = system.user_ids(queries)
        first, last = system.lists(user_ids, queries, case.masked, max(case.ks), progress)
        seconds = time.monotonic() - started
        retriever, pair = (case.measured(ranking, seconds) for ranking in (first, last))
        return MeasuredPair(pair.values, pair.totals, pair.seconds, last, retriever, n)

    def first_stage(
        self, case: Case, measured: Measured
    ) -> tuple[Measured, Mapping[str, Any]] | None:
        """Returns the values of a pair's retriever alone, and the funnel of its lists."""
        if not isinstance(measured, MeasuredPair):
            return None
        retriever, n, k = measured.retriever, measured.candidates, self.deciding_k

        def recall(ranking: RankResults, size: int) -> float | None:
            lists = case.lists(ranking)
            return lists.user_mean(Recall().per_query(lists, size))

        first, n_items = retriever.ranking, int(case.items.is_candidate.sum())
        steps = [
            ("catalogue", n_items, first),
            ("candidates", n, first),
            ("list", k, measured.ranking),
        ]
        funnel: list[dict[str, Any]] = [
            {"step": name, "items": min(size, n_items), "recall": recall(ranking, size)}
            for name, size, ranking in steps
        ]
        funnel[-1]["retriever_recall"] = recall(first, k)
        if (found := funnel[1]["recall"]) is not None:
            totals = {**retriever.totals, f"recall@{n}": found}
            retriever = dataclasses.replace(retriever, totals=totals)
        return retriever, {"candidates": n, "funnel": funnel, "exposure_bias": _BIAS}

    def without_second_stage(self, system: System) -> System:
        """Returns the retriever of a pair."""
        return system.alone()
