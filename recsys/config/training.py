"""The training: loss, negatives, optimizers, checkpoints, devices, warm start."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from recsys.config.architecture import AutoConfig, RetrievalConfig
from recsys.errors import UsageError
from recsys.losses.loss import Loss
from recsys.losses.softmax import SampledSoftmax
from recsys.losses.squares import LeastSquares
from recsys.registry import Choice, Plugins
from recsys.strict import Repeats, Share, Strict

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class RowOptimizerConfig(Strict):
    """What every optimizer of table rows has, beside its rate and its decay."""

    clipnorm: NonNegativeFloat = 0.0
    """Longest gradient of one row; a longer one is shortened to it; 0: none is."""


class SgdConfig(RowOptimizerConfig):
    """Plain gradient descent."""


class AdagradConfig(RowOptimizerConfig):
    """Adagrad, with a sum of squares a weight, or a row."""

    initial_accumulator_value: NonNegativeFloat = 0.1
    """What the sums start with."""
    epsilon: NonNegativeFloat = 1e-7
    """Keeps the root of a sum away from 0."""


class RowWiseAdagradConfig(AdagradConfig):
    """Adagrad with one sum a row."""


class LazyAdamConfig(RowOptimizerConfig):
    """Adam on the rows that a step touches."""

    beta_1: Decay = 0.9
    """Share of itself that the mean of gradients keeps [0..1)."""
    beta_2: Decay = 0.999
    """Share of itself that the mean of squares keeps [0..1)."""
    epsilon: NonNegativeFloat = 1e-7
    """Keeps the root of the mean of squares away from 0."""


class FtrlConfig(RowOptimizerConfig):
    """FTRL-Proximal, with Keras' arguments."""

    learning_rate_power: Annotated[float, Field(le=0.0)] = -0.5
    """Power of the sums of squares that the rate falls with."""
    initial_accumulator_value: NonNegativeFloat = 0.1
    """What the sums start with."""
    l1_regularization_strength: NonNegativeFloat = 0.0
    """Strength of the L1 penalty."""
    l2_regularization_strength: NonNegativeFloat = 0.0
    """Strength of the L2 penalty."""
    l2_shrinkage_regularization_strength: NonNegativeFloat = 0.0
    """Strength of the L2 penalty on the gradient."""
    beta: NonNegativeFloat = 0.0
    """The paper's β."""


class HardNegativesConfig(Strict):
    """Negatives that the model itself found close to the positives of a batch."""

    count: NonNegativeInt = 0
    """Hard negatives that each step adds; 0: none are looked for [items]."""
    pool: PositiveInt = 50
    """Nearest items of an item that its hard negatives are drawn from [items]."""
    skip: NonNegativeInt = 5
    """Nearest items left out: too close to be wrong [items]."""
    guard: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """Items whose cosine with the positive is above this share are left out too:
    they are probably liked as well [0..1]."""
    after_epochs: PositiveInt = 1
    """Epochs before the first ones are looked for."""


class ScheduleConfig(Strict):
    """How the learning rates change over the run, those of tables and towers alike."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """What comes after the warm-up: the full rate, or a way down from it."""
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate grows from 0."""
    end: Share = 0.0
    """Share of the full rate that is left at the end of the run, unless `constant` [0..1]."""


class ShuffleConfig(Strict):
    """The order in which an epoch takes the training positives."""

    kind: Literal["global", "shards"] = "global"
    """`global`: an even shuffle of all; `shards`: the shards of the store one after the other,
    in another order each epoch, shuffled within a buffer, so that a store that is larger than
    memory is read in order."""
    buffer: PositiveInt = 1_000_000
    """Events that `shards` shuffles among each other: consecutive ones of a shard, all events
    of some users."""


class ValidationConfig(Strict):
    """Training positives that training doesn't see, to know when to stop."""

    like: Literal["newest", "last", "random", "popular", "given"] | None = None
    """How they are drawn, which should be how the test part was: `newest`, the newest of all;
    `last`, the last of each user; `random`, a share of each user's; `popular`, the same but
    rather of popular items; `given`, those that `interactions.valid_parts` or `valid_files`
    name. `null`: as `data.split` drew: the newest for `time`, `last` for `last_out`, `random`
    for `random`, and for `given` those that the data name, else the newest."""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Share of the training positives that `newest`, `random` and `popular` hold back [0..1]."""
    last: PositiveInt = 1
    """Events of each user that `last` holds back; a user's first stays."""
    popularity: Annotated[float, Field(ge=-8.0, le=8.0)] | None = None
    """Power of an item's training positives that the chance of its events grows with, for
    `popular`: 0 is `random`. It is what is known of how the test part was drawn, without a
    look at it. `null`: the power of the part that the data name for validation."""
    metric: Annotated[str, Field(pattern=r"^((recall|ndcg)@[1-9][0-9]*|mrr)$")] = "recall@10"
    """The metric that is watched: `recall@k`, `ndcg@k` or `mrr`."""
    every_epochs: PositiveInt = 1
    """Epochs from one look at it to the next."""
    patience: PositiveInt | None = 3
    """Looks without a better value after which training stops; `null`: it never does.
    The model of the best look is kept in any case."""
    max_queries: PositiveInt = 5_000
    """Most queries of a look."""

    @model_validator(mode="after")
    def _draw_is_whole(self) -> Self:
        if self.popularity is not None and self.like != "popular":
            raise ValueError("popularity is the power of like: popular, and needs it")
        if self.last > 1 and self.like not in (None, "last"):
            raise ValueError(f"last is for like: last, not for like: {self.like}")
        return self


