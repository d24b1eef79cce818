"""The arrays of a checkpoint: how they must fit a model, and how they get into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import keras
import numpy as np
import orbax.checkpoint as ocp

from recsys.embedding import spread
from recsys.errors import RecsysError

Variables = Mapping[str, keras.Variable]


class Form(NamedTuple):
    """What a variable is like.

    Attributes:
        shape: Its shape, padding included.
        dtype: The name of its type.
        rows: Rows that mean something, where the places of the first axis hold rows
            spread (`recsys.embedding.spread`); None where they don't.
    """

    shape: tuple[int, ...]
    dtype: str
    rows: int | None

    def __str__(self) -> str:
        rows = "" if self.rows is None else f" of {self.rows:,} rows"
        return f"{self.dtype}{list(self.shape)}{rows}"

    @classmethod
    def from_json(cls, fields: list[Any]) -> Form:
        """Returns the form that JSON wrote as a list."""
        return cls(tuple(fields[0]), fields[1], fields[2])

    def fits(self, other: Form) -> bool:
        """Returns whether numbers of this form can become those of another.

        Spread tables fit, however padded, if they have the same rows.
        """
        if self.rows is None:
            return self == other
        here, there = (form._replace(shape=form.shape[1:]) for form in (self, other))
        return here == there


def form_of(array: Any, rows: int | None) -> Form:
    """Returns the form of an array or a variable."""
    return Form(tuple(array.shape), keras.backend.standardize_dtype(array.dtype), rows)


def check_fit(folder: Path, saved: Mapping[str, Form], wanted: Mapping[str, Form]) -> None:
    """Checks that a checkpoint holds the variables of a model, and no others.

    Raises:
        RecsysError: It doesn't; names the first that differs, found and expected.
    """
    wrong = [
        f"variable {path!r} must be {wanted.get(path, 'absent')}, as in the model;"
        f" it is {saved.get(path, 'absent')}"
        for path in sorted({*saved, *wanted})
        if path not in saved or path not in wanted or not saved[path].fits(wanted[path])
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
        raise RecsysError(
            "R333",
            f"In checkpoint {folder} {wrong[0]}{more}.",
            "Go back to the config and data that it was saved under; or remove the folder"
            f" {folder.parent}, or choose another one, to train anew.",
        )


def read_into(
    checkpointer: ocp.AsyncCheckpointer,
    folder: Path,
    saved: Mapping[str, Form],
    variables: Variables,
) -> None:
    """Gives `variables` the numbers of a checkpoint that fits them.

    Each device reads its own part. What the variables hold is freed first, so the
    devices never hold a table twice.
    """
    places = {path: variable.value.sharding for path, variable in variables.items()}
    for variable in variables.values():
        variable.value.delete()

    def assign(read: Mapping[str, Any]) -> None:
        for path, array in read.items():
            variables[path].assign(array)

    same = [path for path in variables if saved[path].shape == tuple(variables[path].shape)]
    arguments = {
        path: ocp.ArrayRestoreArgs(
            sharding=places[path], global_shape=saved[path].shape, dtype=saved[path].dtype
        )
        for path in same
    }
    assign(_read(checkpointer, folder, arguments))
    for path in sorted(set(variables) - set(same)):
        # Another padding, which few numbers of devices have: the table passes through
        # the host's memory.
        table = _read(checkpointer, folder, {path: ocp.RestoreArgs(restore_type=np.ndarray)})[path]
        shape, rows = tuple(variables[path].shape), saved[path].rows
        assert rows is not None  # noqa: S101 only spread tables fit another shape
        part = _replaced(table, shape, rows)
        assign({path: jax.make_array_from_callback(shape, places[path], part)})


def _read(
    checkpointer: ocp.AsyncCheckpointer, folder: Path, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arrays that `arguments` name, read as they say."""
    read: dict[str, Any] = checkpointer.restore(
        folder,
        args=ocp.args.PyTreeRestore(
            item=dict.fromkeys(arguments, 0), restore_args=arguments, partial_restore=True
        ),
    )
    return read


def _replaced(table: np.ndarray, shape: tuple[int, ...], rows: int) -> Callable[[Any], np.ndarray]:
    """Returns a function from an index to that part of `table` in places of `shape`.

    Args:
        table: Values `[places, width]`.
        shape: The other shape `[other places, width]`; its padding is zero.
        rows: Rows that mean something.
    """

    def part(index: Any) -> np.ndarray:
        row = spread.rows_at(np.arange(shape[0])[index[0]], shape[0])
        columns = table[:, index[1]]
        out = np.zeros((len(row), columns.shape[1]), table.dtype)
        inside = row < rows
        out[inside] = columns[spread.places(row[inside], len(table))]
        return out

    return part
