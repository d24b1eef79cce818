"""The one config of a run: typed, strict, complete.

`Config` nests a part for each stage; a function takes the part that it needs.
`recsys.config_file` reads one.
"""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.config.data import (
        MOST_SKIPPED,
        RESERVED_FEATURE_NAMES,
        CsvFormat,
        DataConfig,
        EventSource,
        Files,
        GateConfig,
        InteractionColumns,
        InteractionsConfig,
        ItemColumns,
        ItemsConfig,
        ListOfEvents,
        SourceConfig,
        TimestampUnit,
        UserColumns,
        UsersConfig,
        VocabulariesConfig,
        VocabularyConfig,
        read_feature,
        write_feature,
    )
    from recsys.config.evaluate_stage import EvaluateStage
    from recsys.config.evaluation import (
        BASELINES,
        METRICS,
        BlessConfig,
        BlessRule,
        EvaluateConfig,
    )
    from recsys.config.export import ExportConfig, ExportStage
    from recsys.config.keep import KeepConfig
    from recsys.config.mesh import LayoutRules, MeshConfig, parse_mesh
    from recsys.config.metadata import MetadataConfig, MysqlConfig, MysqlSslConfig
    from recsys.config.model import (
        LEARNED_TEMPERATURE,
        AttentionConfig,
        Dropout,
        MeanConfig,
        RetrievalConfig,
        SequenceConfig,
        TwoTowerConfig,
    )
    from recsys.config.notify import NotifyConfig
    from recsys.config.run import (
        BeamConfig,
        Config,
        PushConfig,
        StageT,
        json_schema,
        stage_of,
        with_mesh,
    )
    from recsys.config.split import Order, Split
    from recsys.config.train_stage import TrainStage
    from recsys.config.training import (
        CheckpointConfig,
        HardNegativesConfig,
        ScheduleConfig,
        TrainConfig,
        ValidationConfig,
    )
    from recsys.config.warm_start import WarmStartConfig
    from recsys.strict import Name, Repeats, Share, Strict, canonical_json

__all__ = [
    "BASELINES",
    "LEARNED_TEMPERATURE",
    "METRICS",
    "MOST_SKIPPED",
    "RESERVED_FEATURE_NAMES",
    "AttentionConfig",
    "BeamConfig",
    "BlessConfig",
    "BlessRule",
    "CheckpointConfig",
    "Config",
    "CsvFormat",
    "DataConfig",
    "Dropout",
    "EvaluateConfig",
    "EvaluateStage",
    "EventSource",
    "ExportConfig",
    "ExportStage",
    "Files",
    "GateConfig",
    "HardNegativesConfig",
    "InteractionColumns",
    "InteractionsConfig",
    "ItemColumns",
    "ItemsConfig",
    "KeepConfig",
    "LayoutRules",
    "ListOfEvents",
    "MeanConfig",
    "MeshConfig",
    "MetadataConfig",
    "MysqlConfig",
    "MysqlSslConfig",
    "Name",
    "NotifyConfig",
    "Order",
    "PushConfig",
    "Repeats",
    "RetrievalConfig",
    "ScheduleConfig",
    "SequenceConfig",
    "Share",
    "SourceConfig",
    "Split",
    "StageT",
    "Strict",
    "TimestampUnit",
    "TrainConfig",
    "TrainStage",
    "TwoTowerConfig",
    "UserColumns",
    "UsersConfig",
    "ValidationConfig",
    "VocabulariesConfig",
    "VocabularyConfig",
    "WarmStartConfig",
    "canonical_json",
    "json_schema",
    "parse_mesh",
    "read_feature",
    "stage_of",
    "with_mesh",
    "write_feature",
]

__getattr__, __dir__ = lazy_contents(__name__, __file__)
