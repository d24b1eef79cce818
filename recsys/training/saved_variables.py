"""The saved variables of a compiled model by path, and subsets of them."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import keras

from recsys.embedding import SparseModel
from recsys.embedding.layout import tables_of


def saved_variables(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns all variables of a compiled model and its optimizer by their paths.

    These are weights, tables with their slots and step counts, the seeds of dropout, and the
    optimizer's own. Buffers of accumulated gradients are left out: a run is saved only after
    an update.
    """
    left_out = {id(v) for v in model.gradient_buffers.variables}
    left_out |= {id(v) for metric in model.metrics for v in metric.variables}
    by_path: dict[str, keras.Variable] = {}
    for variable in [*model.variables, *model.optimizer.variables]:
        if id(variable) in left_out:
            continue
        if by_path.setdefault(variable.path, variable) is not variable:
            raise AssertionError(f"two variables are called {variable.path!r}")
    return by_path


def weights_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns the weights of a compiled model by path, without slots."""
    tables = tables_of(model)
    left_out = {id(v) for table in tables for v in table.variables if v is not table.embeddings}
    left_out |= {id(v) for v in model.optimizer.variables}
    return {path: v for path, v in saved_variables(model).items() if id(v) not in left_out}


def moments_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns the moments of the towers' optimizer by path.

    Its step count, learning rate, moving averages of the weights and accumulated gradients
    are left out.
    """
    optimizer = model.optimizer
    others = [optimizer._iterations, optimizer._learning_rate]
    for name in ("_model_variables_moving_average", "_accumulated_gradients"):
        others += getattr(optimizer, name, [])
    left_out = {id(variable) for variable in others}
    return {v.path: v for v in optimizer.variables if id(v) not in left_out}


def seeds_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns the random state of dropout, by path."""
    left_out = {id(v) for v in (*model.weights, *model.optimizer.variables)}
    return {path: v for path, v in saved_variables(model).items() if id(v) not in left_out}


def arrays_of(variables: Mapping[str, keras.Variable]) -> dict[str, jax.Array]:
    return {path: variable.value for path, variable in variables.items()}


@jax.jit
def all_finite(arrays: list[jax.Array]) -> jax.Array:
    """Returns whether all numbers of all arrays are finite."""
    numbers = [a for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in numbers]))
