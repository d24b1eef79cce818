"""The retrieval pipeline: from raw files to a served two-tower model and a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfx.components.statistics_gen.component import StatisticsGen
from tfx.components.transform.component import Transform
from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.pipeline import Pipeline

from components.artifacts import Vocabularies
from components.data_gate import DataGate
from components.ingest import EntitySource, InteractionEncoder, VocabularyGen
from components.model import Exporter, Pusher, PushTarget, Reporter, RetrievalEvaluator, Trainer
from pipelines.metadata_store import connection_config
from pipelines.raw_data import LOCAL, Platform, raw_sources, step_code
from recsys.config import (
    Config,
    EvaluateStage,
    ExportStage,
    TrainStage,
    canonical_json,
    stage_of,
)
from recsys.data.ingest.read_rows import is_local, with_local_runner
from recsys.report.runs import RUNS


def create_pipeline(config: Config, platform: Platform = LOCAL) -> Pipeline:
    """Returns the pipeline of `config`.

    Args:
        config: The whole config.
        platform: Platform of the steps.

    Raises:
        RecsysError: A raw file or a schema is missing.
    """
    root, data = config.root_folder, config.data
    raw = raw_sources(config, platform)
    examples = {what: source.gen.outputs["examples"] for what, source in raw.items()}
    letters = {what: source.gen.outputs["dead_letters"] for what, source in raw.items()}
    transforms = {what: source.transform for what, source in raw.items() if source.transform}
    graphs = {
        f"{what[:-1]}_graph": step.outputs["transform_graph"] for what, step in transforms.items()
    }
    tokens = {
        f"{what[:-1]}_tokens": step.outputs["transformed_examples"]
        for what, step in transforms.items()
    }
    # Inputs of steps have the names `item_letters`, `user_letters`, ….
    input_letters = {f"{what[:-1]}_letters": channel for what, channel in letters.items()}
    gate = DataGate(
        **{f"{what[:-1]}_validation": source.validated for what, source in raw.items()},
        **input_letters,
        config=canonical_json(data.gate),
        code=step_code(),
    )
    verdict = gate.outputs["verdict"]
    for transform in transforms.values():
        transform.add_upstream_node(gate)

    parameters = {
        "config": canonical_json(data.vocabulary),
        "code": step_code(),
    }
    inputs = {**examples, "verdict": verdict}
    previous = platform.previous("PreviousVocabularies", Vocabularies, parameters, **inputs)
    vocabulary_gen = VocabularyGen(**_output(previous, "previous"), **inputs, **parameters)
    vocabularies = vocabulary_gen.outputs["vocabularies"]
    encoder = InteractionEncoder(
        **{what: channel for what, channel in examples.items() if what != "users"},
        **tokens,
        **graphs,
        vocabularies=vocabularies,
        config=canonical_json(EntitySource(items=data.items, users=data.users)),
        code=step_code(data),
    )
    data_folder = encoder.outputs["data"]

    parameters = {
        "config": canonical_json(stage_of(config, TrainStage)),
        "checkpoints": str(root / "checkpoints"),
        "code": step_code(config.model, config.train),
    }
    inputs = {"data": data_folder, "verdict": verdict}
    base = platform.warm_base(parameters, **inputs) if config.warm_start is not None else None
    trainer = Trainer(**inputs, **_output(base, "model", "base"), **parameters)
    model = trainer.outputs["model"]
    blessed = platform.latest_blessed(model)
    evaluator = RetrievalEvaluator(
        data=data_folder,
        model=model,
        blessed_model=blessed.outputs["model"],
        config=canonical_json(stage_of(config, EvaluateStage)),
        code=step_code(config.model, config.evaluate, config.bless),
    )
    evaluation = evaluator.outputs["evaluation"]
    exporter = Exporter(
        data=data_folder,
        model=model,
        evaluation=evaluation,
        **graphs,
        **{f"{what}_letters": channel for what, channel in letters.items()},
        **{f"{what}_digest": s.gen.exec_properties["files_digest"] for what, s in raw.items()},
        config=canonical_json(stage_of(config, ExportStage)),
        code=step_code(config.model),
    )
    target = PushTarget(serving_root=str(root / "serving" / config.name), keep=config.push.keep)
    pusher = Pusher(
        bundle=exporter.outputs["bundle"],
        blessing=evaluator.outputs["blessing"],
        config=canonical_json(target),
        code=step_code(),
    )
    reporter = Reporter(
        **input_letters,
        data=data_folder,
        model=model,
        evaluation=evaluation,
        bundle=exporter.outputs["bundle"],
        pushed=pusher.outputs["pushed"],
        vocabularies=vocabularies,
        verdict=verdict,
        config=canonical_json(config),
        records=str(root / RUNS),
        run_id=platform.run_id,
        code=step_code(config),
    )
    reading = [step for source in raw.values() for step in (source.gen, *source.validation)]
    steps = [*reading, gate, previous, vocabulary_gen, *transforms.values(), encoder]
    steps += [base, trainer, blessed, evaluator, exporter, pusher, reporter]
    return _pipeline(config, platform, [step for step in steps if step is not None])


def _output(node: BaseNode | None, key: str, name: str | None = None) -> dict[str, Any]:
    """Returns an output as the optional input `name`, since TFX doesn't accept None."""
    return {} if node is None else {name or key: node.outputs[key]}


def _pipeline(config: Config, platform: Platform, steps: list[BaseNode]) -> Pipeline:
    if config.beam.tfx_args is not None:
        for step in steps:
            if isinstance(step, StatisticsGen | Transform):
                step.with_beam_pipeline_args(_beam_args(config.beam.tfx_args))
    return Pipeline(
        pipeline_name=config.name,
        pipeline_root=platform.artifact_root(config.root_folder / "artifacts"),
        components=steps,
        enable_cache=platform.is_cached,
        metadata_connection_config=connection_config(config),
        beam_pipeline_args=_beam_args(config.beam.args),
    )


def _beam_args(args: Sequence[str]) -> list[str]:
    """Returns arguments of Beam, with one that saves the local runner seconds per step.

    TFX builds a wheel of itself for the workers of each step, unless a package is named. Local
    workers need none.
    """
    return [*with_local_runner(args), *(["--extra_package=none"] if is_local(args) else [])]
