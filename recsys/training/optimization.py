"""The optimizers of a run: one for the towers, one for each table, with a common schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras import ops

from recsys import registry
from recsys.embedding import SparseModel
from recsys.embedding.layout import tables_of
from recsys.embedding.optimizers import RowOptimizer
from recsys.errors import RecsysError
from recsys.tasks.config import TrainConfig


@keras.saving.register_keras_serializable(package="recsys")
class WarmupAndDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate with a linear warmup from 0 and a constant, linear or cosine decay.

    Cosine: Loshchilov and Hutter, "SGDR", ICLR 2017, eq. 5, without restarts.

    Args:
        peak: Rate after the warmup.
        updates: Updates of the run; later ones keep the rate of the last.
        kind: `constant`, `linear` or `cosine`.
        warmup: Updates in which the rate grows to `peak`.
        end: Share of `peak` at the end [0..1].
        accumulate: Steps per update: Keras' optimizers pass steps to the schedule, tables
            pass updates.
        start: Step at which the schedule begins. A warm start continues the step count, as
            Adam's bias correction requires, but restarts the schedule.
    """

    def __init__(
        self,
        peak: float,
        updates: int,
        kind: str,
        warmup: int = 0,
        end: float = 0.0,
        accumulate: int = 1,
        start: int = 0,
    ) -> None:
        self.peak, self.updates, self.kind = peak, updates, kind
        self.warmup, self.end, self.accumulate, self.start = warmup, end, accumulate, start

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`, a scalar float32; the first step is `start`."""
        step = ops.floor(ops.cast(step - self.start, "float32") / self.accumulate)
        grown = ops.minimum(1.0, (step + 1.0) / max(1, self.warmup))
        span = max(1, self.updates - self.warmup)
        done = ops.clip((step - self.warmup) / span, 0.0, 1.0)
        left = {
            "constant": 1.0,
            "linear": 1.0 - done,
            "cosine": 0.5 * (1.0 + ops.cos(done * 3.141592653589793)),
        }[self.kind]
        return self.peak * grown * (self.end + (1.0 - self.end) * left)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        names = ("peak", "updates", "kind", "warmup", "end", "accumulate", "start")
        return {name: getattr(self, name) for name in names}


def table_optimizers(
    train: TrainConfig, updates: int, start: int = 0
) -> tuple[RowOptimizer, RowOptimizer]:
    """Returns the optimizers of the tables' rows and of the users' own rows.

    Args:
        train: The training loop.
        updates: Updates of the run, for the schedule.
        start: Updates before the run, of the model that a warm start continues.
    """
    rates = (train.table_learning_rate, train.user_learning_rate or train.table_learning_rate)
    items, users = (_row_optimizer(train, rate, updates, start) for rate in rates)
    return items, users


def _row_optimizer(train: TrainConfig, peak: float, updates: int, start: int) -> RowOptimizer:
    options = train.table_optimizer
    optimizer: RowOptimizer = registry.class_of("row_optimizer", options)(
        learning_rate=_rate(peak, train, updates, start),
        weight_decay=train.table_weight_decay,
        **options.model_dump(),
    )
    return optimizer


def tower_optimizer(train: TrainConfig, updates: int, start: int = 0) -> keras.optimizers.Optimizer:
    """Returns the optimizer of the towers, which also clips and accumulates for the tables.

    Args:
        train: The training loop.
        updates: Updates of the run, for the schedule.
        start: Updates before the run, of the model that a warm start continues.
    """
    more: dict[str, Any] = {}
    if train.accumulate > 1:
        more["gradient_accumulation_steps"] = train.accumulate
    if train.ema is not None:
        more |= {"use_ema": True, "ema_momentum": train.ema}
    if train.tower_optimizer == "adamw":
        more["weight_decay"] = train.tower_weight_decay
    settings = {
        "name": "towers",  # Part of the variables' paths in a checkpoint.
        "learning_rate": _rate(train.tower_learning_rate, train, updates, start, train.accumulate),
        "global_clipnorm": train.clip_norm,
        **more,
    }
    kind: type[keras.optimizers.Optimizer] = {
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
        "adagrad": keras.optimizers.Adagrad,
        "lion": keras.optimizers.Lion,
        "rmsprop": keras.optimizers.RMSprop,
        "sgd": keras.optimizers.SGD,
    }[train.tower_optimizer]
    return kind(**settings)


def exclude_vectors(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> None:
    """Restricts the weight decay of `optimizer`, before it is built, to the matrices of `model`.

    Biases, norms, positions and the temperature aren't decayed.
    """
    vectors = [v for v in model.trainable_variables if len(v.shape) < 2 or v.name == "place"]
    optimizer.exclude_from_weight_decay(var_list=vectors)


def _rate(
    peak: float, train: TrainConfig, updates: int, start: int, accumulate: int = 1
) -> float | WarmupAndDecay:
    schedule = train.schedule
    if schedule.kind == "constant" and not schedule.warmup_steps:
        return peak
    warmup = -(-schedule.warmup_steps // train.accumulate)
    return WarmupAndDecay(
        peak, updates, schedule.kind, warmup, schedule.end, accumulate, start * accumulate
    )


@contextmanager
def averaged(model: keras.Model) -> Iterator[None]:
    """Replaces the dense weights by their moving averages inside the context, if kept.

    Args:
        model: A compiled model whose variables hold their values.
    """
    optimizer = model.optimizer
    if not getattr(optimizer, "use_ema", False) or not optimizer.built:
        yield
        return
    variables = model.trainable_variables
    own = [variable.value for variable in variables]
    optimizer.finalize_variable_values(variables)
    try:
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def finalize(model: keras.Model) -> None:
    """Replaces the dense weights by their moving averages permanently, if kept."""
    if getattr(model.optimizer, "use_ema", False):
        model.optimizer.finalize_variable_values(model.trainable_variables)


def check_updates(train: TrainConfig, n_steps: int) -> list[str]:
    """Checks that a run updates its model.

    Args:
        train: The training loop.
        n_steps: Steps of the run.

    Returns:
        Sentences on unusual settings that are no errors.

    Raises:
        RecsysError: The run has fewer steps than one update takes.
    """
    if train.accumulate > n_steps:
        raise RecsysError(
            "R320",
            "A run must have at least train.accumulate steps: otherwise nothing is updated.",
            f"Lower train.accumulate to at most {n_steps}, or train.batch_size.",
            {"train.accumulate": train.accumulate, "steps": n_steps},
        )
    warmup = train.schedule.warmup_steps
    if warmup <= n_steps:
        return []
    return [
        f"The run has {n_steps:,} steps, and train.schedule.warmup_steps is {warmup:,}: it ends"
        " before it reaches the full learning rate."
    ]


def saved_variables(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns all variables of a compiled model and its optimizer by their paths.

    These are weights, tables with their slots and step counts, the seeds of dropout, and the
    optimizer's own. Buffers of accumulated gradients are left out, since a run is saved only
    after an update, and so are tables of another model.
    """
    shared = getattr(model, "shared_tables", ())
    left_out = {id(v) for v in model.gradient_buffers.variables}
    left_out |= {id(table.embeddings) for table in tables_of(model) if table.name in shared}
    left_out |= {id(v) for metric in model.metrics for v in metric.variables}
    by_path: dict[str, keras.Variable] = {}
    for variable in [*model.variables, *model.optimizer.variables]:
        if id(variable) in left_out:
            continue
        if by_path.setdefault(variable.path, variable) is not variable:
            raise AssertionError(f"two variables are called {variable.path!r}")
    return by_path


def weights_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns the weights of a compiled model by path, without slots."""
    tables = tables_of(model)
    left_out = {id(v) for table in tables for v in table.variables if v is not table.embeddings}
    left_out |= {id(v) for v in model.optimizer.variables}
    return {path: v for path, v in saved_variables(model).items() if id(v) not in left_out}


def moments_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns the moments of the towers' optimizer by path.

    Its step count, learning rate, moving averages of the weights and accumulated gradients
    are left out.
    """
    optimizer = model.optimizer
    others = [optimizer._iterations, optimizer._learning_rate]
    for name in ("_model_variables_moving_average", "_accumulated_gradients"):
        others += getattr(optimizer, name, [])
    left_out = {id(variable) for variable in others}
    return {v.path: v for v in optimizer.variables if id(v) not in left_out}


def seeds_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns the random state of dropout, by path."""
    left_out = {id(v) for v in (*model.weights, *model.optimizer.variables)}
    return {path: v for path, v in saved_variables(model).items() if id(v) not in left_out}


@jax.jit
def all_finite(arrays: list[jax.Array]) -> jax.Array:
    """Returns whether all numbers of all arrays are finite."""
    numbers = [a for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in numbers]))
