"""The judging side of retrieval: queries on held-out events, and exact ranks of the positives."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.errors import RecsysError
from recsys.kernels.rank_jobs import RankResults
from recsys.metrics import Items, Values, pooled, times_shown
from recsys.tasks.baseline_fits import on_primary
from recsys.tasks.judging_side import (
    BLESSED,
    MODEL,
    Baseline,
    JudgingSide,
    Progress,
    Slice,
)
from recsys.tasks.retrieval.judging import queries as protocols
from recsys.tasks.retrieval.judging.baselines import BaselineData, Popularity
from recsys.tasks.retrieval.judging.case import Case, Measured, make_slices, never_found, with_sizes
from recsys.tasks.retrieval.judging.example_users import example_users, exposure
from recsys.tasks.retrieval.judging.queries import Protocol, Queries, Repeats
from recsys.tasks.retrieval.judging.systems import System, open_bundle, open_folder, open_object

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh

_OTHER: dict[Protocol, Protocol] = {"each_moment": "at_cut", "at_cut": "each_moment"}


class RetrievalJudging(JudgingSide[System, Case, Measured]):
    """Ranks the held-out events of each query among the whole catalogue."""

    sliced = ("recall", "ndcg", "mrr")

    def open_folder(self, folder: Path, name: str, mesh: DeviceMesh | None) -> System:
        """Returns the system for a model folder.

        Raises:
            RecsysError: It is damaged (R310), computes other numbers than in training (R311) or
                NaN (R402), or shares no item with the data (R403).
        """
        return System(name, open_folder(folder, name, mesh), self.data)

    def open_bundle(
        self, bundle: Path, manifest: Mapping[str, Any], name: str, mesh: DeviceMesh | None
    ) -> System:
        """Returns the system for a bundle; raises `RecsysError` as `open_folder`, or R409."""
        return System(name, open_bundle(bundle, manifest, name, mesh), self.data)

    def open_model(self, model: Any, name: str) -> System:
        """Returns the system for a `TrainedModel`, or for a built model of these data."""
        return System(name, open_object(model, self.data, name), self.data)

    @functools.cached_property
    def protocol(self) -> Protocol:
        """The protocol of the queries."""
        return protocols.protocol_of(self.data.store, self.stage.evaluate.query)

    def case(self, systems: Mapping[str, System]) -> Case:
        """Returns the case with the queries that can be ranked.

        Raises:
            RecsysError: No event is held out (R401), or none can be found (R407, R408, R412).
        """
        return self._case(self.protocol, systems)

    def other_cases(
        self, systems: Mapping[str, System]
    ) -> Mapping[str, tuple[Case, Sequence[Baseline]]]:
        """Returns the case of the other protocol, if the two differ."""
        if self.data.store.split.split != "time":
            return {}
        other = _OTHER[self.protocol]
        return {other: (self._case(other, {MODEL: systems[MODEL]}), [Popularity()])}

    def measure(self, system: System, case: Case, progress: Progress | None) -> Measured:
        """Ranks the positives by a system's scores."""
        return case.measure(system.scorer_of(case.queries), system.is_candidate, progress)

    def measure_baseline(
        self, baseline: Baseline, case: Case, progress: Progress | None
    ) -> Measured:
        """Ranks the positives by a baseline, which the first process fits."""
        started = time.monotonic()

        def fit() -> dict[str, np.ndarray]:
            scorer = baseline.fit(self._training).scorer(case.queries)
            return case.rank(scorer, progress=progress)._asdict()

        return case.measured(RankResults(**on_primary(fit)), time.monotonic() - started)

    def slices(self, case: Case) -> list[Slice]:
        """Returns the slices by user, activity, recency, popularity, repeats and features."""
        store, catalogue, queries = self.data.store, self.data.catalogue, case.queries
        is_repeated = np.zeros(len(queries.positives.rows), bool)
        if not case.mask_seen:  # Otherwise they are not in the queries.
            is_repeated = protocols.repeated(queries, catalogue.is_item)
        parts = make_slices(
            queries,
            store.trained_user[queries.user] >= 0,
            is_repeated,
            case.items.counts,
            catalogue,
            self.data.user_features,
            self.stage.evaluate.slices,
        )
        parts = [with_sizes(part, queries) for part in parts]
        if case.mask_seen and case.repeats is not None and case.repeats.positives:
            parts.append(never_found(case.repeats))
        return parts

    def slice_values(
        self, part: Slice, case: Case, measured: Measured, keys: Collection[str]
    ) -> Values:
        """Returns the values in a slice; for a slice of positives, only from their ranks."""
        metrics = [metric for metric in case.computed if {*metric.keys(case.ks)} & {*keys}]
        if part.of != "queries":
            return case.values(case.lists(measured.ranking, part.which), metrics)
        masked = super().slice_values(part, case, measured, keys)
        lists = case.lists(measured.ranking, part.which[case.queries.positives.owner()])
        return {**masked, **pooled(metrics, lists)}

    def more(
        self, case: Case, systems: Mapping[str, System], measured: Mapping[str, Measured]
    ) -> dict[str, Any]:
        """Returns the protocol, the exposure of items, and example users."""
        examples, unknown_users = example_users(
            self.stage.report_users,
            self.data,
            systems[MODEL],
            systems.get(BLESSED),
            mask_seen=case.mask_seen,
        )
        return {
            "query": self.protocol,
            "sampled_negatives": case.sampled_negatives,
            "exposure": self._exposure(measured[MODEL]),
            "examples": examples,
            "unknown_report_users": unknown_users,
        }

    def _case(self, kind: Protocol, systems: Mapping[str, System]) -> Case:
        config, masks_seen = self.stage.evaluate, self.stage.repeats == "exclude"
        inputs = {name for system in systems.values() for name in system.of_events}
        queries = protocols.make_queries(
            self.data.store,
            kind,
            config.max_queries,
            config.seed,
            inputs,
            self.data.event_features,
        )
        is_item = self.data.catalogue.is_item
        n_chosen = len(np.unique(queries.user))
        queries, repeats, is_kept = _rankable(queries, is_item, masks_seen)
        queries = queries.select(is_kept)
        rows = queries.positives.rows
        counts = {
            "users": len(np.unique(queries.user)),
            "users_chosen": n_chosen,
            "users_held_out": len(self.data.store.eval_users.rows),
            "queries": len(queries),
            "positives": len(rows),
            "unknown_positives": int((~is_item[rows]).sum()),
            "repeated_positives": repeats.positives,
            "repeated_share": repeats.share,
            "repeat_only_queries": repeats.only if masks_seen else 0,
            "candidates": int(is_item.sum()),
            "left_out_queries": int((~is_kept).sum()),
        }
        return Case(
            queries,
            Items(self.data.items.row_counts, is_item, systems[MODEL].directions),
            tuple(sorted(config.k)),
            config.metrics,
            masks_seen,
            config.sampled_negatives,
            config.seed,
            repeats,
            counts,
        )

    @property
    def deciding_k(self) -> int:
        """Cut-off of the deciding metric; the smallest one if it has none."""
        digits = re.search(r"@(\d+)$", self.stage.bless.metric)
        return int(digits[1]) if digits else min(self.stage.evaluate.k)

    @functools.cached_property
    def _training(self) -> BaselineData:
        store, config = self.data.store, self.stage.evaluate
        return BaselineData(
            train=store.train,
            counts=self.data.items.row_counts,
            cut=store.cut,
            order=store.split.order,
            is_item=self.data.catalogue.is_item,
            recent_days=config.recent_days,
            max_events=config.baseline_events,
        )

    def _exposure(self, model: Measured) -> dict[str, Any] | None:
        """Returns the exposure of items at the deciding cut-off; None without lists."""
        if self.stage.evaluate.sampled_negatives is not None:
            return None
        k = self.deciding_k
        is_item = self.data.catalogue.is_item
        times = times_shown(model.ranking.top, len(is_item), k)
        return exposure(times[is_item], self.data.items.row_counts[is_item], k)


