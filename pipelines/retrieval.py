"""The retrieval pipeline: from raw files to a served two-tower model and a report."""

from __future__ import annotations

import json
from pathlib import Path

from tfx.components.transform.component import Transform
from tfx.orchestration import metadata
from tfx.orchestration.pipeline import Pipeline
from tfx.proto import transform_pb2
from tfx.types import BaseChannel

from components import item_gen
from components.data_gate import DataGate
from components.exporter import Exporter
from components.interaction_encoder import InteractionEncoder
from components.interaction_gen import InteractionGen, InteractionSource
from components.item_gen import ItemGen
from components.latest_blessed import LatestBlessed
from components.pusher import Pusher, PushTarget
from components.reporter import Reporter
from components.retrieval_evaluator import RetrievalEvaluator
from components.trainer import Trainer
from components.transform_items import PREPROCESSING_FN
from components.vocabulary_gen import VocabularyGen
from pipelines.validation import validate
from recsys.config import Config, EvaluateStage, ExportStage, TrainStage, canonical_json, stage_of
from recsys.data.csv_source import match_files
from recsys.data.items import example_column
from recsys.fingerprint import code_fingerprint, files_fingerprint


def create_pipeline(config: Config) -> Pipeline:
    """Returns the pipeline of `config`.

    Raises:
        RecsysError: A raw file or a schema that the config names is missing.
    """
    root = Path(config.root)
    data = config.data
    source = InteractionSource(interactions=data.interactions, eval_share=data.eval_share)

    interactions = InteractionGen(
        config=canonical_json(source),
        files_digest=_files_digest(data.interactions.files, "interactions"),
        code=code_fingerprint("components.interaction_gen"),
    )
    items = ItemGen(
        config=canonical_json(data.items),
        files_digest=_files_digest(data.items.files, "items"),
        code=code_fingerprint("components.item_gen"),
    )
    valid_interactions = validate(
        "interactions",
        interactions.outputs["examples"],
        config,
        ids=("user_id", "item_id"),
        moving=("timestamp",),
    )
    valid_items = validate("items", items.outputs["examples"], config, ids=("item_id", "title"))
    gate = DataGate(
        interaction_validation=valid_interactions.validation,
        item_validation=valid_items.validation,
        interaction_letters=interactions.outputs["dead_letters"],
        item_letters=items.outputs["dead_letters"],
        config=canonical_json(data.gate),
        code=code_fingerprint("components.data_gate"),
    )
    vocabularies = VocabularyGen(
        interactions=interactions.outputs["examples"],
        items=items.outputs["examples"],
        verdict=gate.outputs["verdict"],
        code=code_fingerprint("components.vocabulary_gen"),
    )
    transform = _transform(config, items.outputs["examples"], valid_items.schema)
    transform.add_upstream_node(gate)
    encoder = InteractionEncoder(
        interactions=interactions.outputs["examples"],
        items=items.outputs["examples"],
        transformed_items=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        vocabularies=vocabularies.outputs["vocabularies"],
        config=canonical_json(data.items),
        code=code_fingerprint("components.interaction_encoder"),
    )
    trainer = Trainer(
        data=encoder.outputs["data"],
        verdict=gate.outputs["verdict"],
        config=canonical_json(stage_of(config, TrainStage)),
        code=code_fingerprint("components.trainer", "recsys.train"),
    )
    blessed = LatestBlessed(trainer.outputs["model"])
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
        transform_graph=transform.outputs["transform_graph"],
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
        item_letters=items.outputs["dead_letters"],
        data=encoder.outputs["data"],
        model=trainer.outputs["model"],
        evaluation=evaluator.outputs["evaluation"],
        bundle=exporter.outputs["bundle"],
        pushed=pusher.outputs["pushed"],
        config=canonical_json(config),
        code=code_fingerprint("components.reporter"),
    )
    steps = [interactions, items, *valid_interactions.steps, *valid_items.steps, gate]
    steps += [vocabularies, transform, encoder, trainer, blessed, evaluator]
    return Pipeline(
        pipeline_name=config.name,
        pipeline_root=str(root / "artifacts"),
        components=[*steps, exporter, pusher, reporter],
        enable_cache=True,
        metadata_connection_config=metadata.sqlite_metadata_connection_config(
            str(root / "metadata.sqlite")
        ),
        beam_pipeline_args=list(config.beam.args),
    )


def _files_digest(pattern: str, what: str) -> str:
    return files_fingerprint(match_files(pattern, what))


def _transform(config: Config, items: BaseChannel, schema: BaseChannel) -> Transform:
    """Returns the step that turns the items' raw columns into token rows."""
    source = config.data.items
    features = [
        {
            "column": example_column(source, feature.column),
            "feature": json.loads(canonical_json(feature)),
        }
        for feature in source.features
    ]
    code = code_fingerprint("components.transform_items")
    return Transform(
        examples=items,
        schema=schema,
        preprocessing_fn=PREPROCESSING_FN,
        custom_config={"features": features, "code": code},
        splits_config=transform_pb2.SplitsConfig(
            analyze=[item_gen.SPLIT], transform=[item_gen.SPLIT]
        ),
        disable_analyzer_cache=True,
        disable_statistics=True,
    )
