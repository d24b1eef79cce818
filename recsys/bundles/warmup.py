"""`assets.extra/tf_serving_warmup_requests`: warm-up requests of TensorFlow Serving.

Without them the first requests of each signature are slow, because TensorFlow still optimises its
graph. The file has at most 1,000 TFRecords of `PredictionLog`, as described in TensorFlow
Serving's guide "SavedModel Warmup".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from recsys.bundles.signatures import Arrays
from recsys.errors import RecsysError
from recsys.system.installation import install_extra

FILE = "assets.extra/tf_serving_warmup_requests"
BATCHES = (1, 32)
"""Rows of the requests to each signature."""


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


def write_warmup(bundle: Path, name: str, probes: Arrays) -> None:
    """Writes requests to each signature.

    Args:
        bundle: Folder of the SavedModel.
        name: Name of the served model.
        probes: Texts of questions by input, `user_id` and `history` among them.
    """
    path = bundle / FILE
    path.parent.mkdir(exist_ok=True)
    saved = SavedModel.FromString((bundle / "saved_model.pb").read_bytes())
    signatures = saved.meta_graphs[0].signature_def
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, described in sorted(signatures.items()):
            for n in BATCHES if described.inputs else ():
                log = messages().PredictionLog()
                request = log.predict_log.request
                request.model_spec.name = name
                request.model_spec.signature_name = signature
                for key, values in _inputs(described.inputs, probes, n).items():
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(values))
                writer.write(log.SerializeToString(deterministic=True))


def _inputs(names: Iterable[str], probes: Arrays, n: int) -> Arrays:
    """Returns `n` rows of inputs; what the probes don't say is padding."""
    part = np.arange(n) % len(probes["user_id"])
    of_probes = {name: texts[part] for name, texts in probes.items()}
    users, histories = of_probes["user_id"], of_probes["history"]
    of_probes["item_id"], of_probes["exclude_seen"] = histories[:, 0], np.ones(n, bool)
    of_probes["examples"] = np.array(list(map(example, users, histories)))
    nothing = np.full((n, 1), "", object)
    return {name: of_probes.get(name, nothing) for name in names}


def example(
    user_id: str,
    history: Iterable[str],
    facts: Mapping[str, Iterable[str]] | None = None,
    **flags: int,
) -> bytes:
    """Returns a serialized tf.Example that asks for a user with a history."""
    made = tf.train.Example()
    feature = made.features.feature
    feature["user_id"].bytes_list.value.append(user_id.encode())
    feature["history"].bytes_list.value.extend(id_.encode() for id_ in history)
    for name, texts in (facts or {}).items():
        feature[name].bytes_list.value.extend(text.encode() for text in texts)
    for name, flag in flags.items():
        feature[name].int64_list.value.append(flag)
    serialized: bytes = made.SerializeToString(deterministic=True)
    return serialized
