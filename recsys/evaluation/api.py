"""`recsys.evaluate` and `recsys.compare`: what the stage and a notebook call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recsys.config import Config, EvaluateConfig, EvaluateStage, stage_of
from recsys.data.dataset import Data
from recsys.evaluation.evaluator import Evaluator, SystemProgress
from recsys.evaluation.result import Comparison, EvaluationResult
from recsys.evaluation.significance import BLESSED, MODEL
from recsys.evaluation.systems import open_evaluation_data, open_system, repeats_of


def evaluate(
    model: Any,
    data: Data | str | Path,
    *,
    baselines: Iterable[Any] | None = None,
    metrics: Iterable[Any] | None = None,
    k: Sequence[int] | None = None,
    blessed: Any = None,
    config: Config | EvaluateStage | None = None,
    progress: bool | SystemProgress = True,
) -> EvaluationResult:
    """Measures a model on held-out events, exactly, over the whole catalogue.

    Args:
        model: A model folder, a bundle, a trained model as `load_model` returns it, one that
            `Trainer.fit` trained, or another built retrieval model, for the rows of `data`.
        data: Data with held-out events, or its folder.
        baselines: Names of baselines, maps with options (`{"type": "ials", "dim": 64}`), or
            objects; None: those of `config`.
        metrics: The same for metrics.
        k: Cut-offs of the metrics; None: those of `config`.
        blessed: What else is compared with: the last blessed model, as `model` is given.
        config: What else a config says of the evaluation and of what blesses a model; None: the
            defaults, with `repeats` as the model was trained.
        progress: Whether progress bars are shown; or what is called with the name of a
            system, the queries done, and all.

    Returns:
        The figures, with intervals by the paired bootstrap over users, and the decision.

    Raises:
        RecsysError: Nothing is held out, none of it is known, a folder is damaged, or a
            score is no number.
        pydantic.ValidationError: A name is unknown, or an option wrong.
    """
    stage = _stage(config, baselines, metrics, k)
    return _evaluate(model, data, blessed, stage, progress, is_config_given=config is not None)


def compare(
    a: Any,
    b: Any,
    data: Data | str | Path,
    *,
    metrics: Iterable[Any] | None = None,
    k: Sequence[int] | None = None,
    config: Config | EvaluateStage | None = None,
    progress: bool | SystemProgress = True,
) -> Comparison:
    """Measures two models on the same queries, and says which is better, by metric.

    Args:
        a: What `evaluate` takes as `model`.
        b: The same; differences are those of `b` over `a`.
        data: As for `evaluate`.
        metrics: As for `evaluate`.
        k: As for `evaluate`.
        config: As for `evaluate`.
        progress: As for `evaluate`.

    Raises:
        RecsysError: As `evaluate`.
    """
    stage = _stage(config, (), metrics, k).of_two_models()
    result = _evaluate(b, data, a, stage, progress, is_config_given=config is not None)
    return Comparison(result.content, stage.bless.metric)


def _evaluate(
    model: Any,
    data: Data | str | Path,
    blessed: Any,
    stage: EvaluateStage,
    progress: bool | SystemProgress,
    *,
    is_config_given: bool,
) -> EvaluationResult:
    opened = data if isinstance(data, Data) else open_evaluation_data(Path(data))
    systems = {MODEL: open_system(model, opened, "the model")}
    if blessed is not None:
        systems[BLESSED] = open_system(blessed, opened, "the last blessed model")
    if not is_config_given:
        stage = stage.model_copy(update={"repeats": repeats_of(model)})
    with _reporter(progress) as report:
        return EvaluationResult(Evaluator(stage, opened, report).run(systems))


def _stage(
    config: Config | EvaluateStage | None,
    baselines: Iterable[Any] | None,
    metrics: Iterable[Any] | None,
    k: Sequence[int] | None,
) -> EvaluateStage:
    """Returns the config with the requested options; drops rules on unmeasured metrics."""
    stage = stage_of(config, EvaluateStage) if isinstance(config, Config) else config
    stage = stage or EvaluateStage()
    chosen = {"baselines": baselines, "metrics": metrics, "k": k}
    changed = {name: tuple(values) for name, values in chosen.items() if values is not None}
    if not changed:
        return stage
    own = {name: getattr(stage.evaluate, name) for name in EvaluateConfig.model_fields}
    evaluation = EvaluateConfig(**(own | changed))
    bless, known = stage.bless, evaluation.deciding_keys
    over = {n: ratio for n, ratio in bless.over.items() if n in evaluation.baseline_names}
    metric = bless.metric if bless.metric in known else next(iter(known), bless.metric)
    rules = tuple(rule for rule in bless.rules if rule.metric in known)
    bless = bless.model_copy(update={"over": over, "metric": metric, "rules": rules})
    own = {name: getattr(stage, name) for name in EvaluateStage.model_fields}
    return EvaluateStage(**(own | {"evaluate": evaluation, "bless": bless}))


@contextlib.contextmanager
def _reporter(progress: bool | SystemProgress) -> Iterator[SystemProgress | None]:
    """Gives what reports progress; by default a bar for each system."""
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
