"""The retrieval pipeline: from raw files to a served two-tower model and a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfx.components.statistics_gen.component import StatisticsGen
from tfx.components.transform.component import Transform
from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.pipeline import Pipeline
from tfx.types import BaseChannel

from components.artifacts import Vocabularies
from components.entity_gen import EntitySource
from components.exporter import Exporter
from components.interaction_encoder import InteractionEncoder
from components.pusher import Pusher, PushTarget
from components.reporter import Reporter
from components.retrieval_evaluator import RetrievalEvaluator
from components.trainer import Trainer
from components.vocabulary_gen import VocabularyGen
from pipelines.metadata_store import connection_config
from pipelines.platforms import LOCAL, Platform
from pipelines.raw_data import RawData, read_raw
from recsys.config import (
    Config,
    EvaluateStage,
    ExportStage,
    TrainStage,
    canonical_json,
    stage_of,
)
from recsys.fingerprint import code_fingerprint
from recsys.report.runs import RUNS

_ONE_PROCESS = "--runner=DirectRunner"


def create_pipeline(config: Config, platform: Platform = LOCAL) -> Pipeline:
    """Returns the pipeline of `config`.

    Args:
        config: The whole config.
        platform: What runs it.

    Raises:
        RecsysError: A raw file or a schema that the config names is missing.
    """
    raw = read_raw(config, platform)
    previous, vocabularies = _vocabularies(config, platform, raw)
    encoder = _encoder(config, raw, vocabularies)
    data = encoder.outputs["data"]
    warm_base, trainer = _trainer(config, platform, data=data, verdict=raw.verdict)
    made = {"data": data, "model": trainer.outputs["model"]}
    blessed = platform.latest_blessed(made["model"])
    evaluator = RetrievalEvaluator(
        **made,
        blessed_model=blessed.outputs["model"],
        config=canonical_json(stage_of(config, EvaluateStage)),
        code=code_fingerprint(
            "components.retrieval_evaluator",
            "recsys.evaluation.stage",
            config=[config.model, config.evaluate, config.bless],
        ),
    )
    made["evaluation"] = evaluator.outputs["evaluation"]
    exporter = Exporter(
        **made,
        **raw.graphs,
        **raw.origin,
        config=canonical_json(stage_of(config, ExportStage)),
        code=code_fingerprint(
            "components.exporter", "recsys.bundles.export", config=[config.model]
        ),
    )
    made["bundle"] = exporter.outputs["bundle"]
    pusher = _pusher(config, bundle=made["bundle"], blessing=evaluator.outputs["blessing"])
    made["pushed"] = pusher.outputs["pushed"]
    made["vocabularies"] = vocabularies.outputs["vocabularies"]
    reporter = _reporter(config, platform, raw, **made)
    steps = [*raw.steps, *previous, vocabularies, *raw.transforms, encoder, *warm_base, trainer]
    steps += [blessed, evaluator, exporter, pusher, reporter]
    return _pipeline(config, platform, steps)


def _pipeline(config: Config, platform: Platform, steps: list[BaseNode]) -> Pipeline:
    """Returns the pipeline of some steps."""
    if config.beam.tfx_args is not None:
        for step in steps:
            if isinstance(step, StatisticsGen | Transform):
                step.with_beam_pipeline_args(_beam_args(config.beam.tfx_args))
    return Pipeline(
        pipeline_name=config.name,
        pipeline_root=platform.artifact_root(Path(config.root) / "artifacts"),
        components=steps,
        enable_cache=platform.is_cached,
        metadata_connection_config=connection_config(config),
        beam_pipeline_args=_beam_args(config.beam.args),
    )


def _encoder(config: Config, raw: RawData, vocabularies: BaseNode) -> BaseNode:
    """Returns the step that writes the data folder."""
    examples = {name: channel for name, channel in raw.examples.items() if name != "users"}
    return InteractionEncoder(
        **examples,
        **raw.tokens,
        **raw.graphs,
        vocabularies=vocabularies.outputs["vocabularies"],
        config=canonical_json(EntitySource(items=config.data.items, users=config.data.users)),
        code=code_fingerprint("components.interaction_encoder", config=[config.data]),
    )


def _vocabularies(
    config: Config, platform: Platform, raw: RawData
) -> tuple[list[BaseNode], BaseNode]:
    """Returns the step that gives ids their rows, and what finds those that it goes on from."""
    parameters = {
        "config": canonical_json(config.data.vocabulary),
        "code": code_fingerprint("components.vocabulary_gen"),
    }
    inputs = {**raw.examples, "verdict": raw.verdict}
    previous = platform.previous("PreviousVocabularies", Vocabularies, parameters, **inputs)
    if previous is None:
        return [], VocabularyGen(**inputs, **parameters)
    vocabularies = VocabularyGen(previous=previous.outputs["previous"], **inputs, **parameters)
    return [previous], vocabularies


def _trainer(
    config: Config, platform: Platform, **inputs: BaseChannel
) -> tuple[list[BaseNode], BaseNode]:
    """Returns the step that trains, and what finds the model that it goes on from, if any."""
    parameters = {
        "config": canonical_json(stage_of(config, TrainStage)),
        "checkpoints": str(Path(config.root) / "checkpoints"),
        "code": code_fingerprint(
            "components.trainer", "recsys.train", config=[config.model, config.train]
        ),
    }
    if config.warm_start is None:
        return [], Trainer(**inputs, **parameters)
    base = platform.warm_base(parameters, **inputs)
    return [base], Trainer(**inputs, base=base.outputs["model"], **parameters)


def _pusher(config: Config, **inputs: BaseChannel) -> BaseNode:
    """Returns the step that puts a blessed bundle into service."""
    serving = Path(config.root) / "serving" / config.name
    target = PushTarget(serving_root=str(serving), keep=config.push.keep)
    code = code_fingerprint("components.pusher")
    return Pusher(**inputs, config=canonical_json(target), code=code)


def _reporter(config: Config, platform: Platform, raw: RawData, **inputs: BaseChannel) -> BaseNode:
    """Returns the step that writes the report."""
    return Reporter(
        **raw.letters,
        **inputs,
        verdict=raw.verdict,
        config=canonical_json(config),
        records=str(Path(config.root) / RUNS),
        run_id=platform.run_id,
        code=code_fingerprint("components.reporter", config=[config]),
    )


def _beam_args(args: Sequence[str]) -> list[str]:
    """Returns arguments of Beam, with what spares the runner of one process seconds a step.

    For each step with Beam, TFX packs itself as a wheel for the workers, unless some
    package is named. Workers inside this process need none, and look for none.
    """
    return [*args, "--extra_package=none"] if list(args) == [_ONE_PROCESS] else list(args)
