"""Row operations of the C kernels: lookups and updates of a batch.

A lookup list is three arrays of one length n: `rows` int32 (row of the table; one
outside of it is skipped: it adds zero and is not updated), `bag` int32 (the output or
gradient row it belongs to; one outside is skipped as well) and `weight` float32. `bag`
may be None for bags of equal length, one after the other, and `weight` None for ones:
that saves reading them.

They may be called inside `jax.jit` and `jax.shard_map` where `kernels.available()`.
Results are the same bits for any number of threads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from recsys import kernels
from recsys.errors import RecsysError

# Numbers of the enum in optimizers.h, and the slots of each.
_OPTIMIZERS = {
    "sgd": (0, 0),
    "adagrad": (1, 1),
    "row_wise_adagrad": (2, 1),
    "lazy_adam": (3, 2),
    "ftrl": (4, 2),
}

Optional = jax.Array | None


def pool(
    table: jax.Array, rows: jax.Array, bag: Optional, weight: Optional, n_bags: int
) -> jax.Array:
    """Returns the weighted sums of rows over bags `[n_bags, dim]` float32.

    Args:
        table: Rows `[rows, dim]` float32 or bfloat16.
        rows: Row of each entry `[n]` int32.
        bag: Bag of each entry `[n]` int32; fast if non-decreasing, right in any order.
        weight: Weight of each entry `[n]` float32.
        n_bags: Number of bags.

    Raises:
        RecsysError: Shapes or types are others (R342).
    """
    _check_table(table)
    out = ((n_bags, table.shape[1]), jnp.float32)
    return _call("pool", [table, *_lookups(rows, bag, weight, n_bags)], [out])[0]


def weight_grad(table: jax.Array, rows: jax.Array, bag: Optional, grads: jax.Array) -> jax.Array:
    """Returns the gradients of the weights `[n]` float32: row · gradient of its bag.

    Args:
        table: Rows `[rows, dim]` float32 or bfloat16.
        rows: Row of each entry `[n]` int32.
        bag: Bag of each entry `[n]` int32.
        grads: Gradients of the bags `[bags, dim]` float32.

    Raises:
        RecsysError: Shapes or types are others (R342).
    """
    _check_table(table)
    _check("grads", grads, (None, table.shape[1]), jnp.float32)
    lookups = _lookups(rows, bag, None, grads.shape[0])
    return _call("weight_grad", [table, *lookups, grads], [(rows.shape, jnp.float32)])[0]


def update(
    kind: str,
    table: jax.Array,
    slots: tuple[jax.Array, ...],
    rows: jax.Array,
    bag: Optional,
    weight: Optional,
    grads: jax.Array,
    scalars: jax.Array,
    rounding: jax.Array,
    **attributes: float,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Returns table and slots after one step of the distinct rows; in place if donated.

    The gradient of a row is scale · the sum of weight · grads[bag] over its entries, in
    their order.

    Args:
        kind: `sgd`, `adagrad`, `row_wise_adagrad`, `lazy_adam` or `ftrl`.
        table: Rows `[rows, dim]` float32, or bfloat16, which is rounded stochastically.
        slots: Float32; `[rows, 1]` for `row_wise_adagrad`, else `[rows, dim]` each.
        rows: Row of each entry `[n]` int32.
        bag: Bag of each entry `[n]` int32.
        weight: Weight of each entry `[n]` float32.
        grads: Gradients of the bags `[bags, dim]` float32.
        scalars: Learning rate, scale, step size (the rate with bias correction), and
            one number that isn't used `[4]` float32.
        rounding: Seed and the place of the table's first row `[2]` int32.
        **attributes: What doesn't change from step to step, by the names of
            `recsys.embedding.optimizers`; others are ignored.

    Raises:
        RecsysError: Shapes, types or the optimizer are others (R342).
    """
    _check_table(table)
    number, n_slots = _optimizer(kind, slots)
    n_rows, dim = table.shape
    for slot in slots:
        _check("slots", slot, (n_rows, 1 if kind == "row_wise_adagrad" else dim), jnp.float32)
    _check("grads", grads, (None, dim), jnp.float32)
    _check("scalars", scalars, (4,), jnp.float32)
    _check("rounding", rounding, (2,), jnp.int32)
    lookups = _lookups(rows, bag, weight, grads.shape[0])
    outs = [(x.shape, x.dtype) for x in (table, *slots)]
    aliases = {i: i for i in range(1 + n_slots)}
    arguments = [table, *slots, *lookups, grads, scalars, rounding]
    numbers = {name: np.float64(value) for name, value in attributes.items()}
    table, *new = _call("update", arguments, outs, aliases, optimizer=np.int32(number), **numbers)
    return table, tuple(new)


