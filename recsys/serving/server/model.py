"""One loaded version: a bundle in TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from recsys.bundles.bundle import excludes_seen, read_manifest, verify
from recsys.errors import RecsysError
from recsys.serving.saved_model import load_saved_model
from recsys.serving.server.catalogue_search import ItemFilters, Names
from recsys.serving.server.http_errors import BAD_REQUEST, UNAVAILABLE, Refusal
from recsys.serving.server.ranked import RANKED, RankedAnswers
from recsys.serving.server.tensors import Arrays, Input, Signature

_SAVED_MODEL = "saved_model.pb"
_SHOWN = 300


class BundleModel:
    """A bundle that answers.

    Args:
        folder: A version of the serving folder.

    Raises:
        RecsysError: The bundle is damaged, or TensorFlow is missing or can't load it.
    """

    def __init__(self, folder: Path) -> None:
        verify(folder)
        self.folder, self.version = folder, int(folder.name)
        # The module holds the variables of the functions.
        self._module = load_saved_model(folder)
        definitions = _signature_definitions(folder)
        self.metadata: dict[str, Any] = _as_json(definitions)
        self.names = Names.open(folder)
        manifest = read_manifest(folder)
        self.most, self.excludes_seen = int(manifest["k"]), excludes_seen(manifest)
        self.signatures = {name: _signature(one) for name, one in definitions.items()}
        self.filters = ItemFilters(self.names.features, self.names.items.n_rows)
        self._ranked = RankedAnswers.open(
            folder, self._ask_graph, self.signatures, self.names, self.filters, self.most
        )
        for name, signature in self.signatures.items():
            if signature.inputs:
                self.ask(name, _warm_up(signature))

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """See `recsys.serving.server.tensors.Model`."""
        if self._ranked is not None and signature in RANKED:
            return self._ranked.answer(signature, inputs)
        return self._ask_graph(signature, inputs)

    def _ask_graph(self, signature: str, inputs: Arrays) -> Arrays:
        import tensorflow as tf

        try:
            # By the names of the signature: those of a request may be any.
            names = self.signatures[signature].inputs
            tensors = {name: tf.constant(inputs[name]) for name in names}
            outputs = self._module.signatures[signature](**tensors)
        # What no signature tells: an input that isn't a tf.Example, say.
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise _unreadable(signature, error.message[:_SHOWN]) from None
        except UnicodeDecodeError as error:  # TensorFlow quotes bytes that are no text.
            raise _unreadable(signature, error.object[:_SHOWN]) from None
        except tf.errors.ResourceExhaustedError:
            raise Refusal(
                UNAVAILABLE,
                "R561",
                "An answer must fit into the memory of the server.",
                "Ask for fewer rows at once.",
                headers={"Retry-After": "1"},
            ) from None
        return {name: value.numpy() for name, value in outputs.items()}


def _unreadable(signature: str, received: Any) -> Refusal:
    return Refusal(
        BAD_REQUEST,
        "R563",
        f"The signature {signature!r} must be able to read its inputs.",
        "Correct them; GET …/metadata lists what it takes.",
        received,
    )


@dataclasses.dataclass(frozen=True)
class _Types:
    """Protocol buffers of TensorFlow, imported late."""

    saved_model: Any
    types: Any


@functools.cache
def _types() -> _Types:
    from tensorflow.core.framework import types_pb2
    from tensorflow.core.protobuf import saved_model_pb2

    return _Types(saved_model_pb2.SavedModel, types_pb2.DataType)


def _signature_definitions(folder: Path) -> dict[str, Any]:
    """Returns the SignatureDefs of a SavedModel by name."""
    saved = _types().saved_model()
    saved.ParseFromString((folder / _SAVED_MODEL).read_bytes())
    if not saved.meta_graphs:
        raise RecsysError(
            "R566",
            f"The SavedModel in {str(folder)!r} must hold a graph.",
            "Export the model again: recsys export.",
        )
    return dict(saved.meta_graphs[0].signature_def)


def _signature(definition: Any) -> Signature:
    return Signature(
        {
            name: Input(_types().types.Name(info.dtype), _shape(info.tensor_shape))
            for name, info in definition.inputs.items()
        }
    )


def _shape(shape: Any) -> tuple[int, ...] | None:
    return None if shape.unknown_rank else tuple(int(dim.size) for dim in shape.dim)


def _as_json(definitions: dict[str, Any]) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return {
        name: MessageToDict(
            definition, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        for name, definition in definitions.items()
    }


def _warm_up(signature: Signature) -> Arrays:
    """Returns inputs of one row, empty: the first call of a graph is slow."""
    return {name: _empty(one) for name, one in signature.inputs.items()}


def _empty(one: Input) -> np.ndarray:
    shape = [max(size, 1) for size in one.shape or ()]
    if one.dtype == "DT_STRING":
        return np.full(shape, b"", object)
    from recsys.serving.server.tensors import SCALARS

    return np.zeros(shape, SCALARS[one.dtype].dtype)
