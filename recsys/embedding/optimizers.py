"""Optimizers of embedding rows: a step updates only the rows of the batch.

Each has its hyperparameters and one pure function on gathered rows, which is the definition that
the C kernels must equal. If a step touches all rows, it equals the Keras optimizer of the same
name. Otherwise moments decay and weights shrink only when a row is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, cast, get_type_hints

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pydantic

from recsys.embedding.config import RowOptimizerConfig
from recsys.errors import UsageError
from recsys.registry import get, names, register_row_optimizer

Array = jax.Array
Slots = tuple[Array, ...]
Schedule: TypeAlias = keras.optimizers.schedules.LearningRateSchedule
Mean = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class Width:
    """Width of a row, whose columns may be split over devices.

    Attributes:
        dim: Width of the whole row [floats].
        axis: Mesh axis that splits the columns; None if they aren't split.
        first_column: First column of this device.
    """

    dim: int
    axis: str | None = None
    first_column: int | Array = 0

    def sum(self, x: Array) -> Array:
        """Returns the sums `[rows, 1]` over whole rows of `x` `[rows, dim or part of it]`."""
        part = jnp.sum(x, axis=-1, keepdims=True)
        return part if self.axis is None else jax.lax.psum(part, self.axis)

    def mean(self, x: Array) -> Array:
        """Returns the means `[rows, 1]` over whole rows."""
        return self.sum(x) / self.dim


@dataclasses.dataclass(frozen=True)
class Slot:
    """State of an optimizer for each row.

    Attributes:
        name: Name of the variable.
        initial: Initial value.
        per_row: Whether it has one number per row, rather than one per weight.
    """

    name: str
    initial: float = 0.0
    per_row: bool = False


class _Options:
    """Typed config of a row optimizer, generated from its fields."""

    def __get__(self, instance: object, owner: type[RowOptimizer]) -> type[RowOptimizerConfig]:
        options: type[RowOptimizerConfig] = _options(cast(Any, owner))
        return options


@functools.cache
def _options(cls: Any) -> type[RowOptimizerConfig]:
    hints, of_all = get_type_hints(cls), {field.name for field in dataclasses.fields(RowOptimizer)}
    own: dict[str, Any] = {
        field.name: (
            hints[field.name],
            ... if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(cls)
        if field.name not in of_all
    }
    return pydantic.create_model(f"{cls.__name__}Config", __base__=RowOptimizerConfig, **own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """Base class of row optimizers; subclass it to add one.

    A subclass is a dataclass that defines `slots` and `apply`. Register it with
    `@recsys.register_row_optimizer("name")` to use its name in a config or a `TableConfig`. Its
    fields are its options in a config: `table_optimizer: {type: name, beta: 0.9}`. It runs on
    JAX; built-in optimizers also have C kernels of the same `kind`, which must equal `apply`.

    Args:
        learning_rate: A number, or a Keras schedule of the table's step count.
        weight_decay: Decoupled weight decay of touched rows per step, times the learning rate
            (Loshchilov and Hutter, ICLR 2019).
        clipnorm: Largest norm of a row's gradient; 0 for no clipping.

    Attributes:
        kind: Name of the C kernel, if there is one.
        slots: State for each row.
        Config: Typed config, generated from the fields.
    """

    learning_rate: float | Schedule = dataclasses.field(default=0.001, kw_only=False)
    weight_decay: float = 0.0
    clipnorm: float = 0.0

    kind: ClassVar[str] = ""
    slots: ClassVar[tuple[Slot, ...]] = ()
    Config: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Generates `Config` for subclasses that don't define it."""
        super().__init_subclass__(**kwargs)
        if "Config" not in vars(cls):
            cls.Config = _Options()

    def __post_init__(self) -> None:
        """Checks all numbers, including a schedule's.

        Raises:
            UsageError: One is NaN or infinite (R367).
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if callable(self.learning_rate):
            # A user's schedule may have no config; then it can't be saved either.
            with contextlib.suppress(NotImplementedError):
                values["learning_rate"] = self.learning_rate.get_config()
        for path, number in keras.tree.flatten_with_path(values):
            if isinstance(number, float | np.floating) and not math.isfinite(number):
                name = ".".join(map(str, path))
                raise UsageError(
                    "R367",
                    f"{name!r} of {type(self).__name__} must be a finite number.",
                    "Give it a number; 0 switches weight decay and clipping off.",
                    number,
                )

    @classmethod
    def has_kernel(cls) -> bool:
        """Returns whether a C kernel computes the `apply` of this class."""
        return "kind" in vars(cls) and cls.kind != ""

    def slot_list(self) -> tuple[Slot, ...]:
        """Returns the slots with their initial values."""
        return self.slots

    def rate(self, step: Array) -> Array:
        """Returns the learning rate of `step`, a scalar int32 that counts from 0."""
        schedule = self.learning_rate
        rate = schedule(step) if callable(schedule) else schedule
        return jnp.asarray(rate, jnp.float32)

    def step_size(self, rate: Array, step: Array) -> Array:
        """Returns the learning rate with bias correction, if the optimizer has one."""
        return rate

    def attributes(self) -> dict[str, float]:
        """Returns the hyperparameters that don't change during training."""
        names = [field.name for field in dataclasses.fields(self)]
        return {name: float(getattr(self, name)) for name in names if name != "learning_rate"}

    def apply(
        self, row: Array, slots: Slots, gradient: Array, rate: Array, step_size: Array, mean: Mean
    ) -> tuple[Array, Slots]:
        """Returns the new rows and slots.

        Args:
            row: Rows `[rows, dim]` float32, after weight decay.
            slots: Their slots, `[rows, dim]` or `[rows, 1]` float32.
            gradient: Their gradients `[rows, dim]` float32, summed over duplicates.
            rate: Learning rate, a scalar.
            step_size: Result of `step_size`, a scalar.
            mean: Mean over the columns of a row `[rows, 1]`, also if devices split them.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if callable(self.learning_rate):
            config["learning_rate"] = keras.saving.serialize_keras_object(self.learning_rate)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RowOptimizer:
        """Makes the optimizer from its config."""
        rate = config.get("learning_rate")
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate)
        return cls(**{**config, "learning_rate": rate})


def _serializable(cls: type) -> type:
    return keras.saving.register_keras_serializable(package="recsys")(cls)


@register_row_optimizer("sgd")
@_serializable
@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(RowOptimizer):
    """Plain gradient descent: w ← w − η g."""

    learning_rate: float | Schedule = dataclasses.field(default=0.01, kw_only=False)
    kind: ClassVar[str] = "sgd"

    def apply(
        self, row: Array, slots: Slots, gradient: Array, rate: Array, step_size: Array, mean: Mean
    ) -> tuple[Array, Slots]:
        """See `RowOptimizer.apply`."""
        return row - rate * gradient, slots


@register_row_optimizer("adagrad")
@_serializable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(RowOptimizer):
    """Adagrad: a ← a + g², w ← w − η g / √(a + ε) (Duchi et al., JMLR 2011)."""

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    kind: ClassVar[str] = "adagrad"

    def slot_list(self) -> tuple[Slot, ...]:
        """Returns the accumulator, one number per weight."""
        return (Slot("accumulator", self.initial_accumulator_value),)

    def apply(
        self, row: Array, slots: Slots, gradient: Array, rate: Array, step_size: Array, mean: Mean
    ) -> tuple[Array, Slots]:
        """See `RowOptimizer.apply`."""
        accumulator = slots[0] + gradient * gradient
        return row - rate * gradient / jnp.sqrt(accumulator + self.epsilon), (accumulator,)


@register_row_optimizer("row_wise_adagrad")
@_serializable
@dataclasses.dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator per row: a ← a + mean(g²) (FBGEMM's row-wise Adagrad)."""

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    kind: ClassVar[str] = "row_wise_adagrad"

    def slot_list(self) -> tuple[Slot, ...]:
        """Returns the accumulator, one number per row."""
        return (Slot("accumulator", self.initial_accumulator_value, per_row=True),)

    def apply(
        self, row: Array, slots: Slots, gradient: Array, rate: Array, step_size: Array, mean: Mean
    ) -> tuple[Array, Slots]:
        """See `RowOptimizer.apply`."""
        accumulator = slots[0] + mean(gradient * gradient)
        return row - rate * gradient / jnp.sqrt(accumulator + self.epsilon), (accumulator,)