class CheckpointConfig(Strict):
    """What a killed run resumes from."""

    every_steps: PositiveInt = 1_000
    """Steps from one checkpoint to the next: the most that a kill can cost."""
    keep: PositiveInt = 2
    """Newest checkpoints kept."""
    background: bool = True
    """Whether training goes on while a checkpoint is written. On CPUs, whose memory is that of
    the host, the steps meanwhile write to a second set of tables and slots; false waits, and
    needs none."""


class TrainConfig(Strict):
    """The training loop."""

    loss: Annotated[Loss, Choice("loss")] = SampledSoftmax()
    """`sampled_softmax`: against the batch's items and the negatives drawn; `full_softmax`:
    against the whole catalogue, for small ones; `bilateral_softmax`: with a temperature for
    positives and another one for negatives; `cosine_contrastive`: positives towards 1, many
    negatives below a margin; `least_squares`: positives towards 1, all items towards 0; `bpr`:
    against one drawn item each; or a loss of a plugin. With options `{type: sampled_softmax,
    decoupled: true}`."""
    batch_size: PositiveInt = 256
    """Examples a step, over all devices."""
    uniform_negatives: NonNegativeInt = 256
    """Items drawn from the whole catalogue that each step adds to the batch's own as
    negatives; without them an item that nobody took is never a negative, and nothing keeps
    it out of a list."""
    negative_power: Share = 0.0
    """They are drawn evenly at 0, by their popularity at 1, and by a power of it between."""
    cold_negatives: Share = 1.0
    """How much items without a training event count as negatives, and how often they are drawn,
    as a share of what other items do; at 0 they are none. An item that is never a positive
    only learns to be in no list: the less it counts, the more its features say [0..1]."""
    log_q_correction: Share = 1.0
    """Strength of the logQ correction of the scores for how often an item is among the
    candidates: at 1 they learn how likely the item is for a query; at 0 that, divided by how
    often it is drawn, which holds popular items down [0..1]."""
    hard_negatives: HardNegativesConfig = HardNegativesConfig()
    """Negatives that the model itself found close to the positives."""
    negative_groups: PositiveInt = 1
    """Equal parts of a batch that share no negatives: an example is compared with the positives
    and drawn negatives of its own part, and the logQ correction is that of a part. Devices send
    candidates within a part alone, so that one part a node keeps them off the links between
    nodes."""
    node_devices: PositiveInt | None = None
    """Devices of a node, which are neighbours in the order of JAX: tables' rows are exchanged
    with links between nodes in mind, which are slower; `null`: the devices of a process."""
    negatives_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which devices send candidates and their gradients to each other for the loss,
    which computes in float32."""
    known_positives: NonNegativeInt = 0
    """Newest training positives of a user that are never its negatives; 0: only the
    example's own item isn't [items]."""
    user_balance: Share = 0.0
    """An example's weight is divided by this power of its user's positives: at 0 all
    examples count alike, at 1 all users do."""
    half_life: PositiveFloat | None = None
    """An example's weight is halved by as many newer training events, as a share of all: at 0.1
    the newest tenth has half of the weight; `null`: all moments count alike. Needs events with
    times."""
    epochs: PositiveInt = 12
    """Passes over the training positives."""
    shuffle: ShuffleConfig = ShuffleConfig()
    """The order in which each of them takes them."""
    window_overlap: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.25
    """Share of a row of sequences that repeats the end of the row before it, so that its first
    examples have a history too; of encoders that learn at every position [0..1)."""
    table_optimizer: Annotated[RowOptimizerConfig, Choice("row_optimizer")] = AdagradConfig()
    """Optimizer of the tables' rows: `adagrad`, `row_wise_adagrad`, which keeps one number a
    row in place of `model.dim`, `lazy_adam`, `ftrl`, `sgd`, or one of a plugin; with options
    `{type: lazy_adam, beta_1: 0.8}`."""
    table_learning_rate: PositiveFloat = 0.05
    """Learning rate of the tables."""
    user_learning_rate: PositiveFloat | None = None
    """Learning rate of the users' own rows; `null`: that of the other tables."""
    table_weight_decay: NonNegativeFloat = 0.0
    """Share of a row, times the learning rate, that each step which touches it takes off."""
    table_regularisation: dict[Literal["users", "items", "item_bias"], NonNegativeFloat] = Field(
        default={}
    )
    """Weight of the squared length of a table's rows in the loss, each as often as a user or a
    candidate of the batch reads it, over the batch's examples (BPR-MF, iALS): `{users: 0.01}`.
    Rows that a step doesn't read are left alone."""
    tower_optimizer: Literal["adam", "adamw", "adagrad", "lion", "rmsprop", "sgd"] = "adam"
    """Keras' optimizer of the towers."""
    tower_learning_rate: PositiveFloat = 0.001
    """Learning rate of the towers."""
    tower_weight_decay: NonNegativeFloat = 0.004
    """What `adamw` takes off the towers' matrices each step, times the learning rate."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How both learning rates change over the run."""
    clip_norm: PositiveFloat | None = None
    """Longest gradient of all weights together; a longer one is shortened to it."""
    accumulate: PositiveInt = 1
    """Steps whose gradients are added up for one update."""
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """The towers' weights become their moving average, which keeps this share of itself
    a step; `null`: they don't [0..1]."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type that the towers compute in; weights and loss stay float32."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the initial weights, the shuffle and the dropout."""
    validation: ValidationConfig | None = None
    """Training positives held back to stop early and to keep the best model; `null`: none,
    the last model is kept."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What a killed run resumes from."""
    profile_steps: NonNegativeInt = 0
    """Steps that JAX's profiler traces, after the first hundred; 0: none."""

    @model_validator(mode="after")
    def _loss_has_its_negatives(self) -> Self:
        self.loss.check(self)
        if self.shuffle.kind == "shards" and self.shuffle.buffer < self.batch_size:
            raise ValueError("shuffle.buffer must not be smaller than batch_size")
        if self.hard_negatives.count and self.hard_negatives.after_epochs >= self.epochs:
            raise ValueError("hard_negatives.after_epochs must be fewer than epochs")
        return self


