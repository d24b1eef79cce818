"""The part of the pipeline that reads raw data, looks at it, and decides whether it will do."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfx.components.example_validator.component import ExampleValidator
from tfx.components.schema_gen.component import SchemaGen
from tfx.components.schema_gen.import_schema_gen.component import ImportSchemaGen
from tfx.components.statistics_gen.component import StatisticsGen
from tfx.components.transform.component import Transform
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.resolver import Resolver
from tfx.proto import transform_pb2
from tfx.types import BaseChannel

from components.data_gate import DataGate
from components.drift_validator import DriftLimits, DriftValidator
from components.entity_gen import EntityGen, EntitySource
from components.interaction_gen import InteractionGen
from pipelines.platforms import LOCAL, Platform
from recsys.config import Config, InteractionsConfig, canonical_json
from recsys.data.entities import EntityConfig, feature_settings, id_column
from recsys.data.event_times import PLACE, TIME
from recsys.data.ingest.entity_rows import SPLIT, STEPS
from recsys.data.ingest.feature_graph import PREPROCESSING_FN
from recsys.data.ingest.ingestion import InteractionSource
from recsys.data.ingest.window import has_spans, window_digest
from recsys.data.sources.files import files_digest, match_files
from recsys.fingerprint import code_fingerprint


@dataclasses.dataclass(frozen=True)
class Side:
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


@dataclasses.dataclass(frozen=True)
class RawData:
    """The steps that read and judge everything.

    Attributes:
        interactions: Reads the interactions.
        valid: What validates them.
        items: The steps of the items; None where there is no file of them.
        users: The same of the users.
        gate: Decides whether the data will do.
    """

    interactions: BaseNode
    valid: Validated
    items: Side | None
    users: Side | None
    gate: BaseNode

    @property
    def steps(self) -> list[BaseNode]:
        """The steps up to the gate, in order."""
        sides = [step for side in (self.items, self.users) if side for step in side.steps]
        return [self.interactions, *self.valid.steps, *sides, self.gate]

    @property
    def transforms(self) -> list[Transform]:
        """The steps that make token rows, which come after the gate."""
        return [side.transform for side in (self.items, self.users) if side and side.transform]

    @property
    def verdict(self) -> BaseChannel:
        """What the gate decided."""
        return self.gate.outputs["verdict"]

    @property
    def examples(self) -> dict[str, BaseChannel]:
        """What was read, by source."""
        return present(
            items=self.items and self.items.examples,
            users=self.users and self.users.examples,
            interactions=self.interactions.outputs["examples"],
        )

    @property
    def letters(self) -> dict[str, BaseChannel]:
        """What could not be read, by the names of the inputs that take it."""
        return _letters(self.interactions, self.items, self.users)

    @property
    def graphs(self) -> dict[str, BaseChannel]:
        """The graphs of the features, by the names of the inputs that take them."""
        return present(
            item_graph=_of_features(self.items, "transform_graph"),
            user_graph=_of_features(self.users, "transform_graph"),
        )

    @property
    def tokens(self) -> dict[str, BaseChannel]:
        """The token rows, by the names of the inputs that take them."""
        return present(
            item_tokens=_of_features(self.items, "transformed_examples"),
            user_tokens=_of_features(self.users, "transformed_examples"),
        )

    @property
    def origin(self) -> dict[str, Any]:
        """What a bundle records of its raw data, by the inputs of the exporter."""
        inputs: dict[str, Any] = {}
        readers = {
            "interactions": self.interactions,
            "items": self.items and self.items.gen,
            "users": self.users and self.users.gen,
        }
        for what, reader in readers.items():
            if reader is not None:
                inputs[f"{what}_letters"] = reader.outputs["dead_letters"]
                inputs[f"{what}_digest"] = reader.exec_properties["files_digest"]
        return inputs


def read_raw(config: Config, platform: Platform) -> RawData:
    """Returns the steps that read and judge the raw data of `config`.

    Raises:
        RecsysError: A raw file or a schema that the config names is missing.
    """
    data = config.data
    interactions = _interactions(config, platform)
    examples = interactions.outputs["examples"]
    ids, moving = ("user_id", "item_id"), (TIME.name, PLACE.name)
    valid = validate("interactions", examples, config, ids, moving, platform)
    items = None if data.items is None else _entities("items", data.items, config, platform)
    users = None if data.users is None else _entities("users", data.users, config, platform)
    gate = DataGate(
        interaction_validation=valid.validation,
        **present(
            item_validation=items and items.valid.validation,
            user_validation=users and users.valid.validation,
        ),
        **_letters(interactions, items, users),
        config=canonical_json(data.gate),
        code=code_fingerprint("components.data_gate"),
    )
    raw = RawData(interactions, valid, items, users, gate)
    for transform in raw.transforms:
        transform.add_upstream_node(gate)
    return raw


def present(**channels: BaseChannel | None) -> dict[str, Any]:
    """Returns the channels that are not None, which TFX takes for no optional input."""
    return {name: channel for name, channel in channels.items() if channel is not None}


def _letters(
    interactions: BaseNode, items: Side | None, users: Side | None
) -> dict[str, BaseChannel]:
    return {
        "interaction_letters": interactions.outputs["dead_letters"],
        **present(item_letters=items and items.letters, user_letters=users and users.letters),
    }


def _of_features(side: Side | None, output: str) -> BaseChannel | None:
    """Returns an output of the features of a side, if it has any."""
    if side is None or side.transform is None:
        return None
    return side.transform.outputs[output]


def _interactions(config: Config, platform: Platform) -> BaseNode:
    """Returns the step that reads the interactions."""
    data = config.data
    source = InteractionSource(
        interactions=data.interactions, eval_share=data.eval_share, split=data.split
    )
    if has_spans(data.interactions):
        share = data.gate.max_rejected_share
        source = source.model_copy(update={"max_rejected_share": share})
    segments = Path(config.root) / "segments"
    return InteractionGen(
        config=canonical_json(source),
        files_digest=platform.digest(lambda: _interactions_digest(data.interactions, segments)),
        segments=str(segments),
        code=code_fingerprint("components.interaction_gen", config=[source]),
    )


def _entities(what: str, source: EntityConfig, config: Config, platform: Platform) -> Side:
    """Returns the steps of `items` or of `users`."""
    gen = EntityGen(
        config=canonical_json(EntitySource.model_validate({what: source})),
        files_digest=platform.digest(lambda: files_digest(match_files(source, what))),
        code=code_fingerprint("components.entity_gen", config=[source]),
    ).with_id(STEPS[what])
    examples = gen.outputs["examples"]
    valid = validate(what, examples, config, (id_column(source), "title"), (), platform)
    transform = _transform(what, source, examples, valid.schema) if source.features else None
    return Side(gen, valid, transform)


def _transform(
    what: str, source: EntityConfig, examples: BaseChannel, schema: BaseChannel
) -> Transform:
    """Returns the step that turns raw columns into token rows."""
    code = code_fingerprint("recsys.data.ingest.feature_graph", config=[source])
    return Transform(
        examples=examples,
        schema=schema,
        preprocessing_fn=PREPROCESSING_FN,
        custom_config={**feature_settings(source), "code": code},
        splits_config=transform_pb2.SplitsConfig(analyze=[SPLIT], transform=[SPLIT]),
        disable_analyzer_cache=True,
        disable_statistics=True,
    ).with_id(f"Transform.{what.capitalize()}")


def _interactions_digest(source: InteractionsConfig, segments: Path) -> str:
    """Returns a digest of what the files hold; of a query nobody knows what it will return."""
    if source.query is not None:
        return f"asked at {dt.datetime.now(dt.UTC).isoformat()}"
    if has_spans(source):
        return window_digest(source, segments)
    return files_digest(match_files(source, "interactions"))


# --- the steps that validate one kind of data: statistics, schema, anomalies, drift, skew


@dataclasses.dataclass(frozen=True)
class Validated:
    """What validates one kind of data.

    Attributes:
        steps: The steps, in their order.
        schema: The schema, committed or inferred.
        validation: The `Validation` artifact, for the gate and the report.
    """

    steps: list[BaseNode]
    schema: BaseChannel
    validation: BaseChannel


def validate(
    what: str,
    examples: BaseChannel,
    config: Config,
    ids: Sequence[str],
    moving: Sequence[str] = (),
    platform: Platform = LOCAL,
) -> Validated:
    """Returns the steps that validate `examples`.

    Args:
        what: `interactions`, `items` or `users`.
        examples: The data.
        config: The whole config.
        ids: Columns whose drift is measured without a limit.
        moving: Columns that are not compared, as their values move with time.
        platform: What runs the steps.

    Raises:
        RecsysError: The config names a folder of schemas that lacks this one.
    """
    suffix = what.capitalize()
    statistics_gen = StatisticsGen(examples=examples).with_id(f"StatisticsGen.{suffix}")
    statistics = statistics_gen.outputs["statistics"]
    schema = _schema(what, statistics, config, platform)
    validator = ExampleValidator(statistics=statistics, schema=schema.outputs["schema"]).with_id(
        f"ExampleValidator.{suffix}"
    )
    earlier = platform.earlier_statistics(what, statistics)
    limits = DriftLimits(
        what=what,
        max_drift=config.data.gate.max_drift,
        max_skew=config.data.gate.max_skew,
        ids=tuple(ids),
        moving=tuple(moving),
    )
    drift = DriftValidator(
        statistics=statistics,
        schema=schema.outputs["schema"],
        anomalies=validator.outputs["anomalies"],
        **_earlier_inputs(earlier),
        config=canonical_json(limits),
        code=code_fingerprint("components.drift_validator"),
    ).with_id(f"DriftValidator.{suffix}")
    steps = [statistics_gen, schema, validator, *([earlier] if earlier else []), drift]
    return Validated(steps, schema.outputs["schema"], drift.outputs["validation"])


def _earlier_inputs(earlier: Resolver | None) -> dict[str, BaseChannel]:
    """Returns the statistics that today's are compared with, as inputs."""
    if earlier is None:
        return {}
    return {f"{key}_statistics": earlier.outputs[key] for key in ("accepted", "trained")}


def _schema(
    what: str, statistics: BaseChannel, config: Config, platform: Platform
) -> SchemaGen | ImportSchemaGen:
    """Returns the step that infers the schema, or that reads the committed one."""
    suffix, folder = what.capitalize(), config.data.gate.schema_dir
    if folder is None:
        # A shape would be read as a promise: equally many categories in each row, for ever.
        schema_gen = SchemaGen(statistics=statistics, infer_feature_shape=False)
        return schema_gen.with_id(f"SchemaGen.{suffix}")
    file = platform.schema_file(Path(folder) / f"{what}.pbtxt", Path(config.root))
    return ImportSchemaGen(schema_file=str(file)).with_id(f"ImportSchemaGen.{suffix}")
