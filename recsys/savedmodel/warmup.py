"""`assets.extra/tf_serving_warmup_requests`: warm-up requests of TensorFlow Serving.

Without them the first requests of each signature are slow, because TensorFlow still optimises its
graph. The file has at most 1,000 TFRecords of `PredictionLog`, as described in TensorFlow
Serving's guide "SavedModel Warmup".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from recsys.errors import RecsysError
from recsys.savedmodel.signatures import Arrays
from recsys.system.installation import install_extra

FILE = "assets.extra/tf_serving_warmup_requests"
BATCHES = (1, 32)
"""Batch sizes of the requests to each signature."""


def messages() -> Any:
    """Returns the module of TensorFlow Serving's messages.

    Raises:
        RecsysError: It can't be imported (R534).
    """
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError as error:
        rule = "The export writes warm-up requests with the messages of TensorFlow Serving."
        raise RecsysError("R534", rule, install_extra("serve"), str(error)) from None
    return prediction_log_pb2


def input_names(bundle: Path) -> dict[str, list[str]]:
    """Returns the names of the inputs of each signature that has any, sorted."""
    saved = SavedModel.FromString((bundle / "saved_model.pb").read_bytes())
    signatures = sorted(saved.meta_graphs[0].signature_def.items())
    return {name: sorted(described.inputs) for name, described in signatures if described.inputs}


def write_warmup(bundle: Path, name: str, requests: Mapping[str, Arrays]) -> None:
    """Writes requests to signatures, with each of the batch sizes in `BATCHES`.

    Args:
        bundle: Folder of the SavedModel.
        name: Name of the served model.
        requests: Inputs by signature, all of one number of rows; rows are cycled.
    """
    path = bundle / FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in sorted(requests.items()):
            for n in BATCHES:
                log = messages().PredictionLog()
                request = log.predict_log.request
                request.model_spec.name = name
                request.model_spec.signature_name = signature
                for key, values in inputs.items():
                    rows = values[np.arange(n) % len(values)]
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(rows))
                writer.write(log.SerializeToString(deterministic=True))
