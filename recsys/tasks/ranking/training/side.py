"""The training side of ranking: rows with labels, batches, validation, calibration."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.row_log import RowLog
from recsys.data.shuffle import BatchPart
from recsys.distributed.coordination import agreed
from recsys.errors import RecsysError, UsageError
from recsys.models.inference import ScoreInference
from recsys.models.inputs import ModelInputs
from recsys.models.ranking_model import RankingModel
from recsys.tasks.config import TrainConfig, TrainStage
from recsys.tasks.ranking.calibration_file import save_calibration
from recsys.tasks.ranking.probe import save_probe
from recsys.tasks.ranking.rows import LABEL, Rows, known
from recsys.tasks.ranking.training.batches import RowSource
from recsys.tasks.ranking.training.candidate_batches import CandidateNegatives, list_prior
from recsys.tasks.ranking.training.epoch_work import RankingEpochWork
from recsys.tasks.ranking.training.other_batches import SampledNegatives, WholeImpressions
from recsys.tasks.ranking.training.training_rows import TrainingRows, training_rows
from recsys.tasks.training_side import TrainingSide, counted_inputs

_MANY = 0.5
"""Share of training rows without the first label above which there is a remark."""


class RankingTraining(TrainingSide):
    """Trains on rows with labels: what was shown, or positives with drawn negatives."""

    epoch_work = RankingEpochWork

    @classmethod
    def batch_shapes(
        cls, stage: TrainStage, model: Any, n_parts: int, n_items: int, has_weights: bool
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each array of a batch."""
        train, n = stage.train, stage.train.batch_size
        batch: dict[str, tuple[tuple[int, ...], str]] = {
            x.name: ((n, *x.shape), x.dtype) for x in model.inputs_of_sides
        }
        batch |= {f"{LABEL}{name}": ((n,), "float32") for name in model.label_names}
        if has_weights or train.user_balance or train.half_life or train.loss.reads_group:
            batch["weight"] = ((n,), "float32")
        if train.loss.reads_group:
            batch["group"] = ((n,), "int32")
        if train.negative_share < 1:
            batch["log_rate"] = ((n,), "float32")
        return batch

    @classmethod
    def default_space(cls, stage: TrainStage) -> dict[str, Any]:
        """Returns the default ranges of tuning."""
        fields = type(stage.model).model_fields
        space: dict[str, Any] = {
            "train.table_learning_rate": "log:0.0001..0.01",
            "train.tower_learning_rate": "log:0.0003..0.01",
            "model.id_dropout": "0.0..0.5",
            "model.dim": [8, 16, 32, 64],
        }
        return space | ({"model.dropout": "0.0..0.5"} if "dropout" in fields else {})

    def events(self, train: TrainConfig) -> TrainingRows:
        """Returns the rows that training sees."""
        labels = self.stage.model.learned(self.inputs.labels)
        is_newer = bool(self.stage.model.shared_tables)
        return training_rows(self.store, labels, train.validation, only_newer=is_newer)

    def trained_inputs(self, events: Any) -> ModelInputs:
        """Returns the inputs with the counts of the rows that training sees.

        With a retriever's tables these are its counts: other rows of them were never trained.
        """
        if not self.stage.model.shared_tables:
            return counted_inputs(self.inputs, events)
        candidates: Any = self.store.candidates
        retriever = ModelInputs.open(candidates.model)
        return dataclasses.replace(self.inputs, users=retriever.users, items=retriever.items)

    def check(self, events: Any, train: TrainConfig, n_parts: int) -> list[str]:
        """Checks the data before the first step, and returns remarks on them.

        Raises:
            RecsysError: The first label is constant, and negatives can't be drawn (R393).
            UsageError: A key needs rows with the first label 0 (R398).
        """
        first, remarks = events.first_label, list[str]()
        yes_no = [name for name in events.labels if not self.inputs.labels[name].is_amount]
        if yes_no and train.loss.takes_amounts and not train.loss.gives_log_odds:
            remarks.append(
                f"train.loss compares the log odds of {', '.join(yes_no)} with 0 and 1, so it is"
                " meant for amounts; binary is the loss of yes/no labels."
            )
        if self.inputs.labels[first].is_amount:
            if train.negative_share < 1:
                raise UsageError(
                    "R398",
                    f"train.negative_share is of rows with label 0, and the first label, {first},"
                    " is an amount.",
                    "Set it to 1, or name a yes/no label first in model.labels.",
                    train.negative_share,
                )
            return remarks
        if not events.positives:
            raise RecsysError(
                "R393",
                f"Some training rows must have the label {first} 1.",
                f"Check data.interactions.labels.{first}: column, at_least and values; or name"
                " another label first in model.labels.",
                f"0 of {len(events):,} rows",
            )
        n_unknown = len(events) - events.positives - events.negatives
        if n_unknown > _MANY * len(events):
            remarks.append(
                f"{n_unknown:,} of {len(events):,} training rows have no known label {first}."
            )
        if events.source == "candidates" and train.negative_share < 1:
            raise UsageError(
                "R398",
                "train.negative_share must be 1 if negatives are drawn from a retriever's lists.",
                "Remove ranker.train.negative_share, and set ranker.negatives.",
                train.negative_share,
            )
        if events.source == "sampled":
            remarks.append(
                f"No row has the label {first} 0, so {train.negatives_per_row} items are drawn from"
                " the catalogue for each row as negatives. Probabilities are then those of an event"
                " of the user to be of the item, among all items."
            )
        return remarks

    def source(self, events: Any, train: TrainConfig, multiple: int, part: BatchPart) -> RowSource:
        """Returns the batches of a training."""
        kind = RowSource
        if events.source == "sampled":
            kind = SampledNegatives
        elif events.source == "candidates":
            kind = CandidateNegatives
        elif train.loss.reads_group:
            kind = WholeImpressions
        inputs, config = self.trained_inputs(events), self.stage.model
        rows = Rows.of(self.store, "train", inputs, config)
        return kind(events, rows, inputs, config, train, part)

    def adapt(self, model: RankingModel, events: Any) -> None:
        """Sets the units of amounts, and weights of tokens."""
        model.adapt(events, self.inputs)
        of_amounts = (name for name in events.labels if self.inputs.labels[name].is_amount)
        columns = {name: known(np.asarray(events.rows.labels[name])) for name in of_amounts}
        model.set_amounts({name: np.delete(x, events.held) for name, x in columns.items()})
        if (feature := self.stage.model.position_feature) is not None:
            model.set_position(_first_position(events.rows, feature))
        if events.candidates is not None and not self.inputs.labels[events.first_label].is_amount:
            model.set_prior(list_prior(events))

    def reason_against(self, until: int) -> str | None:
        """Returns why a model trained until `until` can't be validated, or None."""
        if self.stage.train.validation is None:
            return None
        events = self.events(self.stage.train)
        if not (events.rows.timestamp[events.validation] >= until).any():
            return "it was trained on all that validation holds back"
        return None

    def take_over(self, model: RankingModel, validated: RankingModel) -> None:
        """Gives a model that is trained anew on all rows the calibration of `validated`, halved.

        It has learned the rows that the calibration was fitted on, and so a part of what that
        corrects.
        """
        maps = validated.calibration
        model.set_calibration({name: one.halved() for name, one in maps.items()})

    def write(self, folder: Path, model: RankingModel) -> None:
        """Writes the calibration, and rows with scores that an export must reproduce."""
        if model.calibration:
            agreed(lambda: save_calibration(folder, model.calibration))
        save_probe(folder, ScoreInference(model), self.store, self.inputs)


def _first_position(rows: RowLog, feature: str) -> np.ndarray:
    """Returns the most frequent entry `[width]` of a feature of rows in the first position.

    Raises:
        RecsysError: No row is known to be there (R398).
    """
    first = np.zeros(0, np.int64)
    if rows.position is not None:
        first = np.flatnonzero(np.asarray(rows.position) == 0)
    if not len(first):
        raise RecsysError(
            "R398",
            "model.position_feature needs rows in the first position, 0.",
            "Name the column of positions by data.interactions.columns.position, and ingest again.",
            "no position 0",
        )
    entries, counts = np.unique(rows.features[feature][first], axis=0, return_counts=True)
    entry: np.ndarray = entries[np.argmax(counts)]
    return entry
