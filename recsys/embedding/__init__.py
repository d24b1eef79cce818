"""The sharded embedding engine: tables split over devices, with sparse updates of their rows."""

from typing import TYPE_CHECKING

from recsys.system.lean_imports import lazy_contents

if TYPE_CHECKING:
    from recsys.embedding.ids import Ragged as Ragged
    from recsys.embedding.layer import ShardedEmbedding as ShardedEmbedding
    from recsys.embedding.layer import embedding_layer as embedding_layer
    from recsys.embedding.layout import activate as activate
    from recsys.embedding.layout import device_mesh as device_mesh
    from recsys.embedding.layout import table_layout as table_layout
    from recsys.embedding.layout import verify_placement as verify_placement
    from recsys.embedding.model import SparseModel as SparseModel
    from recsys.embedding.optimizers import SGD as SGD
    from recsys.embedding.optimizers import Adagrad as Adagrad
    from recsys.embedding.optimizers import Ftrl as Ftrl
    from recsys.embedding.optimizers import LazyAdam as LazyAdam
    from recsys.embedding.optimizers import RowWiseAdagrad as RowWiseAdagrad
    from recsys.embedding.table import TablePlacement as TablePlacement
    from recsys.embedding.table_config import FeatureConfig as FeatureConfig
    from recsys.embedding.table_config import TableConfig as TableConfig
    from recsys.embedding.table_rows import EmbeddingTable as EmbeddingTable

_NAMES = {
    "recsys.embedding.ids": "Ragged",
    "recsys.embedding.layer": "ShardedEmbedding embedding_layer",
    "recsys.embedding.layout": "activate device_mesh table_layout verify_placement",
    "recsys.embedding.model": "SparseModel",
    "recsys.embedding.optimizers": "SGD Adagrad Ftrl LazyAdam RowWiseAdagrad",
    "recsys.embedding.table": "TablePlacement",
    "recsys.embedding.table_config": "FeatureConfig TableConfig",
    "recsys.embedding.table_rows": "EmbeddingTable",
}
__all__, __getattr__, __dir__ = lazy_contents(__name__, _NAMES)
