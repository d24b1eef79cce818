"""A program that trains with callbacks of its own, and may kill itself after some epochs.

own_program.py DATA CHECKPOINTS WEIGHTS KILL_AFTER
"""

import os
import signal
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from training_runs import STAGE

from recsys.config import TrainStage
from recsys.data.dataset import open_data
from recsys.models import TwoTower
from recsys.training.trainer import Trainer

DATA, CHECKPOINTS, WEIGHTS, KILL_AFTER = *sys.argv[1:4], int(sys.argv[4])


class KilledAfter(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == KILL_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


train = {**STAGE["train"], "epochs": 5, "checkpoint": {"every_steps": 7}}
settings = TrainStage.model_validate({"model": STAGE["model"], "train": train})
data = open_data(DATA)
model = TwoTower.from_config(settings, data)
Trainer(settings.train, CHECKPOINTS, callbacks=[KilledAfter()]).fit(model, data)
np.savez(WEIGHTS, **{str(n): np.asarray(v.value) for n, v in enumerate(model.variables)})
