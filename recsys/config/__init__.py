"""The config of a run: typed, strict, complete.

`Config` joins the configs of the rooms; a function takes only the part that it needs.
`recsys.config.load` reads configs.
"""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.bundles.config import ExportConfig as ExportConfig
    from recsys.bundles.config import ExportStage as ExportStage
    from recsys.config.run_config import Config as Config
    from recsys.data.config import MOST_SKIPPED as MOST_SKIPPED
    from recsys.data.config import RESERVED_FEATURE_NAMES as RESERVED_FEATURE_NAMES
    from recsys.data.config import CsvFormat as CsvFormat
    from recsys.data.config import DataConfig as DataConfig
    from recsys.data.config import EventSource as EventSource
    from recsys.data.config import Files as Files
    from recsys.data.config import GateConfig as GateConfig
    from recsys.data.config import InteractionColumns as InteractionColumns
    from recsys.data.config import InteractionsConfig as InteractionsConfig
    from recsys.data.config import ItemColumns as ItemColumns
    from recsys.data.config import ItemsConfig as ItemsConfig
    from recsys.data.config import ListOfEvents as ListOfEvents
    from recsys.data.config import Order as Order
    from recsys.data.config import SourceConfig as SourceConfig
    from recsys.data.config import Split as Split
    from recsys.data.config import TimestampUnit as TimestampUnit
    from recsys.data.config import UserColumns as UserColumns
    from recsys.data.config import UsersConfig as UsersConfig
    from recsys.data.config import ValidationConfig as ValidationConfig
    from recsys.data.config import VocabulariesConfig as VocabulariesConfig
    from recsys.data.config import VocabularyConfig as VocabularyConfig
    from recsys.data.config import read_feature as read_feature
    from recsys.data.config import write_feature as write_feature
    from recsys.distributed.config import LayoutRules as LayoutRules
    from recsys.distributed.config import MeshConfig as MeshConfig
    from recsys.distributed.config import parse_mesh as parse_mesh
    from recsys.evaluation.config import BlessConfig as BlessConfig
    from recsys.evaluation.config import BlessRule as BlessRule
    from recsys.evaluation.config import EvaluateConfig as EvaluateConfig
    from recsys.evaluation.config import EvaluateStage as EvaluateStage
    from recsys.models.config import ModelConfig as ModelConfig
    from recsys.models.config import RetrievalConfig as RetrievalConfig
    from recsys.models.config import TermConfig as TermConfig
    from recsys.models.config import TwoTowerConfig as TwoTowerConfig
    from recsys.registry.stage import stage_of as stage_of
    from recsys.strict import Repeats as Repeats
    from recsys.strict import Share as Share
    from recsys.strict import Strict as Strict
    from recsys.strict import canonical_json as canonical_json
    from recsys.tasks.config import HardNegativesConfig as HardNegativesConfig
    from recsys.tasks.config import TrainConfig as TrainConfig
    from recsys.tasks.config import TrainStage as TrainStage
    from recsys.tasks.config import WarmStartConfig as WarmStartConfig

_NAMES = {
    "recsys.bundles.config": "ExportConfig ExportStage",
    "recsys.config.run_config": "Config",
    "recsys.data.config": (
        "CsvFormat DataConfig EventSource Files GateConfig InteractionColumns "
        "InteractionsConfig ItemColumns ItemsConfig ListOfEvents MOST_SKIPPED Order "
        "RESERVED_FEATURE_NAMES SourceConfig Split TimestampUnit UserColumns UsersConfig "
        "ValidationConfig VocabulariesConfig VocabularyConfig read_feature write_feature"
    ),
    "recsys.distributed.config": "LayoutRules MeshConfig parse_mesh",
    "recsys.evaluation.config": "BlessConfig BlessRule EvaluateConfig EvaluateStage",
    "recsys.models.config": "ModelConfig RetrievalConfig TermConfig TwoTowerConfig",
    "recsys.registry.stage": "stage_of",
    "recsys.strict": "Repeats Share Strict canonical_json",
    "recsys.tasks.config": "HardNegativesConfig TrainConfig TrainStage WarmStartConfig",
}
__all__, __getattr__, __dir__ = lazy_contents(__name__, _NAMES)
