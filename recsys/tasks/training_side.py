"""The training side of a task: the training examples, and the work between epochs."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from recsys.data.config import Order, ValidationConfig
from recsys.data.dataset import Data
from recsys.data.event_log import EventLog
from recsys.data.hold_out import KeptEvents, draw_of, has_one_query_per_user, held_back
from recsys.data.shuffle import BatchPart
from recsys.data.split import BY_TIME, SplitRule
from recsys.data.store import InteractionStore
from recsys.errors import UsageError
from recsys.models.inputs import ModelInputs
from recsys.tasks.config import TrainConfig, TrainStage

Batch = dict[str, np.ndarray]
StageT = TypeVar("StageT", bound=TrainStage)


class Source(Protocol):
    """The batches of a training, in order, over all epochs; each is a function of its step."""

    @property
    def batch_size(self) -> int:
        """Number of examples per batch, over all devices."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches per epoch."""

    @property
    def size_of_part(self) -> tuple[int, int, int]:
        """Numbers of examples, candidates and array entries in this process, for read-ahead."""

    @property
    def bytes_per_epoch(self) -> int:
        """Bytes that this process reads per epoch; 0 before the first batch."""

    def __len__(self) -> int:
        """Returns the number of steps over all epochs."""

    def batches(self, first: int, end: int) -> list[Batch]:
        """Returns the batches of the steps `first` … `end` - 1, all in one epoch."""


@dataclasses.dataclass(eq=False)
class EpochWork:
    """The work between two epochs; nothing by default.

    Attributes:
        model: The compiled model.
        inputs: Inputs as of the events that training sees; see `trained_inputs`.
        source: The batches.
        stage: Configs of this training.
        since: End of an earlier model's training events [seconds since 1970, UTC].
    """

    model: Any
    inputs: ModelInputs
    source: Any
    stage: TrainStage
    since: int | None = None

    def validate(self) -> dict[str, float]:
        """Returns the validation's metrics of the current model; empty without validation."""
        return {}

    def settle(self) -> None:
        """Updates values that depend on the weights, before a validation and at the end."""