@register_row_optimizer("lazy_adam")
@_serializable
@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyAdam(RowOptimizer):
    """Adam on the touched rows (Kingma and Ba, ICLR 2015).

    The moments of a row decay when it is touched; the bias correction counts the
    steps of the table.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    kind: ClassVar[str] = "lazy_adam"
    slots: ClassVar[tuple[Slot, ...]] = (Slot("momentum"), Slot("velocity"))

    def step_size(self, rate: Array, step: Array) -> Array:
        """Returns η √(1 − β₂ᵗ) / (1 − β₁ᵗ) with t = `step` + 1."""
        t = (step + 1).astype(jnp.float32)
        return rate * jnp.sqrt(1.0 - self.beta_2**t) / (1.0 - self.beta_1**t)

    def apply(
        self, row: Array, slots: Slots, gradient: Array, rate: Array, step_size: Array, mean: Mean
    ) -> tuple[Array, Slots]:
        """See `RowOptimizer.apply`."""
        momentum = slots[0] + (gradient - slots[0]) * (1.0 - self.beta_1)
        velocity = slots[1] + (gradient * gradient - slots[1]) * (1.0 - self.beta_2)
        row = row - step_size * momentum / (jnp.sqrt(velocity) + self.epsilon)
        return row, (momentum, velocity)


@register_row_optimizer("ftrl")
@_serializable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Ftrl(RowOptimizer):
    """FTRL-Proximal with Keras' arguments (McMahan et al., KDD 2013)."""

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0
    kind: ClassVar[str] = "ftrl"

    def slot_list(self) -> tuple[Slot, ...]:
        """Returns the accumulator and the linear term, one number per weight each."""
        return (Slot("accumulator", self.initial_accumulator_value), Slot("linear"))

    def apply(
        self, row: Array, slots: Slots, gradient: Array, rate: Array, step_size: Array, mean: Mean
    ) -> tuple[Array, Slots]:
        """See `RowOptimizer.apply`."""
        accumulator, linear = slots
        power, l1 = -self.learning_rate_power, self.l1_regularization_strength
        l2 = self.l2_regularization_strength + self.beta / (2.0 * rate)
        shrunk = gradient + 2.0 * self.l2_shrinkage_regularization_strength * row
        new = accumulator + gradient * gradient
        linear = linear + shrunk - (new**power - accumulator**power) / rate * row
        quadratic = new**power / rate + 2.0 * l2
        return (jnp.clip(linear, -l1, l1) - linear) / quadratic, (new, linear)


