"""Tracks a training with MLflow's file store: parameters, metrics of each epoch, the result.

    pip install mlflow-skinny
    python examples/mlflow_tracking.py data/ --runs mlruns/

`data/` is a data folder, as `recsys.ingest("config.yaml", out="data/")` writes it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

import keras
import mlflow

import recsys
from recsys.config import TrainConfig, TrainStage


class MlflowCallback(keras.callbacks.Callback):
    """Logs the metrics of each epoch to the active MLflow run."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # MLflow's names have no "@".
        metrics = {name.replace("@", "_at_"): value for name, value in (logs or {}).items()}
        mlflow.log_metrics(metrics, step=epoch)


def train(data_folder: Path, checkpoints: Path, runs: Path, config: TrainStage) -> str:
    """Trains two towers, and returns the id of the MLflow run."""
    data = recsys.open_data(data_folder)
    config = recsys.for_data(config, data)  # chooses a model, if the config names none
    model = recsys.TwoTower.from_config(config, data)
    mlflow.set_tracking_uri(runs.absolute().as_uri())
    mlflow.set_experiment("recsys")
    with mlflow.start_run() as run:
        parameters = config.train.model_dump(mode="json", exclude_defaults=True)
        mlflow.log_params({name: str(value) for name, value in parameters.items()})
        trainer = recsys.Trainer(config.train, checkpoints, callbacks=[MlflowCallback()])
        result = trainer.fit(model, data)
        mlflow.log_dict(result.summary(), "training.json")
        return str(run.info.run_id)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--runs", type=Path, default=Path("mlruns"))
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    settings = TrainStage(train=TrainConfig(epochs=options.epochs))
    print(train(options.data, options.checkpoints, options.runs, settings))
