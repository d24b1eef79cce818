"""The config of a run: typed, strict, complete.

`Config` nests a part for each stage; a function takes only the part that it needs.
`recsys.config.load` reads configs.
"""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.config.architecture import RetrievalConfig as RetrievalConfig
    from recsys.config.architecture import TwoTowerConfig as TwoTowerConfig
    from recsys.config.data import MOST_SKIPPED as MOST_SKIPPED
    from recsys.config.data import RESERVED_FEATURE_NAMES as RESERVED_FEATURE_NAMES
    from recsys.config.data import CsvFormat as CsvFormat
    from recsys.config.data import DataConfig as DataConfig
    from recsys.config.data import EventSource as EventSource
    from recsys.config.data import Files as Files
    from recsys.config.data import GateConfig as GateConfig
    from recsys.config.data import InteractionColumns as InteractionColumns
    from recsys.config.data import InteractionsConfig as InteractionsConfig
    from recsys.config.data import ItemColumns as ItemColumns
    from recsys.config.data import ItemsConfig as ItemsConfig
    from recsys.config.data import ListOfEvents as ListOfEvents
    from recsys.config.data import Order as Order
    from recsys.config.data import SourceConfig as SourceConfig
    from recsys.config.data import Split as Split
    from recsys.config.data import TimestampUnit as TimestampUnit
    from recsys.config.data import UserColumns as UserColumns
    from recsys.config.data import UsersConfig as UsersConfig
    from recsys.config.data import VocabulariesConfig as VocabulariesConfig
    from recsys.config.data import VocabularyConfig as VocabularyConfig
    from recsys.config.data import read_feature as read_feature
    from recsys.config.data import write_feature as write_feature
    from recsys.config.evaluation import BlessConfig as BlessConfig
    from recsys.config.evaluation import BlessRule as BlessRule
    from recsys.config.evaluation import EvaluateConfig as EvaluateConfig
    from recsys.config.evaluation import EvaluateStage as EvaluateStage
    from recsys.config.run_config import Config as Config
    from recsys.config.run_config import ExportConfig as ExportConfig
    from recsys.config.run_config import ExportStage as ExportStage
    from recsys.config.run_config import stage_of as stage_of
    from recsys.config.training import HardNegativesConfig as HardNegativesConfig
    from recsys.config.training import LayoutRules as LayoutRules
    from recsys.config.training import MeshConfig as MeshConfig
    from recsys.config.training import TrainConfig as TrainConfig
    from recsys.config.training import TrainStage as TrainStage
    from recsys.config.training import ValidationConfig as ValidationConfig
    from recsys.config.training import WarmStartConfig as WarmStartConfig
    from recsys.config.training import parse_mesh as parse_mesh
    from recsys.strict import Repeats as Repeats
    from recsys.strict import Share as Share
    from recsys.strict import Strict as Strict
    from recsys.strict import canonical_json as canonical_json

_NAMES = {
    "recsys.config.architecture": "RetrievalConfig TwoTowerConfig",
    "recsys.config.data": (
        "CsvFormat DataConfig EventSource Files GateConfig InteractionColumns "
        "InteractionsConfig ItemColumns ItemsConfig ListOfEvents MOST_SKIPPED Order "
        "RESERVED_FEATURE_NAMES SourceConfig Split TimestampUnit UserColumns UsersConfig "
        "VocabulariesConfig VocabularyConfig read_feature write_feature"
    ),
    "recsys.config.evaluation": "BlessConfig BlessRule EvaluateConfig EvaluateStage",
    "recsys.config.run_config": "Config ExportConfig ExportStage stage_of",
    "recsys.config.training": (
        "HardNegativesConfig LayoutRules MeshConfig TrainConfig TrainStage "
        "ValidationConfig WarmStartConfig parse_mesh"
    ),
    "recsys.strict": "Repeats Share Strict canonical_json",
}
__all__, __getattr__, __dir__ = lazy_contents(__name__, _NAMES)
