"""Transfers an earlier model's state: tables by row, towers and optimizers as a whole.

Rows are copied into a sharded table in chunks, so no device or host holds it twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from recsys.data.catalogue import FeatureBags
from recsys.embedding.layout import tables_of
from recsys.embedding.saved_arrays import SavedRows
from recsys.embedding.table import Table, chunk_rows
from recsys.embedding.table_rows import put_rows
from recsys.models import LookupModel, ModelInputs
from recsys.tasks.config import TrainStage
from recsys.tasks.model_folder import kept_weights
from recsys.training.optimization import moments_of, seeds_of
from recsys.training.row_sources import (
    NewRows,
    RowSources,
    sources_of_event_tokens,
    sources_of_ids,
    sources_of_labels,
    sources_of_tokens,
)
from recsys.training.training_result import report_progress
from recsys.training.warm_start import EarlierModel, refused, warm_start_of

_SIDES = ("users", "items")
Report = dict[str, dict[str, int]]


def transfer_state(
    base: EarlierModel, model: LookupModel, inputs: ModelInputs, stage: TrainStage
) -> Report:
    """Initialises a newly built and compiled model with the state of `base`.

    Surviving rows and their slots are copied exactly, as are the towers and the moments of
    their optimizer. New rows start as `warm_start.new_rows` says, with fresh slots. The step
    count continues.

    Args:
        base: The earlier model.
        model: The freshly initialised model, on any mesh.
        inputs: The current features and histories of users and items.
        stage: The current model and training loop.

    Returns:
        For each table by name: `rows`, the counts of `RowSources`, and `neighbours` (new or
        reset rows that start from rows with similar features).

    Raises:
        UsageError: The model has other variables than `base`.
    """
    _check_variables(base, model)
    before, tables = ModelInputs.open(base.folder), tables_of(model)
    sources = {
        side: sources_of_ids(getattr(before, side), getattr(inputs, side)) for side in _SIDES
    }
    for side in _SIDES:
        then = {feature.name: feature for feature in before.features(side)}
        for today in (feature for feature in inputs.features(side) if not feature.floats):
            own = sources_of_tokens(then[today.name], today, sources[side].source)
            sources[today.name] = own
    sources["labels"] = sources_of_labels(*(_labels(one) for one in (base, model)))
    of_events = {one.name: one for one in before.event_features}
    for one in inputs.event_features:
        if one.rows:
            sources[one.name] = sources_of_event_tokens(of_events[one.name], one)
    report: Report = {}
    for number, table in enumerate(tables):
        report_progress(number, len(tables), f"takes over the table {table.name}")
        ids = model.rows_of_table(table.name)
        own = sources[ids]
        new = _new_rows(table, ids, own, base, before, inputs, warm_start_of(stage).new_rows)
        for variable in table.variables_by_row:
            values = base.array(variable.path)
            if values is None:  # The optimizer's slots differ; weights were checked.
                slot = f"slot {variable.path}: none → {tuple(variable.shape)}"
                raise refused(base.folder, [slot])
            made = new if variable is table.embeddings else None
            put_rows(table, variable, _chunks(own, values, made, chunk_rows(variable)))
        table.steps.assign(base.state.updates)
        neighbours = 0 if new is None else new.neighbours
        report[table.name] = {"rows": table.rows, **own.counts, "neighbours": neighbours}
    _transfer_dense(base, model, sources)
    return report


def _check_variables(base: EarlierModel, model: LookupModel) -> None:
    """Checks that the code creates the same variables as before, which the config doesn't show."""
    changes = []
    labels = [_labels(one) for one in (base, model)]
    if labels[0] != labels[1] and "labels" not in dict(model.weights_by_row.values()):
        changes.append(f"labels: {', '.join(labels[0])} → {', '.join(labels[1])}")
    ours = {variable.path: (variable, table) for variable, table in kept_weights(model)}
    adapted = {variable.path for variable in model.adapted}
    for path in dict.fromkeys([*ours, *base.weights]):
        if path in adapted:
            continue
        weights, (variable, table) = base.array(path), ours.get(path, (None, None))
        _, axis = _rows_of(model, path) or (None, 0 if table else None)
        then = None if weights is None else _without(axis, weights.shape)
        now = None if variable is None else _without(axis, variable.shape)
        if then != now:
            changes.append(f"variable {path}: {then or 'none'} → {now or 'none'}")
    if changes:
        raise refused(base.folder, changes)


