"""Transfers an earlier model's state: tables row by row, towers and optimizers whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from recsys.config import TrainStage, WarmStartConfig
from recsys.data.catalogue import FeatureBags
from recsys.embedding.layout import tables_of
from recsys.embedding.table import Table
from recsys.models import ModelInputs, RetrievalModel
from recsys.models.saved import kept_weights
from recsys.training.earlier_model import EarlierModel
from recsys.training.new_rows import NewRows, Survivors
from recsys.training.row_transfer import (
    RowSources,
    chunk_rows,
    sources_of_ids,
    sources_of_tokens,
    transfer_rows,
)
from recsys.training.run_state import moments_of, seeds_of
from recsys.training.training_log import report_progress
from recsys.training.warm_start import refused

Report = dict[str, dict[str, int]]


def transfer_state(
    base: EarlierModel, model: RetrievalModel, inputs: ModelInputs, stage: TrainStage
) -> Report:
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
        report_progress(number, len(tables), f"takes over the table {table.name}")
        sources = plan.sources(table.name)
        new = plan.new_rows(table.name, table.embeddings.path)
        _put(table, sources, new, base)
        table.steps.assign(base.state.updates)
        report[table.name] = {
            "rows": table.rows,
            **sources.counts(),
            "neighbours": 0 if new is None else new.neighbours,
        }
    _transfer_dense(base, model)
    return report


def _check_variables(base: EarlierModel, model: RetrievalModel) -> None:
    """Checks that the code creates the same variables as before, which no config shows."""
    changes = []
    ours = {variable.path: (variable, table) for variable, table in kept_weights(model)}
    for path in [*ours, *(path for path in base.paths if path not in ours)]:
        weights, (variable, table) = base.weights(path), ours.get(path, (None, None))
        then = None if weights is None else weights.shape[1 if table else 0 :]
        now = None if variable is None else tuple(variable.shape)[1 if table else 0 :]
        if then != now:
            changes.append(f"variable {path}: {then or 'none'} → {now or 'none'}")
    if changes:
        raise refused(base.folder, changes)


def _put(table: Table, sources: RowSources, new: NewRows | None, base: EarlierModel) -> None:
    for variable in table.variables_by_row:
        is_slot = variable is not table.embeddings
        values = base.kept(variable.path) if is_slot else base.weights(variable.path)
        if values is None:  # The same optimizer has the same slots; weights were checked.
            raise refused(base.folder, [f"slot {variable.path}: none → {tuple(variable.shape)}"])
        made = None if is_slot else new
        transfer_rows(table, variable, _chunks(sources, values, made, chunk_rows(variable)))


def _chunks(
    sources: RowSources, values: np.ndarray, new: NewRows | None, n: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields rows that get a value `[c]`, and their values `[c, width]` float32."""
    for start in range(0, len(sources.source), n):
        source = sources.source[start : start + n]
        is_carried = source >= 0
        is_made = sources.is_new[start : start + n] & (new is not None)
        chosen = np.flatnonzero(is_carried | is_made)
        chunk = np.zeros((len(chosen), values.shape[1]), np.float32)
        chunk[is_carried[chosen]] = values[source[is_carried]]
        if new is not None and is_made.any():
            chunk[is_made[chosen]] = new.vectors(start + np.flatnonzero(is_made))
        yield start + chosen, chunk


def _transfer_dense(base: EarlierModel, model: RetrievalModel) -> None:
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


_SIDES = ("users", "items")


class TablePlan:
    """Plans the row transfer of each table of a model.

    Args:
        base: The earlier model.
        now: What is known of users and items now.
        config: What new rows start from.
    """

    def __init__(self, base: EarlierModel, now: ModelInputs, config: WarmStartConfig) -> None:
        self._base, self._before, self._now = base, base.read_inputs(), now
        self._config = config
        self._sources = {
            side: sources_of_ids(getattr(self._before, side), getattr(now, side)) for side in _SIDES
        }

    def sources(self, name: str) -> RowSources:
        """Returns where the rows of the table `name` come from."""
        if name not in self._sources:
            side = next(side for side in _SIDES if name in _features(self._now, side))
            then, today = (_features(known, side)[name] for known in (self._before, self._now))
            self._sources[name] = sources_of_tokens(then, today, self._sources[side].source)
        return self._sources[name]

    def new_rows(self, name: str, path: str) -> NewRows | None:
        """Returns what the new rows of a table start from; None: what they have.

        Args:
            name: Name of the table.
            path: Path of its weights.
        """
        sources = self.sources(name)
        rows, kind = np.flatnonzero(sources.is_new), self._config.new_rows
        survived, weights = self._survivors(name, sources), self._base.weights(path)
        if kind == "initial" or not len(rows) or not len(survived) or weights is None:
            return None
        features: Sequence[FeatureBags] = ()
        if kind == "neighbours" and name in _SIDES:
            features = list(_features(self._now, name).values())
        return NewRows(Survivors(weights, survived, sources.source[survived]), features, rows)

    def _survivors(self, name: str, sources: RowSources) -> np.ndarray:
        """Returns the rows `[n]` that new ones may be made of.

        Not padding, nor rows that many ids share; nor rows of ids that had no training
        positives, which may hold what they began with.
        """
        survived = np.flatnonzero(sources.source >= 0)
        if name not in _SIDES:
            return survived[survived > 0]
        vocabulary = getattr(self._before, name)
        source = sources.source[survived]
        is_trained = vocabulary.row_counts[source] > 0
        chosen: np.ndarray = survived[is_trained & (source >= vocabulary.first_own_row)]
        return chosen


def _features(inputs: ModelInputs, side: str) -> dict[str, FeatureBags]:
    """Returns the features of users or of items by their names."""
    features = inputs.catalogue.features if side == "items" else inputs.user_features
    return {feature.name: feature for feature in features}
