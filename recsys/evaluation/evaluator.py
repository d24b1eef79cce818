"""Opens systems and evaluates them on held-out events: figures, slices and the decision.

The model, the baselines and the last blessed model are measured on one case, so that all
comparisons are paired.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.bundles.bundle import MANIFEST, read_manifest, repeats_of_folder, verify
from recsys.bundles.publishing import versions
from recsys.data.config import Split
from recsys.data.dataset import Data
from recsys.distributed.coordination import agreed, in_shares
from recsys.errors import RecsysError
from recsys.evaluation.blessing import Evidence, judge
from recsys.evaluation.config import EvaluateStage
from recsys.evaluation.figures import Figures
from recsys.evaluation.second_stage import LEFT_OUT, judge_second_stage, of_pair, ranker_stage
from recsys.models.config import RetrievalConfig
from recsys.models.summary import read_summary
from recsys.pair.folder import RANKER, ranker_of
from recsys.registry import Choice, load, load_plugins, name_of
from recsys.strict import Repeats
from recsys.tasks import side_of
from recsys.tasks.judging_side import (
    BLESSED,
    MODEL,
    RERANKED,
    RETRIEVER,
    Baseline,
    Case,
    JudgingSide,
    LeftOutError,
    Measured,
    Progress,
    SystemProgress,
    SystemT,
)

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh


def open_evaluation_data(data: Data | str | Path) -> Data:
    """Opens the data of an evaluation, and verifies all checksums.

    Raises:
        RecsysError: The store or the vocabulary is missing or damaged.
    """
    opened = data if isinstance(data, Data) else Data(data)
    in_shares(opened.verify)
    opened.items  # noqa: B018  It is read when it is first used.
    return opened


def open_systems(
    stage: EvaluateStage, data: Data, model: Any, blessed: Any, mesh: DeviceMesh | None = None
) -> tuple[JudgingSide[Any, Any, Any], dict[str, Any]]:
    """Opens the model and, if given, the last blessed model.

    Args:
        stage: Config of the evaluation.
        data: The data folder.
        model: As in `open_system`.
        blessed: As in `open_system`, or None.
        mesh: As in `open_system`.

    Returns:
        The judging side of their task, whose config has the task's defaults, and the systems by
        name.

    Raises:
        RecsysError: As `open_system`, or the two models, or the metrics, have different tasks
            (R414).
    """
    models = {MODEL: model} | ({} if blessed is None else {BLESSED: blessed})
    configs = {name: _model_config(model) for name, model in models.items()}
    tasks = [config.task for config in configs.values()]
    if len({*tasks}) > 1:
        raise RecsysError(
            "R414",
            "Models can be compared only if they are of the same task.",
            "Evaluate the model alone: --set bless.over_blessed=0.",
            tasks,
        )
    try:
        stage = stage.of_task(tasks[0])
    except ValueError as error:
        raise RecsysError(
            "R414",
            f"Metrics, baselines and thresholds must be of the model's task: {error}.",
            "Name those of its task in evaluate.metrics, evaluate.baselines and bless, or leave"
            " them out for its defaults.",
        ) from error
    if any(map(is_pair, models.values())):
        side = load(_PAIR_JUDGING)(of_pair(stage), data)
    else:
        side = side_of(configs[MODEL], "judging")(stage, data)
    names = {MODEL: "the model", BLESSED: "the last blessed model"}
    return side, {n: open_system(side, model, names[n], mesh) for n, model in models.items()}


def is_pair(model: Any) -> bool:
    """Returns whether a model that `open_system` takes has a ranker."""
    if not isinstance(model, str | Path):
        return False
    path = Path(model)
    return ranker_of(path) is not None or (is_bundle(path) and RANKER in read_manifest(path))


def open_system(
    side: JudgingSide[SystemT, Any, Any],
    model: Any,
    name: str | None = None,
    mesh: DeviceMesh | None = None,
) -> SystemT:
    """Opens a system to measure.

    Args:
        side: The judging side of its task.
        model: A model folder (`model.json`), a bundle (`manifest.json`), a `TrainedModel`, a model
            that `Trainer.fit` trained, or another built model for the rows of the data.
        name: Display name, to which a path is appended; empty: the path.
        mesh: Devices to split tables and candidates of a folder over; all of their processes must
            open it. None: everything is in this process.

    Raises:
        RecsysError: The folder is neither (R404) or damaged, or the task refuses the model.
    """
    if not isinstance(model, str | Path):
        return side.open_model(model, name or "the model")
    path = Path(model)
    name = str(path) if name is None else f"{name} ({path})"
    if not is_bundle(path):
        return side.open_folder(path, name, mesh)
    manifest = agreed(lambda: verify(path))
    return side.open_bundle(path, manifest, name, mesh)


def task_of(model: Any) -> str:
    """Returns the name of the task of a model that `open_system` takes; loads its plugins."""
    return str(_model_config(model).task)


def _model_config(model: Any) -> Any:
    """Returns the config, or its class, of a model that `open_system` takes."""
    if not isinstance(model, str | Path):
        return getattr(model, "model", model).spec.config
    path = Path(model)
    stage = read_manifest(path).get("config") if is_bundle(path) else read_summary(path)["stage"]
    load_plugins((stage or {}).get("plugins", ()))
    return Choice("model").config_of((stage or {}).get("model")) or RetrievalConfig


def repeats_of(model: Any) -> Repeats:
    """Returns the `repeats` with which a model was trained.

    Args:
        model: As in `open_system`.
    """
    if not isinstance(model, str | Path):
        trained = getattr(model, "training_result", model)
        return trained.stage.repeats if hasattr(trained, "stage") else "exclude"
    return repeats_of_folder(Path(model))


def is_bundle(path: Path) -> bool:
    """Returns whether a folder is a bundle rather than a model folder.

    Raises:
        RecsysError: It is neither (R404).
    """
    if (path / "model.json").is_file():
        return False
    if (path / MANIFEST).is_file():
        return True
    published = versions(path)
    newest = f": {str(published[-1])!r} is the newest version here" if published else ""
    raise RecsysError(
        "R404",
        f"{str(path)!r} must be a model folder, which has a model.json, or a bundle, which has"
        f" a {MANIFEST}; it {'has neither' if path.is_dir() else 'is no folder'}.",
        f"Name the folder that a training, an export or a push wrote{newest}.",
    )


FORMAT = 2
_PAIR_JUDGING = "recsys.pair.judging:PairJudging"
_RANKING_JUDGING = "recsys.tasks.ranking.judging.side:RankingJudging"
_OF_RANKER = (
    *("state", "rows", "users", "queries", "confidence", "metrics", "intervals", "baselines"),
    *("comparisons", "baselines_left_out", "blessed_model", "cut", "live", "labels"),
    "descriptions",
)
"""Fields of an evaluation that `ranker` has."""
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
        slices, stages, pair = side.slices(case), {}, None
        if (of_stages := side.first_stage(case, measured[MODEL])) is not None:
            stages = {RETRIEVER: of_stages[0]}
        every = measured | stages | baselines
        figures = Figures(self.stage, side, case, every, slices)
        if of_stages is not None:
            pair = {**judge_second_stage(self.stage, figures), **of_stages[1]}
            if pair["second_stage"] == LEFT_OUT:
                systems = {**systems, MODEL: side.without_second_stage(systems[MODEL])}
                stages = {RERANKED: measured[MODEL]}
                measured[MODEL] = of_stages[0]
                every = measured | stages | baselines
                figures = Figures(self.stage, side, case, every, slices)
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
            **{
                name: {"metrics": figures.metrics(name), "intervals": figures.intervals(name)}
                for name in stages
            },
            **({} if pair is None else {"pair": pair}),
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
            lower=figures.lower,
            cures={name_of("baseline", b): b.cure for b in config.baselines},
        )
        verdict = dataclasses.asdict(judge(self.stage.bless, evidence))
        if RERANKED in stages:
            verdict["sentence"] += ", as a retriever alone"
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


def evaluate_ranker(
    stage: EvaluateStage,
    data: Data,
    systems: Mapping[str, Any],
    progress: SystemProgress | None = None,
) -> dict[str, Any] | None:
    """Returns the figures of a pair's ranker on held-out rows, as of a model of its task.

    None for another model, or if no row says that an item was refused.

    Args:
        stage: Config of the evaluation of the pair.
        data: The data folder.
        systems: As of `Evaluator.run`; the last blessed model is compared if it is a pair.
        progress: As of `Evaluator`.
    """
    second = {name: getattr(system, "reranker", None) for name, system in systems.items()}
    rankers = {name: one.of_rows for name, one in second.items() if one is not None}
    if MODEL not in rankers or not _has_refused(data, rankers[MODEL].labels[0]):
        return None
    side = load(_RANKING_JUDGING)(ranker_stage(stage), data)
    content = Evaluator(side.stage, side, progress).run(rankers)
    return {name: content[name] for name in _OF_RANKER if name in content}


def _has_refused(data: Data, label: str) -> bool:
    """Returns whether a row has the label 0."""
    from recsys.tasks.ranking.judging.labelled_rows import has_negatives  # Keras.

    logs = data.store.train_rows, data.store.eval_rows
    return label in data.labels and any(has_negatives(log, label) for log in logs if log)
