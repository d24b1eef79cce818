"""Goes on from the last checkpoint and saves without end, to be killed.

    killed.py FOLDER

For each line on stdin it forks a run, which says `restored STEP` and, when the
checkpoint of a step is whole, `whole STEP`. Everything that a run saves at a step is
filled with the number of that step.
"""

import os
import sys
import warnings
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import keras
import numpy as np

from recsys.training.checkpoint import CheckpointStore

SHAPES = {"t/embeddings": (2**15, 16), "t/accumulator": (2**15, 1), "iterations": ()}


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def made(shape):
    mesh = keras.distribution.DeviceMesh((8,), ("d",), keras.distribution.list_devices())
    layout = keras.distribution.TensorLayout(("d", None) if shape else (), mesh)
    return keras.Variable(np.zeros(shape, np.float32), trainable=False, layout=layout)


def run(folder):
    variables = {path: made(shape) for path, shape in SHAPES.items()}
    store = CheckpointStore(folder, {"config": "c"})
    restored = store.restore(variables)
    step = 0 if restored is None else restored.step
    arrays = {path: v.value for path, v in variables.items()}
    for array in arrays.values():
        if not np.all(np.asarray(array) == step):
            say("mixed", step)
    if restored and (restored.state != {"examples": 16 * step} or restored.damaged):
        say("damaged", *restored.damaged)
    say("restored", step)
    places = {path: array.sharding for path, array in arrays.items()}
    train = jax.jit(
        lambda arrays: {path: array + 1 for path, array in arrays.items()},
        donate_argnums=0,
        out_shardings=places,
    )
    while True:
        arrays, step = train(arrays), step + 1
        store.save(step, arrays, {"examples": 16 * step})
        arrays, step = train(arrays), step + 1
        store.wait()
        say("whole", step - 1)


def main():
    warnings.simplefilter("ignore")  # JAX warns of fork; nothing of it runs before.
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            run(Path(sys.argv[1]))
        say("pid", child)
        os.waitpid(child, 0)
        say("dead")


main()
