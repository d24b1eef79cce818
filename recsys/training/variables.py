"""The variables that a training run goes on from."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from recsys.embedding import SparseModel
from recsys.embedding.placement import tables_of


def kept_variables(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns all variables of a compiled model and its optimizer by their paths.

    Weights, tables with their slots and step counts, the seeds of dropout, and the
    optimizer's own. Buffers of accumulated gradients aren't among them: a run is saved
    where they are spent.
    """
    spent = {id(variable) for variable in model.gradient_buffers.variables}
    counts = {id(v) for metric in model.metrics for v in metric.variables}
    every = [*model.variables, *model.optimizer.variables]
    found: dict[str, keras.Variable] = {}
    for variable in every:
        if id(variable) in spent | counts:
            continue
        if found.setdefault(variable.path, variable) is not variable:
            raise AssertionError(f"two variables are called {variable.path!r}")
    return found


def weights_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns what a compiled model computes with, by path: `kept_variables` but no slots."""
    tables = tables_of(model)
    own = {id(v) for table in tables for v in table.variables if v is not table.embeddings}
    own |= {id(v) for v in model.optimizer.variables}
    return {path: v for path, v in kept_variables(model).items() if id(v) not in own}


def moments_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns what the towers' optimizer has learned of their gradients, by path.

    Not its count of steps, its learning rate, its moving averages of the weights, nor
    gradients that wait to be added up.
    """
    optimizer = model.optimizer
    others = [optimizer._iterations, optimizer._learning_rate]
    for name in ("_model_variables_moving_average", "_accumulated_gradients"):
        others += getattr(optimizer, name, [])
    left_out = {id(variable) for variable in others}
    return {v.path: v for v in optimizer.variables if id(v) not in left_out}


def seeds_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns the random state of dropout, by path."""
    optimizers = {id(v) for v in model.optimizer.variables}
    known = optimizers | {id(v) for v in model.weights}
    return {path: v for path, v in kept_variables(model).items() if id(v) not in known}


def values_of(variables: dict[str, keras.Variable]) -> dict[str, jax.Array]:
    """Returns the arrays that variables hold, by the same names."""
    return {path: variable.value for path, variable in variables.items()}


def all_finite(variables: Iterable[keras.Variable]) -> bool:
    """Returns whether no variable holds a NaN or an infinity; reads all of them."""
    return bool(_all_finite([variable.value for variable in variables]))


@functools.partial(jax.jit)
def _all_finite(arrays: list[Any]) -> jax.Array:
    numbers = [a for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in numbers]))
