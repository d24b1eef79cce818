"""Saves without end in one of several processes, to be killed.

    saving.py FOLDER PROCESS PROCESSES PORT

Says `whole STEP` when the checkpoint of a step is whole; each is filled with its step.
"""

import os
import sys
from pathlib import Path

PROCESS, PROCESSES, PORT = map(int, sys.argv[2:])
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={8 // PROCESSES}"

import jax  # noqa: E402

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{PORT}", PROCESSES, PROCESS)

import keras  # noqa: E402
import numpy as np  # noqa: E402

from recsys.training.checkpoint import CheckpointStore  # noqa: E402

MESH = keras.distribution.DeviceMesh((8,), ("d",), keras.distribution.list_devices())
keras.distribution.set_distribution(keras.distribution.DataParallel(MESH))
layout = keras.distribution.TensorLayout(("d", None), MESH)
table = keras.Variable(np.zeros((2**15, 16), np.float32), trainable=False, layout=layout)

store = CheckpointStore(Path(sys.argv[1]), {"config": "c"})
restored = store.restore({"table": table})
step = 0 if restored is None else restored.step
train = jax.jit(lambda value: value + 1, out_shardings=table.value.sharding)
value = table.value
while True:
    value, step = train(value), step + 1
    store.save(step, {"table": value}, {})
    store.wait()
    os.write(1, f"whole {step}\n".encode())
