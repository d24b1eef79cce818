"""The sharded embedding engine: tables over all devices, updated where a step touched them."""

from recsys.embedding.config import FeatureConfig, TableConfig
from recsys.embedding.ids import Ragged
from recsys.embedding.layer import ShardedEmbedding, embedding_layer
from recsys.embedding.layout import activate, device_mesh, table_layout, verify_placement
from recsys.embedding.model import SparseModel
from recsys.embedding.optimizers import SGD, Adagrad, Ftrl, LazyAdam, RowWiseAdagrad
from recsys.embedding.table import TablePlacement
from recsys.embedding.table_rows import EmbeddingTable

__all__ = [
    "SGD",
    "Adagrad",
    "EmbeddingTable",
    "FeatureConfig",
    "Ftrl",
    "LazyAdam",
    "Ragged",
    "RowWiseAdagrad",
    "ShardedEmbedding",
    "SparseModel",
    "TableConfig",
    "TablePlacement",
    "activate",
    "device_mesh",
    "embedding_layer",
    "table_layout",
    "verify_placement",
]
