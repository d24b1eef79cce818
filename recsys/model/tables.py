"""The tables of the two towers, and what reads them."""

from __future__ import annotations

import keras

from recsys.embedding import FeatureConfig, TableConfig
from recsys.embedding.optimizers import RowOptimizer
from recsys.model.spec import ModelSpec


def model_tables(
    spec: ModelSpec, optimizer: RowOptimizer | None, user_optimizer: RowOptimizer | None = None
) -> dict[str, TableConfig]:
    """Returns the tables of a model by name.

    Args:
        spec: What the model is.
        optimizer: Optimizer of the tables; None for a model that is only read.
        user_optimizer: That of the users' own rows, if it is another one.
    """
    users = {"users": (spec.user_rows, spec.config.dim)} if spec.config.user_id else {}
    sizes = {
        **users,
        "items": (spec.item_rows, spec.config.dim),
        **{f.name: (f.rows, f.dim) for f in spec.features},
    }
    return {
        name: TableConfig(
            name,
            rows,
            dim,
            initializer=keras.initializers.RandomNormal(stddev=_stddev(name, spec)),
            optimizer=(user_optimizer if name == "users" else None) or optimizer,
            combiner="mean",
            placement=spec.config.table_placement,
            dtype=spec.config.table_dtype,
        )
        for name, (rows, dim) in sizes.items()
    }


def _stddev(table: str, spec: ModelSpec) -> float:
    own = spec.config.user_init_stddev if table == "users" else None
    return own or spec.config.init_stddev


def model_features(spec: ModelSpec, tables: dict[str, TableConfig]) -> dict[str, FeatureConfig]:
    """Returns the features by the name of their input, each with its table and shape.

    A history whose items are read one by one is a feature of single ids `[batch * history]`.
    """
    users = {"user_row": ("users", (None,))} if spec.config.user_id else {}
    history = (None, spec.config.history) if spec.config.pooling == "mean" else (None,)
    shapes: dict[str, tuple[str, tuple[int | None, ...]]] = {
        **users,
        "history": ("items", history),
        "id_row": ("items", (None,)),
        **{f.name: (f.name, (None, f.width)) for f in spec.features},
    }
    return {
        name: FeatureConfig(name, tables[table], shape, (None, tables[table].embedding_dim))
        for name, (table, shape) in shapes.items()
    }
