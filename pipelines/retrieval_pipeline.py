"""The retrieval pipeline: from raw files to a served two-tower model and a report."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfx.components.example_validator.component import ExampleValidator
from tfx.components.schema_gen.component import SchemaGen
from tfx.components.schema_gen.import_schema_gen.component import ImportSchemaGen
from tfx.components.statistics_gen.component import StatisticsGen
from tfx.components.transform.component import Transform
from tfx.dsl.compiler.constants import PIPELINE_RUN_ID_PARAMETER_NAME
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.resolver import Resolver
from tfx.orchestration.data_types import RuntimeParameter
from tfx.orchestration.pipeline import Pipeline
from tfx.proto import transform_pb2
from tfx.types import BaseChannel

from components.artifacts import Vocabularies
from components.ingest import (
    EntityGen,
    EntitySource,
    InteractionEncoder,
    InteractionGen,
    VocabularyGen,
    VocabularySource,
)
from components.model import (
    Exporter,
    Pusher,
    PushTarget,
    RankTrainer,
    Reporter,
    RetrievalEvaluator,
    Trainer,
)
from components.resolvers import EarlierStatistics, LatestBlessed, Previous, WarmBase
from components.validation import DataGate, DriftLimits, DriftValidator
from pipelines.metadata_store import connection_config
from recsys.config import (
    Config,
    DataConfig,
    EvaluateStage,
    ExportStage,
    InteractionsConfig,
    PairStage,
    SourceConfig,
    canonical_json,
    stage_of,
)
from recsys.data.entities import EntityConfig, date_columns, feature_settings, id_column
from recsys.data.forgotten import digest_of
from recsys.data.ingest.cache import key_of
from recsys.data.ingest.engines import ENGINES, engine_args
from recsys.data.ingest.entity_rows import SPLIT, STEPS
from recsys.data.ingest.ingestion import InteractionSource
from recsys.data.ingest.landed import LANDED_FOLDER, pin_sources
from recsys.data.ingest.spans import has_spans, window_digest
from recsys.data.ingest.tasks import is_local, with_local_runner
from recsys.data.ingest.transform import PREPROCESSING_FN
from recsys.data.labels import time_columns
from recsys.data.sources.source_files import files_digest, match_files
from recsys.data.sources.tables import Table
from recsys.data.split import PLACE, TIME
from recsys.errors import RecsysError
from recsys.fingerprint import PIPELINE, code_fingerprint
from recsys.pair.config import retriever_stage
from recsys.report.runs import RUNS

# --- platforms, and the steps of raw data: reading, validation, tokens of features


class Platform:
    """The local machine with our runner.

    Attributes:
        run_id: Placeholder or value of the id of a run.
        is_cached: Whether the results of unchanged steps are reused.
        has_history: Whether all artifacts of earlier runs can be queried.
    """

    run_id: RuntimeParameter | str = RuntimeParameter(
        name=PIPELINE_RUN_ID_PARAMETER_NAME, ptype=str
    )
    is_cached = True
    has_history = True

    def artifact_root(self, folder: Path) -> str:
        """Returns the URI of the artifacts' folder."""
        return str(folder)

    def digest(self, of_now: Callable[[], str]) -> RuntimeParameter | str:
        """Returns the cache key of the raw files, whose digest `of_now` computes.

        Without a cache it is the id of the run, which reads the files anew.
        """
        return of_now() if self.is_cached else self.run_id

    def latest_blessed(self, current: BaseChannel) -> Resolver:
        """Returns the node of `LatestBlessed`, or the platform's nearest equivalent."""
        return LatestBlessed(current)

    def warm_base(self, parameters: dict[str, str], **inputs: BaseChannel) -> Resolver:
        """Returns the node of `WarmBase`, or the platform's nearest equivalent."""
        return WarmBase(parameters, **inputs)


LOCAL = Platform()


@dataclasses.dataclass(frozen=True)
class RawSource:
    """The steps of interactions, items or users.

    Attributes:
        gen: Step that reads the data.
        validation: Steps that validate it; the last one has the `Validation` artifact.
        transform: Step of the token rows; None without features.
    """

    gen: BaseNode
    validation: Sequence[BaseNode]
    transform: Transform | None = None

    @property
    def validated(self) -> BaseChannel:
        """The `Validation` artifact."""
        return self.validation[-1].outputs["validation"]


def step_code(*config: Any) -> str:
    """Returns the cache key of a step's code, including the plugins of its config."""
    return code_fingerprint(*config, packages=PIPELINE)


