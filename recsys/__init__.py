"""Recommenders: from raw interactions to a served model.

Importing this package is cheap and does nothing: each name is loaded when it is first used.
Keras then runs on JAX, unless it is loaded already or `KERAS_BACKEND` says otherwise.
"""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys import losses as losses
    from recsys import metrics as metrics
    from recsys import models as models
    from recsys.bundles.exporting import export
    from recsys.config import Config, RetrievalConfig, TrainConfig, TwoTowerConfig
    from recsys.config.file_option import File
    from recsys.config.load import load_config
    from recsys.data.dataset import Data, open_data
    from recsys.data.features import Feature
    from recsys.data.ingest.standalone import ingest
    from recsys.data.sources.source import Piece, RawBatch, Source
    from recsys.data.sources.text_source import TextSource
    from recsys.embedding import (
        FeatureConfig,
        Ragged,
        ShardedEmbedding,
        SparseModel,
        TableConfig,
        activate,
        table_layout,
    )
    from recsys.errors import ConfigError, RecsysError, UsageError
    from recsys.evaluation.api import compare, evaluate
    from recsys.evaluation.baselines.baseline import Baseline
    from recsys.evaluation.result import Comparison, EvaluationResult
    from recsys.losses import Loss
    from recsys.metrics.metric import Metric, RankedLists
    from recsys.models import (
        HistoryEncoder,
        RetrievalModel,
        TrainedModel,
        TwoTower,
        layers,
        load_model,
        save_model,
    )
    from recsys.models.auto import for_data
    from recsys.registry import (
        register_baseline,
        register_encoder,
        register_feature,
        register_loss,
        register_metric,
        register_model,
        register_row_optimizer,
        register_source,
    )
    from recsys.serving.recommendations import LoadedBundle, load_bundle
    from recsys.strict import Strict
    from recsys.training import Trainer, TrainingResult
    from recsys.vectors.publication import VectorPublication, publish_vectors

__version__ = "0.2.0"

__all__ = [
    "Baseline",
    "Comparison",
    "Config",
    "ConfigError",
    "Data",
    "EvaluationResult",
    "Feature",
    "FeatureConfig",
    "File",
    "HistoryEncoder",
    "LoadedBundle",
    "Loss",
    "Metric",
    "Piece",
    "Ragged",
    "RankedLists",
    "RawBatch",
    "RecsysError",
    "RetrievalConfig",
    "RetrievalModel",
    "ShardedEmbedding",
    "Source",
    "SparseModel",
    "Strict",
    "TableConfig",
    "TextSource",
    "TrainConfig",
    "TrainedModel",
    "Trainer",
    "TrainingResult",
    "TwoTower",
    "TwoTowerConfig",
    "UsageError",
    "VectorPublication",
    "activate",
    "compare",
    "evaluate",
    "export",
    "for_data",
    "ingest",
    "layers",
    "load_bundle",
    "load_config",
    "load_model",
    "losses",
    "metrics",
    "models",
    "open_data",
    "publish_vectors",
    "register_baseline",
    "register_encoder",
    "register_feature",
    "register_loss",
    "register_metric",
    "register_model",
    "register_row_optimizer",
    "register_source",
    "save_model",
    "table_layout",
]
__getattr__, __dir__ = lazy_contents(__name__, __file__)
