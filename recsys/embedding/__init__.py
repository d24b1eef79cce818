"""The sharded embedding engine: tables over all devices, updated where a step touched them."""

from recsys.embedding.config import FeatureConfig, TableConfig
from recsys.embedding.layer import ShardedEmbedding
from recsys.embedding.lookups import Ragged
from recsys.embedding.model import SparseModel
from recsys.embedding.optimizers import SGD, Adagrad, Ftrl, LazyAdam, RowWiseAdagrad
from recsys.embedding.placement import activate, prove_placement, table_layout
from recsys.embedding.plan import TablePlacement
from recsys.embedding.sparsecore import embedding_layer

__all__ = [
    "SGD",
    "Adagrad",
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
    "embedding_layer",
    "prove_placement",
    "table_layout",
]
