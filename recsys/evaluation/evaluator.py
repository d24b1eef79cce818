"""Evaluates systems on held-out events: figures, examples and the decision.

Exact over the full catalogue, for every held-out event, beside the baselines and the last
blessed model on the same queries.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from recsys.data.dataset import Data
from recsys.distributed.host_collectives import agreed, of_first
from recsys.errors import RecsysError
from recsys.evaluation.blessing import Evidence, judge
from recsys.evaluation.config import EvaluateStage
from recsys.evaluation.measurement import Case, Figures, Measured, measure
from recsys.evaluation.significance import BLESSED, MODEL
from recsys.kernels.rank_jobs import RankResults
from recsys.metrics.metric import Items, times_shown
from recsys.registry import name_of
from recsys.tasks.retrieval.baselines import ials, item_knn  # noqa: F401
from recsys.tasks.retrieval.baselines.baseline import Baseline, BaselineData, LeftOutError
from recsys.tasks.retrieval.baselines.popularity import Popularity
from recsys.tasks.retrieval.judging.example_users import example_users, exposure
from recsys.tasks.retrieval.judging.queries import (
    MEANINGS,
    Protocol,
    Repeats,
    keep_rankable,
    make_queries,
    protocol_of,
    repeated,
    without,
)
from recsys.tasks.retrieval.judging.scores import DotProducts, Progress, SystemProgress
from recsys.tasks.retrieval.judging.slices import Slice, make_slices
from recsys.tasks.retrieval.judging.systems import System

FORMAT = 2
_FIT_S = 6 * 3600.0
"""Time limit of a baseline, which the other processes wait for [s]."""
_OTHER: dict[Protocol, Protocol] = {"each_moment": "at_cut", "at_cut": "each_moment"}


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Measures systems on the held-out events of a data folder.

    Attributes:
        stage: The metrics and the thresholds.
        data: The data folder.
        progress: Called with the name of a system, the number of finished queries, and of all.
    """

    stage: EvaluateStage
    data: Data
    progress: SystemProgress | None = None

    def run(self, systems: dict[str, System]) -> dict[str, Any]:
        """Returns the content of `evaluation.json`; each of several processes calls it.

        Args:
            systems: The model and, under `blessed_model`, the last blessed one.

        Raises:
            RecsysError: Nothing is held out, or none of it is known.
        """
        config, store = self.stage.evaluate, self.data.store
        protocol = protocol_of(store, config.query)
        case, repeats, counts = self._case(protocol, systems)
        measured = {name: self._measure(name, case, system) for name, system in systems.items()}
        baselines, left_out = self._baselines(case, config.baselines)
        figures = Figures(self.stage, case, measured | baselines, self._slices(case))
        slices = figures.slices()
        if self._masks_seen and repeats.positives:
            slices.append(figures.never_found(repeats))
        descriptions = {
            "metrics": {metric.name: metric.describe() for metric in config.metrics},
            "baselines": {name_of("baseline", b): b.title for b in config.baselines},
        }
        examples, unknown_users = example_users(
            self.stage.report_users,
            self.data,
            systems[MODEL],
            systems.get(BLESSED),
            mask_seen=self._masks_seen,
        )
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
            "query": protocol,
            "split": store.split.to_json(),
            "meaning": MEANINGS[store.split.split],
            "repeats": self.stage.repeats,
            "sampled_negatives": config.sampled_negatives,
            "confidence": config.confidence,
            "resamples": config.resamples,
            "small_slice": config.small_slice,
            **counts,
            **_figures(figures, baselines),
            "baselines_left_out": left_out,
            "blessed_model": figures.metrics(BLESSED) if BLESSED in measured else None,
            "slices": slices,
            **self._other_protocol(protocol, systems[MODEL]),
            "exposure": self._exposure(measured[MODEL]),
            "verdict": {"metric": self.stage.bless.metric, **dataclasses.asdict(verdict)},
            "descriptions": descriptions,
            "examples": examples,
            "unknown_report_users": unknown_users,
            "seconds": {
                name: round(system.seconds, 2) for name, system in (measured | baselines).items()
            },
        }

    @property
    def _masks_seen(self) -> bool:
        return self.stage.repeats == "exclude"

    def _case(
        self, kind: Protocol, systems: dict[str, System]
    ) -> tuple[Case, Repeats, dict[str, Any]]:
        """Returns the case of the queries that can be ranked, the repeats, and all counts."""
        config = self.stage.evaluate
        facts = {name for system in systems.values() for name in system.facts}
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
        items = Items(self.data.items.row_counts, is_item, systems[MODEL].directions)
        case = Case(
            queries,
            items,
            tuple(sorted(config.k)),
            config.metrics,
            self._masks_seen,
            config.sampled_negatives,
            config.seed,
        )
        return case, repeats, counts

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
            name, started = name_of("baseline", baseline), time.monotonic()
            ranking = self._ranked(baseline, data, case)
            if isinstance(ranking, str):
                left_out[name] = ranking
            else:
                measured[name] = case.measured(ranking, time.monotonic() - started)
        return measured, left_out

    def _ranked(self, baseline: Baseline, data: BaselineData, case: Case) -> RankResults | str:
        """Returns the ranks of a baseline, which the first process fits, or why there are none."""
        ranked: list[RankResults] = []

        def fit() -> str | None:
            try:
                scorer = baseline.fit(data).scorer(case.queries)
            except LeftOutError as error:
                return str(error)
            progress = self._progress_of(name_of("baseline", baseline))
            ranked.append(case.rank(scorer, progress=progress))
            return None

        reason: str | None = agreed(fit, _FIT_S)
        if reason is not None:
            return reason

        def shared(field: str) -> np.ndarray:
            return of_first(lambda: getattr(ranked[0], field))

        return RankResults(*map(shared, RankResults._fields))

    def _other_protocol(self, protocol: Protocol, model: System) -> dict[str, Any]:
        """Returns the model's figures under the other protocol, by its name."""
        if self.data.store.split.split != "time":  # The two don't differ.
            return {}
        other = _OTHER[protocol]
        case, _, counts = self._case(other, {MODEL: model})
        measured = {MODEL: self._measure(MODEL, case, model)}
        baselines, _ = self._baselines(case, [Popularity()])
        figures = Figures(self.stage, case, measured | baselines)
        return {other: counts | _figures(figures, baselines)}

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
