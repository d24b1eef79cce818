"""Evaluates systems on held-out events: figures, examples and the decision.

Exact over the full catalogue, for every held-out event, beside the baselines and the last
blessed model on the same queries.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from recsys.config import EvaluateStage
from recsys.data.dataset import Data
from recsys.errors import RecsysError
from recsys.evaluation.baselines import ials, item_knn  # noqa: F401
from recsys.evaluation.baselines.baseline import Baseline, BaselineData, LeftOutError
from recsys.evaluation.baselines.popularity import Popularity
from recsys.evaluation.blessing import Evidence, judge
from recsys.evaluation.example_users import example_users, exposure
from recsys.evaluation.measurement import Case, Figures, Measured, measure
from recsys.evaluation.queries import (
    MEANINGS,
    Protocol,
    Queries,
    Repeats,
    keep_rankable,
    make_queries,
    protocol_of,
    repeated,
    without,
)
from recsys.evaluation.scores import DotProducts, Progress, SystemProgress
from recsys.evaluation.significance import BLESSED, MODEL
from recsys.evaluation.slices import Slice, make_slices
from recsys.evaluation.systems import System
from recsys.metrics.metric import Items, times_shown
from recsys.registry import name_of

FORMAT = 2
_OTHER: dict[Protocol, Protocol] = {"each_moment": "at_cut", "at_cut": "each_moment"}


@dataclasses.dataclass(frozen=True)
class _Measurements:
    """What was measured of the model, and of the last blessed one, under one protocol.

    Attributes:
        protocol: Which queries there are.
        case: The queries, and what else all systems share.
        repeats: The held-out events that repeat an item.
        counts: How many queries, users and positives there are.
        systems: The measurements by name.
    """

    protocol: Protocol
    case: Case
    repeats: Repeats
    counts: dict[str, Any]
    systems: dict[str, Measured]


@dataclasses.dataclass(frozen=True)
class MeasuredSystems:
    """All that is computed of embeddings; the rest of an evaluation needs none.

    Attributes:
        main: Under the protocol that decides.
        other: The model under the other one; None: there is none of these data.
        examples: Recommendations for a few users.
        unknown_users: Ids of users for whom they were asked, and who aren't known.
    """

    main: _Measurements
    other: _Measurements | None
    examples: list[dict[str, Any]]
    unknown_users: list[str]

    def with_embeddings(self, embeddings: Any) -> MeasuredSystems:
        """Returns it with other embeddings of the items; see `Items.embeddings`."""

        def changed(measured: _Measurements) -> _Measurements:
            items = dataclasses.replace(measured.case.items, embeddings=embeddings)
            return dataclasses.replace(
                measured, case=dataclasses.replace(measured.case, items=items)
            )

        other = None if self.other is None else changed(self.other)
        return dataclasses.replace(self, main=changed(self.main), other=other)


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Measures systems on the held-out events of a data folder.

    Attributes:
        stage: The metrics and the thresholds.
        data: The data folder.
        progress: Is called with the name of a system, the queries done, and all.
    """

    stage: EvaluateStage
    data: Data
    progress: SystemProgress | None = None

    def run(self, systems: dict[str, System]) -> dict[str, Any]:
        """Returns what `evaluation.json` holds.

        Args:
            systems: The model and, under `blessed_model`, the last blessed one.

        Raises:
            RecsysError: Nothing is held out, or none of it is known.
        """
        return self.conclude(self.measure(systems))

    def measure(self, systems: dict[str, System]) -> MeasuredSystems:
        """Measures systems; if they are split over several processes, each process calls it.

        Args:
            systems: As for `run`.

        Raises:
            RecsysError: As for `run`.
        """
        protocol = protocol_of(self.data.store, self.stage.evaluate.query)
        main, other = self._measured(protocol, systems), None
        if self.data.store.split.split == "time":  # Else the two don't differ.
            other = self._measured(_OTHER[protocol], {MODEL: systems[MODEL]})
        examples, unknown = example_users(
            self.stage.report_users,
            self.data,
            systems[MODEL],
            systems.get(BLESSED),
            mask_seen=self._masks_seen,
        )
        return MeasuredSystems(main, other, examples, unknown)

    def conclude(self, systems: MeasuredSystems) -> dict[str, Any]:
        """Measures the baselines, decides, and returns what `evaluation.json` holds.

        Args:
            systems: What `measure` returned; of several processes one is enough here.
        """
        config, store, main = self.stage.evaluate, self.data.store, systems.main
        case, measured, repeats = main.case, main.systems, main.repeats
        baselines, left_out = self._baselines(case, config.baselines)
        figures = Figures(self.stage, case, measured | baselines, self._slices(case))
        slices = figures.slices()
        if self._masks_seen and repeats.positives:
            slices.append(figures.never_found(repeats))
        descriptions = {
            "metrics": {metric.name: metric.describe() for metric in config.metrics},
            "baselines": {name_of("baseline", b): b.title for b in config.baselines},
        }
        verdict = judge(
            self.stage.bless,
            Evidence(
                figures.means,
                config.confidence,
                left_out,
                has_blessed=BLESSED in measured,
                n_sampled=config.sampled_negatives,
                small_slice=config.small_slice,
                titles=descriptions["baselines"],
            ),
        )
        return {
            "format": FORMAT,
            "query": main.protocol,
            "split": store.split.to_json(),
            "meaning": MEANINGS[store.split.split],
            "repeats": self.stage.repeats,
            "sampled_negatives": config.sampled_negatives,
            "confidence": config.confidence,
            "resamples": config.resamples,
            "small_slice": config.small_slice,
            **main.counts,
            **_figures(figures, baselines),
            "baselines_left_out": left_out,
            "blessed_model": figures.metrics(BLESSED) if BLESSED in measured else None,
            "slices": slices,
            **self._other_protocol(systems.other),
            "exposure": self._exposure(measured[MODEL]),
            "verdict": {"metric": self.stage.bless.metric, **dataclasses.asdict(verdict)},
            "descriptions": descriptions,
            "examples": systems.examples,
            "unknown_report_users": systems.unknown_users,
            "seconds": {
                name: round(system.seconds, 2) for name, system in (measured | baselines).items()
            },
        }

    @property
    def _masks_seen(self) -> bool:
        return self.stage.repeats == "exclude"

    def _questions(
        self, kind: Protocol, facts: Collection[str]
    ) -> tuple[Queries, Repeats, dict[str, Any]]:
        """Returns the queries that can be ranked, the repeats, and how many there are of all."""
        config = self.stage.evaluate
        queries = make_queries(self.data.store, kind, config.max_queries, config.seed, facts)
        is_item = self.data.catalogue.is_item
        if not is_item[queries.positives.rows].any():
            raise RecsysError(
                "R407",
                "Some held-out item must be in the vocabulary, else nothing can be found.",
                "The held-out events are of other items than those trained on: lower"
                " data.eval_share, or data.vocabulary.items.min_count.",
                f"{len(queries.positives.rows):,} held-out events, all of unknown items",
            )
        n_chosen = len(np.unique(queries.user))
        is_repeated = repeated(queries, is_item)
        repeats = Repeats.of(queries, is_repeated)
        if self._masks_seen:
            queries = without(queries, is_repeated)
        if not is_item[queries.positives.rows].any():
            raise RecsysError(
                "R412",
                "While repeats is `exclude`, some held-out event must be of an item that its user"
                " has not seen before, else there is nothing to find.",
                "Where users may be recommended what they have seen, write `repeats: include` (or"
                " --set repeats=include); else hold out more events.",
                f"{repeats.positives:,} of {len(is_repeated):,} held-out events repeat an item",
            )
        kept = keep_rankable(queries, is_item, self._masks_seen)
        if not kept.any():
            raise RecsysError(
                "R408",
                "A user must have unseen items besides the held-out ones, else any list is right.",
                "Evaluate with a larger catalogue, or set repeats to include.",
                f"{len(kept):,} queries, each of which has seen all {int(is_item.sum()):,} items",
            )
        queries = queries.select(kept)
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
            "repeat_only_queries": repeats.only if self._masks_seen else 0,
            "candidates": int(is_item.sum()),
            "left_out_queries": int((~kept).sum()),
        }
        return queries, repeats, counts

    def _case(self, queries: Queries, model: System) -> Case:
        config = self.stage.evaluate
        items = Items(self.data.items.row_counts, self.data.catalogue.is_item, model.directions)
        return Case(
            queries,
            items,
            tuple(sorted(config.k)),
            config.metrics,
            self._masks_seen,
            config.sampled_negatives,
            config.seed,
        )

    def _measured(self, protocol: Protocol, systems: dict[str, System]) -> _Measurements:
        facts = {name for system in systems.values() for name in system.facts}
        queries, repeats, counts = self._questions(protocol, facts)
        case = self._case(queries, systems[MODEL])
        measured = {name: self._measure(name, case, system) for name, system in systems.items()}
        return _Measurements(protocol, case, repeats, counts, measured)

    def _measure(self, name: str, case: Case, system: System) -> Measured:
        scorer = DotProducts(system.queries(case.queries), system.candidates)
        return measure(scorer, case, system.is_candidate, self._progress_of(name))

    def _baselines(
        self, case: Case, chosen: Sequence[Baseline]
    ) -> tuple[dict[str, Measured], dict[str, str]]:
        """Returns the measured baselines, and why others could not be measured."""
        config = self.stage.evaluate
        data = BaselineData(
            train=self.data.store.train,
            counts=case.items.counts,
            cut=self.data.store.cut,
            has_times=self.data.store.split.order == "time",
            is_item=case.items.is_candidate,
            recent_days=config.recent_days,
            max_events=config.baseline_events,
        )
        measured: dict[str, Measured] = {}
        left_out: dict[str, str] = {}
        for baseline in chosen:
            name = name_of("baseline", baseline)
            try:
                scorer = baseline.fit(data).scorer(case.queries)
            except LeftOutError as error:
                left_out[name] = str(error)
            else:
                measured[name] = measure(scorer, case, progress=self._progress_of(name))
        return measured, left_out

    def _other_protocol(self, other: _Measurements | None) -> dict[str, Any]:
        """Returns the figures under the other protocol, by its name."""
        if other is None:
            return {}
        baselines, _ = self._baselines(other.case, [Popularity()])
        figures = Figures(self.stage, other.case, other.systems | baselines)
        return {other.protocol: other.counts | _figures(figures, baselines)}

    def _slices(self, case: Case) -> list[Slice]:
        store, catalogue, queries = self.data.store, self.data.catalogue, case.queries
        is_repeated = np.zeros(len(queries.positives.rows), bool)
        if not self._masks_seen:  # Else they are left out of the queries.
            is_repeated = repeated(queries, catalogue.is_item)
        return make_slices(
            queries,
            store.trained_user[queries.user] >= 0,
            is_repeated,
            case.items.counts,
            catalogue,
            self.data.user_features,
            self.stage.evaluate.slices,
        )

    def _exposure(self, model: Measured) -> dict[str, Any] | None:
        """Returns the exposure of items at the deciding cut-off; None without lists."""
        if self.stage.evaluate.sampled_negatives is not None:
            return None
        digits = re.search(r"@(\d+)$", self.stage.bless.metric)
        k = int(digits[1]) if digits else min(self.stage.evaluate.k)
        is_item = self.data.catalogue.is_item
        times = times_shown(model.ranking.top, len(is_item), k)
        return exposure(times[is_item], self.data.items.row_counts[is_item], k)

    def _progress_of(self, system: str) -> Progress | None:
        return functools.partial(self.progress, system) if self.progress else None


def _figures(figures: Figures, baselines: Iterable[str]) -> dict[str, Any]:
    return {
        "metrics": figures.metrics(MODEL),
        "intervals": figures.intervals(),
        "baselines": {name: figures.metrics(name) for name in baselines},
        "comparisons": figures.comparisons(),
    }
