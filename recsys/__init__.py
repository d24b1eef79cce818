"""Recommenders: from raw interactions to a served model.

Importing this package is cheap and does nothing: each name is loaded when it is first used.
Keras then runs on JAX, unless it is loaded already or `KERAS_BACKEND` says otherwise.
"""

from typing import TYPE_CHECKING

from recsys.system.installation import VERSION
from recsys.system.lean_imports import lazy_contents

if TYPE_CHECKING:
    from recsys import losses as losses
    from recsys import metrics as metrics
    from recsys import models as models
    from recsys.config import Config as Config
    from recsys.config import ModelConfig as ModelConfig
    from recsys.config import RankingConfig as RankingConfig
    from recsys.config import RetrievalConfig as RetrievalConfig
    from recsys.config import TermConfig as TermConfig
    from recsys.config import TrainConfig as TrainConfig
    from recsys.config import TwoTowerConfig as TwoTowerConfig
    from recsys.config.load import load_config as load_config
    from recsys.data.dataset import Data as Data
    from recsys.data.dataset import open_data as open_data
    from recsys.data.event_features import EventFeature as EventFeature
    from recsys.data.features import Feature as Feature
    from recsys.data.sources.source import Piece as Piece
    from recsys.data.sources.source import RawBatch as RawBatch
    from recsys.data.sources.source import Source as Source
    from recsys.data.sources.text_source import TextSource as TextSource
    from recsys.embedding import FeatureConfig as FeatureConfig
    from recsys.embedding import Ragged as Ragged
    from recsys.embedding import ShardedEmbedding as ShardedEmbedding
    from recsys.embedding import SparseModel as SparseModel
    from recsys.embedding import TableConfig as TableConfig
    from recsys.embedding import activate as activate
    from recsys.embedding import table_layout as table_layout
    from recsys.errors import ConfigError as ConfigError
    from recsys.errors import RecsysError as RecsysError
    from recsys.errors import UsageError as UsageError
    from recsys.evaluation.api import compare as compare
    from recsys.evaluation.api import evaluate as evaluate
    from recsys.evaluation.result import Comparison as Comparison
    from recsys.evaluation.result import EvaluationResult as EvaluationResult
    from recsys.losses import Loss as Loss
    from recsys.losses import ScoreLoss as ScoreLoss
    from recsys.metrics import Metric as Metric
    from recsys.metrics import RankedLists as RankedLists
    from recsys.models import HistoryEncoder as HistoryEncoder
    from recsys.models import LookupModel as LookupModel
    from recsys.models import RankingModel as RankingModel
    from recsys.models import RetrievalModel as RetrievalModel
    from recsys.models import Term as Term
    from recsys.models import TwoTower as TwoTower
    from recsys.models import layers as layers
    from recsys.registry import register_baseline as register_baseline
    from recsys.registry import register_encoder as register_encoder
    from recsys.registry import register_event_feature as register_event_feature
    from recsys.registry import register_feature as register_feature
    from recsys.registry import register_loss as register_loss
    from recsys.registry import register_metric as register_metric
    from recsys.registry import register_model as register_model
    from recsys.registry import register_row_optimizer as register_row_optimizer
    from recsys.registry import register_source as register_source
    from recsys.registry import register_task as register_task
    from recsys.registry import register_term as register_term
    from recsys.registry.file_option import File as File
    from recsys.report.figures import plot_metrics as plot_metrics
    from recsys.serving.recommendations import LoadedBundle as LoadedBundle
    from recsys.serving.recommendations import load_bundle as load_bundle
    from recsys.stages.export import export as export
    from recsys.stages.ingest import ingest as ingest
    from recsys.strict import Strict as Strict
    from recsys.tasks.judging_side import Baseline as Baseline
    from recsys.tasks.model_folder import TrainedModel as TrainedModel
    from recsys.tasks.model_folder import load_model as load_model
    from recsys.tasks.model_folder import save_model as save_model
    from recsys.tasks.retrieval.training.auto import for_data as for_data
    from recsys.training.trainer import Trainer as Trainer
    from recsys.training.training_result import TrainingResult as TrainingResult
    from recsys.vectors import VectorPublication as VectorPublication
    from recsys.vectors import publish_vectors as publish_vectors

__version__ = VERSION

_NAMES = {
    "recsys.config": (
        "Config ModelConfig RankingConfig RetrievalConfig TermConfig TrainConfig TwoTowerConfig"
    ),
    "recsys.config.load": "load_config",
    "recsys.data.dataset": "Data open_data",
    "recsys.data.event_features": "EventFeature",
    "recsys.data.features": "Feature",
    "recsys.data.sources.source": "Piece RawBatch Source",
    "recsys.data.sources.text_source": "TextSource",
    "recsys.embedding": (
        "FeatureConfig Ragged ShardedEmbedding SparseModel TableConfig activate table_layout"
    ),
    "recsys.errors": "ConfigError RecsysError UsageError",
    "recsys.evaluation.api": "compare evaluate",
    "recsys.evaluation.result": "Comparison EvaluationResult",
    "recsys.losses": "Loss ScoreLoss losses",
    "recsys.metrics": "Metric RankedLists metrics",
    "recsys.models": "HistoryEncoder LookupModel RankingModel RetrievalModel Term TwoTower models",
    "recsys.models.layers": "layers",
    "recsys.registry": (
        "register_baseline register_encoder register_event_feature register_feature register_loss "
        "register_metric register_model register_row_optimizer register_source register_task "
        "register_term"
    ),
    "recsys.registry.file_option": "File",
    "recsys.report.figures": "plot_metrics",
    "recsys.serving.recommendations": "LoadedBundle load_bundle",
    "recsys.stages.export": "export",
    "recsys.stages.ingest": "ingest",
    "recsys.strict": "Strict",
    "recsys.tasks.model_folder": "TrainedModel load_model save_model",
    "recsys.tasks.retrieval.training.auto": "for_data",
    "recsys.tasks.judging_side": "Baseline",
    "recsys.training.trainer": "Trainer",
    "recsys.training.training_result": "TrainingResult",
    "recsys.vectors": "VectorPublication publish_vectors",
}
__all__, __getattr__, __dir__ = lazy_contents(__name__, _NAMES)