def _labels(model: EarlierModel | LookupModel) -> tuple[str, ...]:
    """Returns the labels that a model learns."""
    labels: tuple[str, ...] = model.spec.config.learned(model.spec.labels)
    return labels


def _rows_of(model: LookupModel, path: str) -> tuple[str, int] | None:
    """Returns what the rows of a weight are, and their axis; None if it has no rows."""
    return model.weights_by_row.get(path.partition("/")[2])


def _without(axis: int | None, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape without an axis."""
    return tuple(n for number, n in enumerate(shape) if number != axis)


def _new_rows(
    table: Table,
    name: str,
    sources: RowSources,
    base: EarlierModel,
    before: ModelInputs,
    now: ModelInputs,
    kind: str,
) -> NewRows | None:
    """Returns the initial values of a table's new rows; None: the random initial values stay.

    Padding, shared rows, and rows of ids without training positives are never a source, since
    they may hold their initial values.
    """
    rows = np.flatnonzero(sources.is_new)
    survivors = np.flatnonzero(sources.source >= 0)
    features: Sequence[FeatureBags] = ()
    if name in _SIDES:
        vocabulary, source = getattr(before, name), sources.source[survivors]
        is_own = source >= vocabulary.first_own_row
        survivors = survivors[is_own & (vocabulary.row_counts[source] > 0)]
        if kind == "neighbours":
            features = now.features(name)
    else:
        survivors = survivors[survivors > 0]
    weights = base.array(table.embeddings.path)
    if kind == "initial" or not len(rows) or not len(survivors) or weights is None:
        return None
    return NewRows(weights, survivors, sources.source[survivors], features, rows)


def _chunks(
    sources: RowSources, values: np.ndarray | SavedRows, new: NewRows | None, n: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields rows to assign `[c]` and their values `[c, width]` float32."""
    for start in range(0, len(sources.source), n):
        source = sources.source[start : start + n]
        is_kept = source >= 0
        is_made = sources.is_new[start : start + n] & (new is not None)
        chosen = np.flatnonzero(is_kept | is_made)
        chunk = np.zeros((len(chosen), values.shape[1]), np.float32)
        chunk[is_kept[chosen]] = values[source[is_kept]]
        if new is not None and is_made.any():
            chunk[is_made[chosen]] = new.vectors(start + np.flatnonzero(is_made))
        yield start + chosen, chunk


def _transfer_dense(base: EarlierModel, model: LookupModel, sources: dict[str, RowSources]) -> None:
    """Copies the weights of the towers, and the moments of their optimizer."""
    adapted = {id(variable) for variable in model.adapted}
    by_row: dict[str, tuple[str, int]] = {}  # Moments are named after their weights.
    for variable, table in kept_weights(model):
        if table is None and id(variable) not in adapted:
            rows = _rows_of(model, variable.path)
            if rows is not None:
                by_row[variable.path.replace("/", "_")] = rows
            variable.assign(_carried(base.array(variable.path), variable, sources, rows))
    for path, variable in {**moments_of(model), **seeds_of(model)}.items():
        name = path.rpartition("/")[2]
        rows = next((by_row[weight] for weight in by_row if name.startswith(f"{weight}_")), None)
        kept = base.array(path)
        if kept is not None and (rows or kept.shape == tuple(variable.shape)):
            variable.assign(_carried(kept, variable, sources, rows))
    optimizer: Any = model.optimizer
    accumulate = optimizer.gradient_accumulation_steps or 1
    optimizer._iterations.assign(base.state.updates * accumulate)
    if optimizer.use_ema:
        # The saved weights are the averages. They are copied: an array that two variables
        # share would be donated to the step twice.
        averages = optimizer._model_variables_moving_average
        for average, variable in zip(averages, model.trainable_variables, strict=True):
            average.assign(np.array(variable.value))


def _carried(
    kept: Any, variable: Any, sources: dict[str, RowSources], rows: tuple[str, int] | None
) -> np.ndarray:
    """Returns the earlier values of a variable, mapped to current rows if it has rows."""
    if rows is None:
        return np.array(kept)
    side, axis = rows
    source, out = sources[side].source, np.array(variable.value)
    is_kept = source >= 0
    np.moveaxis(out, axis, 0)[is_kept] = np.moveaxis(np.asarray(kept), axis, 0)[source[is_kept]]
    return out
