"""The work between epochs: validation on held-back rows, and in the end calibration on them."""

from __future__ import annotations

import dataclasses

import numpy as np

from recsys import registry
from recsys.data.config import ValidationConfig
from recsys.data.shuffle import Permutation
from recsys.errors import RecsysError, UsageError
from recsys.metrics import pooled
from recsys.metrics.scores import ScoredRows
from recsys.models.inference import ScoreInference
from recsys.tasks.ranking.calibration_file import KINDS
from recsys.tasks.ranking.rows import LABEL, Read, joint_labels, model_inputs
from recsys.tasks.ranking.training.batches import RowSource
from recsys.tasks.training_side import EpochWork

_SHOWN = {False: ("roc_auc", "log_loss"), True: ("squared_error", "absolute_error")}
"""Metrics of a label, and of an amount."""

Scores = dict[str, np.ndarray]


@dataclasses.dataclass(eq=False)
class RankingEpochWork(EpochWork):
    """Validates the model between two epochs, and calibrates the best one."""

    def __post_init__(self) -> None:
        """Reads the rows of the validation."""
        self._inference, self._rows = ScoreInference(self.model), None
        config = self.stage.train.validation
        if config is not None:
            self._rows = HeldBackRows(self.source, config.max_queries, self.since)
            self._rows.check(config)

    def validate(self) -> dict[str, float]:
        """Returns the validation's metrics of the current model; empty without validation."""
        config = self.stage.train.validation
        if self._rows is None or config is None:
            return {}
        return self._rows.metrics(self._rows.scores(self._inference), config)

    def settle(self) -> None:
        """Fits the calibration on the rows of the validation."""
        kind, rows = self.stage.train.calibration, self._rows
        if kind is None or rows is None:
            return
        scores = rows.scores(self._inference)
        labels, weights = rows.joint_labels()
        self.model.set_calibration(
            {
                name: KINDS[kind].fit(scores[name], label, weights[name])
                for name, label in labels.items()
                if not self.inputs.labels[name].is_amount
            }
        )


class HeldBackRows:
    """The rows that training holds back.

    Args:
        source: The batches; drawn negatives are drawn for these rows likewise.
        most: Maximum number of rows; of more, a reproducible sample is used.
        since: Start of the rows: the earlier model of a warm start was trained on older ones
            [seconds since 1970, UTC]; None: all.
    """

    def __init__(self, source: RowSource, most: int, since: int | None = None) -> None:
        self._source, events = source, source.events
        rows = events.validation
        if since is not None:
            rows = rows[events.rows.timestamp[rows] >= since]
        if len(rows) > most:
            rows = np.sort(rows[Permutation(len(rows), (0, 7))[np.arange(most)]])
        self._drawn = source.held_back(rows)
        self.rows, of_row = self._drawn.rows, np.searchsorted(rows, self._drawn.rows)
        read = {name: x[of_row] for name, x in source.rows.read(rows).items()}
        self._read = source.with_items(read, self._drawn)
        labels = source.labels(read, self._drawn)
        self.labels = {name: labels[f"{LABEL}{name}"] for name in events.labels}
        self.user = events.rows.user_index(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> np.ndarray | None:
        """1 / rate of each row `[n]`, if the source thinned them or they are drawn; None: ones."""
        if self._drawn.is_negative is not None:
            log_rate = np.asarray(self._source.log_rate(self._drawn), np.float64)
            return np.where(self._drawn.is_negative, np.exp(-log_rate), 1.0)
        rate = self._read.get("rate")
        return None if rate is None else 1.0 / rate.astype(np.float64)

    def scores(self, inference: ScoreInference) -> Scores:
        """Returns the log odds or amount of each row `[n]` float32 by label, given nothing."""
        inputs, config, read = self._source.inputs, self._source.model, self._read

        def of_rows(at: np.ndarray) -> Read:
            return model_inputs({name: x[at] for name, x in read.items()}, inputs, config)

        scores = np.concatenate([*inference.blocks(of_rows, len(self))])
        names = inference.model.label_names
        return {name: scores[:, number] for number, name in enumerate(names)}

    def joint_labels(self) -> tuple[Read, Read]:
        """Returns the labels that scores predict, and the weights of their rows, by name."""
        weight = np.ones(len(self)) if self.weight is None else self.weight
        labels, factors = joint_labels(self.labels, self._source.inputs.labels, weight)
        return labels, {name: weight * factors.get(name, 1.0) for name in labels}

    def metrics(self, scores: Scores, config: ValidationConfig) -> dict[str, float]:
        """Returns the metrics of the first label.

        Args:
            scores: Result of `scores`.
            config: Names the deciding metric.
        """
        first = self._source.events.first_label
        label, score = self.labels[first], scores[first].astype(np.float64)
        is_amount = self._source.inputs.labels[first].is_amount
        if not is_amount:
            score = 1 / (1 + np.exp(-np.clip(score, -500, 500)))
        is_known = ~np.isnan(label)
        weight = None if self.weight is None else self.weight[is_known]
        users, user = np.unique(self.user[is_known], return_inverse=True)
        rows = ScoredRows(score[is_known], label[is_known], weight, user, len(users))
        names = dict.fromkeys((config.metric, *_SHOWN[is_amount]))
        found = pooled([registry.get("metric", name)() for name in names], rows)
        return {name: one.value for name, one in found.items()}

    def check(self, config: ValidationConfig) -> None:
        """Checks that the metric can be computed.

        Raises:
            RecsysError: No row is held back, or all have one label.
            UsageError: The metric doesn't suit the first label.
        """
        first = self._source.events.first_label
        is_amount = self._source.inputs.labels[first].is_amount
        fitting = ("squared_error",) if is_amount else ("roc_auc", "gauc", "log_loss")
        if config.metric not in fitting:
            raise UsageError(
                "R398",
                f"train.validation.metric must suit the first label, {first}.",
                f"Set it to {' or '.join(fitting)}.",
                config.metric,
            )
        label = self.labels[first]
        values = np.unique(label[~np.isnan(label)])
        if len(values) < (1 if is_amount else 2):
            raise RecsysError(
                "R329",
                f"Validation needs held-back rows with the label {first}, 1 and 0 among them.",
                "Raise train.validation.share, or set train.validation to null.",
                {"rows": len(self), "labels": values.tolist()},
            )
