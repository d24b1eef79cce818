"""`recsys.evaluate` and `recsys.compare`, used by the evaluation stage and in notebooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.data.dataset import Data
from recsys.evaluation.config import EvaluateConfig, EvaluateStage
from recsys.evaluation.evaluator import (
    Evaluator,
    evaluate_ranker,
    open_evaluation_data,
    open_systems,
    repeats_of,
    task_of,
)
from recsys.evaluation.result import Comparison, EvaluationResult
from recsys.registry.choice import stage_of
from recsys.tasks.judging_side import BLESSED, SystemProgress

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh


def evaluate(
    model: Any,
    data: Data | str | Path,
    *,
    baselines: Iterable[Any] | None = None,
    metrics: Iterable[Any] | None = None,
    k: Sequence[int] | None = None,
    blessed: Any = None,
    config: EvaluateStage | None = None,
    progress: bool | SystemProgress = True,
) -> EvaluationResult:
    """Evaluates a model on held-out events, exactly.

    Args:
        model: Path of a model folder or a bundle, a `TrainedModel` from `load_model`, a model
            trained by `Trainer.fit`, or another built model for the rows of `data`.
        data: Data with held-out events, or the path of its folder.
        baselines: Baselines to compare with: names, dicts with options (`{"type": "ials", "dim":
            64}`), or objects; None: from `config`.
        metrics: Metrics to compute, in the same form; None: from `config`.
        k: Cut-offs of the metrics; None: from `config`.
        blessed: Last blessed model to compare with, in the same form as `model`; None: none.
        config: Config of the evaluation and of the thresholds; None: the defaults of the model's
            task, with `repeats` from its training.
        progress: Whether to show progress bars, or a callable that takes the name of a system,
            the number of finished queries and the total.

    Returns:
        The metrics, with intervals by a paired bootstrap over users, and the decision.

    Raises:
        RecsysError: There are no held-out events with known users and items, a folder is damaged,
            or a score is not finite.
        pydantic.ValidationError: A name is unknown, or an option is invalid.
    """
    stage = _stage(config, task_of(model), baselines, metrics, k)
    by_config = config is not None
    with _reporter(progress) as report:
        return measured(model, data, blessed, stage, report, by_config=by_config)


def compare(
    a: Any,
    b: Any,
    data: Data | str | Path,
    *,
    metrics: Iterable[Any] | None = None,
    k: Sequence[int] | None = None,
    config: EvaluateStage | None = None,
    progress: bool | SystemProgress = True,
) -> Comparison:
    """Evaluates two models on the same queries and decides for each metric which is better.

    Args:
        a: First model, in a form that `evaluate` takes as `model`.
        b: Second model; differences are `b` relative to `a`.
        data: As in `evaluate`.
        metrics: As in `evaluate`.
        k: As in `evaluate`.
        config: As in `evaluate`.
        progress: As in `evaluate`.

    Returns:
        The metrics of both models, the differences with intervals, and the better model.

    Raises:
        RecsysError: As in `evaluate`.
        pydantic.ValidationError: As in `evaluate`.
    """
    stage = _stage(config, task_of(b), (), metrics, k).of_two_models()
    by_config = config is not None
    with _reporter(progress) as report:
        result = measured(b, data, a, stage, report, by_config=by_config)
    return Comparison(result.content, result.content["verdict"]["metric"])


def measured(
    model: Any,
    data: Data | str | Path,
    blessed: Any,
    stage: EvaluateStage,
    report: SystemProgress | None = None,
    mesh: DeviceMesh | None = None,
    *,
    by_config: bool = True,
    is_blessed_alone: bool = False,
) -> EvaluationResult:
    """Returns the evaluation of a model; see `evaluate`.

    Args:
        model: As in `evaluate`.
        data: As in `evaluate`.
        blessed: As in `evaluate`.
        stage: Config of the evaluation and of the thresholds.
        report: Progress callback.
        mesh: One axis of devices over which tables and candidates of folders are split; all of
            their processes must call this. None: everything is in this process.
        by_config: Whether `repeats` comes from `stage` instead of the model's training.
        is_blessed_alone: Whether `blessed` is measured without its second stage.
    """
    opened = open_evaluation_data(data)
    if not by_config:
        stage = stage.model_copy(update={"repeats": repeats_of(model)})
    side, systems = open_systems(stage, opened, model, blessed, mesh)
    if is_blessed_alone and BLESSED in systems:
        systems[BLESSED] = side.without_second_stage(systems[BLESSED])
    content = Evaluator(side.stage, side, report).run(systems)
    ranker = evaluate_ranker(stage, opened, systems, report)
    return EvaluationResult(content if ranker is None else {**content, "ranker": ranker})


def _stage(
    config: EvaluateStage | None,
    task: str,
    baselines: Iterable[Any] | None,
    metrics: Iterable[Any] | None,
    k: Sequence[int] | None,
) -> EvaluateStage:
    """Returns the config with the requested options; drops rules on unmeasured metrics."""
    stage = stage_of(config or EvaluateStage(), EvaluateStage)
    chosen = {"baselines": baselines, "metrics": metrics, "k": k}
    changed = {name: tuple(values) for name, values in chosen.items() if values is not None}
    if not changed:
        return stage
    own = {name: getattr(stage.evaluate, name) for name in stage.evaluate.model_fields_set}
    evaluation = EvaluateConfig(**(own | changed)).of_task(task)
    known = evaluation.deciding_keys
    bless = stage.bless.of_task(task, known)
    over = {n: ratio for n, ratio in bless.over.items() if n in evaluation.baseline_names}
    metric = bless.metric if bless.metric in known else next(iter(known), bless.metric)
    rules = tuple(rule for rule in bless.rules if rule.metric in known)
    bless = bless.model_copy(update={"over": over, "metric": metric, "rules": rules})
    own = {name: getattr(stage, name) for name in EvaluateStage.model_fields}
    return EvaluateStage(**(own | {"evaluate": evaluation, "bless": bless}))


@contextlib.contextmanager
def _reporter(progress: bool | SystemProgress) -> Iterator[SystemProgress | None]:
    """Yields the progress callback; by default it shows a bar for each system."""
    if progress is not True:
        yield progress or None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(system: str, done: int, total: int) -> None:
            if system not in tasks:
                tasks[system] = bars.add_task(system.replace("_", " "), total=total)
            bars.update(tasks[system], completed=done)

        yield report