class TrainingSide:
    """The task-specific part of a training; an object per training.

    The side of a plugin's task derives from it and implements at least `source`.

    Args:
        stage: Configs of the training, with the model that `resolved` returns.
        store: The events.
        inputs: Vocabularies and features of users and items.
    """

    epoch_work: ClassVar[type[EpochWork]] = EpochWork
    """The work between epochs."""

    def __init__(self, stage: TrainStage, store: InteractionStore, inputs: ModelInputs) -> None:
        self.stage, self.store, self.inputs = stage, store, inputs

    @classmethod
    def chosen(cls, stage: StageT, data: Data | DataShape, earlier: TrainStage | None) -> StageT:
        """Returns the stage with a model; replaces `model: auto` by a choice for the data.

        Args:
            stage: Configs of the training, or a whole config.
            data: The data, or their shape.
            earlier: Configs of the model from which the training starts; None: a cold start.
        """
        return stage

    @classmethod
    def candidates(cls, stage: StageT, data: Data) -> dict[str, StageT]:
        """Returns stages to compare before a training, by name; empty if there is no choice.

        The first is the one that `chosen` returns.
        """
        return {}

    @classmethod
    def resolved(cls, config: Any, train: TrainConfig, data: Data) -> Any:
        """Returns a model's config with the options that follow from the data.

        Raises:
            UsageError: The data lack what the config needs.
        """
        return config

    @classmethod
    def uneven(cls, train: TrainConfig, n_parts: int) -> UsageError | None:
        """Returns the error for a batch that can't be divided into `n_parts` parts, or None."""
        if train.batch_size % n_parts == 0:
            return None
        fitting = -(-train.batch_size // n_parts) * n_parts
        rule = f"train.batch_size must be a multiple of {n_parts}, the parts of a batch."
        return UsageError("R321", rule, f"Use {fitting}.", train.batch_size)

    @classmethod
    def batch_shapes(
        cls, stage: TrainStage, model: Any, n_parts: int, n_items: int, has_weights: bool
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each array of a batch, by name, for `recsys plan`.

        Args:
            stage: Configs of the training.
            model: The model.
            n_parts: Number of parts that devices split a batch into.
            n_items: Rows of the item table.
            has_weights: Whether events have weights.
        """
        raise NotImplementedError

    @classmethod
    def default_space(cls, stage: TrainStage) -> dict[str, Any]:
        """Returns ranges by key for `recsys tune`; if empty, the user must give them."""
        return {}

    def events(self, train: TrainConfig) -> KeptEvents:
        """Returns the events that training sees."""
        return training_events(self.store.train, train, self.store.split)

    def trained_inputs(self, events: KeptEvents) -> ModelInputs:
        """Returns the inputs of users and items for a model that trained on `events`."""
        return trained_inputs(self.inputs, events)

    def check(self, events: KeptEvents, train: TrainConfig, n_parts: int) -> list[str]:
        """Checks the data before the first step, and returns remarks on them.

        Args:
            events: The events that training sees.
            train: The training loop.
            n_parts: Number of parts that the devices split a batch into.
        """
        return []

    def source(
        self, events: KeptEvents, train: TrainConfig, multiple: int, part: BatchPart
    ) -> Source:
        """Returns the batches of a training.

        Args:
            events: The events that training sees.
            train: The training loop.
            multiple: Number of devices that a batch is split over.
            part: The rows of each array that this process reads.
        """
        raise NotImplementedError

    def adapt(self, model: Any, events: KeptEvents) -> None:
        """Sets the parts of a new model that are computed from the events, not learned."""

    def reason_against(self, until: int) -> str | None:
        """Returns why a model trained until `until` can't be validated, or None."""
        return None

    def trains_again(self, events: Any, train: TrainConfig) -> bool:
        """Returns whether a second training follows, on all events.

        Args:
            events: The events that the first training sees.
            train: The training loop.
        """
        return train.validation is not None and train.validation.refit

    def take_over(self, model: Any, validated: Any) -> None:
        """Gives an unbuilt model that is trained anew on all events what the first training found.

        It may change `model.spec` for the time of that training.
        """

    def write(self, folder: Path, model: Any) -> None:
        """Writes files for judging and serving, besides the weights, into a model folder.

        Every process calls it.
        """


def training_events(events: EventLog, train: TrainConfig, split: SplitRule = BY_TIME) -> KeptEvents:
    """Returns the events that training sees: all events, without those that validation holds back.

    Args:
        events: The training positives.
        train: Whether there is a validation, and how it draws.
        split: How the positives were split, and their order.

    Raises:
        RecsysError: There are fewer than two events to divide.
        UsageError: The draw needs something that the data don't have.
    """
    if train.validation is None:
        return KeptEvents(events)
    draw = draw_of(events, train.validation, split)
    return KeptEvents(events, held_back(events, train.validation, draw), draw)


def trained_inputs(inputs: ModelInputs, events: KeptEvents) -> ModelInputs:
    """Returns the inputs of users and items for a model that trained on `events`.

    Users and items whose events are all held back have no trained row, and read row 0, like
    out-of-vocabulary ids.
    """
    if not len(events.held):
        return inputs
    return counted_inputs(inputs, events)


def counted_inputs(inputs: ModelInputs, events: KeptEvents) -> ModelInputs:
    """Returns the inputs with the counts of `events` in place of those of the ingest."""
    users, items = copy.copy(inputs.users), copy.copy(inputs.items)
    users.row_counts = events.user_counts(users.n_rows)
    items.row_counts = events.item_counts(items.n_rows)
    return dataclasses.replace(inputs, users=users, items=items)


def unknown_share(events: KeptEvents, inputs: ModelInputs) -> float:
    """Returns the share of the events' user and item ids without their own row [0..1].

    Args:
        events: The positives that training sees.
        inputs: Vocabularies and features of users and items.
    """
    users, items = inputs.users, inputs.items
    n_users = events.user_counts(users.n_rows)[~users.has_id()].sum()
    n_items = events.item_counts(items.n_rows)[~items.has_id()].sum()
    return float(n_users + n_items) / (2 * len(events))


_FEW_NEW = 0.01
"""Share of items without events up to which they have no effect."""


@dataclasses.dataclass(frozen=True)
class DataShape:
    """The properties of data on which the choice of a model depends.

    Attributes:
        events: Number of training events; 0 if unknown.
        users: Number of users with a training event.
        items: Number of item rows.
        order: Order of a user's events; also `none` if the held-out events aren't a user's
            newest.
        has_features: Whether items, users or queries have features.
        new_items: Number of items without events, if items have features; else 0.
    """

    events: int
    users: int
    items: int
    order: Order
    has_features: bool
    new_items: int = 0

    @classmethod
    def of(cls, data: Data, config: ValidationConfig | None = None) -> DataShape:
        """Returns the shape of data; `config` determines how validation draws."""
        catalogue, split = data.catalogue, data.store.split
        is_new = catalogue.is_item & (data.items.row_counts == 0)
        return cls(
            events=len(data.train),
            users=sum(
                int((part.offsets[1:] > part.offsets[:-1]).sum()) for part in data.train.shards
            ),
            items=data.spec.item_rows,
            order="none" if has_one_query_per_user(data.train, config, split) else split.order,
            has_features=any(feature.needs_layers for feature in data.spec.features),
            new_items=int(is_new.sum()) if catalogue.features else 0,
        )

    @property
    def events_per_user(self) -> float:
        """Mean number of training events per user."""
        return self.events / max(self.users, 1)

    @property
    def has_new_items(self) -> bool:
        """Whether more than a few items have features but no events."""
        return self.new_items > _FEW_NEW * self.items
