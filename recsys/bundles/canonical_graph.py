"""Makes the bytes of a SavedModel a function of its content.

TensorFlow writes functions and the entries of maps in an order that is another in each process,
and names each SavedModel by a random number.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

GRAPH, FINGERPRINT = "saved_model.pb", "fingerprint.pb"


def make_canonical(folder: Path) -> None:
    """Writes the graph of a SavedModel in one order, and its fingerprint without chance."""
    saved = SavedModel.FromString((folder / GRAPH).read_bytes())
    for graph in saved.meta_graphs:
        functions = graph.graph_def.library.function
        functions.sort(key=lambda function: function.signature.name)
    content = saved.SerializeToString(deterministic=True)
    (folder / GRAPH).write_bytes(content)
    fingerprint = FingerprintDef.FromString(fingerprinting.CreateFingerprintDef(str(folder)))
    fingerprint.uuid = str(int.from_bytes(hashlib.sha256(content).digest()[:16], "big"))
    (folder / FINGERPRINT).write_bytes(fingerprint.SerializeToString(deterministic=True))
