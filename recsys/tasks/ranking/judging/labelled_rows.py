"""Rows of a store with their labels, as the evaluation and its baselines read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from recsys.data.label_config import LabelConfig
from recsys.data.row_log import RowLog
from recsys.metrics.scores import LabelKind, ScoredRows
from recsys.tasks.ranking.rows import Rows, joint_labels, known, model_inputs

NEGATIVES = 4
"""Number of items drawn for each row with label 1, if no row has label 0."""
_SEED_OF_NEGATIVES = 7


def kind_of(label: LabelConfig) -> LabelKind:
    """Returns the kind of a label."""
    return "amount" if label.is_amount else "yes_no"


@dataclasses.dataclass(frozen=True)
class PairColumns:
    """What the inputs of a pair without its history are read by, in place of a model's config."""

    history: int = 1
    user_id: bool = True
    history_features: bool = False
    reads_attributes: bool = False
    stage_one: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledRows:
    """Pairs of a user and an item with their labels.

    Attributes:
        rows: The part of the store.
        numbers: Index of each row in the part `[n]` int64.
        item_row: Item of each row `[n]` int32, which may be a drawn one.
        user: Index of each row's user in the part `[n]`.
        labels: Labels by name `[n]` float64, NaN if unknown. A label that depends on another one
            is 0 if that is 0.
        factors: Factor of the weight of each row `[n]` by label, see `joint_labels`; others: 1.
        kinds: Kind of each label by name.
        weight: Weight of each row `[n]`, 1 / the share of such rows that the source kept; None: 1.
        impression: Impression of each row `[n]`, 0 for none; None if there are none.
        timestamp: Time of each row `[n]` [seconds since 1970, UTC].
        is_drawn: Whether the item was drawn as a negative `[n]` bool.
    """

    rows: Rows
    numbers: np.ndarray
    item_row: np.ndarray
    user: np.ndarray
    labels: Mapping[str, np.ndarray]
    factors: Mapping[str, np.ndarray]
    kinds: Mapping[str, LabelKind]
    weight: np.ndarray | None
    impression: np.ndarray | None
    timestamp: np.ndarray
    is_drawn: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    @classmethod
    def of(cls, rows: Rows, numbers: np.ndarray, labels: Mapping[str, LabelConfig]) -> LabelledRows:
        """Reads rows at ascending indices `[n]` of a part.

        Args:
            rows: The part.
            numbers: The indices.
            labels: The labels by name, each after its `given`.
        """
        log = rows.log
        own = {n: known(log.labels[n].gather_sorted(numbers)).astype(np.float64) for n in labels}
        rate = None if log.rate is None else log.rate.gather_sorted(numbers)
        weight = None if rate is None else 1.0 / rate.astype(np.float64)
        joint, factors = joint_labels(own, labels, weight)
        return cls(
            rows=rows,
            numbers=numbers,
            item_row=log.item_row.gather_sorted(numbers),
            user=log.user_index(numbers),
            labels=joint,
            factors=factors,
            kinds={name: kind_of(label) for name, label in labels.items()},
            weight=weight,
            impression=None if log.impression is None else log.impression.gather_sorted(numbers),
            timestamp=log.timestamp.gather_sorted(numbers),
            is_drawn=np.zeros(len(numbers), bool),
        )

    @property
    def trained_label(self) -> str:
        """Name of the first label."""
        return next(iter(self.labels))

    def select(self, which: np.ndarray) -> LabelledRows:
        """Returns the rows of a mask `[n]` bool, or of an index."""
        taken = {name: _taken(getattr(self, name), which) for name in _COLUMNS}
        return dataclasses.replace(self, **taken)

    @property
    def drawn_labels(self) -> list[str]:
        """Names of the labels that drawn items have."""
        return [n for n, x in self.labels.items() if not np.isnan(x[self.is_drawn]).all()]

    def among_drawn(self, probability: np.ndarray) -> np.ndarray:
        """Returns probabilities `[n]` of a label among the rows and the drawn items.

        Args:
            probability: Probabilities among all items of the catalogue `[n]`, of which
                `NEGATIVES` are drawn uniformly for each row.
        """
        odds = probability * (self.rows.inputs.catalogue.is_item.sum() / NEGATIVES)
        return odds / (odds + 1.0 - probability)

    def with_negatives(self, seed: int, labels: Mapping[str, LabelConfig]) -> LabelledRows:
        """Returns the rows with label 1, each with `NEGATIVES` drawn items with label 0.

        Items are drawn uniformly from the catalogue, without the items of the user's rows. They
        have no impression, and labels that don't depend on the first one are unknown.

        Args:
            seed: Seed of the draws.
            labels: The labels by name, each after its `given`.
        """
        zero = {self.trained_label}
        for name, label in labels.items():
            if label.given in zero and not label.is_amount:
                zero.add(name)
        positive = self.select(self.labels[self.trained_label] > 0)
        is_item = self.rows.inputs.catalogue.is_item
        rng = np.random.default_rng([seed, _SEED_OF_NEGATIVES])
        drawn = rng.choice(np.flatnonzero(is_item), len(positive) * NEGATIVES).astype(np.int32)
        other = positive.select(np.repeat(np.arange(len(positive)), NEGATIVES))
        own = self.user * np.int64(len(is_item)) + self.item_row
        is_kept = ~np.isin(other.user * np.int64(len(is_item)) + drawn, own)
        other = dataclasses.replace(
            other,
            item_row=drawn,
            labels={
                name: np.full(len(other), 0.0 if name in zero else np.nan) for name in self.labels
            },
            impression=None if self.impression is None else np.zeros_like(other.impression),
            is_drawn=np.ones(len(other), bool),
        ).select(is_kept)
        return _joined(positive, other)

    def weight_of(self, label: str) -> np.ndarray | None:
        """Returns the weight of each row for a label `[n]`; None: 1."""
        if label not in self.factors:
            return self.weight
        return self.factors[label] * (1.0 if self.weight is None else self.weight)

    def scored(self, label: str, score: np.ndarray, user: np.ndarray, n_users: int) -> ScoredRows:
        """Returns the rows with a known label, with their scores.

        Args:
            label: Name of the label.
            score: Probability of the label, or predicted amount `[n]`.
            user: Index of each row's user `[n]`, in 0 … `n_users` - 1.
            n_users: Number of users.
        """
        score, values = np.asarray(score, np.float64), self.labels[label]
        weight = self.weight_of(label)
        rows = ScoredRows(score, values, weight, user, n_users, self.impression)
        return rows.select(~np.isnan(values))

    def inputs(self) -> dict[str, np.ndarray]:
        """Returns the inputs of models by name `[n, …]`, without the users' histories."""
        rows = dataclasses.replace(self.rows, config=PairColumns())
        read = rows.read(self.numbers)
        if self.is_drawn.any():
            read = rows.of_items(read, self.item_row)
        inputs = model_inputs(read, rows.inputs, rows.config)
        del inputs["history"]
        # With the rows of ids that have no positive.
        return inputs | {"user_row": read["user_row"], "id_row": read["item_row"]}


def has_negatives(log: RowLog, label: str) -> bool:
    """Returns whether some row has label 0."""
    return any(bool((shard.labels[label] == 0).any()) for shard in log.shards)


_COLUMNS = (
    "numbers",
    "item_row",
    "user",
    "labels",
    "factors",
    "weight",
    "impression",
    "timestamp",
    "is_drawn",
)


def _taken(x: Any, which: np.ndarray) -> Any:
    if isinstance(x, Mapping):
        return {name: values[which] for name, values in x.items()}
    return None if x is None else x[which]


def _joined(first: LabelledRows, second: LabelledRows) -> LabelledRows:
    def both(a: Any, b: Any) -> Any:
        if isinstance(a, Mapping):
            return {name: np.concatenate([a[name], b[name]]) for name in a}
        return None if a is None else np.concatenate([a, b])

    joined = {name: both(getattr(first, name), getattr(second, name)) for name in _COLUMNS}
    return dataclasses.replace(first, **joined)
