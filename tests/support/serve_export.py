"""Answers of the exported model in `export` to the inputs of `x.json`, in `y.json`."""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

folder = Path(sys.argv[1])
served = tf.saved_model.load(str(folder / "export"))
x = {name: np.array(values) for name, values in json.loads((folder / "x.json").read_text()).items()}
x = {name: tf.constant(v, tf.float32 if name == "number" else tf.int32) for name, v in x.items()}
answer = [served.serve(x).numpy().tolist(), [v.shape.as_list() for v in served.variables]]
(folder / "y.json").write_text(json.dumps(answer))
