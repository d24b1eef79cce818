"""Parity of ranking: predictions must be the same as in training.

The reference, the predictions in training for some rows, is passed in a folder to the process that
checks the bundle:

    probes.parquet     each row in raw ids and raw values, as a client sends it
    predictions.npz    bounds and value of each label's prediction

A calibration may be steep, so the tolerance is one of the log odds: `Bounds` are the predictions of
slightly lower and slightly higher ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from recsys.savedmodel.event_columns import CONTEXT
from recsys.savedmodel.parity import TOLERANCE, Reference, Report, Request, in_batches, refused
from recsys.savedmodel.signatures import DEFAULT_SIGNATURE, LIST_PADDING, RANK, Arrays
from recsys.tasks.serving.requests import example

_PROBES, _PREDICTIONS = "probes.parquet", "predictions.npz"
_ITEM = "item_id"
_TOGETHER, _TIMED_ITEMS = 16, 500
"""Number of items of a request that is compared, and of one that is timed."""


class Bounds(NamedTuple):
    """Predictions of a label in training.

    Attributes:
        low: Lowest allowed prediction of each row `[n]` float32.
        value: The prediction in training `[n]` float32.
        high: Highest allowed prediction `[n]` float32.
    """

    low: np.ndarray
    value: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class RankingReference(Reference):
    """The predictions that a bundle must reproduce.

    Attributes:
        probes: Text of each row by input: `user_id` and `item_id` `[n]`; `history` and raw columns
            `[n, any]`; and the numbers `[n, 1]` of the ranker of a pair (`LIST_PADDING`).
        predictions: Predictions of each label by name.
    """

    probes: Arrays
    predictions: Mapping[str, Bounds]

    def __len__(self) -> int:
        return len(self.probes[_ITEM])

    def save(self, folder: Path) -> None:
        """Writes the reference into `folder`, which must exist."""
        columns = {name: pa.array(texts.tolist()) for name, texts in self.probes.items()}
        pq.write_table(pa.table(columns), folder / _PROBES)
        stacked: Any = {name: np.stack(bounds) for name, bounds in self.predictions.items()}
        np.savez(folder / _PREDICTIONS, **stacked)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a reference that `save` wrote."""
        probes = pq.read_table(folder / _PROBES).to_pydict()
        stacked = np.load(folder / _PREDICTIONS, allow_pickle=False)
        return cls(
            {name: np.asarray(texts, object) for name, texts in probes.items()},
            {name: Bounds(*stacked[name]) for name in stacked},
        )

    def check(self, model: Any, bundle: Path, report: Report) -> float:
        """Compares a loaded SavedModel, asked with raw ids and columns, with the predictions.

        It asks for one item at a time, in batches of 0, 1, 7 and more, and from serialized
        tf.Examples, unless the model is one of a pair; and for several items at once, each with a
        context of its own.

        Returns:
            The largest difference of a prediction.

        Raises:
            RecsysError: A difference exceeds the tolerance (R530).
        """
        rank, default = (model.signatures[name] for name in (RANK, DEFAULT_SIGNATURE))
        n = len(self)

        def of_examples(part: slice) -> Mapping[str, tf.Tensor]:
            answered = default(examples=self._examples(part))
            # Without examples there are no items.
            return {name: tf.reshape(x, [-1]) for name, x in answered.items()}

        answers = {
            RANK: self.outputs(rank),
            "several items": self._together(rank),
        }
        if self.predictions.keys() <= default.structured_outputs.keys():
            answers[DEFAULT_SIGNATURE] = in_batches(of_examples, n)
        worst = max(self._compare(subject, outputs) for subject, outputs in answers.items())
        report(f"the predictions of {n:,} rows are the trainer's")
        return worst

    def request(self, model: Any, number: int) -> Request:
        """Returns a request of one user with 500 items; probes are cycled."""
        probe = number % len(self)
        inputs = self._inputs(model.signatures[RANK], slice(probe, probe + 1))
        items = np.resize(self.probes[_ITEM], _TIMED_ITEMS)
        return RANK, {**inputs, _ITEM: tf.constant([items.tolist()])}

    def outputs(self, rank: Any) -> Arrays:
        """Returns the outputs of `rank` for all rows, of one item each, asked in batches."""
        return in_batches(lambda part: rank(**self._inputs(rank, part)), len(self))

    def _inputs(self, signature: Any, rows: Any) -> dict[str, tf.Tensor]:
        """Returns the inputs of `rank` for some rows, of one item each; others are padding."""
        values = {name: x[rows] for name, x in self.probes.items()}
        n = len(values[_ITEM])
        values[_ITEM] = values[_ITEM][:, None]
        return {
            name: _tensor(values.get(name, np.full((n, 1), "", object)), spec.dtype)
            for name, spec in signature.structured_input_signature[1].items()
        }

    def _examples(self, part: slice) -> tf.Tensor:
        lists = {name: x[part] for name, x in self.probes.items() if name != "user_id"}
        lists[_ITEM] = lists[_ITEM][:, None]
        serialized = [
            example(user, [], {name: texts[n] for name, texts in lists.items()})
            for n, user in enumerate(self.probes["user_id"][part])
        ]
        return tf.constant(serialized, tf.string, [len(serialized)])

    def _together(self, rank: Any) -> Arrays:
        """Returns the predictions of the first rows, each asked with the items of all of them.

        Each item has a context of its own; a row's item is as many places from the first as the
        row is.
        """
        n = min(_TOGETHER, len(self))
        inputs = self._inputs(rank, slice(n))
        for name in inputs:
            if name.startswith((CONTEXT, _ITEM)) or name in LIST_PADDING:
                of_items = self.probes[name][:n].reshape(n, -1)[:, 0]
                inputs[name] = _tensor(np.tile(of_items, (n, 1)), inputs[name].dtype)
        outputs = rank(**inputs)
        return {name: tf.linalg.diag_part(outputs[name]).numpy() for name in self.predictions}

    def _compare(self, subject: str, outputs: Arrays) -> float:
        """Returns the largest difference of the first rows from the predictions in training."""
        worst = 0.0
        for name, bounds in self.predictions.items():
            found = outputs[name].ravel()
            low, value, high = (x[: len(found)] for x in bounds)
            outside, difference = np.maximum(low - found, found - high), np.abs(found - value)
            if not (outside <= TOLERANCE).all():  # Also true for NaN.
                received = f"a difference of {difference[np.argmax(outside)]:.3g}"
                raise refused("R530", f"{name} of {subject}", received)
            worst = max(worst, float(difference.max(initial=0)))
        return worst


def _tensor(values: np.ndarray, dtype: tf.DType) -> tf.Tensor:
    return tf.constant(values.tolist(), dtype, values.shape)
