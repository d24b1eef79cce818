"""The optimizers' part of a training step: the model's for dense weights, each table's for rows.

What the model's optimizer is asked for counts the tables in: its loss scale, its
clipping by the global norm, its gradient accumulation.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras.src import backend

from recsys.embedding import accumulation
from recsys.embedding.accumulation import GradientBuffers
from recsys.embedding.table_step import TableStep

Arrays = list[jax.Array]


def accumulation_steps(optimizer: Any) -> int:
    """Returns the steps that an optimizer accumulates gradients over; 0 for none."""
    return getattr(_innermost(optimizer), "gradient_accumulation_steps", None) or 0


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


class StepUpdate:
    """Applies the gradients of one step.

    Args:
        optimizer: The model's optimizer.
        variables: The model's variables that are not trainable, tables among them.
        buffers: Where gradients of tables are accumulated.

    Attributes:
        arrays: What the buffers must hold of each step, once `apply` was traced
            without any.
    """

    def __init__(self, optimizer: Any, variables: list[Any], buffers: GradientBuffers) -> None:
        self.optimizer, self.variables, self.buffers = optimizer, variables, buffers
        self.inner, self.count = _innermost(optimizer), accumulation_steps(optimizer)
        self.arrays: list[jax.ShapeDtypeStruct] = []

    def apply(
        self,
        tv: Arrays,
        ntv: Arrays,
        ov: Arrays,
        grads: Arrays,
        steps: list[TableStep],
        after_reads: jax.Array,
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Returns all variables after the dense and the sparse updates."""
        scale = 1.0 / self._loss_scale(ov)
        is_due = finite = self._all_finite(grads, steps)
        if finite is not None:
            # Keras looks at the dense gradients, and is to skip the step with the tables.
            grads = [jnp.where(finite, g, jnp.nan) for g in grads]
            steps = [step.kept_if(finite) for step in steps]
        row_scale = scale
        if self.count:
            # The scale of the loss may change until the update.
            steps = [step.scaled(scale) for step in steps]
            steps, ntv, is_due = self._accumulated(ov, ntv, steps)
            if finite is not None and is_due is not None:
                is_due = is_due & finite
            row_scale = jnp.float32(1.0)
        grads, row_scale = self._clipped(ov, grads, steps, scale, row_scale)
        tv, ov = self.optimizer.stateless_apply(ov, grads, tv)
        index = {id(v): i for i, v in enumerate(self.variables)}
        for step in steps:
            at = [index[id(v)] for v in (*step.table.variables_by_row, step.table.steps)]
            values = step.updated([ntv[i] for i in at], row_scale * after_reads, is_due)
            for i, value in zip(at, values, strict=True):
                ntv[i] = value
        return tv, ntv, ov

    def _accumulated(
        self, ov: Arrays, ntv: Arrays, steps: list[TableStep]
    ) -> tuple[list[TableStep], Arrays, jax.Array | None]:
        """Returns the steps since the last update, the buffers, and whether one is due now."""
        count = self.count
        leaves, structure = jax.tree.flatten([(step.uses, step.grads) for step in steps])
        if not self.buffers.parts:
            self.arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
            return steps, ntv, None
        index = {id(v): i for i, v in enumerate(self.variables)}
        at = [index[id(variable)] for variable in self.buffers.parts]
        counter = ov[self._at(self.inner._iterations)]
        buffers = accumulation.kept([ntv[i] for i in at], leaves, counter % count)
        for i, buffer in zip(at, buffers, strict=True):
            ntv[i] = buffer
        joined = [TableStep(step.table, step.optimizer) for step in steps]
        for turn in range(count):
            parts = jax.tree.unflatten(structure, [buffer[turn] for buffer in buffers])
            for step, (uses, grads) in zip(joined, parts, strict=True):
                step.uses += uses
                step.grads += [grad / count for grad in grads]
        return joined, ntv, (counter + 1) % count == 0

    def _loss_scale(self, ov: Arrays) -> jax.Array:
        mapping = list(zip(self.optimizer.variables, ov, strict=True))
        with backend.StatelessScope(state_mapping=mapping):
            return jnp.asarray(self.optimizer.scale_loss(jnp.float32(1.0)), jnp.float32)

    def _clipped(
        self,
        ov: Arrays,
        grads: Arrays,
        steps: list[TableStep],
        scale: jax.Array,
        row_scale: jax.Array,
    ) -> tuple[Arrays, jax.Array]:
        """Clips by the norm of all gradients, dense and sparse; returns grads and rows' factor."""
        optimizer = self.inner
        limit = getattr(optimizer, "global_clipnorm", None)
        if limit is None:
            return grads, row_scale
        count = self.count
        before = [jnp.zeros((), g.dtype) for g in grads]
        if count:
            held = optimizer._accumulated_gradients
            before = [ov[self._at(v)] for v in held]
        totals = [(g * scale + b) / (count or 1) for g, b in zip(grads, before, strict=True)]
        dense = sum((jnp.sum(jnp.square(t)) for t in totals), jnp.float32(0))
        sparse = sum((step.squares() for step in steps), jnp.float32(0)) * row_scale**2
        factor = limit / jnp.maximum(jnp.sqrt(dense + sparse), limit)
        if count:
            # Keras adds what it holds to this, divides, and clips what is short already.
            is_due = (ov[self._at(optimizer._iterations)] + 1) % count == 0
            due = [(t * factor * count - b) / scale for t, b in zip(totals, before, strict=True)]
            grads = [jnp.where(is_due, d, g) for d, g in zip(due, grads, strict=True)]
            return grads, row_scale * factor
        return [g * factor.astype(g.dtype) for g in grads], row_scale * factor

    def _all_finite(self, grads: Arrays, steps: list[TableStep]) -> jax.Array | None:
        """Tells whether a step under loss scaling counts; None if it always does."""
        if not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        arrays = [*grads, *(g for step in steps for g in step.grads)]
        return jnp.stack([jnp.all(jnp.isfinite(a)) for a in arrays]).all()

    def _at(self, wanted: Any) -> int:
        """Returns the place of a variable among the optimizer's."""
        return next(i for i, variable in enumerate(self.optimizer.variables) if variable is wanted)
