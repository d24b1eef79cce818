"""Configs of the training: loss, negatives, optimizers, checkpoints, devices, warm start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from recsys import registry
from recsys.data.config import MONITORED, ShuffleConfig, ValidationConfig
from recsys.distributed.config import LayoutRules, MeshConfig
from recsys.embedding.config import AdagradConfig, RowOptimizerConfig
from recsys.losses.softmax import SampledSoftmax
from recsys.models.config import AutoConfig
from recsys.registry import Choice, name_of
from recsys.registry.choice import Stage
from recsys.strict import Share, Strict


class ScheduleConfig(Strict):
    """Learning rate schedule, for tables and towers."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up: a constant rate, or a linear or cosine decay."""
    warmup_steps: NonNegativeInt = 0
    """Number of steps of linear warm-up from 0."""
    end: Share = 0.0
    """Share of the full learning rate at the end of training, unless `constant` [0..1]."""


class CheckpointConfig(Strict):
    """Checkpoints, from which a killed run resumes."""

    every_steps: PositiveInt = 1_000
    """Number of steps between two checkpoints, which is the most that a kill can lose."""
    keep: PositiveInt = 2
    """Number of newest checkpoints to keep."""
    background: bool = True
    """Whether training continues while a checkpoint is written. On CPUs, which share the memory of
    the host, this needs a second set of tables and optimizer slots; false blocks instead."""


