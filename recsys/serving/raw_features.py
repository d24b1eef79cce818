"""The Transform graph inside the bundle: raw item columns to token rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from recsys.errors import RecsysError

# The ingest gives these two raw columns the same names whatever the file calls them.
_ITEM_ID, _TITLE = "item_id", "title"


class RawFeatures(tf.Module):
    """Turns raw columns into token rows with the very graph that made the catalogue.

    Args:
        folder: A TFT transform output; its `transform_fn/` is a SavedModel.
        features: Names of the features that the towers read.
    """

    def __init__(self, folder: Path, features: Iterable[str]) -> None:
        super().__init__(name="raw_features")
        self.graph = _load(folder)
        self._function = self.graph.transform_fn
        self._specs: dict[str, Any] = self._function.structured_input_signature[0][0]
        missing = sorted(set(features) - set(self._function.structured_outputs))
        if missing:
            raise RecsysError(
                "R523",
                f"The transform graph in {str(folder)!r} must give every feature of the model.",
                "Export with the transform graph that the model's catalogue was made with.",
                missing,
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that it reads, beside the item's id."""
        return tuple(sorted(set(self._specs) - {_ITEM_ID}))

    def bags(
        self, item_id: tf.Tensor, raw: Mapping[str, tf.Tensor], widths: Mapping[str, int]
    ) -> dict[str, tf.Tensor]:
        """Returns token rows `[b, width]` int32 by feature.

        Args:
            item_id: Ids `[b]`; as in the ingest, an item without a title has its id as one.
            raw: Raw columns `[b]`, text.
            widths: Tokens of each feature.
        """
        columns = {**raw, _ITEM_ID: item_id}
        if _TITLE in raw:
            title = tf.strings.strip(raw[_TITLE])
            columns[_TITLE] = tf.where(title == "", item_id, title)
        outputs = self._function({name: _as(columns[name], s) for name, s in self._specs.items()})
        return {name: _padded(outputs[name], width) for name, width in widths.items()}


def _load(folder: Path) -> Any:
    try:
        return tf.saved_model.load(str(folder / "transform_fn"))
    except (OSError, ValueError) as error:
        raise RecsysError(
            "R522",
            f"{str(folder)!r} must hold the output of Transform.",
            "Name the folder that holds transform_fn/, or leave --transform out.",
            str(error),
        ) from None


def _as(column: tf.Tensor, spec: Any) -> Any:
    """Returns a text column `[b]` as the graph wants it; empty text is a missing value."""
    if isinstance(spec, tf.SparseTensorSpec):
        return _numbers(tf.sparse.from_dense(column[:, None]), spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        return _numbers(tf.ragged.boolean_mask(column[:, None], column[:, None] != ""), spec.dtype)
    dense = _numbers(column, spec.dtype)
    return tf.reshape(dense, [-1, *[1] * (spec.shape.rank - 1)])


def _numbers(column: Any, dtype: tf.DType) -> Any:
    if dtype == tf.string:
        return column
    if isinstance(column, tf.SparseTensor):
        return column.with_values(_numbers(column.values, dtype))
    if isinstance(column, tf.RaggedTensor):
        return column.with_flat_values(_numbers(column.flat_values, dtype))
    return tf.strings.to_number(tf.where(column == "", "0", column), dtype)


def _padded(bag: Any, width: int) -> tf.Tensor:
    """Returns a bag as `[b, width]` int32, cut or padded with 0."""
    if isinstance(bag, tf.SparseTensor):
        bag = tf.sparse.to_dense(bag)
    if isinstance(bag, tf.RaggedTensor):
        bag = bag.to_tensor(0)
    bag = tf.cast(bag, tf.int32)[:, :width]
    return tf.pad(bag, [[0, 0], [0, width - tf.shape(bag)[1]]])
