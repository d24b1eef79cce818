"""Calls of the kernels through XLA with arrays of any shape and type, and which are right.

The valid calls are defined here again, independently of the C code: sizes with the same letter must
be equal.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recsys import kernels

Call = dict[str, Any]
_FLOAT, _HALF, _INT = "float32", "bfloat16", "int32"
TYPES = (_FLOAT, _HALF, _INT, "float16", "uint32", "int8", "bool")
OPTIMIZERS = {"sgd": "", "adagrad": "D", "row_wise_adagrad": "1", "lazy_adam": "DD", "ftrl": "DD"}
"""The widths of an optimizer's slots, in the order of the kernels' enum."""
VARIANTS = [
    *(name for name in kernels.HANDLERS if name != "update"),
    "candidate_loss with gradients",
    *(f"update {kind}" for kind in OPTIMIZERS),
]
_LOOKUPS = [(_INT, "n"), (_INT, "m"), (_FLOAT, "w")]
"""Rows, bags and weights; m and w are n, or 0 for none."""
_MOST_DIMS = 1024


def signature(variant: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns the types and sizes of the arguments and of the results of a kernel."""
    kernel, _, kind = variant.partition(" ")
    table, result = ("table", "RD"), (_FLOAT, "BD")
    if kernel == "pool":
        return [table, *_LOOKUPS], [result]
    if kernel == "weight_grad":
        return [table, *_LOOKUPS, result], [(_FLOAT, "n")]
    if kernel == "sum_squares":
        return [*_LOOKUPS, result], [(_FLOAT, "")]
    if kernel == "update":
        changed = [table, *((_FLOAT, f"R{width}") for width in OPTIMIZERS[kind])]
        return [*changed, *_LOOKUPS, result, (_FLOAT, "4"), (_INT, "2")], changed
    scalars = [(_FLOAT, "1"), (_INT, "1"), (_FLOAT, "1")]
    per_candidate = [(_INT, "N"), (_FLOAT, "N")]
    arguments = [(_FLOAT, "bD"), (_FLOAT, "ND"), *per_candidate, (_FLOAT, "b"), (_INT, "bP")]
    gradients = [(_FLOAT, "bD"), (_FLOAT, "ND"), (_FLOAT, "q")] if kind else []
    return [*arguments, *scalars], [(_FLOAT, "b"), *gradients]


def right_call(variant: str, sizes: dict[str, int], table: str = _FLOAT) -> Call:
    """Returns a call whose arrays have the sizes that `sizes` gives to the letters."""
    kind = variant.partition(" ")[2]
    attributes: dict[str, float] = {}
    if kind in OPTIMIZERS:
        attributes["optimizer"] = list(OPTIMIZERS).index(kind)
    elif variant == "sum_squares":
        attributes["n_rows"] = sizes["R"]
    arguments, results = (
        [
            [table if dtype == "table" else dtype, [int(sizes.get(size, size)) for size in letters]]
            for dtype, letters in arrays
        ]
        for arrays in signature(variant)
    )
    return {
        "variant": variant,
        "arguments": arguments,
        "results": results,
        "attributes": attributes,
        "seed": 0,
    }


def is_right(call: Call) -> bool:
    """Returns whether the dtypes and sizes of a call are valid for its kernel."""
    arguments, results = signature(call["variant"])
    expected, arrays = [*arguments, *results], [*call["arguments"], *call["results"]]
    if len(arguments) != len(call["arguments"]) or len(results) != len(call["results"]):
        return False
    sizes: dict[str, int] = {}
    for (dtype, letters), (given, shape) in zip(expected, arrays, strict=True):
        of_table = sizes.setdefault("type", TYPES.index(given)) if dtype == "table" else None
        types = (_FLOAT, _HALF) if dtype == "table" else (dtype,)
        if given not in types or of_table not in (None, TYPES.index(given)):
            return False
        if len(letters) != len(shape):
            return False
        for letter, size in zip(letters, shape, strict=True):
            if size != (int(letter) if letter.isdigit() else sizes.setdefault(letter, size)):
                return False
    if "n" in sizes:
        entries, bags = sizes["n"], sizes["B"]
        are_even = sizes["m"] or not bags or entries % bags == 0
        return sizes["m"] in (0, entries) and sizes["w"] in (0, entries) and bool(are_even)
    with_log_q = sizes.get("q", 0) in (0, sizes["N"])
    return with_log_q and 0 < sizes["b"] <= sizes["N"] and 0 < sizes["D"] <= _MOST_DIMS


def error_of(call: Call) -> str | None:
    """Calls a kernel; returns what it says of the arrays, or None if it took them."""
    kernels.library()  # Registers them.
    rng = np.random.default_rng(call["seed"])
    arrays = [_array(rng, *array) for array in call["arguments"]]
    results = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in call["results"]]
    kernel = call["variant"].partition(" ")[0]
    run = jax.ffi.ffi_call(f"recsys_{kernel}", results)
    attributes = {name: np.float64(value) for name, value in call["attributes"].items()}
    try:
        jax.block_until_ready(run(*arrays, **attributes))
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return None


def _array(rng: np.random.Generator, dtype: str, shape: list[int]) -> jax.Array:
    if dtype != _INT:
        return jnp.asarray(rng.normal(size=shape)).astype(dtype)
    if shape == [1]:
        return jnp.zeros(1, jnp.int32)  # Where the positives of a softmax begin.
    values = rng.integers(-2, 12, shape)
    limits = rng.choice([-(2**31), 2**31 - 1], shape)
    return jnp.asarray(np.where(rng.random(shape) < 0.1, limits, values), jnp.int32)