class TrainConfig(Strict):
    """The training loop."""

    loss: Annotated[Any, Choice("loss")] = SampledSoftmax()
    """Loss, one of the model's task. Retrieval: `sampled_softmax`, `full_softmax` (over the whole
    catalogue), `least_squares` (iALS), `bpr`. Ranking: `binary`, its default, `squared` (of
    amounts), `pairwise` or `listwise` (over an impression). Or one of a plugin. With options
    `{type: least_squares, negative_weight: 9.0}`."""
    batch_size: PositiveInt = 256
    """Number of examples per step, over all devices."""
    uniform_negatives: NonNegativeInt = 256
    """Number of negatives per step that are drawn from the whole catalogue, besides the in-batch
    negatives."""
    negative_power: Share = 0.0
    """Exponent of popularity in the sampling of these negatives: 0 is uniform, 1 is proportional
    to popularity [0..1]."""
    cold_negatives: Share = 1.0
    """Weight of items without training events as negatives, relative to other items; 0: they are
    never negatives. With a low weight their features determine their scores [0..1]."""
    log_q_correction: Share = 1.0
    """Strength of the logQ correction. At 1, scores estimate the probability of an item given the
    query; at 0, that divided by the sampling probability, which lowers popular items [0..1]."""
    negative_groups: PositiveInt = 1
    """Number of equal groups of a batch that share no negatives. Devices exchange candidates only
    within a group, so one group per node avoids the links between nodes."""
    node_devices: PositiveInt | None = None
    """Number of devices per node, consecutive in the order of JAX. Exchanges of table rows take
    into account that links between nodes are slower; `null`: the devices of a process."""
    negatives_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of candidates and their gradients in exchanges between devices for the loss, which is
    computed in float32."""
    known_positives: NonNegativeInt = 0
    """Number of a user's newest training positives that are excluded from its negatives; 0: only
    the example's own item is excluded [items]."""
    user_balance: Share = 0.0
    """Exponent of a user's number of positives, by which the weights of its examples are divided:
    at 0 all examples have equal weight, at 1 all users do [0..1]."""
    half_life: PositiveFloat | None = None
    """Share of newer training events at which the weight of an example halves; `null`: all ages
    have equal weight. Requires events with times."""
    negatives_per_row: PositiveInt = 4
    """Ranking: number of items that are drawn from the catalogue for each row, as its negatives, if
    no row of the data has label 0."""
    negative_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Ranking: share of the rows with label 0, of the first label, that an epoch takes, drawn anew
    each time. Scores are corrected for it (0..1]."""
    calibration: Literal["temperature", "isotonic"] | None = None
    """Ranking: map from scores to probabilities, fitted on the rows of `validation` after the
    training: `temperature`, its default, is logistic, `isotonic` non-decreasing; `null`, or without
    `validation`: none."""
    epochs: PositiveInt = 12
    """Number of passes over the training positives."""
    shuffle: ShuffleConfig = ShuffleConfig()
    """Order of the training positives within an epoch."""
    window_overlap: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.25
    """Share of a packed sequence that repeats the end of the one before it, so that its first
    examples have a history too. Used by encoders that are trained at every position [0..1)."""
    table_optimizer: Annotated[RowOptimizerConfig, Choice("row_optimizer")] = AdagradConfig()
    """Optimizer of the table rows: `adagrad`, `row_wise_adagrad`, with one accumulator per row in
    place of `model.dim`, `lazy_adam`, `ftrl`, `sgd`, or one of a plugin. With options `{type:
    lazy_adam, beta_1: 0.8}`."""
    table_learning_rate: PositiveFloat = 0.05
    """Learning rate of the tables."""
    user_learning_rate: PositiveFloat | None = None
    """Learning rate of the user table; `null`: `table_learning_rate`."""
    table_weight_decay: NonNegativeFloat = 0.0
    """Weight decay, times the learning rate, of the rows that a step reads."""
    table_regularisation: dict[str, NonNegativeFloat] = Field(default={})
    """L2 penalty on the rows of a table that a step reads by id or token, by table: `users`,
    `items`, `item_bias`, or the name of a feature (BPR-MF, iALS): `{users: 0.01}`."""
    tower_optimizer: Literal["adam", "adamw", "adagrad", "lion", "rmsprop", "sgd"] = "adam"
    """Keras optimizer of the towers."""
    tower_learning_rate: PositiveFloat = 0.001
    """Learning rate of the towers."""
    tower_weight_decay: NonNegativeFloat = 0.004
    """Weight decay of the towers' matrices with `adamw`, times the learning rate."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Schedule of both learning rates."""
    clip_norm: PositiveFloat | None = None
    """Highest global norm of the gradients; larger ones are scaled down; `null`: no limit."""
    accumulate: PositiveInt = 1
    """Number of steps whose gradients are accumulated for one update."""
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Decay rate per step of an exponential moving average that replaces the weights of the
    towers; `null`: none (0..1)."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which the towers compute; weights and loss stay float32."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of initialization, shuffle and dropout."""
    validation: ValidationConfig | None = None
    """Validation on held-back training positives, to stop early and to keep the best model;
    `null`: none, the last model is kept."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints, from which a killed run resumes."""
    profile_steps: NonNegativeInt = 0
    """Number of steps to trace with the JAX profiler, after the first 100; 0: none."""

    @model_validator(mode="after")
    def _loss_has_its_negatives(self) -> Self:
        self.loss.check(self)
        if self.shuffle.kind == "shards" and self.shuffle.buffer < self.batch_size:
            raise ValueError("shuffle.buffer must be at least batch_size")
        if self.negative_share < 1 and getattr(self.loss, "reads_group", False):
            raise ValueError(
                "negative_share must be 1 for a loss that compares the rows of an impression, which"
                f" are never thinned; received {self.negative_share:g}"
            )
        return self


def of_task(train: TrainConfig, task: str) -> TrainConfig:
    """Returns `train` with the defaults of the task for keys that it doesn't set.

    A task for which no loss is registered has models that ignore `train.loss`.

    Raises:
        ValueError: Its loss, or the metric of its validation, belongs to another task.
    """
    own = registry.get("task", task)
    defaults: dict[str, Any] = {**getattr(own, "train", {})}
    if (loss := getattr(own, "loss", None)) is not None:
        defaults["loss"] = loss
    train = _with_defaults(train, defaults)
    _check_monitored(train.validation, task)
    if train.loss.task == task:
        return train
    known = {name: registry.get("loss", name) for name in registry.names("loss")}
    losses = [name for name, loss in known.items() if getattr(loss, "task", None) == task]
    if losses:
        raise ValueError(
            f"train.loss must be a loss of the model's task, {task}: {', '.join(losses)};"
            f" received {registry.name_of('loss', train.loss)}, of {train.loss.task}"
        )
    return train


def _check_monitored(validation: ValidationConfig | None, task: str) -> None:
    """Raises `ValueError` if a validation monitors a metric of another task."""
    tasks = {name: getattr(registry.get("metric", name), "task", None) for name in MONITORED}
    fitting = [name for name, its in tasks.items() if its == task]
    if validation is None or not fitting or validation.metric.partition("@")[0] in fitting:
        return
    raise ValueError(
        f"train.validation.metric must be of the model's task, {task}: {', '.join(fitting)};"
        f" received {validation.metric!r}"
    )