def _rankable(
    queries: Queries, is_item: np.ndarray, masks_seen: bool
) -> tuple[Queries, Repeats, np.ndarray]:
    """Returns the queries with answers that can be found, the repeats, and which have items left.

    Raises:
        RecsysError: None has.
    """
    if not is_item[queries.positives.rows].any():
        raise RecsysError(
            "R407",
            "Some held-out item must be in the vocabulary, else nothing can be found.",
            "The held-out events are of other items than those trained on: lower"
            " data.eval_share, or data.vocabulary.items.min_count.",
            f"{len(queries.positives.rows):,} held-out events, all of unknown items",
        )
    is_repeated = protocols.repeated(queries, is_item)
    repeats = Repeats.of(queries, is_repeated)
    if masks_seen:
        queries = protocols.without(queries, is_repeated)
    if not is_item[queries.positives.rows].any():
        raise RecsysError(
            "R412",
            "While repeats is `exclude`, some held-out event must be of an item that its user"
            " has not seen before, else there is nothing to find.",
            "Where users may be recommended what they have seen, write `repeats: include` (or"
            " --set repeats=include); else hold out more events.",
            f"{repeats.positives:,} of {len(is_repeated):,} held-out events repeat an item",
        )
    is_kept = protocols.keep_rankable(queries, is_item, masks_seen)
    if not is_kept.any():
        raise RecsysError(
            "R408",
            "A user must have unseen items besides the held-out ones, else any list is right.",
            "Evaluate with a larger catalogue, or set repeats to include.",
            f"{len(is_kept):,} queries, each of which has seen all {int(is_item.sum()):,} items",
        )
    return queries, repeats, is_kept
