"""The state of a training run: the variables that are saved, and its progress as JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import keras

from recsys.embedding import SparseModel
from recsys.embedding.layout import tables_of

CURVE_POINTS = 200


@dataclasses.dataclass
class Progress:
    """The state of a run beside its arrays; saved with each checkpoint.

    Attributes:
        step: Steps done.
        seconds: Time spent in training, over all attempts.
        waited_s: Of it, the time that the loop waited for its input.
        curve: The mean loss of every few steps, `{"step", "loss", …}`.
        looks: The validations, `{"step", metric: value, …}` each.
        best_step: Step of the best validation; None before the first.
        resumed_at: Steps that the run was resumed from.
        machine: Devices, processes, platform, and what the compiled step holds.
        warm_start: What was taken over from an earlier model; None for a cold start.
        epochs: Metrics of each epoch that ended, `{"epoch", "step", "loss", …}` with
            those of the validation as `val_…`.
        epoch_sums: Sums over the steps of the present epoch, with their number as `steps`.
        epoch_counts: Counts over them.
        is_stopped: Whether a callback stopped the run before its last step.
    """

    step: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    curve: list[dict[str, float]] = dataclasses.field(default_factory=list)
    looks: list[dict[str, float]] = dataclasses.field(default_factory=list)
    best_step: int | None = None
    resumed_at: list[int] = dataclasses.field(default_factory=list)
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm_start: dict[str, Any] | None = None
    epochs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    epoch_sums: dict[str, float] = dataclasses.field(default_factory=dict)
    epoch_counts: dict[str, float] = dataclasses.field(default_factory=dict)
    is_stopped: bool = False

    @property
    def wait_share(self) -> float:
        """Share of the training time that went into waiting for input [0..1]."""
        return self.waited_s / self.seconds if self.seconds else 0.0

    def add_steps(self, n: int, means: Mapping[str, float], counts: Mapping[str, float]) -> None:
        """Adds the mean metrics of `n` steps, and their counts, to those of the present epoch."""
        for name, value in {"steps": 1.0, **means}.items():
            self.epoch_sums[name] = self.epoch_sums.get(name, 0.0) + n * value
        for name, value in counts.items():
            self.epoch_counts[name] = self.epoch_counts.get(name, 0.0) + value

    def end_epoch(self, epoch: int, validation: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of the epoch that ends now, and keeps them.

        Args:
            epoch: Its number, from 0 on.
            validation: Metrics of the validation after it, if there was one.
        """
        steps = self.epoch_sums.pop("steps")
        logs = {name: total / steps for name, total in self.epoch_sums.items()}
        logs |= self.epoch_counts
        logs |= {f"val_{name}": value for name, value in validation.items()}
        self.epochs.append({"epoch": epoch, "step": self.step, **logs})
        self.epoch_sums, self.epoch_counts = {}, {}
        return logs

    def to_json(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """Returns the state that `to_json` gave."""
        return cls(**state)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Returns metrics as one line, without the numbers of epoch and step."""
    shown = {name: value for name, value in metrics.items() if name not in ("epoch", "step")}
    return " · ".join(f"{name} {value:.4f}" for name, value in shown.items())


def saved_variables(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns all variables of a compiled model and its optimizer by their paths.

    Weights, tables with their slots and step counts, the seeds of dropout, and the
    optimizer's own. Buffers of accumulated gradients aren't among them: a run is saved
    where they are spent.
    """
    spent = {id(variable) for variable in model.gradient_buffers.variables}
    counts = {id(v) for metric in model.metrics for v in metric.variables}
    by_path: dict[str, keras.Variable] = {}
    for variable in [*model.variables, *model.optimizer.variables]:
        if id(variable) in spent | counts:
            continue
        if by_path.setdefault(variable.path, variable) is not variable:
            raise AssertionError(f"two variables are called {variable.path!r}")
    return by_path


def weights_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns what a compiled model computes with, by path: `saved_variables` but no slots."""
    tables = tables_of(model)
    own = {id(v) for table in tables for v in table.variables if v is not table.embeddings}
    own |= {id(v) for v in model.optimizer.variables}
    return {path: v for path, v in saved_variables(model).items() if id(v) not in own}


def moments_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns what the towers' optimizer has learned of their gradients, by path.

    Not its count of steps, its learning rate, its moving averages of the weights, nor
    gradients that wait to be added up.
    """
    optimizer = model.optimizer
    others = [optimizer._iterations, optimizer._learning_rate]
    for name in ("_model_variables_moving_average", "_accumulated_gradients"):
        others += getattr(optimizer, name, [])
    left_out = {id(variable) for variable in others}
    return {v.path: v for v in optimizer.variables if id(v) not in left_out}


def seeds_of(model: SparseModel) -> dict[str, keras.Variable]:
    """Returns the random state of dropout, by path."""
    optimizers = {id(v) for v in model.optimizer.variables}
    known = optimizers | {id(v) for v in model.weights}
    return {path: v for path, v in saved_variables(model).items() if id(v) not in known}


def arrays_of(variables: dict[str, keras.Variable]) -> dict[str, jax.Array]:
    """Returns the arrays that variables hold, by the same names."""
    return {path: variable.value for path, variable in variables.items()}


def all_finite(variables: Iterable[keras.Variable]) -> bool:
    """Returns whether no variable holds a NaN or an infinity; reads all of them."""
    return bool(_all_finite([variable.value for variable in variables]))


@functools.partial(jax.jit)
def _all_finite(arrays: list[Any]) -> jax.Array:
    numbers = [a for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in numbers]))
