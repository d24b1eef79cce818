"""`python -m recsys.evaluate`: a model against the held-out events, and the verdict.

Exact over the full catalogue, for every held-out event, beside the baselines and the last
blessed model on the same queries.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys import events
from recsys.commit import commit_text
from recsys.config import BaselineName, EvaluateStage
from recsys.config_file import load_stage
from recsys.data.split_rule import SplitRule
from recsys.data.store import InteractionStore
from recsys.errors import RecsysError
from recsys.evaluation import lists
from recsys.evaluation.baselines import BaselineData, LeftOutError, fit
from recsys.evaluation.blessing import Evidence, judge
from recsys.evaluation.examples import example_users, exposure
from recsys.evaluation.figures import Figures
from recsys.evaluation.measure import Case, Measured, measure
from recsys.evaluation.queries import (
    Protocol,
    Queries,
    Repeats,
    keep_rankable,
    make_queries,
    meaning_of,
    nothing_new,
    protocol_of,
    repeated,
    without,
)
from recsys.evaluation.scores import DotProducts, Progress
from recsys.evaluation.significance import BLESSED, MODEL
from recsys.evaluation.slices import AGAIN, REPEATS, Known, make_slices
from recsys.evaluation.systems import EvaluationData, System, open_system
from recsys.models.inputs import ModelInputs
from recsys.process import stage_main

FORMAT = 2
_STEP = "RetrievalEvaluator"
_POPULARITY: BaselineName = "popularity"
_NEVER = "left out of all figures: what a user has seen is never recommended"
_OTHER: dict[Protocol, Protocol] = {"each_moment": "at_cut", "at_cut": "each_moment"}


def evaluate(
    stage: EvaluateStage, model: Path, data: Path, out: Path, blessed: Path | None = None
) -> dict[str, Any]:
    """Evaluates a model and decides on it.

    Args:
        stage: The metrics and the thresholds.
        model: Model folder or bundle.
        data: Data folder with the held-out events.
        out: Folder to write `evaluation.json` into.
        blessed: The last blessed model, if there is one; a model folder or a bundle. It is
            left out where no threshold names it.

    Returns:
        What `evaluation.json` holds (see `docs/architecture.md`).

    Raises:
        RecsysError: Nothing is held out, none of it is known, a folder is damaged, or a
            score is no number.
    """
    if not any(rule.over_blessed for rule in stage.bless.all_rules()):
        blessed = None
    subjects, evaluation = {}, _Evaluation.open(stage, data)
    subjects[MODEL] = open_system(model, evaluation.view, "the model")
    if blessed is not None:
        subjects[BLESSED] = open_system(blessed, evaluation.view, "the last blessed model")
    result = evaluation.run(subjects)
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False)
    commit_text(text + "\n", out / "evaluation.json")
    # Lists where there were tuples: the same for who reads the file.
    written: dict[str, Any] = json.loads(text)
    return written


@dataclasses.dataclass(frozen=True)
class _Questions:
    """The queries of one protocol, and what was left out of them.

    Attributes:
        queries: Those that are ranked.
        repeats: The held-out events that repeat an item.
        n_trivial: Queries that have nothing but their answers to rank.
        n_chosen: Users of all queries, of those that were left out too.
    """

    queries: Queries
    repeats: Repeats
    n_trivial: int
    n_chosen: int


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """What a run of the stage knows of the data.

    Attributes:
        stage: The config.
        view: The held-out events and the vocabulary of the items.
        known: What the data tell of users and items.
    """

    stage: EvaluateStage
    view: EvaluationData
    known: ModelInputs

    @classmethod
    def open(cls, stage: EvaluateStage, data: Path) -> _Evaluation:
        view = EvaluationData.open(data)
        return cls(stage, view, ModelInputs.open(data))

    def run(self, subjects: dict[str, System]) -> dict[str, Any]:
        """Returns what `evaluation.json` holds."""
        config, store = self.stage.evaluate, self.view.store
        protocol = protocol_of(store, config.query)
        questions = self._questions(protocol)
        case = self._case(questions.queries, subjects[MODEL])
        measured = {name: self._measure(name, case, subject) for name, subject in subjects.items()}
        baselines, left_out = self._baselines(case, config.baselines)
        figures = Figures(self.stage, case, measured | baselines, self._slices(case))
        verdict = judge(
            self.stage.bless,
            Evidence(
                figures.means,
                config.confidence,
                left_out,
                has_blessed=BLESSED in subjects,
                n_sampled=config.sampled_negatives,
                small_slice=config.small_slice,
            ),
        )
        examples, unknown = example_users(
            self.stage.report_users,
            store,
            self.known,
            subjects[MODEL],
            subjects.get(BLESSED),
            mask_seen=self._masks_seen,
        )
        return {
            "format": FORMAT,
            "query": protocol,
            **_of_split(store.split),
            "repeats": self.stage.repeats,
            "sampled_negatives": config.sampled_negatives,
            "confidence": config.confidence,
            "resamples": config.resamples,
            "small_slice": config.small_slice,
            **self._counts(questions),
            "left_out_queries": questions.n_trivial,
            "metrics": figures.metrics(MODEL),
            "intervals": figures.intervals(),
            "baselines": {name: figures.metrics(name) for name in baselines},
            "baselines_left_out": left_out,
            "blessed_model": figures.metrics(BLESSED) if BLESSED in subjects else None,
            "comparisons": figures.comparisons(),
            "slices": [*figures.slices(), *self._never_found(figures, questions.repeats)],
            **self._other_protocol(_OTHER[protocol], subjects[MODEL]),
            "exposure": self._exposure(measured[MODEL]),
            "verdict": {"metric": self.stage.bless.metric, **dataclasses.asdict(verdict)},
            "examples": examples,
            "unknown_report_users": unknown,
            "seconds": {
                name: round(found.seconds, 2) for name, found in (measured | baselines).items()
            },
        }

    @property
    def _masks_seen(self) -> bool:
        return self.stage.repeats == "exclude"

    def _questions(self, kind: Protocol) -> _Questions:
        """Returns the queries that can be ranked, and how many can't."""
        config = self.stage.evaluate
        queries = make_queries(self.view.store, kind, config.max_queries, config.seed)
        is_item = self.known.catalogue.is_item
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
            raise nothing_new(repeats.positives, len(is_repeated))
        kept = keep_rankable(queries, is_item, self._masks_seen)
        if not kept.any():
            raise RecsysError(
                "R408",
                "A user must have unseen items besides the held-out ones, else any list is right.",
                "Evaluate with a larger catalogue, or set repeats to include.",
                f"{len(kept):,} queries, each of which has seen all {int(is_item.sum()):,} items",
            )
        return _Questions(queries.select(kept), repeats, int((~kept).sum()), n_chosen)

    def _case(self, queries: Queries, model: System) -> Case:
        config = self.stage.evaluate
        items = lists.Items(
            self.known.items.row_counts, self.known.catalogue.is_item, model.candidates
        )
        return Case(
            queries,
            items,
            tuple(sorted(config.k)),
            self._masks_seen,
            config.sampled_negatives,
            config.seed,
        )

    def _measure(self, name: str, case: Case, subject: System) -> Measured:
        scorer = DotProducts(subject.queries(case.queries), subject.candidates)
        return measure(scorer, case, subject.is_candidate, _tell(name))

    def _baselines(
        self, case: Case, names: Sequence[BaselineName]
    ) -> tuple[dict[str, Measured], dict[str, str]]:
        """Returns what was found of the baselines, and why some could not be measured."""
        config = self.stage.evaluate
        data = BaselineData(
            train=self.view.store.train,
            counts=case.items.counts,
            cut=self.view.store.cut,
            has_times=self.view.store.split.order == "time",
            is_item=case.items.is_candidate,
            recent_days=config.recent_days,
            max_events=config.baseline_events,
        )
        measured: dict[str, Measured] = {}
        left_out: dict[str, str] = {}
        for name in names:
            try:
                baseline = fit(name, data)
            except LeftOutError as error:
                left_out[name] = str(error)
                continue
            measured[name] = measure(baseline.scorer(case.queries), case, progress=_tell(name))
        return measured, left_out

    def _other_protocol(self, protocol: Protocol, model: System) -> dict[str, Any]:
        """Returns the figures under the protocol that doesn't decide, by its name.

        The two say different things of data that are split by time alone.
        """
        if self.view.store.split.split != "time":
            return {}
        questions = self._questions(protocol)
        case = self._case(questions.queries, model)
        measured = {MODEL: self._measure(MODEL, case, model)}
        baselines, _ = self._baselines(case, [_POPULARITY])
        figures = Figures(self.stage, case, measured | baselines)
        part = {
            **self._counts(questions),
            "metrics": figures.metrics(MODEL),
            "intervals": figures.intervals(),
            "baselines": {name: figures.metrics(name) for name in baselines},
            "comparisons": figures.comparisons(),
        }
        return {protocol: part}

    def _counts(self, questions: _Questions) -> dict[str, Any]:
        queries, repeats = questions.queries, questions.repeats
        is_item, rows = self.known.catalogue.is_item, queries.positives.rows
        return {
            "users": len(np.unique(queries.user)),
            "users_chosen": questions.n_chosen,
            "users_held_out": len(self.view.store.eval_users.rows),
            "queries": len(queries),
            "positives": len(rows),
            "unknown_positives": int((~is_item[rows]).sum()),
            "repeated_positives": repeats.positives,
            "repeated_share": repeats.share,
            "repeat_only_queries": repeats.only if self._masks_seen else 0,
            "candidates": int(is_item.sum()),
        }

    def _never_found(self, figures: Figures, repeats: Repeats) -> list[dict[str, Any]]:
        """Returns the slice of the repeats where they are left out; none without any."""
        if not self._masks_seen or not repeats.positives:
            return []
        return [figures.never_found(REPEATS, AGAIN, repeats, _NEVER)]

    def _slices(self, case: Case) -> Any:
        store: InteractionStore = self.view.store
        known = Known(
            is_repeated=repeated(case.queries, self.known.catalogue.is_item),
            is_trained=store.trained_user[case.queries.user] >= 0,
            counts=case.items.counts,
            catalogue=self.known.catalogue,
            user_features=self.known.user_features,
            names=self.stage.evaluate.slices,
        )
        return make_slices(case.queries, known)

    def _exposure(self, found: Measured) -> dict[str, Any] | None:
        """Returns what is recommended at the deciding cut-off; None without lists."""
        if self.stage.evaluate.sampled_negatives is not None:
            return None
        digits = re.search(r"@(\d+)$", self.stage.bless.metric)
        k = int(digits[1]) if digits else min(self.stage.evaluate.k)
        is_item = self.known.catalogue.is_item
        times = lists.shown(found.ranking.top, len(is_item), k)
        return exposure(times[is_item], self.known.items.row_counts[is_item], k)


