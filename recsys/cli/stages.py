"""`recsys train`, `evaluate`, `compare` and `export`: single stages, without TFX.

A stage runs in a subprocess with the Keras backend that it needs, as in the pipeline.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.cli.options import (
    ConfigOption,
    Coordinator,
    Data,
    Json,
    Mesh,
    NumProcesses,
    Out,
    PluginFolder,
    Processes,
    ProcessId,
    Sets,
    Wait,
)
from recsys.cli.processes import followed, options, run_process
from recsys.cli.show import emit
from recsys.errors import ConfigError, RecsysError, UsageError
from recsys.formats import change, change_span

if TYPE_CHECKING:
    from recsys.config import EvaluateStage
    from recsys.evaluation.result import EvaluationResult, Shown


def train(
    data: Data,
    out: Out,
    config: ConfigOption = None,
    sets: Sets = None,
    checkpoints: Path | None = None,
    processes: Processes = 1,
    base: Path | None = None,
    retriever: Path | None = None,
    mesh: Mesh = None,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    wait: Wait = None,
) -> None:
    """Train a model without the pipeline; print the result as JSON.

    A stopped or killed training resumes from its last checkpoint.

    Args:
        checkpoints: Folder of the checkpoints. Default: `checkpoints` next to --out.
        base: Model folder for a warm start.
        retriever: Trained model folder, for which only the ranker of the config is trained.
    """
    from recsys.config import with_mesh
    from recsys.config.load import load_config

    words = options(
        data=data, out=out, checkpoints=checkpoints, base=base, retriever=retriever,
        processes=processes, coordinator=coordinator, num_processes=num_processes,
        process_id=process_id, wait=wait,
    )  # fmt: skip
    loaded = with_mesh(load_config(config, sets or []), mesh)
    with followed():
        print(json.dumps(run_process("recsys.stages.train", "jax", loaded, words)))


def export(
    model: Path,
    data: Data,
    out: Out,
    config: ConfigOption = None,
    sets: Sets = None,
) -> None:
    """Export a model as a serving bundle; print the result as JSON.

    Args:
        model: Model folder written by training.
    """
    from recsys.config.load import load_config

    words, loaded = options(model=model, data=data, out=out), load_config(config, sets or [])
    print(json.dumps(run_process("recsys.stages.export", "tensorflow", loaded, words)))


def evaluate(
    measured: Path | None = None,
    /,
    *,
    data: Data,
    out: Out,
    model: Path | None = None,
    config: Path | None = None,
    sets: Sets = None,
    plugin_folder: PluginFolder = None,
    against: Path | None = None,
    served: Path | None = None,
    labels: list[str] | None = None,
    processes: Processes = 1,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    wait: Wait = None,
    as_json: Json = False,
) -> None:
    """Evaluate a bundle or a model folder, as the pipeline does.

    Writes evaluation.json and report.html into --out. Prints tables; if stdout is no terminal,
    they go to stderr, and the result to stdout as JSON. With several processes, each holds a
    part of the tables and of the catalogue, and the first one writes and prints.

    With --served it compares a log of what was served with the training data instead, and writes
    served.json.

    Args:
        measured: Bundle or model folder.
        model: The same as an option.
        config: Config file. Default: ./recsys.yaml, else the defaults.
        against: Last blessed model, to compare with.
        served: Log of what was served, in place of a model: a folder of `serving.log`, or a file.
        labels: File of rows with labels of what was served; repeatable.
    """
    named = [path for path in (measured, model) if path is not None]
    if served is not None and not named:
        _compare_served(served, labels or [], data, out, config, sets or [], as_json=as_json)
        return
    if len(named) != 1 or served is not None:
        rule = "An evaluation needs exactly one model."
        cure = "Name a bundle or a model folder: recsys evaluate MODEL --data DIR --out DIR."
        raise UsageError("R905", rule, cure, [str(path) for path in (*named, served) if path])
    from recsys.evaluation.result import EvaluationResult

    loaded, origin = _evaluation_config(config, sets or [], named[0], plugin_folder)
    words = options(
        data=data, model=named[0], out=out, blessed=against, coordinator=coordinator,
        processes=None if processes == 1 else processes, num_processes=num_processes,
        process_id=process_id, wait=wait,
    )  # fmt: skip
    with followed():
        result = run_process("recsys.stages.evaluate", "jax", loaded, words)
    people: dict[str, Any] = {}
    if not result.pop("process", 0):
        result["report"] = str(_report(loaded, data, named[0], out))
        evaluated = EvaluationResult.load(out)
        not_against = against is not None and evaluated.content["blessed_model"] is None
        people = {
            **figures_for_people(evaluated),
            "--against": _NOT_AGAINST if not_against else None,
            "thresholds": origin,
            **{name: result[name] for name in ("evaluation", "report")},
            **verdict_for_people(result),
        }
    emit(result, as_json=as_json or not sys.stdout.isatty(), people=people, beside=True)


def _compare_served(
    served: Path,
    labels: list[str],
    data: Path,
    out: Path,
    config: Path | None,
    sets: list[str],
    *,
    as_json: bool,
) -> None:
    """Compares what was served with the training data, and prints tables."""
    from recsys.config.load import load_config
    from recsys.data.dataset import Data
    from recsys.evaluation.served import compare_served, warning
    from recsys.system.files import commit_text

    loaded = load_config(config, sets)
    interactions, limit = loaded.data.interactions, loaded.data.gate.max_skew
    result = compare_served(served, interactions, Data(data), labels=labels, limit=limit)
    out.mkdir(parents=True, exist_ok=True)
    commit_text(json.dumps(result, indent=1) + "\n", out / "served.json")
    metrics = [{"label": name, **values} for name, values in result["metrics"].items()]
    people = {
        **{name: result[name] for name in ("rows", "requests", "users", "from", "to", "versions")},
        "Context, beside the training data": result["drift"],
        "Metrics of the served scores": metrics,
        "warning": warning(result),
        "written": str(out / "served.json"),
    }
    emit(result, as_json=as_json or not sys.stdout.isatty(), people=people, beside=True)


def compare(
    a: Path,
    b: Path,
    /,
    data: Data,
    config: Path | None = None,
    sets: Sets = None,
    plugin_folder: PluginFolder = None,
    out: Path | None = None,
    as_json: Json = False,
) -> None:
    """Evaluate two models on the same queries and report which is better, with its confidence.

    Prints a table; if stdout is no terminal, it goes to stderr, and the result to stdout as JSON.

    Args:
        a: Bundle or model folder.
        b: Bundle or model folder to compare with A.
        config: Config file. Default: ./recsys.yaml, else the defaults.
        out: Folder to write comparison.json into.
    """
    from recsys.config import EvaluateStage, stage_of
    from recsys.evaluation.result import Comparison, EvaluationResult
    from recsys.report.evaluated import repeats_in_words

    loaded, _ = _evaluation_config(config, sets or [], b, plugin_folder)
    stage = stage_of(loaded, EvaluateStage).of_two_models()
    with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
        words = options(data=data, model=b, out=Path(scratch), blessed=a)
        with followed():
            run_process("recsys.stages.evaluate", "jax", stage, words)
        evaluation = EvaluationResult.load(scratch).content
    comparison = Comparison(evaluation, evaluation["verdict"]["metric"])
    comparison.content = {"a": str(a), "b": str(b), "data": str(data), **comparison.content}
    if out is not None:
        comparison.save(out)
    repeats = repeats_in_words(evaluation)
    people = {"A": str(a), "B": str(b), **_table(comparison), "repeats": repeats}
    people |= {"result": comparison.sentence}
    is_json = as_json or not sys.stdout.isatty()
    emit(comparison.content, as_json=is_json, people=people, beside=True)


def _evaluation_config(
    config: Path | None, sets: list[str], model: Path, plugin_folder: Path | None
) -> tuple[EvaluateStage, str]:
    """Returns the config of an evaluation, and what to call its thresholds.

    Without a config the defaults of the model's task apply, as in `recsys.evaluate`, not the
    thresholds of the shipped config.

    Args:
        config: The file of --config; None: `recsys.yaml` in the current folder, if there is one.
        sets: Overrides.
        model: The model, whose task and training decide without a config.
        plugin_folder: Additional folder of plugins for the processes of the stage.
    """
    from recsys.bundles.bundle import repeats_of_folder
    from recsys.config import EvaluateStage
    from recsys.config.load import DEFAULT_NAME, default_stage, load_config
    from recsys.evaluation.evaluator import is_pair, task_of
    from recsys.evaluation.second_stage import of_pair

    if plugin_folder is not None:
        sys.path.insert(0, str(plugin_folder))
    if config is None and Path(DEFAULT_NAME).exists():
        config = Path(DEFAULT_NAME)
    if config is not None:
        return load_config(config, sets), f"those of {config}"
    known = {"repeats": repeats_of_folder(model)}
    defaults = "the defaults and --set" if sets else "the defaults"
    stage = default_stage(EvaluateStage, known, sets)
    try:
        task, has_ranker = task_of(model), is_pair(model)
    except RecsysError:  # The stage says what the folder lacks.
        task, has_ranker = "retrieval", False
    try:
        stage = stage.of_task(task)
        stage = of_pair(stage) if has_ranker else stage
    except ValueError as error:
        raise ConfigError("R107", f"{error}.", "Correct --set.") from None
    return stage, f"{defaults}, as no --config is given"


def _report(config: EvaluateStage, data: Path, subject: Path, out: Path) -> Path:
    """Writes the report into `out`, without the parts that only a pipeline run has."""
    from recsys.config import canonical_json
    from recsys.report.run_report import write_report

    return write_report(
        out,
        config={"name": str(subject), **json.loads(canonical_json(config))},
        dead_letters={},
        data=data,
        model=subject,
        evaluation=out,
        bundle=subject if (subject / "manifest.json").is_file() else None,
        pushed=None,
    )


# --- output for people

_NOT_AGAINST = "The model was not compared, because bless.over_blessed is 0; use recsys compare."


def figures_for_people(evaluated: EvaluationResult) -> dict[str, Any]:
    """Returns the metrics of all systems, and the model's difference from each other one."""
    from recsys.report.evaluated import Evaluated, repeats_in_words

    content = evaluated.content
    figures = Evaluated(content, content["verdict"].get("metric"))
    apart = {key: figures.difference(key, figures.deciding) for key in figures.others}
    return {
        **_table(evaluated),
        f"Difference in {figures.deciding}": [
            {
                "from": figures.name(key),
                "difference": change(difference.relative),
                "interval": difference.interval and change_span(difference.interval),
                "": difference.outcome,
            }
            for key, difference in apart.items()
        ],
        "notes": evaluated.notes()[:-1],
        "repeats": repeats_in_words(content),
        "meaning": content.get("meaning"),
    }


def verdict_for_people(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a verdict, with its reasons and warning."""
    return {
        "warning": verdict.get("warning"),
        "reasons": verdict.get("reasons"),
        "state": "blessed" if verdict.get("blessed") else "refused",
        "verdict": verdict.get("sentence"),
    }


def _table(shown: Shown) -> dict[str, Any]:
    headings = shown.headings()
    return {shown.title(): [dict(zip(headings, row, strict=True)) for row in shown.rows()]}