def _with_defaults(train: TrainConfig, defaults: Mapping[str, Any]) -> TrainConfig:
    """Returns `train` with other defaults for the keys that it, and its `validation`, don't set."""
    values = TrainConfig.model_validate(defaults, strict=False)
    keys = {key: getattr(values, key) for key in defaults if key not in train.model_fields_set}
    if train.validation is not None and values.validation is not None:
        keys["validation"] = train.validation.model_copy(
            update={
                key: getattr(values.validation, key)
                for key in values.validation.model_fields_set - train.validation.model_fields_set
            }
        )
    if not keys:
        return train
    train = train.model_copy()  # `update` would count the keys as set.
    train.__dict__.update(keys)  # It is frozen.
    return train


class WarmStartConfig(Strict):
    """Training that starts from an earlier model."""

    epochs: PositiveInt = 3
    """Number of passes over the training positives in a run that starts from an earlier model, in
    place of `train.epochs`."""
    new_rows: Literal["neighbours", "mean", "initial"] = "neighbours"
    """Initial values of ids that the earlier model does not have. `neighbours`: the mean of the
    ids that share features with them; `mean`: the mean of all ids; `initial`: as in a first
    training."""
    changed: Literal["refuse", "cold"] = "refuse"
    """What to do if the earlier model has another width, other features or other towers: `refuse`
    stops the run and reports the differences; `cold` trains from scratch."""


class TrainStage(Stage):
    """The parts of a config that training needs."""

    task: Annotated[Any, Choice("task", optional=True)] = None
    """Task: `retrieval`, which items a user takes; `ranking`, the labels of pairs of a user and an
    item; or one of a plugin. `null`: the model's. Without `model.type` its default model is
    used."""
    model: Annotated[Any, Choice("model", "two_tower")] = AutoConfig()
    """The model: `two_tower`, which is implied if one of its keys is set; a model of a plugin,
    `{type: name, …}`; `auto`, which chooses the model, and the keys of `train` that are not set,
    from the data; or a baseline: `ease`, `transitions` or `ials`."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    mesh: MeshConfig | None = None
    """Device mesh of `data` × `model`; `null`: one axis `devices` of all devices, over which both
    batch and tables are split."""
    layout: LayoutRules = Field(default={})
    """Sharding of dense weights and activations, as in `keras.distribution.LayoutMap`: maps a
    path, or a regex of paths, to the mesh axis of each dimension, or `null`.
    `user_tower/dense/kernel: [null, model]` shards a weight, `user_tower/dense/output: [data,
    model]` the output of a layer. Everything else is replicated."""
    warm_start: WarmStartConfig | None = None
    """Warm start from the last blessed model; `null`: each training starts from scratch."""

    @model_validator(mode="after")
    def _model_is_of_the_task(self) -> Self:
        if self.task is None or (task := name_of("task", self.task)) == self.model.task:
            return self
        default = type(self.task).model
        if default is not None and "model" not in self.model_fields_set:
            self.__dict__["model"] = Choice("model").read(default)  # It is frozen.
            return self
        known = {name: registry.config_type("model", name) for name in registry.names("model")}
        models = [name for name, of in known.items() if getattr(of, "task", None) == task]
        raise ValueError(
            f"model must be of the config's task, {task}: {', '.join(models)}; received"
            f" {name_of('model', self.model)}, a model of {self.model.task}"
        )

    @model_validator(mode="after")
    def _training_suits_the_model(self) -> Self:
        self.__dict__["train"] = of_task(self.train, self.model.task)  # It is frozen.
        self.model.check(self.train)
        return self

    @model_validator(mode="after")
    def _auto_keeps_what_is_named(self) -> Self:
        model = self.model
        if isinstance(model, AutoConfig) and model.keep is None:
            keep, own = (
                tuple(sorted(part.model_fields_set - {"keep", "own", "minutes"}))
                for part in (self.train, model)
            )
            named = model.model_copy(update={"keep": keep, "own": own})
            self.__dict__["model"] = named  # It is frozen.
        return self
