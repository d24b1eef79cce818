"""Evaluates systems on held-out events: figures, slices and the decision.

The model, the baselines and the last blessed model are measured on one case, so that all
comparisons are paired.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from recsys.data.config import Split
from recsys.evaluation.blessing import Evidence, judge
from recsys.evaluation.config import EvaluateStage
from recsys.evaluation.figures import Figures
from recsys.registry import name_of
from recsys.tasks.judging_side import (
    BLESSED,
    MODEL,
    Baseline,
    Case,
    JudgingSide,
    LeftOutError,
    Measured,
    Progress,
    SystemProgress,
)

FORMAT = 2
_MEANINGS: dict[Split, str] = {
    "time": (
        "Split by time: the figures are what a model trained up to the cut would have"
        " reached if it had been served after it."
    ),
    "last_out": (
        "Last one out: each user's last event is predicted, but the model has seen what other"
        " users did later, so the figures are above those of a served model."
    ),
    "random": (
        "Split at random: the figures say how well gaps in the past are filled, which is easier"
        " than to predict what comes next and flatters a served model."
    ),
    "given": (
        "Split as the data say: the figures mean what their authors meant by the parts, and"
        " compare with other results on the same parts alone."
    ),
}
"""Meaning of the figures for each split."""


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Measures systems by the judging side of their task.

    Attributes:
        stage: Config of the evaluation and of the thresholds.
        side: Judging side of the task.
        progress: Called with the name of a system, the number of finished queries and the total.
    """

    stage: EvaluateStage
    side: JudgingSide[Any, Any, Any]
    progress: SystemProgress | None = None

    def run(self, systems: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the content of `evaluation.json`; all processes must call it.

        Args:
            systems: The model and, under `blessed_model`, the last blessed one.

        Raises:
            RecsysError: There are no held-out events with known users and items.
        """
        config, side = self.stage.evaluate, self.side
        case = side.case(systems)
        measured = {
            name: side.measure(system, case, self._progress_of(name))
            for name, system in systems.items()
        }
        baselines, left_out = self._baselines(case, config.baselines)
        every = measured | baselines
        figures = Figures(self.stage, side, case, every, side.slices(case))
        descriptions = {
            "metrics": {metric.name: metric.describe() for metric in config.metrics},
            "baselines": {name_of("baseline", b): b.title for b in config.baselines},
        }
        split = side.data.store.split
        content = {
            "format": FORMAT,
            "split": split.to_json(),
            "meaning": _MEANINGS[split.split],
            "repeats": self.stage.repeats,
            "confidence": config.confidence,
            "resamples": config.resamples,
            "small_slice": config.small_slice,
            **case.counts,
            **_figures(figures, baselines),
            "baselines_left_out": left_out,
            "blessed_model": figures.metrics(BLESSED) if BLESSED in measured else None,
            "slices": figures.slices(),
            **self._other_cases(systems),
            **side.more(case, systems, measured),
        }
        evidence = Evidence(
            figures.means,
            config.confidence,
            left_out,
            has_blessed=BLESSED in measured,
            n_sampled=config.sampled_negatives,
            small_slice=config.small_slice,
            titles=descriptions["baselines"],
        )
        verdict = dataclasses.asdict(judge(self.stage.bless, evidence))
        return {
            **content,
            "verdict": {"metric": self.stage.bless.metric, **verdict},
            "descriptions": descriptions,
            "seconds": {name: round(system.seconds, 2) for name, system in every.items()},
        }

    def _baselines(
        self, case: Case, chosen: Iterable[Baseline]
    ) -> tuple[dict[str, Measured], dict[str, str]]:
        """Returns the measured baselines, and the reasons why others could not be measured."""
        measured: dict[str, Measured] = {}
        left_out: dict[str, str] = {}
        for baseline in chosen:
            name = name_of("baseline", baseline)
            try:
                progress = self._progress_of(name)
                measured[name] = self.side.measure_baseline(baseline, case, progress)
            except LeftOutError as error:
                left_out[name] = str(error)
        return measured, left_out

    def _other_cases(self, systems: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the model's figures on the task's other cases."""
        content: dict[str, Any] = {}
        for name, (case, chosen) in self.side.other_cases(systems).items():
            model = self.side.measure(systems[MODEL], case, self._progress_of(MODEL))
            baselines, _ = self._baselines(case, chosen)
            figures = Figures(self.stage, self.side, case, {MODEL: model, **baselines})
            content[name] = {**case.counts, **_figures(figures, baselines)}
        return content

    def _progress_of(self, system: str) -> Progress | None:
        return functools.partial(self.progress, system) if self.progress else None


def _figures(figures: Figures, baselines: Iterable[str]) -> dict[str, Any]:
    return {
        "metrics": figures.metrics(MODEL),
        "intervals": figures.intervals(),
        "baselines": {name: figures.metrics(name) for name in baselines},
        "comparisons": figures.comparisons(),
    }