def raw_sources(config: Config, platform: Platform) -> dict[str, RawSource]:
    """Returns the steps of the interactions, and of the items and users that `config` has.

    Raises:
        RecsysError: A raw file or a schema is missing.
    """
    data = config.data
    if platform.is_cached:
        data = pin_sources(data, config.root_folder / LANDED_FOLDER)
    gen = _interactions(data, config, platform)
    ids = ("user_id", "item_id")
    times = (TIME.name, *time_columns(config.data.interactions))
    validation = validate(
        "interactions",
        gen.outputs["examples"],
        config,
        ids,
        (*times, PLACE.name),
        times,
        platform=platform,
    )
    sources = {"interactions": RawSource(gen, validation)}
    for what, source in data.sides.items():
        sources[what] = _entities(what, source, config, platform)
    return sources


def _interactions(data: DataConfig, config: Config, platform: Platform) -> BaseNode:
    source = InteractionSource.of(data)
    segments = config.root_folder / "segments"
    return InteractionGen(
        config=canonical_json(source),
        files_digest=platform.digest(
            lambda: _without(_rows_digest("interactions", data.interactions, segments), data.forget)
        ),
        segments=str(segments),
        code=step_code(source),
    )


def _rows_digest(what: str, source: SourceConfig, segments: Path) -> str:
    """Returns a digest of the files' contents, or of a table's snapshot."""
    if isinstance(source.format, Table):
        return key_of(source.format.snapshot())
    if isinstance(source, InteractionsConfig) and has_spans(source):
        return window_digest(source, segments)
    return files_digest(match_files(source, what))


def _without(digest: str, forget: str | None) -> str:
    """Returns a digest of files and of the users in `data.forget`."""
    return digest if forget is None else key_of(digest, *digest_of(forget))


def _entities(what: str, source: EntityConfig, config: Config, platform: Platform) -> RawSource:
    forget = config.data.forget if what == "users" else None
    gen = EntityGen(
        config=canonical_json(EntitySource.model_validate({what: source, "forget": forget})),
        files_digest=platform.digest(
            lambda: _without(_rows_digest(what, source, config.root_folder / "segments"), forget)
        ),
        code=step_code(source),
    ).with_id(STEPS[what])
    examples, ids = gen.outputs["examples"], (id_column(source), "title")
    times = date_columns(source)
    validation = validate(what, examples, config, ids, times=times, platform=platform)
    if not source.features:
        return RawSource(gen, validation)
    code = step_code(source)
    transform = Transform(
        examples=examples,
        schema=validation[1].outputs["schema"],
        preprocessing_fn=PREPROCESSING_FN,
        custom_config={**feature_settings(source), "code": code},
        splits_config=transform_pb2.SplitsConfig(analyze=[SPLIT], transform=[SPLIT]),
        disable_analyzer_cache=True,
        disable_statistics=True,
    ).with_id(f"Transform.{what.capitalize()}")
    return RawSource(gen, validation, transform)


def validate(
    what: str,
    examples: BaseChannel,
    config: Config,
    ids: Sequence[str],
    moving: Sequence[str] = (),
    times: Sequence[str] = (),
    platform: Platform = LOCAL,
) -> list[BaseNode]:
    """Returns the steps that validate `examples`: statistics, schema, anomalies, drift, skew.

    Args:
        what: `interactions`, `items` or `users`.
        examples: The data.
        config: The whole config.
        ids: Columns whose drift is measured without a limit.
        moving: Columns that are not compared, since their values change over time.
        times: Columns of seconds since 1970.
        platform: Platform of the steps.

    Raises:
        RecsysError: The config's folder of schemas lacks this one.
    """
    gate, suffix = config.data.gate, what.capitalize()
    statistics_gen = StatisticsGen(examples=examples).with_id(f"StatisticsGen.{suffix}")
    statistics = statistics_gen.outputs["statistics"]
    if gate.schema_dir is None:
        # A shape would require equally many categories in each row.
        schema_gen = SchemaGen(statistics=statistics, infer_feature_shape=False)
    else:
        file = Path(gate.schema_dir) / f"{what}.pbtxt"
        if platform.is_cached:
            file = _pinned(file, config.root_folder)
        schema_gen = ImportSchemaGen(schema_file=str(file))
    schema_gen = schema_gen.with_id(f"{type(schema_gen).__name__}.{suffix}")
    schema = schema_gen.outputs["schema"]
    validator = ExampleValidator(statistics=statistics, schema=schema)
    validator = validator.with_id(f"ExampleValidator.{suffix}")
    earlier, measures = None, {}
    if platform.has_history:
        earlier = EarlierStatistics(what, statistics)
        measures = {f"{key}_statistics": earlier.outputs[key] for key in ("accepted", "trained")}
    limits = DriftLimits(
        what=what,
        max_drift=gate.max_drift,
        max_skew=gate.max_skew,
        ids=tuple(ids),
        moving=tuple(moving),
        times=tuple(times),
    )
    drift = DriftValidator(
        statistics=statistics,
        schema=schema,
        anomalies=validator.outputs["anomalies"],
        **measures,
        config=canonical_json(limits),
        code=step_code(),
    ).with_id(f"DriftValidator.{suffix}")
    steps = (statistics_gen, schema_gen, validator, earlier, drift)
    return [step for step in steps if step is not None]


