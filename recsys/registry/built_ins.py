"""The locations of built-in classes, so that they are imported only if a config names them."""

from __future__ import annotations

import functools
from typing import NamedTuple

BUILT_INS = {
    "task": {
        "retrieval": "recsys.tasks.retrieval:Retrieval",
        "ranking": "recsys.tasks.ranking:Ranking",
    },
    "model": {
        "auto": "recsys.tasks.retrieval.training.auto:AutoModel AutoConfig",
        "ease": "recsys.tasks.retrieval.training.presets:EaseModel EaseModelConfig",
        "transitions": (
            "recsys.tasks.retrieval.training.presets:TransitionsModel TransitionsModelConfig"
        ),
        "ials": "recsys.tasks.retrieval.training.presets:IalsModel IalsModelConfig",
        "two_tower": "recsys.models.two_tower:TwoTower TwoTowerConfig",
        "dlrm": "recsys.models.dlrm:Dlrm recsys.models.ranking_config:DlrmConfig",
        "dcn_v2": "recsys.models.dcn:DcnV2 recsys.models.ranking_config:DcnV2Config",
        "final_mlp": "recsys.models.final_mlp:FinalMlp recsys.models.ranking_config:FinalMlpConfig",
        "din": "recsys.models.din:Din recsys.models.ranking_config:DinConfig",
        "candidate_transformer": (
            "recsys.models.candidate_transformer:CandidateTransformer"
            " recsys.models.ranking_config:CandidateTransformerConfig"
        ),
    },
    "encoder": {
        "mean": "recsys.models.encoders:PositionWeights MeanConfig",
        "none": "recsys.models.encoders:NoHistory NoHistoryConfig",
        "attention": "recsys.models.encoders:AttentionPooling AttentionConfig",
        "fold_in": "recsys.models.encoders:FoldIn FoldInConfig",
        "sasrec": "recsys.models.sequences:SasRec SasRecConfig",
        "ligr": "recsys.models.sequences:Ligr LigrConfig",
    },
    "term": {
        "item_neighbours": "recsys.models.terms.neighbours:ItemNeighbours ItemNeighboursConfig",
        "bag_weights": "recsys.models.terms.bag_weights:BagWeights BagWeightsConfig",
        "item_bias": "recsys.models.terms.item_bias:ItemBias ItemBiasConfig",
        "transitions": "recsys.models.terms.transitions:TransitionTerm TransitionsConfig",
        "ease": "recsys.models.terms.ease:EaseTerm EaseConfig",
    },
    "loss": {
        "binary": "recsys.losses.scores:Binary",
        "bpr": "recsys.losses.pairwise:Bpr",
        "sampled_softmax": "recsys.losses.softmax:SampledSoftmax",
        "full_softmax": "recsys.losses.softmax:FullSoftmax",
        "least_squares": "recsys.losses.squares:LeastSquares",
        "listwise": "recsys.losses.scores:Listwise",
        "pairwise": "recsys.losses.scores:Pairwise",
        "squared": "recsys.losses.scores:Squared",
    },
    "metric": {
        "recall": "recsys.metrics.rankings:Recall",
        "precision": "recsys.metrics.rankings:Precision",
        "hit_rate": "recsys.metrics.rankings:HitRate",
        "ndcg": "recsys.metrics.rankings:Ndcg",
        "map": "recsys.metrics.rankings:MeanAveragePrecision",
        "mrr": "recsys.metrics.rankings:ReciprocalRank",
        "auc": "recsys.metrics.rankings:Auc",
        "coverage": "recsys.metrics.rankings:Coverage",
        "gini": "recsys.metrics.rankings:Gini",
        "novelty": "recsys.metrics.rankings:Novelty",
        "popularity_lift": "recsys.metrics.rankings:PopularityLift",
        "diversity": "recsys.metrics.rankings:Diversity",
        "roc_auc": "recsys.metrics.scores:RocAuc",
        "gauc": "recsys.metrics.scores:GroupedAuc",
        "log_loss": "recsys.metrics.scores:LogLoss",
        "normalized_entropy": "recsys.metrics.scores:NormalizedEntropy",
        "calibration_error": "recsys.metrics.scores:CalibrationError",
        "list_ndcg": "recsys.metrics.scores:ListNdcg",
        "squared_error": "recsys.metrics.scores:SquaredError",
        "absolute_error": "recsys.metrics.scores:AbsoluteError",
    },
    "baseline": {
        "ials": "recsys.tasks.retrieval.judging.baselines:Ials",
        "item_knn": "recsys.tasks.retrieval.judging.item_baselines:ItemKnn",
        "transitions": "recsys.tasks.retrieval.judging.item_baselines:Transitions",
        "ease": "recsys.tasks.retrieval.judging.item_baselines:Ease",
        "popularity": "recsys.tasks.retrieval.judging.baselines:Popularity",
        "recent_popularity": "recsys.tasks.retrieval.judging.baselines:RecentPopularity",
        "constant": "recsys.tasks.ranking.judging.baselines:Constant",
        "item_mean": "recsys.tasks.ranking.judging.baselines:ItemMean",
        "logistic_regression": "recsys.tasks.ranking.judging.baselines:LogisticRegression",
    },
    "feature": {
        "category": "recsys.data.features:CategoryFeature",
        "categories": "recsys.data.features:CategoriesFeature",
        "words": "recsys.data.features:WordsFeature",
        "number": "recsys.data.features:NumberFeature",
        "vector": "recsys.data.features:VectorFeature",
        "cross": "recsys.data.features:CrossFeature",
        "date": "recsys.data.features:DateFeature",
    },
    "event_feature": {
        "category": "recsys.data.event_features.tokens:Category",
        "cross": "recsys.data.event_features.tokens:Cross",
        "number": "recsys.data.event_features.numbers:Number",
        "vector": "recsys.data.event_features.numbers:Vector",
        "price": "recsys.data.event_features.numbers:Price",
        "gap": "recsys.data.event_features.numbers:Gap",
        "hour": "recsys.data.event_features.times:Hour",
        "weekday": "recsys.data.event_features.times:Weekday",
        "month": "recsys.data.event_features.times:Month",
        "mean": "recsys.data.event_features.statistics:Mean",
        "count": "recsys.data.event_features.statistics:Count",
        "last": "recsys.data.event_features.statistics:Last",
    },
    "source": {
        "csv": "recsys.data.sources.csv_source:CsvSource",
        "jsonl": "recsys.data.sources.jsonl_source:JsonLinesSource",
        "parquet": "recsys.data.sources.parquet_source:ParquetSource",
        "tfrecord": "recsys.data.sources.tfrecord_source:TFRecordSource",
        "delta": "recsys.data.sources.lake_source:DeltaSource",
        "iceberg": "recsys.data.sources.lake_source:IcebergSource",
        "sql": "recsys.data.sources.sql_source:SqlTable",
        "kafka": "recsys.data.sources.kafka_source:KafkaTable",
    },
    "row_optimizer": {
        "sgd": "recsys.embedding.optimizers:SGD SgdConfig",
        "adagrad": "recsys.embedding.optimizers:Adagrad AdagradConfig",
        "row_wise_adagrad": "recsys.embedding.optimizers:RowWiseAdagrad RowWiseAdagradConfig",
        "lazy_adam": "recsys.embedding.optimizers:LazyAdam LazyAdamConfig",
        "ftrl": "recsys.embedding.optimizers:Ftrl FtrlConfig",
    },
    "launcher": {
        "local": "recsys.distributed.launchers:LocalLauncher",
        "command": "recsys.distributed.launchers:CommandLauncher",
        "ray": "recsys.distributed.launchers:RayLauncher",
    },
}
"""Built-in classes by kind and name: `module:Class`, and the config if the class imports Keras,
in the module that `CONFIGS` names or its own."""
CONFIGS = {
    "model": "recsys.models.config",
    "encoder": "recsys.models.config",
    "term": "recsys.models.config",
    "row_optimizer": "recsys.embedding.config",
}


class BuiltIn(NamedTuple):
    """Location of a built-in class as `module:Class`, and of its config."""

    path: str
    config: str | None

    @property
    def module(self) -> str:
        return self.path.partition(":")[0]


@functools.cache
def built_ins(kind: str) -> dict[str, BuiltIn]:
    """Returns the built-in classes of a kind by name."""
    located = {name: text.split() for name, text in BUILT_INS[kind].items()}
    return {
        name: BuiltIn(path, _config_path(kind, *config))
        for name, (path, *config) in located.items()
    }


def _config_path(kind: str, config: str | None = None) -> str | None:
    if config is None or ":" in config:
        return config
    return f"{CONFIGS[kind]}:{config}"