_ALIASES = {"adam": "lazy_adam", "lazyadam": "lazy_adam", "rowwiseadagrad": "row_wise_adagrad"}
BY_KERAS: dict[type[keras.optimizers.Optimizer], type[RowOptimizer]] = {
    keras.optimizers.SGD: SGD,
    keras.optimizers.Adagrad: Adagrad,
    keras.optimizers.Adam: LazyAdam,
    keras.optimizers.Ftrl: Ftrl,
}
# Arguments of Keras optimizers without effect here: names, and options of a disabled average.
_IGNORED = {"name", "ema_momentum", "ema_overwrite_frequency"}


def row_optimizer(optimizer: Any) -> RowOptimizer:
    """Returns the row optimizer for `optimizer`.

    Args:
        optimizer: One of this module; its name ("adam", "row_wise_adagrad", …); or a
            Keras optimizer, whose arguments are taken over.

    Raises:
        UsageError: No row optimizer matches, or an argument is not supported for rows.
    """
    if isinstance(optimizer, RowOptimizer):
        return optimizer
    if isinstance(optimizer, str):
        name = _ALIASES.get(optimizer.lower(), optimizer.lower())
        if name in names("row_optimizer"):
            return cast(RowOptimizer, get("row_optimizer", name)())
    if type(optimizer) in BY_KERAS:
        return _from_keras(optimizer)
    raise UsageError(
        "R350",
        "The optimizer of a table must be one that updates single rows.",
        f"Use one of {', '.join(sorted(names('row_optimizer')))}, a class of"
        " recsys.embedding.optimizers, or keras.optimizers.SGD, Adagrad, Adam or Ftrl.",
        optimizer,
    )


def _from_keras(optimizer: keras.optimizers.Optimizer) -> RowOptimizer:
    kind = type(optimizer)
    cls, config, defaults = BY_KERAS[kind], optimizer.get_config(), kind().get_config()
    taken = {field.name for field in dataclasses.fields(cls)}
    for name in sorted(config.keys() - taken - _IGNORED):
        if config[name] != defaults[name]:
            raise UsageError(
                "R351",
                f"A table's {kind.__name__} must leave {name!r} at {defaults[name]!r}.",
                "Clip and accumulate with the optimizer of the model; it counts the tables in.",
                config[name],
            )
    # Keras' None for no decay and no clipping is 0 here.
    return cls.from_config({name: config.get(name) or 0.0 for name in taken})
