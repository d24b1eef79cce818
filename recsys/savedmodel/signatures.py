"""Signatures of a bundle's SavedModel: their inputs, their calls, and warm-up requests.

TensorFlow is imported only to load a SavedModel, or to write warm-up requests.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recsys.errors import RecsysError, UsageError
from recsys.savedmodel.event_columns import ATTRIBUTE, CONTEXT
from recsys.system.installation import extra_needed

NO_SCORE = float(np.finfo(np.float32).min)
"""Score of padding after the last item."""

DEFAULT_SIGNATURE = "serving_default"
SCORE = "score"
"""Name of the signature of a bundle that answers scores, and of its output `[n]` float32."""
RANK = "rank"
"""Name of the signature that predicts labels of items, `[batch, items]` float32 each."""
LIST_RANK, LIST_SCORE = "retriever_rank", "retriever_score"
LIST_PADDING = {LIST_RANK: -1.0, LIST_SCORE: 0.0}
"""Inputs of `rank` of a pair, `[batch, items]` float32, with their padding: what the retriever says
of the items, see `recsys.pair.lists`."""
ENCODED = "embed_encoded"
"""Name of the signature that embeds queries whose features of events are encoded."""
ORDER = "order"
"""Output of `rank` `[batch, items]` float32: the first label's scores before the calibration, which
may give different scores one probability. Items are ordered by it."""
RANK_ENCODED = "rank_encoded"
"""Name of the signature that predicts labels of rows that are encoded, `[rows]` float32 each."""
POPULAR = "popular"
"""Name of the signature that answers by popularity, in a bundle without vectors."""

Arrays = dict[str, np.ndarray]
DTYPES: dict[str, Any] = {
    "DT_STRING": object,
    "DT_BOOL": np.bool_,
    "DT_FLOAT": np.float32,
    "DT_INT32": np.int32,
    "DT_INT64": np.int64,
}
"""NumPy dtypes of inputs by TensorFlow dtype; objects are bytes."""


class SignatureInput(NamedTuple):
    """An input of a signature.

    Attributes:
        dtype: TensorFlow name of the dtype, such as `DT_STRING`.
        shape: Shape; -1 for any size.
    """

    dtype: str
    shape: tuple[int, ...]


Signature = Mapping[str, SignatureInput]
"""Inputs of a function of a SavedModel, by name."""

ONLY = "only_"
"""Prefix of the inputs of filters."""
_OWN = ("user_id", "item_id", "history", "exclude_seen", "exclude_ids")


def raw_inputs(columns: Iterable[str]) -> dict[str, str]:
    """Returns the column of each input for raw values, by name of the input."""
    return _named(columns, "")


def filter_inputs(features: Iterable[str]) -> dict[str, str]:
    """Returns the feature of each filter, by name of the input."""
    return _named(features, ONLY)


def event_inputs(columns: Iterable[str], prefix: str) -> dict[str, str]:
    """Returns the raw column of events of each input with a prefix, by name of the input."""
    return _named(columns, prefix)


def encoded_name(input_: str) -> str:
    """Returns the name of a model's input in signatures of encoded inputs, valid in TensorFlow."""
    return re.sub(r"[^A-Za-z0-9_]", "_", input_.replace(".", "__"))


def _named(columns: Iterable[str], prefix: str) -> dict[str, str]:
    """Returns the column of each input, by a name that is valid in TensorFlow."""
    column_of: dict[str, str] = {}
    for column in columns:
        name = prefix + re.sub(r"[^A-Za-z0-9]", "_", column)
        is_taken = not prefix and name.startswith((ONLY, CONTEXT, ATTRIBUTE))
        name = name if name[:1].isalpha() and not is_taken else f"column_{name}"
        taken = {*column_of, *_OWN}
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        column_of[next(name for name in names if name not in taken)] = column
    return column_of


USER, HISTORY, FEATURES, POPULARITY = "user", "history", "features", "popularity"
SOURCES = (USER, HISTORY, FEATURES, POPULARITY)
"""Sources of an answer, the strongest first: the user's own trained row; trained items of the
history; features; popularity."""


# --- calling a SavedModel

_STDERR, _SHOWN_BYTES = 2, 300


def load_saved_model(bundle: Path) -> Any:
    """Returns the SavedModel of `bundle`; TensorFlow's messages on stderr are dropped.

    Raises:
        RecsysError: TensorFlow is missing (R542), or can't load it (R543).
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with extra_needed("serve", "R542", "Asking a bundle needs TensorFlow."), _silent_stderr():
            import tensorflow as tf

            with _without_gradients():
                return tf.saved_model.load(str(bundle))
    except RecsysError:
        raise
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
            said = error.message.rpartition("assertion failed: ")[2]
            raise _unreadable(signature, said[:_SHOWN_BYTES]) from None
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


# --- warm-up requests

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
"""At most 1,000 TFRecords of `PredictionLog`: TensorFlow Serving's guide "SavedModel Warmup".
Without them the first requests of each signature are slow, since the graph is optimised then."""
_WARMUP_BATCHES = (1, 32)
"""Batch sizes of the warm-up requests to each signature."""


def warmup_messages() -> Any:
    """Returns the module of TensorFlow Serving's messages.

    Raises:
        RecsysError: It can't be imported (R534).
    """
    rule = "The export writes warm-up requests with the messages of TensorFlow Serving."
    with extra_needed("serve", "R534", rule):
        from tensorflow_serving.apis import prediction_log_pb2
    return prediction_log_pb2


def input_names(bundle: Path) -> dict[str, list[str]]:
    """Returns the names of the inputs of each signature that has any, sorted."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved = SavedModel.FromString((bundle / "saved_model.pb").read_bytes())
    signatures = sorted(saved.meta_graphs[0].signature_def.items())
    return {name: sorted(described.inputs) for name, described in signatures if described.inputs}


def write_warmup(bundle: Path, name: str, requests: Mapping[str, Arrays]) -> None:
    """Writes requests to signatures, with each of the batch sizes in `_WARMUP_BATCHES`.

    Args:
        bundle: Folder of the SavedModel.
        name: Name of the served model.
        requests: Inputs by signature, all of one number of rows; rows are cycled.
    """
    import tensorflow as tf

    path = bundle / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in sorted(requests.items()):
            for n in _WARMUP_BATCHES:
                log = warmup_messages().PredictionLog()
                request = log.predict_log.request
                request.model_spec.name = name
                request.model_spec.signature_name = signature
                for key, values in inputs.items():
                    rows = values[np.arange(n) % len(values)]
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(rows))
                writer.write(log.SerializeToString(deterministic=True))
