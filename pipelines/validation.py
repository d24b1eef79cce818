"""The steps that validate one kind of data: statistics, schema, anomalies, drift, skew."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tfx.components.example_validator.component import ExampleValidator
from tfx.components.schema_gen.component import SchemaGen
from tfx.components.schema_gen.import_schema_gen.component import ImportSchemaGen
from tfx.components.statistics_gen.component import StatisticsGen
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.resolver import Resolver
from tfx.types import BaseChannel

from components.drift_validator import DriftLimits, DriftValidator
from pipelines.platforms import LOCAL, Platform
from recsys.config import Config, canonical_json
from recsys.fingerprint import code_fingerprint


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
