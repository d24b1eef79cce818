"""Saves and restores in one of several processes, which hold eight devices together.

    checkpoint_processes.py FOLDER PROCESS PROCESSES PORT

The last line is JSON: what was restored, the parts of the table that this process holds, and the
codes of the reported errors.
"""

import json
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
from jax.experimental import multihost_utils  # noqa: E402

from recsys.errors import RecsysError  # noqa: E402
from recsys.training.checkpoint import CheckpointStore  # noqa: E402

FOLDER = Path(sys.argv[1])
MESH = keras.distribution.DeviceMesh((8,), ("d",), keras.distribution.list_devices())
keras.distribution.set_distribution(keras.distribution.DataParallel(MESH))


def made(shape):
    layout = keras.distribution.TensorLayout(("d", None) if shape else (), MESH)
    return keras.Variable(np.zeros(shape, np.float32), trainable=False, layout=layout)


def code_of(identity, variables, folder=FOLDER):
    """Returns the code of the error that stops a restore."""
    store = CheckpointStore(folder / "last", identity)
    try:
        store.restore(variables)
    except RecsysError as error:
        return error.code
    finally:
        store.close()
    return None


variables = {"table": made((16, 4)), "iterations": made(())}
arrays = {path: v.value for path, v in variables.items()}
train = jax.jit(
    lambda table, count: (
        table
        + jax.lax.broadcasted_iota("float32", table.shape, 0) * 4
        + jax.lax.broadcasted_iota("float32", table.shape, 1),
        count + 1,
    ),
    donate_argnums=(0, 1),
    out_shardings=tuple(array.sharding for array in arrays.values()),
)
last, best = (CheckpointStore(FOLDER / name, {"config": "c"}) for name in ("last", "best"))
table, count = arrays.values()
for step in (1, 2, 3):
    table, count = train(table, count)
    for store in (last, best):
        store.save(step, {"table": table, "iterations": count}, {"examples": 8 * step})
best.close()
last.wait()
multihost_utils.sync_global_devices("all are written")
if PROCESS == 0:  # Damage to what another process wrote.
    (part,) = (FOLDER / "last" / "3").glob("ocdbt.process_1/manifest.ocdbt")
    part.write_bytes(b"x" * part.stat().st_size)
restored = last.restore(variables)
last.close()
shards = {
    str(shard.index[0].start): np.asarray(shard.data).tolist()
    for shard in variables["table"].value.addressable_shards
}
result = {
    "step": restored.step,
    "state": restored.state,
    "damaged": restored.damaged,
    "shards": shards,
    "codes": [
        code_of({"config": "d"}, variables),
        code_of({"config": "c"}, {"x": made(())}),
        code_of({"config": "c"}, variables, FOLDER if PROCESS == 0 else FOLDER / "elsewhere"),
    ],
}
sys.stdout.write(json.dumps(result) + "\n")
