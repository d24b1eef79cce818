"""The baselines of ranking: a constant, the mean of an item, and logistic regression."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from recsys.tasks.judging_side import Baseline, LeftOutError
from recsys.tasks.ranking.judging.labelled_rows import LabelledRows

Predictions = dict[str, np.ndarray]
"""Probabilities, or amounts, by label `[n]` float64."""


@dataclasses.dataclass(frozen=True)
class Means:
    """Mean labels.

    Attributes:
        of_all: Mean of each label by name.
        of_items: Mean of each item row by label `[item rows]`; None: the mean of all rows.
    """

    of_all: Mapping[str, float]
    of_items: Mapping[str, np.ndarray] | None = None

    def predict(self, rows: LabelledRows) -> Predictions:
        """Returns the predictions for rows."""
        if self.of_items is None:
            return {name: np.full(len(rows), mean) for name, mean in self.of_all.items()}
        return {name: means[rows.item_row] for name, means in self.of_items.items()}


class Constant(Baseline):
    """Predicts the mean label of all training rows."""

    title: ClassVar[str] = "constant"
    task: ClassVar[str] = "ranking"

    def fit(self, data: LabelledRows) -> Means:
        """Learns from training rows.

        Raises:
            LeftOutError: No training row has a known label.
        """
        return Means(_means(data))


class ItemMean(Baseline):
    """Predicts the mean label of the item's training rows, smoothed by the mean of all rows."""

    title: ClassVar[str] = "mean of the item"
    task: ClassVar[str] = "ranking"

    prior: PositiveFloat = 10.0
    """Weight of the mean of all rows, as a number of rows."""

    def fit(self, data: LabelledRows) -> Means:
        """Learns from training rows.

        Raises:
            LeftOutError: No training row has a known label.
        """
        means, of_items = _means(data), {}
        n_rows = data.rows.inputs.catalogue.n_rows
        for name, mean in means.items():
            is_known, label, weight = _known(data, name)
            items = data.item_row[is_known]
            sums, weights = (np.bincount(items, x, n_rows) for x in (weight * label, weight))
            of_items[name] = (sums + self.prior * mean) / (weights + self.prior)
        return Means(means, of_items)


class LogisticRegression(Baseline):
    """Predicts yes/no labels by a logistic regression on one-hots of the model's columns.

    The columns are the user, the item, their features, the context and the statistics of earlier
    events, but not the history. Each token is a column; numbers are standardised. It is
    scikit-learn's, with an L2 penalty.
    """

    title: ClassVar[str] = "logistic regression"
    task: ClassVar[str] = "ranking"

    strength: PositiveFloat = 3.0
    """Strength of the L2 penalty, relative to the sum of the losses of all rows."""
    iterations: PositiveInt = 200
    """Highest number of iterations."""

    def fit(self, data: LabelledRows) -> FittedRegression:
        """Learns from training rows.

        Raises:
            LeftOutError: No yes/no label has both values in the training rows.
        """
        from sklearn.linear_model import LogisticRegression as Regression
        from threadpoolctl import threadpool_limits

        inputs, models = data.inputs(), {}
        one_hots = OneHots.of(inputs)
        columns = one_hots.columns(inputs)
        for name, kind in data.kinds.items():
            is_known, label, weight = _known(data, name)
            if kind == "amount" or len(np.unique(label)) < 2:
                continue
            model = Regression(C=1.0 / self.strength, max_iter=self.iterations)
            # With more threads, short vectors took twelve times as long on two cores.
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # On convergence, and on options of SciPy.
                models[name] = model.fit(columns[is_known], label, weight)
        if not models:
            raise LeftOutError("No yes/no label has both values in the training rows.")
        return FittedRegression(one_hots, models)


@dataclasses.dataclass(frozen=True)
class FittedRegression:
    """A fitted logistic regression.

    Attributes:
        one_hots: The columns.
        models: Fitted model of each label.
    """

    one_hots: OneHots
    models: Mapping[str, Any]

    def predict(self, rows: LabelledRows) -> Predictions:
        """Returns the predictions for rows."""
        columns = self.one_hots.columns(rows.inputs())
        return {name: model.predict_proba(columns)[:, 1] for name, model in self.models.items()}


@dataclasses.dataclass(frozen=True)
class OneHots:
    """Columns of the inputs of a model: one for each token, and standardised numbers.

    Attributes:
        tokens: Number of tokens by input; tokens that no training row has are dropped.
        numbers: Mean and standard deviation `[width]` by input.
    """

    tokens: Mapping[str, int]
    numbers: Mapping[str, tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, inputs: Mapping[str, np.ndarray]) -> OneHots:
        """Returns the columns for the inputs of the training rows `[n, …]` by name."""
        is_number = {name: x.dtype.kind == "f" for name, x in inputs.items()}
        tokens = {name: int(x.max(initial=0)) for name, x in inputs.items() if not is_number[name]}
        numbers = {
            name: (x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64))
            for name, x in inputs.items()
            if is_number[name]
        }
        return cls(tokens, numbers)

    def columns(self, inputs: Mapping[str, np.ndarray]) -> Any:
        """Returns a matrix `[n, columns]` float64 in CSR."""
        from scipy import sparse

        parts = []
        for name, n in self.tokens.items():
            tokens = inputs[name].reshape(len(inputs[name]), -1)
            is_there = (tokens > 0) & (tokens <= n)  # Row 0 is padding, and what is unknown.
            offsets = np.append(0, np.cumsum(is_there.sum(axis=1)))
            ones = np.ones(offsets[-1])
            shape = (len(tokens), n)
            parts.append(sparse.csr_matrix((ones, tokens[is_there] - 1, offsets), shape=shape))
        for name, (mean, deviation) in self.numbers.items():
            scaled = (inputs[name] - mean) / np.where(deviation > 0, deviation, 1.0)
            parts.append(sparse.csr_matrix(scaled))
        return sparse.hstack(parts, format="csr")


def _known(data: LabelledRows, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the indices of rows with a known label, their labels, and their weights."""
    is_known = np.flatnonzero(~np.isnan(data.labels[label]))
    weight = data.weight_of(label)
    of_known = np.ones(len(is_known)) if weight is None else weight[is_known]
    return is_known, data.labels[label][is_known], of_known


def _means(data: LabelledRows) -> dict[str, float]:
    """Returns the mean of each label that some row has."""
    means = {}
    for name in data.labels:
        _, label, weight = _known(data, name)
        if len(label):
            means[name] = float(weight @ label / weight.sum())
    if not means:
        raise LeftOutError("No training row has a known label.")
    return means
