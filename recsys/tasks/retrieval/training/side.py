"""The training side of retrieval."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.dataset import Data
from recsys.data.event_log import AGES, ASKED_AT, KINDS, WEIGHTS, minutes
from recsys.data.hold_out import KeptEvents
from recsys.data.shuffle import BatchPart
from recsys.distributed.host_collectives import agreed, note_on_primary
from recsys.errors import RecsysError, UsageError
from recsys.models.config import AutoConfig, TwoTowerConfig
from recsys.models.inference import embed_queries
from recsys.models.inputs import ModelInputs
from recsys.registry import name_of
from recsys.system.events import emit
from recsys.tasks.config import TrainConfig, TrainStage
from recsys.tasks.data_shape import DataShape
from recsys.tasks.model_folder import save_candidates
from recsys.tasks.retrieval.training.auto import described, for_data, outgrown
from recsys.tasks.retrieval.training.batch_shapes import batch_shapes
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.retrieval.training.mining import RetrievalEpochWork
from recsys.tasks.retrieval.training.preconditions import check_events, uneven_error
from recsys.tasks.retrieval.training.sequences import SequenceSource
from recsys.tasks.retrieval.training.space import default_space
from recsys.tasks.retrieval.training.validation import Validator
from recsys.tasks.training_side import StageT, TrainingSide

_PROBES = 1000
_NEEDED = {
    AGES: ("model.pooling.relative_time", "times", "timestamp"),
    WEIGHTS: ("model.pooling.event_weight", "weights", "weight"),
    KINDS: ("model.pooling.event_kind", "kinds", "event"),
}


class RetrievalTraining(TrainingSide):
    """Trains on positives, in batches of queries, their positives, and drawn negatives."""

    @classmethod
    def chosen(cls, stage: StageT, data: Data | DataShape, earlier: TrainStage | None) -> StageT:
        """Returns the stage with a model; replaces `model: auto` by a choice for the data."""
        if not isinstance(stage.model, AutoConfig):
            return stage
        chosen = for_data(stage, data, earlier)
        if isinstance(data, DataShape):
            return chosen
        note_on_primary(f"The config leaves the model to the data: {described(chosen)}.")
        other = None if earlier is None else outgrown(stage, data, earlier)
        if other is not None:
            note_on_primary(
                f"That is the earlier model's choice; the data would choose now: {other}."
                " A run with warm_start=null changes to it."
            )
        return chosen

    @classmethod
    def resolved(cls, config: Any, train: TrainConfig, data: Data) -> Any:
        """Returns a model's config with the `history_of` that the order of the events permits.

        Raises:
            UsageError: The config needs an order, times, weights or kinds that the events lack
                (R336).
        """
        store = data.store
        columns = "Name their column by data.interactions.columns.{}, or leave {} out."
        order, missing = (
            store.split.order,
            [f for f in config.history_facts if f not in store.facts],
        )
        needs = [_NEEDED[fact] for fact in missing]
        read_times = [
            f"model.{name_of('term', term)}"
            for term in config.score_terms
            if ASKED_AT in term.query_facts
        ]
        read_times += ["train.half_life"] if train.half_life else []
        if order != "time":
            needs += [(key, "times", "timestamp") for key in read_times]
        errors = [
            (f"{key} needs events that have {what}.", columns.format(column, key))
            for key, what, column in needs
        ]
        if config.history_of == "past" and order == "none":
            rule = "model.history_of: past needs events that have an order."
            errors.append((rule, "Leave model.history_of out, or set it to others."))
        for rule, cure in errors:
            raise UsageError("R336", rule, cure, store.split.text)
        history_of = config.history_of or ("others" if order == "none" else "past")
        return config.model_copy(update={"history_of": history_of})

    @classmethod
    def uneven(cls, train: TrainConfig, n_parts: int) -> UsageError | None:
        """Returns the error for a batch that can't be divided into parts and groups (R321)."""
        return uneven_error(train, n_parts)

    @classmethod
    def batch_shapes(
        cls, stage: TrainStage, model: Any, n_parts: int, n_items: int, has_weights: bool
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each array of a batch."""
        return batch_shapes(stage, model, n_parts, n_items, has_weights)

    @classmethod
    def default_space(cls, stage: TrainStage) -> dict[str, Any]:
        """Returns the default ranges of tuning; empty except for the two-tower model."""
        model = stage.model
        return default_space(model, stage.train) if isinstance(model, TwoTowerConfig) else {}

    def check(self, events: KeptEvents, train: TrainConfig, n_parts: int) -> list[str]:
        """Checks the data before the first step, and returns remarks on them."""
        config = self.stage.model
        remarks = check_events(events, self.inputs.catalogue, config.history_of)
        has_order = self.store.split.order != "none"
        if not has_order and config.needs_order and not config.over_positions:
            remarks.append(
                "model.pooling is sequence, and the events have no order: positions carry no"
                " information, so mean or attention learn as much for less."
            )
        return remarks

    def source(
        self, events: KeptEvents, train: TrainConfig, multiple: int, part: BatchPart
    ) -> BatchSource:
        """Returns the batches of a training."""
        source = SequenceSource if self.stage.model.over_positions else BatchSource
        inputs = self.inputs
        return source(
            events,
            inputs.catalogue,
            self.stage.model,
            train,
            inputs.user_features,
            multiple=multiple,
            part=part,
        )

    def epoch_work(
        self,
        model: Any,
        inputs: ModelInputs,
        source: Any,
        stage: TrainStage,
        folder: Path,
        oldest_step: Callable[[], int],
        since: int | None,
    ) -> RetrievalEpochWork:
        """Returns the work between epochs: validation, and mining of hard negatives."""
        return RetrievalEpochWork(model, inputs, source, stage, folder, oldest_step, since)

    def adapt(self, model: Any, events: KeptEvents) -> None:
        """Sets the neighbours, ages and token weights that a model computes from the data."""
        if model.adapted:
            text = "finds neighbours and ages of items"
            emit("progress", step="Trainer", done=0, total=1, text=text)
        model.adapt(events, self.inputs)

    def traits(self, before: ModelInputs) -> list[tuple[str, Any, Any]]:
        """Returns the kinds of events, if the model reads them: their rows must not change."""
        if KINDS not in self.stage.model.history_facts:
            return []
        return [("kinds of events", before.kinds, self.inputs.kinds[: len(before.kinds)])]

    def reason_against(self, until: int) -> str | None:
        """Returns why a model trained until `until` can't be validated, or None."""
        stage, train_log = self.stage, self.store.train
        if stage.train.validation is None:
            return None
        events = self.events(stage.train)
        if not (np.asarray(train_log.timestamp[events.held]) >= until).any():
            return "it was trained on all that validation holds back"
        try:
            Validator(
                events, self.inputs, stage.model, stage.train.validation, until, stage.repeats
            )
        except RecsysError:
            return "all that validation holds back since its training are items seen before"
        return None

    def write(self, folder: Path, model: Any) -> None:
        """Writes the candidates, and queries with embeddings that an export must reproduce."""
        inputs = self.inputs
        save_candidates(folder, model, inputs)
        log, config = self.store.train, model.spec.config
        events = np.linspace(0, len(log) - 1, min(_PROBES, len(log))).astype(np.int64)
        user_row = np.array(log.user_row[events])
        history = log.histories(events, config.history)
        # Includes a user without a row, one without a history, and users with only features.
        user_row[:1], history[1:2] = 0, 0
        users = inputs.users
        untrained = np.flatnonzero((users.row_counts == 0) & users.has_id())[: len(events) // 10]
        user_row[len(events) - len(untrained) :] = untrained
        facts = log.history_facts(config.history_facts, events, config.history)
        if ASKED_AT in config.query_facts:
            facts[ASKED_AT] = minutes(log.timestamp[events])
        query = embed_queries(model, user_row, history, inputs, facts)
        arrays: dict[str, Any] = {"user_row": user_row, "history": history, "query": query, **facts}
        agreed(lambda: np.savez(folder / "probe.npz", **arrays))
