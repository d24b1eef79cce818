"""Embedding tables of a Keras model in a SavedModel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from recsys.embedding.layout import tables_of
from recsys.embedding.model import SparseModel
from recsys.embedding.table import Table
from recsys.savedmodel.variables import filled_later

if TYPE_CHECKING:
    from recsys.embedding.saved_arrays import SavedRows


def variables_of(model: SparseModel) -> list[tf.Variable]:
    """Returns the variables that a model reads, which a `tf.Module` must hold to be saved.

    Args:
        model: A built model; `without_rows` may have been applied to its tables.
    """
    weights = [variable.value for variable in model.variables]
    # Keras doesn't list variables that were passed to `Table.read_from`.
    tables = [table.embeddings for table in tables_of(model)]
    return [*weights, *(table for table in tables if isinstance(table, tf.Variable))]


def without_rows(table: Table, weights: np.ndarray | SavedRows) -> None:
    """Gives a table a variable whose rows are filled after the SavedModel is written.

    Args:
        table: Table, not yet built.
        weights: Rows `[rows, dim]` float32, memory-mapped.
    """
    variable = filled_later(weights, tf.as_dtype(table.spec.dtype))
    # Read first: gathering from a variable copies it each time.
    table.read_from(variable, lambda: tf.convert_to_tensor(variable))
