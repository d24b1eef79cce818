"""The Transform graphs inside the bundle: raw columns to token rows.

A raw column is text `[batch, any]`, padded with the empty string, whatever it holds:
numbers as people write them; dates as seconds since 1970, UTC, as years, or in ISO 8601.
Each is read as the ingest reads it, see `recsys.serving.raw_values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from recsys.errors import RecsysError
from recsys.serving.input_names import raw_inputs
from recsys.serving.raw_values import numbers, seconds, trimmed


class RawFeatures(tf.Module):
    """Turns raw columns into token rows with the very graph that made the stored ones.

    Args:
        folder: A TFT transform output; its `transform_fn/` is a SavedModel.
        id_column: `item_id` or `user_id`.
        widths: Tokens of each feature that the tower reads.
    """

    def __init__(self, folder: Path, id_column: str, widths: Mapping[str, int]) -> None:
        super().__init__(name=f"raw_features_by_{id_column}")
        self.graph = _load(folder)
        self._function = self.graph.transform_fn
        self._specs: dict[str, Any] = self._function.structured_input_signature[0][0]
        self._id_column, self._widths = id_column, dict(widths)
        self._column_of = raw_inputs(sorted(set(self._specs) - {id_column}))
        missing = sorted({id_column, *widths} - set(self._function.structured_outputs))
        if missing:
            raise RecsysError(
                "R523",
                f"The transform graph in {str(folder)!r} must give {id_column!r} and every"
                " feature of the model.",
                "Export with the transform graphs that the model's data were made with.",
                missing,
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that it reads, beside the id, by the names of inputs."""
        return tuple(self._column_of)

    def or_stored(
        self, ids: tf.Tensor, raw: Mapping[str, tf.Tensor], stored: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns token rows `[b, width]` int32 by feature.

        Args:
            ids: Ids `[b]`.
            raw: Raw columns `[b, any]`, by `columns`.
            stored: Token rows `[b, width]` to read where all columns of a row are empty.
        """
        is_given = [tf.reduce_any(column != "", axis=1) for column in raw.values()]
        one_is_given = tf.reduce_any(is_given, axis=0)
        fresh = self._bags(ids, raw)
        return {
            name: tf.where(one_is_given[:, None], fresh[name], bag) for name, bag in stored.items()
        }

    def _bags(self, ids: tf.Tensor, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        columns = {self._column_of[name]: column for name, column in raw.items()}
        columns[self._id_column] = ids[:, None]
        outputs = self._function({name: _as(columns[name], s) for name, s in self._specs.items()})
        return {name: _padded(outputs[name], width) for name, width in self._widths.items()}


def text_columns(names: Iterable[str]) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of a signature that takes raw columns."""
    return {name: tf.TensorSpec([None, None], tf.string, name) for name in names}


def _load(folder: Path) -> Any:
    try:
        return tf.saved_model.load(str(folder / "transform_fn"))
    except (OSError, ValueError) as error:
        raise RecsysError(
            "R522",
            f"{str(folder)!r} must hold the output of Transform.",
            "Name the folder that holds transform_fn/, or leave the option out.",
            str(error),
        ) from None


def _as(column: tf.Tensor, spec: Any) -> Any:
    """Returns a text column `[b, any]` as the graph wants it."""
    values = tf.ragged.boolean_mask(column, column != "")
    if isinstance(spec, tf.SparseTensorSpec):
        return values.with_values(_typed(values.values, spec.dtype)).to_sparse()
    if isinstance(spec, tf.RaggedTensorSpec):
        return values.with_values(_typed(values.values, spec.dtype))
    # Where the schema has a shape the graph has a place for so many values, mostly one.
    width = spec.shape[1:].num_elements()
    first = values[:, :width].to_tensor("", shape=[None, width])
    return tf.reshape(_typed(first, spec.dtype), [-1, *spec.shape[1:]])


def _typed(texts: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns what `texts` say; for the empty one what the graph knows as missing."""
    if dtype == tf.string:
        return trimmed(texts)
    return numbers(texts, dtype) if dtype.is_floating else seconds(texts)


def _padded(bag: tf.Tensor, width: int) -> tf.Tensor:
    """Returns a bag as `[b, width]` int32."""
    return tf.ensure_shape(tf.cast(bag, tf.int32), [None, width])
