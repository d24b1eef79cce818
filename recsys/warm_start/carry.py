"""A model takes over the earlier one: tables row by row, towers and optimizers as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from recsys.config import TrainStage, WarmStartConfig
from recsys.embedding.placement import tables_of
from recsys.embedding.table import Table
from recsys.model import TowerInputs, TwoTower
from recsys.model.saved import kept_weights
from recsys.training.told import tell_progress
from recsys.training.variables import moments_of, seeds_of
from recsys.warm_start.base import Base
from recsys.warm_start.fit import refused
from recsys.warm_start.new_rows import NewRows
from recsys.warm_start.put_rows import chunk_rows, put_rows
from recsys.warm_start.row_sources import RowSources
from recsys.warm_start.table_plan import TablePlan

Report = dict[str, dict[str, int]]


def carry_over(base: Base, model: TwoTower, inputs: TowerInputs, stage: TrainStage) -> Report:
    """Gives a model that was just built and compiled what `base` has learned.

    Surviving rows and their slots come bit for bit, as do the towers and the moments of
    their optimizer. New rows get their first vectors by `warm_start.new_rows`; their slots
    stay as they are in a first training. Steps are counted on.

    Args:
        base: The earlier model.
        model: The model, as in a first training; on any mesh.
        inputs: What is known of users and items now.
        stage: The model and the training loop now.

    Returns:
        Of each table, by its name: `rows`, and of the ids or tokens `kept`, `new`, `reset`
        (new, in a row that was another's), `dropped`, `moved` (kept, in another row), and
        `neighbours` (new or reset, made of their features' neighbours).

    Raises:
        UsageError: The model has other variables than `base`.
    """
    _check_variables(base, model)
    plan = TablePlan(base, inputs, stage.warm_start or WarmStartConfig())
    tables = tables_of(model)
    report: Report = {}
    for number, table in enumerate(tables):
        tell_progress(number, len(tables), f"takes over the table {table.name}")
        sources = plan.sources(table.name)
        new = plan.new_rows(table.name, table.embeddings.path)
        _put(table, sources, new, base)
        table.steps.assign(base.state.updates)
        report[table.name] = {
            "rows": table.rows,
            **sources.counts(),
            "neighbours": 0 if new is None else new.neighbours,
        }
    _carry_dense(base, model)
    return report


def _check_variables(base: Base, model: TwoTower) -> None:
    """Checks what no config shows: that the code makes the same variables as it did."""
    found = []
    ours = {variable.path: (variable, table) for variable, table in kept_weights(model)}
    for path in [*ours, *(path for path in base.paths if path not in ours)]:
        weights, (variable, table) = base.weights(path), ours.get(path, (None, None))
        then = None if weights is None else weights.shape[1 if table else 0 :]
        now = None if variable is None else tuple(variable.shape)[1 if table else 0 :]
        if then != now:
            found.append(f"variable {path}: {then or 'none'} → {now or 'none'}")
    if found:
        raise refused(base.folder, found)


def _put(table: Table, sources: RowSources, new: NewRows | None, base: Base) -> None:
    for variable in table.variables_by_row:
        is_slot = variable is not table.embeddings
        values = base.kept(variable.path) if is_slot else base.weights(variable.path)
        if values is None:  # The same optimizer has the same slots; weights were checked.
            raise refused(base.folder, [f"slot {variable.path}: none → {tuple(variable.shape)}"])
        made = None if is_slot else new
        put_rows(table, variable, _chunks(sources, values, made, chunk_rows(variable)))


def _chunks(
    sources: RowSources, values: np.ndarray, new: NewRows | None, n: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields rows that get a value `[c]`, and their values `[c, width]` float32."""
    for start in range(0, len(sources.source), n):
        source = sources.source[start : start + n]
        is_carried = source >= 0
        is_made = sources.is_new[start : start + n] & (new is not None)
        chosen = np.flatnonzero(is_carried | is_made)
        found = np.zeros((len(chosen), values.shape[1]), np.float32)
        found[is_carried[chosen]] = values[source[is_carried]]
        if new is not None and is_made.any():
            found[is_made[chosen]] = new.vectors(start + np.flatnonzero(is_made))
        yield start + chosen, found


def _carry_dense(base: Base, model: TwoTower) -> None:
    """Gives the towers their weights, and their optimizer its moments."""
    for variable, table in kept_weights(model):
        if table is None:
            variable.assign(_whole(base.weights(variable.path)))
    for path, variable in {**moments_of(model), **seeds_of(model)}.items():
        kept = base.kept(path)
        if kept is not None and kept.shape == tuple(variable.shape):
            variable.assign(_whole(kept))
    optimizer: Any = model.optimizer
    accumulate = optimizer.gradient_accumulation_steps or 1
    optimizer._iterations.assign(base.state.updates * accumulate)
    if optimizer.use_ema:
        # The weights of the folder are the averages already. Read again: an array of two
        # variables would be donated to the step twice.
        averages = optimizer._model_variables_moving_average
        for average, variable in zip(averages, model.trainable_variables, strict=True):
            average.assign(_whole(base.weights(variable.path)))


def _whole(array: np.ndarray | None) -> np.ndarray:
    assert array is not None  # noqa: S101 `_check_variables` saw to it
    return np.array(array)
