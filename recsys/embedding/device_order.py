"""Sums over the batch in the order of the devices, the same bits for any number of processes.

If a batch is split over devices, XLA inserts an all-reduce after each sum over it: for the
gradients of dense weights and for the loss. Over gloo, with more than two processes, it adds in
a different order than within one process. So on CPUs the differentiated function is evaluated
operation by operation. A product or a sum over the first dimension of its arguments is
computed per device, from the device's own part. Operations that are linear in such partial sums
keep them apart, and the partial sums that remain at the end are added in one exchange. The
result is correct whatever the first dimension is; it is cheap because the batch is there.
Loops, convolutions and conditionals are left to XLA.

On accelerators nothing changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal
from jax.sharding import Mesh, PartitionSpec

from recsys.collectives import adds_in_order, all_reduce, on_each_device

_LINEAR = ("transpose", "reshape", "squeeze", "neg", "reduce_sum", "copy")
"""Of one argument; so are a wider type, and a product or quotient with what isn't in parts."""


def in_device_order(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns `function(*arguments)`, with sums over the batch added in the order of the devices.

    Args:
        function: A traceable function; its arguments and results are trees of arrays.
        *arguments: Its arguments.
    """
    distribution = keras.distribution.distribution()
    axis = None if distribution is None else distribution.batch_dim_name
    if axis is None or not adds_in_order():
        return function(*arguments)
    mesh = distribution.device_mesh.backend_mesh
    if mesh.size == 1 or mesh.size != mesh.shape[axis]:
        return function(*arguments)
    traced, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
    sums = _Sums(mesh, axis)
    values = sums.evaluated(traced.jaxpr, traced.consts, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(results), sums.whole(values))


@dataclasses.dataclass(eq=False)
class _Parts:
    """A sum whose parts lie on the devices: `each` `[devices, …]`; `total` once it was taken."""

    each: jax.Array
    total: Any = None


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Evaluates the operations of a function and keeps its sums in parts.

    Attributes:
        mesh: The devices.
        axis: The axis that splits the batch; all devices lie along it.
    """

    mesh: Mesh
    axis: str

    def evaluated(self, jaxpr: Jaxpr, constants: Any, arguments: Any) -> list[Any]:
        """Returns the results of `jaxpr`, arrays or `_Parts`."""
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            results = self._results(equation, [value(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _results(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        primitive = equation.primitive
        if primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            return self.evaluated(inner.jaxpr, inner.consts, values)
        if _is_linear(equation, values) or self._is_sum(equation, values):
            return [_Parts(self._of_each(equation, values))]
        with equation.ctx.manager:
            params = primitive.get_bind_params(equation.params)
            results = primitive.bind(*self.whole(values), **params)
        return list(results) if primitive.multiple_results else [results]

    def _is_sum(self, equation: JaxprEqn, values: list[Any]) -> bool:
        """Returns whether it sums floats over the first dimension, which divides."""
        if any(isinstance(value, _Parts) for value in values):
            return False
        params, out = equation.params, equation.outvars[0].aval
        if not jnp.issubdtype(getattr(out, "dtype", jnp.int32), jnp.floating):
            return False
        match equation.primitive.name:
            case "reduce_sum":
                is_over_first = 0 in params["axes"]
            case "dot_general":
                is_over_first = (0, 0) in zip(*params["dimension_numbers"][0], strict=True)
            case "scatter-add":  # The gradient of a weight whose rows are read.
                numbers = params["dimension_numbers"]
                is_by_batch = 0 not in numbers.update_window_dims
                is_by_batch = is_by_batch and not numbers.operand_batching_dims
                is_over_first = is_by_batch and values[2].size > values[0].size
            case _:
                return False
        return is_over_first and values[-1].shape[0] % self.mesh.size == 0

    def _of_each(self, equation: JaxprEqn, values: list[Any]) -> jax.Array:
        """Returns what each device makes of its own parts `[devices, …]`."""
        split, repeated = PartitionSpec(self.axis), PartitionSpec()
        is_linear = any(isinstance(value, _Parts) for value in values)
        specs = [split if isinstance(v, _Parts) or not is_linear else repeated for v in values]
        is_added_to = equation.primitive.name == "scatter-add"
        if is_added_to:
            specs[0] = repeated

        def own(*parts: Any) -> jax.Array:
            inputs = [
                part[0] if isinstance(value, _Parts) else part
                for part, value in zip(parts, values, strict=True)
            ]
            if is_added_to:  # By one device alone, so that it counts once.
                inputs[0] = jnp.where(jax.lax.axis_index(self.axis) == 0, inputs[0], 0)
            return equation.primitive.bind(*inputs, **equation.params)[None]

        arrays = [v.each if isinstance(v, _Parts) else v for v in values]
        with equation.ctx.manager:
            return on_each_device(own, self.mesh, tuple(specs), split)(*arrays)

    def whole(self, values: list[Any]) -> list[Any]:
        """Returns `values` with the totals of those in parts, all taken in one exchange."""
        new = list({id(v): v for v in values if isinstance(v, _Parts) and v.total is None}.values())
        if new:
            specs = PartitionSpec(self.axis), PartitionSpec()
            totals = on_each_device(self._totals, self.mesh, *specs)
            for part, total in zip(new, totals([part.each for part in new]), strict=True):
                part.total = total
        return [value.total if isinstance(value, _Parts) else value for value in values]

    def _totals(self, parts: list[jax.Array]) -> list[jax.Array]:
        flat = [part.astype(jnp.float32).ravel() for part in parts]
        total = all_reduce(jnp.concatenate(flat), self.axis)
        cut = jnp.split(total, np.cumsum([len(x) for x in flat])[:-1])
        return [
            x.reshape(part.shape[1:]).astype(part.dtype) for x, part in zip(cut, parts, strict=True)
        ]


def _is_linear(equation: JaxprEqn, values: list[Any]) -> bool:
    """Returns whether an operation of sums in parts is the sum of the same of the parts."""
    in_parts = [isinstance(value, _Parts) for value in values]
    match equation.primitive.name:
        case "convert_element_type":
            new = equation.params["new_dtype"]
            return in_parts == [True] and jnp.promote_types(values[0].each.dtype, new) == new
        case "mul":
            return sum(in_parts) == 1
        case "div":
            return in_parts == [True, False]
        case "add_any" | "add" | "sub":
            return all(in_parts)
        case name:
            return name in _LINEAR and in_parts == [True]