LayoutRules = dict[str, tuple[str | None, ...]]


class MeshConfig(Strict):
    """The devices as a grid of two axes."""

    data: PositiveInt
    """Parts that a batch is split into; each holds a copy of all tables and weights."""
    model: PositiveInt = 1
    """Devices that share each copy: tables are split over them, and what `layout` says."""

    @property
    def n_devices(self) -> int:
        """Devices of the grid."""
        return self.data * self.model


def parse_mesh(text: str) -> MeshConfig:
    """Returns the mesh that a command line names, as `data=4,model=2`.

    Raises:
        UsageError: The text names no mesh.
    """
    try:
        axes = (part.partition("=") for part in text.split(","))
        return MeshConfig(**{name.strip(): int(size) for name, _, size in axes})
    except (ValueError, TypeError):
        raise UsageError(
            "R313",
            "A mesh must name the sizes of its axes, data and model.",
            "Write for example data=4,model=2.",
            text,
        ) from None


class WarmStartConfig(Strict):
    """A training that starts from an earlier model, and not from the beginning."""

    epochs: PositiveInt = 3
    """Passes over the training positives of a run that starts from an earlier model, in
    place of `train.epochs`."""
    new_rows: Literal["neighbours", "mean", "initial"] = "neighbours"
    """What ids that the earlier model didn't have start from: `neighbours`, the mean of the
    ids that share features with them; `mean`, that of all ids; `initial`, as in a first
    training."""
    changed: Literal["refuse", "cold"] = "refuse"
    """What happens where the earlier model is of another width, other features or towers:
    `refuse` stops the run and says what differs; `cold` trains from the beginning."""


class TrainStage(Strict):
    """The parts of a config that training needs."""

    plugins: Plugins = ()
    """Modules that register models, losses, metrics and other classes which the other keys
    name; they are imported before the rest is read."""
    model: Annotated[RetrievalConfig, Choice("model", "two_tower")] = AutoConfig()
    """The model: the two towers, as soon as one of their keys is named; a model of a plugin,
    `{type: name, …}`; or `auto`, the one that suits the data, together with the keys of
    `train` that aren't named."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    mesh: MeshConfig | None = None
    """The devices of a training as a grid of `data` × `model`; `null`: one axis of all
    devices, `devices`, which batch and tables share."""
    layout: LayoutRules = Field(default={})
    """Dense weights and activations that are split over the devices: a path, or a regex
    of paths, to the axis of the mesh that splits each dimension, or `null`; as
    `keras.distribution.LayoutMap` has them. `user_tower/dense/kernel: [null, model]` splits
    a weight, `user_tower/dense/output: [data, model]` what a layer returns. What no rule
    names is on all devices."""
    warm_start: WarmStartConfig | None = None
    """How a training continues from the last blessed model; `null`: each starts from scratch."""
    repeats: Repeats = "exclude"
    """Whether lists may hold items that their user has seen. `exclude`: no, and repeated
    events are not answers of a query; `include`: yes, they are treated like other items. It
    holds for validation, evaluation and the defaults of serving."""

    @model_validator(mode="after")
    def _solved_users_have_their_loss(self) -> Self:
        if not self.model.trains_on_history and not isinstance(self.train.loss, LeastSquares):
            raise ValueError(
                "model.pooling: fold_in solves users by squares: set train.loss to least_squares"
            )
        return self

    @model_validator(mode="after")
    def _auto_keeps_what_is_named(self) -> Self:
        model = self.model
        if isinstance(model, AutoConfig) and model.keep is None:
            keep = tuple(sorted(self.train.model_fields_set))
            self.__dict__["model"] = model.model_copy(update={"keep": keep})  # It is frozen.
        return self
