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
    """Returns the variables that a model computes with, which a `tf.Module` must hold to be saved.

    Args:
        model: A built model; its tables may be those of `without_rows`.
    """
    weights = [variable.value for variable in model.variables]
    # Keras counts none that `Table.read_from` was given.
    tables = [table.embeddings for table in tables_of(model)]
    return [*weights, *(table for table in tables if isinstance(table, tf.Variable))]


def without_rows(table: Table, weights: np.ndarray | SavedRows) -> None:
    """Gives a table a variable that gets its rows when the SavedModel has been written.

    Args:
        table: The table, not built yet.
        weights: Its rows `[rows, dim]` float32, memory-mapped.
    """
    variable = filled_later(weights, tf.as_dtype(table.spec.dtype))
    # Read, not gathered from: a variable that is gathered from is copied at every read.
    table.read_from(variable, lambda: tf.convert_to_tensor(variable))
