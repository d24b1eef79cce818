"""A bundle's SavedModel: loaded without TensorFlow's messages, and called by signature."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.errors import RecsysError, UsageError
from recsys.savedmodel.signatures import Arrays, Signature, SignatureInput
from recsys.system.installation import install_extra

_STDERR, _SHOWN_BYTES = 2, 300


def load_saved_model(bundle: Path) -> Any:
    """Returns the SavedModel of `bundle`; TensorFlow's messages on stderr are dropped.

    Raises:
        RecsysError: TensorFlow is missing (R542), or can't load it (R543).
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with _silent_stderr():
            import tensorflow as tf

            with _without_gradients():
                return tf.saved_model.load(str(bundle))
    except ImportError as error:
        rule, cure = "Asking a bundle needs TensorFlow.", install_extra("serve")
        raise RecsysError("R542", rule, cure, str(error)) from None
    except Exception as error:  # noqa: BLE001 any failure of a damaged bundle, or of a request, is reported
        raise not_loadable(bundle, error) from None


def not_loadable(bundle: Path, error: Exception) -> RecsysError:
    """Returns the error for a bundle whose graph or variables TensorFlow can't load."""
    rule = f"TensorFlow must be able to load the bundle {str(bundle)!r}."
    cure = "Run again with the TensorFlow version that recsys installs: recsys run."
    return RecsysError("R543", rule, cure, f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _without_gradients() -> Iterator[None]:
    """Removes the gradients that TensorFlow registers inside the context.

    TensorFlow itself never removes them, so a loaded model and its weights would never be freed.
    Serving needs no gradients.
    """
    from tensorflow.python.framework import ops

    known = getattr(getattr(ops, "gradient_registry", None), "_registry", {})
    before = set(known)
    yield
    for name in set(known) - before:
        del known[name]


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drops the output of C++ code on stderr, which no log level suppresses at start-up."""
    kept, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
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
        signatures: Inputs of each signature, by name.
        metadata: Signatures in TensorFlow Serving's JSON form.

    Raises:
        RecsysError: TensorFlow is missing (R542), or can't load it (R543).
    """

    def __init__(self, bundle: Path) -> None:
        # The module holds the variables of the functions.
        self._module = load_saved_model(bundle)
        from google.protobuf.json_format import MessageToDict
        from tensorflow.core.framework import types_pb2
        from tensorflow.core.protobuf import saved_model_pb2

        saved = saved_model_pb2.SavedModel.FromString((bundle / "saved_model.pb").read_bytes())
        definitions = dict(saved.meta_graphs[0].signature_def)
        names = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
        self.metadata: dict[str, Any] = {
            name: MessageToDict(definition, **names) for name, definition in definitions.items()
        }
        self.signatures: dict[str, Signature] = {
            signature: {
                name: SignatureInput(
                    types_pb2.DataType.Name(info.dtype),
                    tuple(int(dim.size) for dim in info.tensor_shape.dim),
                )
                for name, info in definition.inputs.items()
            }
            for signature, definition in definitions.items()
            if definition.inputs
        }

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature.

        Args:
            signature: Name of the signature.
            inputs: All of its inputs, in its dtypes and shapes.

        Raises:
            RecsysError: An input can't be read (R563), or the answer doesn't fit into memory
                (R561).
        """
        import tensorflow as tf

        try:
            # Only the names of the signature: a request may have any others.
            tensors = {name: tf.constant(inputs[name]) for name in self.signatures[signature]}
            outputs = self._module.signatures[signature](**tensors)
        # A signature doesn't describe the content of its inputs, such as tf.Examples.
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise _unreadable(signature, error.message[:_SHOWN_BYTES]) from None
        except UnicodeDecodeError as error:  # TensorFlow quotes bytes that are not text.
            raise _unreadable(signature, error.object[:_SHOWN_BYTES]) from None
        except tf.errors.ResourceExhaustedError:
            rule = "A response must fit into the memory of the server."
            raise AnswerTooLargeError("R561", rule, "Request fewer rows at once.") from None
        return {name: value.numpy() for name, value in outputs.items()}


def _unreadable(signature: str, received: Any) -> UnreadableInputsError:
    rule = f"The signature {signature!r} must be able to read its inputs."
    cure = "Correct them; GET …/metadata lists the inputs."
    return UnreadableInputsError("R563", rule, cure, received)
