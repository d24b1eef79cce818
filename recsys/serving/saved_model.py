"""A bundle's SavedModel: loaded without TensorFlow's messages, and asked by signature."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.bundles.signatures import Arrays, Input, Signature
from recsys.distribution import install_extra
from recsys.errors import RecsysError, UsageError

_STDERR, _SHOWN_BYTES = 2, 300
_SAVED_MODEL = "saved_model.pb"


def load_saved_model(bundle: Path) -> Any:
    """Returns the SavedModel of `bundle`; TensorFlow's chatter on stderr is dropped.

    Raises:
        RecsysError: TensorFlow is missing (R542), or can't load it (R543).
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with _without_chatter():
            import tensorflow as tf

            with _without_gradients():
                return tf.saved_model.load(str(bundle))
    except ImportError as error:
        raise RecsysError(
            "R542",
            "Asking a bundle needs TensorFlow.",
            install_extra("serve"),
            str(error),
        ) from None
    except Exception as error:  # noqa: BLE001 any failure of a damaged bundle, or of a request, is reported
        raise RecsysError(
            "R543",
            f"TensorFlow must be able to load the bundle {str(bundle)!r}.",
            "Run again with the TensorFlow that this project installs: recsys run.",
            f"{type(error).__name__}: {error}",
        ) from None


@contextlib.contextmanager
def _without_gradients() -> Iterator[None]:
    """Forgets the gradients that TensorFlow registers while it is open.

    It would never: a model that was loaded, and with it all its weights, would stay in memory
    for ever. Serving takes no gradients.
    """
    from tensorflow.python.framework import ops

    known = getattr(getattr(ops, "gradient_registry", None), "_registry", {})
    before = set(known)
    yield
    for name in set(known) - before:
        del known[name]


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Drops what C++ code writes to stderr, which no log level stops at start-up."""
    kept = os.dup(_STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(nowhere)
        os.close(kept)


class UnreadableInputsError(UsageError):
    """A signature can't read the content of its inputs (R563)."""


class AnswerTooLargeError(RecsysError):
    """An answer doesn't fit into memory (R561)."""


class SavedModelGraph:
    """The signatures of a bundle, computed by TensorFlow. Loading takes seconds.

    Args:
        bundle: Folder of a bundle.

    Attributes:
        signatures: What each signature takes, by name.
        metadata: All signatures as TensorFlow Serving describes them in JSON.

    Raises:
        RecsysError: TensorFlow is missing (R542), or can't load it (R543, R566).
    """

    def __init__(self, bundle: Path) -> None:
        # The module holds the variables of the functions.
        self._module = load_saved_model(bundle)
        definitions = _signature_definitions(bundle)
        self.signatures = {name: _signature(one) for name, one in definitions.items()}
        self.metadata: dict[str, Any] = _as_json(definitions)

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature.

        Args:
            signature: Name of the signature.
            inputs: All of its inputs, of the types and shapes that it takes.

        Raises:
            RecsysError: There is no such signature (R543), its inputs can't be read (R563),
                or the answer doesn't fit into memory (R561).
        """
        import tensorflow as tf

        if signature not in self.signatures:
            raise _no_signature(signature, sorted(self.signatures))
        try:
            # By the names of the signature: those of a request may be any.
            names = self.signatures[signature].inputs
            tensors = {name: tf.constant(inputs[name]) for name in names}
            outputs = self._module.signatures[signature](**tensors)
        # What no signature tells: an input that isn't a tf.Example, say.
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise _unreadable(signature, error.message[:_SHOWN_BYTES]) from None
        except UnicodeDecodeError as error:  # TensorFlow quotes bytes that are no text.
            raise _unreadable(signature, error.object[:_SHOWN_BYTES]) from None
        except tf.errors.ResourceExhaustedError:
            rule = "An answer must fit into the memory of the server."
            raise AnswerTooLargeError("R561", rule, "Ask for fewer rows at once.") from None
        return {name: value.numpy() for name, value in outputs.items()}


def _signature_definitions(bundle: Path) -> dict[str, Any]:
    """Returns the SignatureDefs of a SavedModel by name."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((bundle / _SAVED_MODEL).read_bytes())
    if not saved.meta_graphs:
        raise RecsysError(
            "R566",
            f"The SavedModel in {str(bundle)!r} must hold a graph.",
            "Export the model again: recsys export.",
        )
    return dict(saved.meta_graphs[0].signature_def)


def _signature(definition: Any) -> Signature:
    from tensorflow.core.framework import types_pb2

    return Signature(
        {
            name: Input(types_pb2.DataType.Name(info.dtype), _shape(info.tensor_shape))
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


def _no_signature(signature: str, received: list[str]) -> RecsysError:
    return RecsysError(
        "R543",
        f"The SavedModel of a bundle must have the signature {signature!r}.",
        "Export the model again: recsys export.",
        received,
    )


def _unreadable(signature: str, received: Any) -> UnreadableInputsError:
    return UnreadableInputsError(
        "R563",
        f"The signature {signature!r} must be able to read its inputs.",
        "Correct them; GET …/metadata lists what it takes.",
        received,
    )