def _of_split(rule: SplitRule) -> dict[str, Any]:
    """Returns how the held-out events were chosen, and what figures of them mean."""
    return {"split": rule.to_json(), "meaning": meaning_of(rule.split)}


def _tell(name: str) -> Progress:
    """Returns what tells of the progress of one subject."""

    def tell(done: int, total: int) -> None:
        text = f"{name.replace('_', ' ')}: {done:,} of {total:,} queries"
        events.emit("progress", step=_STEP, done=done, total=total, text=text)

    return tell


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recsys.evaluate", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="whole config, or its parts")
    parser.add_argument("--model", type=Path, required=True, help="model folder or bundle")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of evaluation.json")
    parser.add_argument("--blessed", type=Path, help="model folder or bundle to compare with")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    options = _parse(arguments)
    stage = load_stage(options.config, EvaluateStage)
    result = evaluate(stage, options.model, options.data, options.out, options.blessed)
    verdict = result["verdict"]
    return {
        "evaluation": str(options.out / "evaluation.json"),
        "metrics": {**result["metrics"], "baselines": result["baselines"]},
        "meaning": result["meaning"],
        **{name: result[name] for name in ("repeats", "repeated_positives", "repeated_share")},
        "blessed": verdict["blessed"],
        "sentence": verdict["sentence"],
        "reasons": verdict["reasons"],
    }


if __name__ == "__main__":
    stage_main(main)