def sum_squares(
    rows: jax.Array, bag: Optional, weight: Optional, grads: jax.Array, n_rows: int
) -> jax.Array:
    """Returns the sum of squares of all distinct rows' gradients, a scalar float32.

    Args:
        rows: Row of each entry `[n]` int32.
        bag: Bag of each entry `[n]` int32.
        weight: Weight of each entry `[n]` float32.
        grads: Gradients of the bags `[bags, dim]` float32.
        n_rows: Rows of the table.

    Raises:
        RecsysError: Shapes or types are others (R342).
    """
    _check("grads", grads, (None, None), jnp.float32)
    arguments = [*_lookups(rows, bag, weight, grads.shape[0]), grads]
    return _call("sum_squares", arguments, [((), jnp.float32)], n_rows=np.int64(n_rows))[0]


# --- calling


def _call(
    name: str,
    arguments: list[jax.Array],
    outs: list[tuple[tuple[int, ...], jnp.dtype]],
    aliases: dict[int, int] | None = None,
    **attributes: np.generic,
) -> list[jax.Array]:
    """Calls a kernel; under `shard_map` each device its own, on its own part."""
    kernels.library()  # Registers the kernels, or says why there are none.
    axes = frozenset[str]().union(*(_axes(x) for x in arguments))
    results = [_result(shape, dtype, axes) for shape, dtype in outs]
    call = jax.ffi.ffi_call(f"recsys_{name}", results, input_output_aliases=aliases)
    return list(call(*(_varying(x, axes) for x in arguments), **attributes))


def _axes(x: jax.Array) -> frozenset[str]:
    """Returns the mesh axes along which `x` differs, as `shard_map` tracks them."""
    kind = jax.typeof(x)
    # JAX 0.10 has the one, others the other.
    axes = getattr(kind, "manual_axis_type", None) or kind
    varying: frozenset[str] | None = getattr(axes, "varying", None) or getattr(axes, "vma", None)
    return varying or frozenset()


def _varying(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    missing = tuple(sorted(axes - _axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _result(shape: tuple[int, ...], dtype: jnp.dtype, axes: frozenset[str]) -> jax.ShapeDtypeStruct:
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    return jax.eval_shape(lambda: _varying(jnp.zeros(shape, dtype), axes))


def _lookups(rows: jax.Array, bag: Optional, weight: Optional, n_bags: int) -> list[jax.Array]:
    _check("rows", rows, (None,), jnp.int32)
    if bag is None:
        if n_bags and rows.shape[0] % n_bags:
            raise _mismatch("Bags without numbers must be of equal length.", (rows.shape, n_bags))
        bag = jnp.zeros((0,), jnp.int32)
    else:
        _check("bag", bag, rows.shape, jnp.int32)
    if weight is None:
        weight = jnp.zeros((0,), jnp.float32)
    else:
        _check("weight", weight, rows.shape, jnp.float32)
    return [rows, bag, weight]


def _optimizer(kind: str, slots: tuple[jax.Array, ...]) -> tuple[int, int]:
    if kind not in _OPTIMIZERS or _OPTIMIZERS[kind][1] != len(slots):
        known = ", ".join(f"{name} ({n})" for name, (_, n) in _OPTIMIZERS.items())
        raise _mismatch(f"An optimizer and its number of slots are {known}.", (kind, len(slots)))
    return _OPTIMIZERS[kind]


def _check_table(table: jax.Array) -> None:
    if table.ndim != 2 or table.dtype not in (jnp.float32, jnp.bfloat16) or not table.shape[1]:
        rule = "A table must be [rows, dim], float32 or bfloat16."
        raise _mismatch(rule, (table.shape, str(table.dtype)))


def _check(name: str, x: jax.Array, shape: tuple[int | None, ...], dtype: jnp.dtype) -> None:
    fits = len(x.shape) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, x.shape, strict=True)
    )
    if not fits or x.dtype != dtype:
        wanted = [n if n is not None else "any" for n in shape]
        rule = f"{name!r} must be {wanted} {jnp.dtype(dtype).name}."
        raise _mismatch(rule, (x.shape, str(x.dtype)))


def _mismatch(rule: str, received: object) -> RecsysError:
    return RecsysError("R342", rule, "Call it through recsys.embedding.rows.", received)
