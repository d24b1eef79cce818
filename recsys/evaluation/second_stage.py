"""The second stage of a pair: whether its ranker is kept, and the ranker's own metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from recsys.evaluation.config import EvaluateConfig, EvaluateStage
from recsys.evaluation.figures import Figures, Key
from recsys.evaluation.result import difference_text
from recsys.tasks.judging_side import MODEL, RETRIEVER

KEPT, LEFT_OUT = "kept", "left_out"
METRIC = "ndcg@10"
"""Metric that decides on a pair by default."""
_ROUNDING = 1e-12


def of_pair(stage: EvaluateStage) -> EvaluateStage:
    """Returns the config with the deciding metric of pairs, if it doesn't set another one.

    A config with `ranker` has the same default.
    """
    bless = stage.bless
    if "metric" in bless.model_fields_set or METRIC not in stage.evaluate.deciding_keys:
        return stage
    return stage.model_copy(update={"bless": bless.model_copy(update={"metric": METRIC})})


def judge_second_stage(stage: EvaluateStage, figures: Figures) -> dict[str, Any]:
    """Returns whether a ranker is kept: unless the pair is significantly worse than its retriever.

    With `bless.sure_loss: allow` it is kept then, too.

    Args:
        stage: Config of the evaluation; the metric of `bless` decides here, too.
        figures: Figures of the pair and of its retriever alone.

    Returns:
        `second_stage`, `kept` or `left_out`; the `metric`; the fields of the `Difference` of the
        pair from its retriever, if it has a value; and a `sentence`.
    """
    metric = stage.bless.metric
    difference = figures.means.difference(Key(MODEL, metric), RETRIEVER)
    if difference is None:
        text = f"The ranker is kept: no query has a value of {metric}."
        return {"second_stage": KEPT, "metric": metric, "sentence": text}
    low, high = difference.difference_interval or (0.0, 0.0)
    is_worse = low > _ROUNDING if metric in figures.lower else high < -_ROUNDING
    fields = dataclasses.asdict(difference)
    size = f"{metric} over the retriever's: {difference_text(fields, stage.evaluate.confidence)}"
    state = LEFT_OUT if is_worse and stage.bless.sure_loss == "refuse" else KEPT
    worse = ", significantly worse" if is_worse else ""
    text = f"The ranker is {state.replace('_', ' ')}: {size}{worse}."
    return {"second_stage": state, "metric": metric, **fields, "sentence": text}


def ranker_stage(stage: EvaluateStage) -> EvaluateStage:
    """Returns the config by which a ranker is measured on rows: the defaults of its task."""
    of_lists = {"k", "query", "metrics", "baselines", "sampled_negatives"}
    kept = stage.evaluate.model_fields_set - of_lists
    evaluate = EvaluateConfig(**{name: getattr(stage.evaluate, name) for name in kept})
    return EvaluateStage(plugins=stage.plugins, repeats=stage.repeats, evaluate=evaluate).of_task(
        "ranking"
    )
