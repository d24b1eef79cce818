"""Parity of a SavedModel: it must reproduce the trainer's results for some probes.

Numbers are compared with a tolerance of `TOLERANCE` times the largest number, in batches of
several sizes. Nothing here imports Keras or JAX.
"""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf

from recsys.errors import RecsysError
from recsys.ragged import slices
from recsys.savedmodel.signatures import Arrays

TOLERANCE = 1e-5
_BATCHES = (0, 1, 7)
_PROBES = 64

Report = Callable[[str], None]
"""Called with a sentence after each check."""
Request = tuple[str, Mapping[str, tf.Tensor]]
"""Name of a signature and its inputs."""


class Reference(abc.ABC):
    """The results that a SavedModel must reproduce.

    The exporter saves it; a process with only TensorFlow loads it and compares. So the module of a
    subclass must not import Keras or JAX.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of probes."""

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the reference into `folder`, which exists."""

    @classmethod
    @abc.abstractmethod
    def load(cls, folder: Path) -> Self:
        """Reads what `save` wrote."""

    @abc.abstractmethod
    def check(self, model: Any, bundle: Path, report: Report) -> float:
        """Compares a loaded SavedModel with the trainer's results.

        Args:
            model: The loaded SavedModel.
            bundle: The unfinished bundle.
            report: Called with a description after each check.

        Returns:
            The largest difference of a number.

        Raises:
            RecsysError: A difference exceeds the tolerance (R530 … R533, R538).
        """

    @abc.abstractmethod
    def request(self, model: Any, number: int) -> Request:
        """Returns a request of one row, to time the model; probes are cycled."""


@dataclasses.dataclass(frozen=True)
class Expected(Reference):
    """Inputs of signatures and the outputs that they must return.

    Attributes:
        inputs: Inputs by signature, `[n, ...]` each, text, bool or numbers.
        outputs: Required outputs by signature, `[n, ...]` float32 each.
    """

    inputs: Mapping[str, Arrays]
    outputs: Mapping[str, Arrays]

    def __len__(self) -> int:
        return max(len(value) for inputs in self.inputs.values() for value in inputs.values())

    def save(self, folder: Path) -> None:
        """Writes the reference into `folder`, which exists."""
        (folder / "signatures.json").write_text(json.dumps([*self.inputs]))
        for number, signature in enumerate(self.inputs):
            for kind, arrays in (("inputs", self.inputs), ("outputs", self.outputs)):
                # NumPy would pickle texts in object arrays.
                plain: Any = {name: _plain(x) for name, x in arrays[signature].items()}
                np.savez(folder / f"{number}-{kind}.npz", **plain)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads what `save` wrote."""
        signatures = json.loads((folder / "signatures.json").read_text())
        inputs, outputs = (
            {
                signature: dict(np.load(folder / f"{number}-{kind}.npz", allow_pickle=False))
                for number, signature in enumerate(signatures)
            }
            for kind in ("inputs", "outputs")
        )
        return cls(inputs, outputs)

    def check(self, model: Any, bundle: Path, report: Report) -> float:
        """Compares the outputs of each signature; see `Reference.check`."""
        worst = 0.0
        for signature, inputs in self.inputs.items():
            ask, n = model.signatures[signature], len(next(iter(inputs.values())))

            def answer(part: slice, ask: Any = ask, inputs: Arrays = inputs) -> Any:
                return ask(**{name: tf.constant(x[part]) for name, x in inputs.items()})

            outputs = in_batches(answer, n)
            for name, expected in self.outputs[signature].items():
                found = difference("R530", f"{name} of {signature}", outputs[name], expected)
                worst = max(worst, found)
            report(f"{n:,} answers of {signature} are the trainer's")
        return worst

    def request(self, model: Any, number: int) -> Request:
        """Returns a request of one row; see `Reference.request`."""
        signature, inputs = next(iter(self.inputs.items()))
        row = number % len(next(iter(inputs.values())))
        return signature, {name: tf.constant(x[row : row + 1]) for name, x in inputs.items()}


def _plain(values: np.ndarray) -> np.ndarray:
    return values.astype(np.str_) if values.dtype == object else values


def difference(code: str, subject: str, values: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference of two arrays.

    Raises:
        RecsysError: The shapes differ, or the difference exceeds the tolerance (`code`).
    """
    if values.shape != expected.shape:
        raise refused(code, subject, f"shape {values.shape} instead of {expected.shape}")
    worst = float(np.max(np.abs(values - expected), initial=0.0))
    # Dot products may be large; cosines and the entries of unit vectors are at most 1.
    largest = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    if not (worst <= TOLERANCE * largest and np.isfinite(worst)):  # Also true for NaN.
        raise refused(code, subject, f"a difference of {worst:.3g}")
    return worst


def refused(code: str, subject: str, received: str) -> RecsysError:
    """Returns the error for a model that must not be exported."""
    rule = (
        f"The {subject} of the exported model must be the trainer's within {TOLERANCE:g}"
        " of the largest number, or of 1."
    )
    cure = (
        "Nothing was exported. Train again: recsys run; if the error persists, report it as a bug."
    )
    return RecsysError(code, rule, cure, received)


def in_batches(ask: Callable[[slice], Mapping[str, tf.Tensor]], n: int) -> Arrays:
    """Returns the outputs for `n` probes, computed in batches of several sizes."""
    answers = [{name: t.numpy() for name, t in ask(part).items()} for part in parts(n, _PROBES)]
    return {name: np.concatenate([a[name] for a in answers]) for name in answers[0]}


def parts(n: int, most: int) -> Iterator[slice]:
    """Yields slices of 0, 1 and 7, then of `most` up to `n`."""
    start = 0
    for size in _BATCHES:
        yield slice(start, min(start + size, n))
        start = min(start + size, n)
    yield from slices(n, most, start)
