"""A client that has TensorFlow and the bundle, and nothing of ours."""

import json
import sys
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

# Beside TensorFlow, as its server knows them.
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

NOT_NEEDED = {"recsys", "components", "tensorflow_transform", "keras", "keras_rs", "jax"}
# TensorFlow itself imports some of them.
IMPORTED_BY_TENSORFLOW = set(sys.modules)


def example(fields):
    example = tf.train.Example()
    for name, values in fields.items():
        feature = example.features.feature[name]
        if name == "exclude_seen":
            feature.int64_list.value.extend(values)
        else:
            feature.bytes_list.value.extend(one.encode() for one in values)
    return example.SerializeToString()


def tensor(name, value):
    if name == "examples":
        value = [example(fields) for fields in value]
    one_each = name in ("user_id", "item_id", "exclude_seen", "examples")
    shape = [len(value)] if one_each else [len(value), len(value[0]) if value else 3]
    return tf.constant(value, tf.bool if name == "exclude_seen" else tf.string, shape)


def text(value):
    if isinstance(value, list):
        return [text(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def ask(model, signature, inputs):
    answer = model.signatures[signature](**{n: tensor(n, value) for n, value in inputs.items()})
    return {name: text(value.numpy().tolist()) for name, value in answer.items()}


def warmed_up(model, file):
    """Returns the signature and the rows of each warm-up request, once it is answered."""
    found = []
    for record in tf.data.TFRecordDataset(str(file)):
        request = PredictionLog.FromString(record.numpy()).predict_log.request
        assert request.model_spec.name == "tiny"
        inputs = {
            name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()
        }
        answer = model.signatures[request.model_spec.signature_name](**inputs)
        (rows,) = {len(value) for value in inputs.values()}
        # Some outputs are flat.
        assert rows in {len(value) for value in answer.values()}
        found.append([request.model_spec.signature_name, rows])
    return found


def operations(file):
    graph = SavedModel.FromString(file.read_bytes()).meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for part in graph.library.function for node in part.node_def)]
    return sorted({node.op for node in nodes})


def top_levels(modules):
    return {name.split(".")[0] for name in modules}


def main(folder):
    model = tf.saved_model.load(str(folder / "bundle"))
    questions = json.loads((folder / "questions.json").read_text())
    result = {
        "answers": [ask(model, signature, inputs) for signature, inputs in questions],
        "ops": operations(folder / "bundle" / "saved_model.pb"),
        "warmup": warmed_up(model, folder / "bundle/assets.extra/tf_serving_warmup_requests"),
        "signatures": sorted(model.signatures),
        "modules": sorted(top_levels(set(sys.modules) - IMPORTED_BY_TENSORFLOW) & NOT_NEEDED),
    }
    (folder / "answers.json").write_text(json.dumps(result))


main(Path(sys.argv[1]))
