"""`assets.extra/tf_serving_warmup_requests`: what TensorFlow Serving asks before it serves.

Without it the first requests of each signature are slow: TensorFlow still optimises its
graph. The file has TFRecords of `PredictionLog`, as TensorFlow Serving's guide "SavedModel
Warmup" wants them: at most 1,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from recsys.bundles.parity_reference import Reference
from recsys.distribution import install_extra
from recsys.errors import RecsysError

FILE = "assets.extra/tf_serving_warmup_requests"
BATCHES = (1, 32)
"""Rows of the requests to each signature."""


def check_available() -> None:
    """Raises an error where requests can't be written (R534)."""
    _messages()


def write_warmup(bundle: Path, name: str, reference: Reference) -> int:
    """Writes requests to each signature; returns how many.

    Args:
        bundle: Folder of the SavedModel.
        name: Name of the served model.
        reference: Its probes ask.
    """
    path = bundle / FILE
    path.parent.mkdir(exist_ok=True)
    requests = [
        _request(name, signature, inputs)
        for signature, names in _signatures(bundle).items()
        for inputs in _inputs(names, reference)
    ]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests:
            writer.write(request.SerializeToString())
    return len(requests)


def _signatures(bundle: Path) -> dict[str, list[str]]:
    """Returns the inputs of each signature as TensorFlow Serving knows them."""
    saved = SavedModel.FromString((bundle / "saved_model.pb").read_bytes())
    described = saved.meta_graphs[0].signature_def
    return {name: sorted(example.inputs) for name, example in described.items() if example.inputs}


def _inputs(names: Iterable[str], reference: Reference) -> Iterator[dict[str, np.ndarray]]:
    """Yields inputs of a signature; what the probes don't say is padding."""
    for n in BATCHES:
        part = np.arange(n) % len(reference.user_id)
        users, histories = reference.user_id[part], reference.history[part]
        of_probes = {
            "user_id": users,
            "history": histories,
            "item_id": histories[:, 0],
            "exclude_seen": np.ones(n, bool),
            "examples": np.array(
                [_example(*example) for example in zip(users, histories, strict=True)]
            ),
        }
        nothing = np.full((n, 1), "", object)
        yield {name: of_probes.get(name, nothing) for name in names}


def _example(user_id: str, history: np.ndarray) -> bytes:
    example = tf.train.Example()
    feature = example.features.feature
    feature["user_id"].bytes_list.value.append(user_id.encode())
    feature["history"].bytes_list.value.extend(id_.encode() for id_ in history)
    serialized: bytes = example.SerializeToString()
    return serialized


def _request(name: str, signature: str, inputs: Mapping[str, np.ndarray]) -> Any:
    log = _messages().PredictionLog()
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.signature_name = name, signature
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return log


def _messages() -> Any:
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError as error:
        raise RecsysError(
            "R534",
            "The export writes warm-up requests with the messages of TensorFlow Serving.",
            install_extra("serve"),
            str(error),
        ) from None
    return prediction_log_pb2
