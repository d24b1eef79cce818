"""The retrieval pipeline: from raw files to a served two-tower model and a report."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfx.components.statistics_gen.component import StatisticsGen
from tfx.components.transform.component import Transform
from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.pipeline import Pipeline
from tfx.proto import transform_pb2
from tfx.types import BaseChannel

from components.artifacts import Vocabularies
from components.data_gate import DataGate
from components.entity_gen import EntityGen, EntitySource
from components.exporter import Exporter
from components.ingest.entities import SPLIT, STEPS
from components.ingest.interactions import InteractionSource
from components.interaction_encoder import InteractionEncoder
from components.interaction_gen import InteractionGen
from components.pusher import Pusher, PushTarget
from components.reporter import Reporter
from components.retrieval_evaluator import RetrievalEvaluator
from components.trainer import Trainer
from components.transform_features import PREPROCESSING_FN
from components.vocabulary_gen import VocabularyGen
from pipelines.metadata_store import connection_config
from pipelines.platforms import LOCAL, Platform
from pipelines.validation import Validated, validate
from recsys.config import (
    BeamConfig,
    Config,
    EvaluateStage,
    ExportStage,
    InteractionsConfig,
    TrainStage,
    canonical_json,
    stage_of,
)
from recsys.data.entities import EntityConfig, example_columns, id_column
from recsys.data.segments.window import has_spans, window_digest
from recsys.data.sources.files import files_digest, match_files
from recsys.fingerprint import code_fingerprint
from recsys.report.runs import RUNS

_ONE_PROCESS = "--runner=DirectRunner"


@dataclasses.dataclass(frozen=True)
class _Entities:
    """The steps of items, or of users.

    Attributes:
        gen: Reads them.
        valid: What validates them.
        transform: Makes their token rows; None where they have no features.
    """

    gen: BaseNode
    valid: Validated
    transform: Transform | None

    @property
    def steps(self) -> list[BaseNode]:
        """The steps but for Transform, which comes after the gate."""
        return [self.gen, *self.valid.steps]

    @property
    def examples(self) -> BaseChannel:
        """What was read."""
        return self.gen.outputs["examples"]

    @property
    def letters(self) -> BaseChannel:
        """What could not be."""
        return self.gen.outputs["dead_letters"]


def create_pipeline(config: Config, platform: Platform = LOCAL) -> Pipeline:
    """Returns the pipeline of `config`.

    Args:
        config: The whole config.
        platform: What runs it.

    Raises:
        RecsysError: A raw file or a schema that the config names is missing.
    """
    root = Path(config.root)
    data = config.data
    interactions = _interactions(config, platform)
    examples = interactions.outputs["examples"]
    valid = validate(
        "interactions", examples, config, ("user_id", "item_id"), ("timestamp",), platform
    )
    items = None if data.items is None else _entities("items", data.items, config, platform)
    users = None if data.users is None else _entities("users", data.users, config, platform)

    gate = DataGate(
        interaction_validation=valid.validation,
        interaction_letters=interactions.outputs["dead_letters"],
        **_given(
            item_validation=items and items.valid.validation,
            item_letters=items and items.letters,
            user_validation=users and users.valid.validation,
            user_letters=users and users.letters,
        ),
        config=canonical_json(data.gate),
        code=code_fingerprint("components.data_gate"),
    )
    verdict = gate.outputs["verdict"]
    known = _given(items=items and items.examples, users=users and users.examples)
    known |= {"interactions": examples, "verdict": verdict}
    previous, vocabularies = _vocabularies(config, platform, **known)
    transforms = [side.transform for side in (items, users) if side and side.transform]
    for transform in transforms:
        transform.add_upstream_node(gate)
    item_graph, item_tokens = _transformed(items)
    user_graph, user_tokens = _transformed(users)
    encoder = InteractionEncoder(
        interactions=examples,
        vocabularies=vocabularies.outputs["vocabularies"],
        **_given(
            items=items and items.examples,
            item_tokens=item_tokens,
            item_graph=item_graph,
            user_tokens=user_tokens,
            user_graph=user_graph,
        ),
        config=canonical_json(EntitySource(items=data.items, users=data.users)),
        code=code_fingerprint("components.interaction_encoder"),
    )
    trained_on = {"data": encoder.outputs["data"], "verdict": verdict}
    warm_base, trainer = _trainer(config, platform, **trained_on)
    blessed = platform.latest_blessed(trainer.outputs["model"])
    evaluator = RetrievalEvaluator(
        model=trainer.outputs["model"],
        data=encoder.outputs["data"],
        blessed_model=blessed.outputs["model"],
        config=canonical_json(stage_of(config, EvaluateStage)),
        code=code_fingerprint("components.retrieval_evaluator", "recsys.evaluate"),
    )
    exporter = Exporter(
        model=trainer.outputs["model"],
        data=encoder.outputs["data"],
        **_given(item_graph=item_graph, user_graph=user_graph),
        **_told(interactions=interactions, items=items and items.gen, users=users and users.gen),
        evaluation=evaluator.outputs["evaluation"],
        config=canonical_json(stage_of(config, ExportStage)),
        code=code_fingerprint("components.exporter", "recsys.export"),
    )
    pusher = Pusher(
        bundle=exporter.outputs["bundle"],
        blessing=evaluator.outputs["blessing"],
        config=canonical_json(
            PushTarget(serving_root=str(root / "serving" / config.name), keep=config.push.keep)
        ),
        code=code_fingerprint("components.pusher"),
    )
    reporter = Reporter(
        interaction_letters=interactions.outputs["dead_letters"],
        **_given(item_letters=items and items.letters, user_letters=users and users.letters),
        verdict=verdict,
        vocabularies=vocabularies.outputs["vocabularies"],
        data=encoder.outputs["data"],
        model=trainer.outputs["model"],
        evaluation=evaluator.outputs["evaluation"],
        bundle=exporter.outputs["bundle"],
        pushed=pusher.outputs["pushed"],
        config=canonical_json(config),
        records=str(root / RUNS),
        run_id=platform.run_id,
        code=code_fingerprint("components.reporter"),
    )
    read = [interactions, *valid.steps, *(s for side in (items, users) if side for s in side.steps)]
    encoded = [gate, *previous, vocabularies, *transforms, encoder]
    trained = [*warm_base, trainer]
    steps = [*read, *encoded, *trained, blessed, evaluator, exporter, pusher, reporter]
    _set_beam_args(steps, config.beam)
    return Pipeline(
        pipeline_name=config.name,
        pipeline_root=platform.artifact_root(root / "artifacts"),
        components=steps,
        enable_cache=platform.is_cached,
        metadata_connection_config=connection_config(config),
        beam_pipeline_args=_beam_args(config.beam.args),
    )


def _interactions(config: Config, platform: Platform) -> BaseNode:
    """Returns the step that reads the interactions."""
    data = config.data
    source = InteractionSource(interactions=data.interactions, eval_share=data.eval_share)
    if has_spans(data.interactions):
        share = data.gate.max_rejected_share
        source = source.model_copy(update={"max_rejected_share": share})
    segments = Path(config.root) / "segments"
    return InteractionGen(
        config=canonical_json(source),
        files_digest=platform.digest(lambda: _interactions_digest(data.interactions, segments)),
        segments=str(segments),
        code=code_fingerprint("components.interaction_gen"),
    )


def _entities(what: str, source: EntityConfig, config: Config, platform: Platform) -> _Entities:
    """Returns the steps of `items` or of `users`."""
    gen = EntityGen(
        config=canonical_json(EntitySource.model_validate({what: source})),
        files_digest=platform.digest(lambda: files_digest(match_files(source, what))),
        code=code_fingerprint("components.entity_gen"),
    ).with_id(STEPS[what])
    examples = gen.outputs["examples"]
    valid = validate(what, examples, config, (id_column(source), "title"), (), platform)
    transform = _transform(what, source, examples, valid.schema) if source.features else None
    return _Entities(gen, valid, transform)


def _transform(
    what: str, source: EntityConfig, examples: BaseChannel, schema: BaseChannel
) -> Transform:
    """Returns the step that turns raw columns into token rows."""
    columns = example_columns(source)
    features = [
        {"column": columns[feature.name], "feature": json.loads(canonical_json(feature))}
        for feature in source.features
    ]
    code = code_fingerprint("components.transform_features")
    return Transform(
        examples=examples,
        schema=schema,
        preprocessing_fn=PREPROCESSING_FN,
        custom_config={"id": id_column(source), "features": features, "code": code},
        splits_config=transform_pb2.SplitsConfig(analyze=[SPLIT], transform=[SPLIT]),
        disable_analyzer_cache=True,
        disable_statistics=True,
    ).with_id(f"Transform.{what.capitalize()}")


def _transformed(side: _Entities | None) -> tuple[BaseChannel | None, BaseChannel | None]:
    """Returns the graph and the token rows of a side that has features."""
    if side is None or side.transform is None:
        return None, None
    outputs = side.transform.outputs
    return outputs["transform_graph"], outputs["transformed_examples"]


def _vocabularies(
    config: Config, platform: Platform, **inputs: BaseChannel
) -> tuple[list[BaseNode], BaseNode]:
    """Returns the step that gives ids their rows, and what finds those that it goes on from."""
    parameters = {
        "config": canonical_json(config.data.vocabulary),
        "code": code_fingerprint("components.vocabulary_gen"),
    }
    previous = platform.previous("PreviousVocabularies", Vocabularies, parameters, **inputs)
    if previous is None:
        return [], VocabularyGen(**inputs, **parameters)
    vocabularies = VocabularyGen(previous=previous.outputs["previous"], **inputs, **parameters)
    return [previous], vocabularies


def _interactions_digest(source: InteractionsConfig, segments: Path) -> str:
    """Returns a digest of what the files hold; of a query nobody knows what it will return."""
    if source.query is not None:
        return f"asked at {dt.datetime.now(dt.UTC).isoformat()}"
    if has_spans(source):
        return window_digest(source, segments)
    return files_digest(match_files(source, "interactions"))


def _trainer(
    config: Config, platform: Platform, **inputs: BaseChannel
) -> tuple[list[BaseNode], BaseNode]:
    """Returns the step that trains, and what finds the model that it goes on from, if any."""
    parameters = {
        "config": canonical_json(stage_of(config, TrainStage)),
        "checkpoints": str(Path(config.root) / "checkpoints"),
        "code": code_fingerprint("components.trainer", "recsys.train"),
    }
    if config.warm_start is None:
        return [], Trainer(**inputs, **parameters)
    base = platform.warm_base(parameters, **inputs)
    return [base], Trainer(**inputs, base=base.outputs["model"], **parameters)


def _told(**readers: BaseNode | None) -> dict[str, Any]:
    """Returns what the bundle tells of its raw data, by the steps that read it."""
    told: dict[str, Any] = {}
    for what, reader in readers.items():
        if reader is not None:
            told[f"{what}_letters"] = reader.outputs["dead_letters"]
            told[f"{what}_digest"] = reader.exec_properties["files_digest"]
    return told


def _given(**channels: BaseChannel | None) -> dict[str, Any]:
    """Returns those that are there: TFX takes no None for an optional input."""
    return {name: channel for name, channel in channels.items() if channel is not None}


def _set_beam_args(steps: list[BaseNode], beam: BeamConfig) -> None:
    """Gives TFX's own Beam steps their arguments, where they have other ones."""
    for step in steps:
        if beam.tfx_args is not None and isinstance(step, StatisticsGen | Transform):
            step.with_beam_pipeline_args(_beam_args(beam.tfx_args))


def _beam_args(args: Sequence[str]) -> list[str]:
    """Returns arguments of Beam, with what spares the runner of one process seconds a step.

    For each step with Beam, TFX packs itself as a wheel for the workers, unless some
    package is named. Workers inside this process need none, and look for none.
    """
    return [*args, "--extra_package=none"] if list(args) == [_ONE_PROCESS] else list(args)