def _pinned(file: Path, root: Path) -> Path:
    """Returns a copy of a committed schema whose path changes with its content.

    The cache key of TFX's ImportSchemaGen has the path of the file, not its content, so an
    edited schema would never be read.

    Raises:
        RecsysError: The file can't be read.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        rule = f"{str(file)!r} must be a committed TFDV schema."
        cure = (
            "Write it with `recsys freeze-schema`, correct data.gate.schema_dir, or remove"
            " that key to infer the schema from the data."
        )
        raise RecsysError("R243", rule, cure, error.strerror) from None
    pinned = root / "schemas" / hashlib.sha256(content).hexdigest()[:16] / file.name
    pinned.parent.mkdir(parents=True, exist_ok=True)
    pinned.write_bytes(content)
    return pinned


# --- the whole pipeline


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

    of_ids = VocabularySource(vocabulary=data.vocabulary, interactions=data.interactions)
    parameters = {"config": canonical_json(of_ids), "code": step_code(data)}
    inputs = {**examples, "verdict": verdict}
    previous = None
    if platform.has_history:
        previous = Previous("PreviousVocabularies", Vocabularies, parameters, **inputs)
    vocabulary_gen = VocabularyGen(**_output(previous, "previous"), **inputs, **parameters)
    vocabularies = vocabulary_gen.outputs["vocabularies"]
    encoder = InteractionEncoder(
        **{what: channel for what, channel in examples.items() if what != "users"},
        **tokens,
        **graphs,
        vocabularies=vocabularies,
        config=canonical_json(
            EntitySource(
                items=data.items,
                users=data.users,
                label_after_s=data.interactions.label_after_s,
            )
        ),
        code=step_code(data),
    )
    data_folder = encoder.outputs["data"]

    first = retriever_stage(config)
    parameters = {
        "config": canonical_json(first),
        "checkpoints": str(root / "checkpoints"),
        "code": step_code(config.model, config.train),
    }
    inputs = {"data": data_folder, "verdict": verdict}
    base = platform.warm_base(parameters, **inputs) if first.warm_start is not None else None
    trainer = Trainer(**inputs, **_output(base, "model", "base"), **parameters)
    model, rank_trainer = trainer.outputs["model"], None
    if config.ranker is not None:
        rank_trainer = RankTrainer(
            **inputs,
            model=model,
            **_output(base, "model", "base"),
            config=canonical_json(stage_of(config, PairStage)),
            checkpoints=parameters["checkpoints"],
            code=step_code(config.model, config.train, config.ranker),
        )
        model = rank_trainer.outputs["pair"]
    blessed = platform.latest_blessed(model)
    evaluator = RetrievalEvaluator(
        data=data_folder,
        model=model,
        blessed_model=blessed.outputs["model"],
        **_output(blessed if platform.has_history else None, "blessing", "blessed"),
        config=canonical_json(stage_of(config, EvaluateStage)),
        code=step_code(config.model, config.ranker, config.evaluate, config.bless),
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
        code=step_code(config.model, config.ranker),
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
    steps += [base, trainer, rank_trainer, blessed, evaluator, exporter, pusher, reporter]
    return _pipeline(config, platform, [step for step in steps if step is not None])


def _output(node: BaseNode | None, key: str, name: str | None = None) -> dict[str, Any]:
    """Returns an output as the optional input `name`, since TFX doesn't accept None."""
    return {} if node is None else {name or key: node.outputs[key]}


def _pipeline(config: Config, platform: Platform, steps: list[BaseNode]) -> Pipeline:
    if not ENGINES[config.beam.runner].runs_tfx:
        for step in steps:
            if isinstance(step, StatisticsGen | Transform):
                step.with_beam_pipeline_args(_local(()))
    args = engine_args(config.beam, config.root_folder, config.data)
    return Pipeline(
        pipeline_name=config.name,
        pipeline_root=platform.artifact_root(config.root_folder / "artifacts"),
        components=steps,
        enable_cache=platform.is_cached,
        metadata_connection_config=connection_config(config),
        beam_pipeline_args=_local(args) if is_local(args) else args,
    )


def _local(args: Sequence[str]) -> list[str]:
    """Returns arguments of Beam, with one that saves the local runner seconds per step.

    TFX builds a wheel of itself for the workers of each step, unless a package is named. Local
    workers need none.
    """
    return [*with_local_runner(args), "--extra_package=none"]
