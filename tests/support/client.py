"""A client that has TensorFlow and the bundle, and nothing of ours."""

import json
import sys
import tempfile
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

# Beside TensorFlow, as its server knows them.
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
from variable_reads import read_both_ways

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


class Wasteful(tf.Module):
    """Gathers from a variable in a branch, and reads it whole in a function that it calls."""

    def __init__(self):
        super().__init__()
        self.table, self.other = tf.Variable(tf.ones([9, 2])), tf.Variable(tf.ones([9, 2]))

    @tf.function
    def whole(self):
        return tf.reduce_sum(self.table)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def some(self, rows):
        table = tf.cond(tf.size(rows) > 3, lambda: tf.gather(self.table, rows), lambda: self.other)
        return {"sum": tf.reduce_sum(table) + self.whole()}


def wasteful_graph():
    with tempfile.TemporaryDirectory() as folder:
        module = Wasteful()
        tf.saved_model.save(module, folder, {"some": module.some})
        return graph_of(Path(folder) / "saved_model.pb")


def graph_of(file):
    return SavedModel.FromString(file.read_bytes()).meta_graphs[0].graph_def


def operations(graph):
    nodes = [*graph.node, *(node for part in graph.library.function for node in part.node_def)]
    return sorted({node.op for node in nodes})


def top_levels(modules):
    return {name.split(".")[0] for name in modules}


def main(folder):
    model = tf.saved_model.load(str(folder / "bundle"))
    graph = graph_of(folder / "bundle" / "saved_model.pb")
    questions = json.loads((folder / "questions.json").read_text())
    result = {
        "answers": [ask(model, signature, inputs) for signature, inputs in questions],
        "ops": operations(graph),
        "gradients": len(graph.library.registered_gradients),
        "copied": read_both_ways(graph),
        "copied_of_wasteful": read_both_ways(wasteful_graph()),
        "warmup": warmed_up(model, folder / "bundle/assets.extra/tf_serving_warmup_requests"),
        "signatures": sorted(model.signatures),
        "modules": sorted(top_levels(set(sys.modules) - IMPORTED_BY_TENSORFLOW) & NOT_NEEDED),
    }
    (folder / "answers.json").write_text(json.dumps(result))


main(Path(sys.argv[1]))
