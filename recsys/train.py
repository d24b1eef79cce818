"""`python -m recsys.train`: from a data folder to a model folder, on every local device.

Keras on JAX, without TensorFlow. Tables are split over the devices by the layout
rules of `recsys.embedding`; towers are replicated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from recsys.config import TrainConfig, TrainStage
from recsys.config_file import load_stage
from recsys.data.batches import BatchSource, read_ahead
from recsys.data.store import InteractionStore
from recsys.embedding import TablePlacement, activate, prove_placement, table_layout
from recsys.embedding.optimizers import RowOptimizer, row_optimizer
from recsys.embedding.proof import StepProof
from recsys.errors import RecsysError, UsageError
from recsys.events import emit
from recsys.model import ModelSpec, TowerInputs, TwoTower, model_tables, save_model
from recsys.model.inference import embed_catalogue, embed_queries
from recsys.process import stage_main

STEP = "Trainer"
_PROBES = 1000
_CURVE_POINTS = 200


def train(stage: TrainStage, data: Path, out: Path) -> dict[str, Any]:
    """Trains a model and writes its folder.

    Args:
        stage: The model and the training loop.
        data: Data folder of the InteractionEncoder.
        out: Model folder to write.

    Returns:
        What `training.json` holds.

    Raises:
        RecsysError: The data are damaged or too few, a table isn't placed as
            planned, or the loss is no number.
    """
    store = InteractionStore.open(data / "store", verify=True)
    inputs = TowerInputs.open(data)
    n_devices = jax.device_count()
    _check_divides("batch_size", stage.train.batch_size, n_devices)
    _check_divides("uniform_negatives", stage.train.uniform_negatives, n_devices)

    spec = ModelSpec.for_data(
        stage.model, inputs.users.n_rows, inputs.catalogue, inputs.user_features
    )
    tables = model_tables(spec, _table_optimizer(stage.train))
    layout = table_layout(list(tables.values()))
    activate(layout)
    model = TwoTower(spec, tables, stage.train.seed)
    model.build()
    placements = prove_placement(model, layout)
    source = BatchSource(
        events=store.train,
        catalogue=inputs.catalogue,
        user_features=inputs.user_features,
        history=stage.model.history,
        batch_size=stage.train.batch_size,
        uniform_negatives=stage.train.uniform_negatives,
        epochs=stage.train.epochs,
        id_dropout=stage.model.id_dropout,
        new_user_share=stage.model.new_user_share,
        seed=stage.train.seed,
    )
    curve, seconds = _fit(model, stage, source)
    save_model(out, model, stage, data)
    np.save(out / "candidates.npy", embed_catalogue(model, inputs))
    _write_probe(out, model, store, inputs)
    return _write_summary(out, placements, curve, source, seconds, model.step_proof)


def _table_optimizer(train: TrainConfig) -> RowOptimizer:
    optimizer = row_optimizer(train.table_optimizer)
    return dataclasses.replace(optimizer, learning_rate=train.table_learning_rate)


def _check_divides(key: str, value: int, n_devices: int) -> None:
    if value % n_devices:
        raise UsageError(
            "R321",
            f"train.{key} must be a multiple of the {n_devices} devices.",
            f"Use {-(-value // n_devices) * n_devices}.",
            value,
        )


def _fit(
    model: TwoTower, stage: TrainStage, source: BatchSource
) -> tuple[list[dict[str, float]], float]:
    """Trains; returns the loss curve and the seconds that it took."""
    towers = keras.optimizers.Adam(stage.train.tower_learning_rate)
    model.compile(optimizer=towers, jit_compile=True)
    watch = _LossWatch(total_steps=len(source), batch_size=source.batch_size)
    started = time.perf_counter()
    model.fit(
        read_ahead(source),
        epochs=source.epochs,
        steps_per_epoch=source.steps_per_epoch,
        callbacks=[watch],
        shuffle=False,
        verbose=0,
    )
    return watch.curve, time.perf_counter() - started


class _LossWatch(keras.callbacks.Callback):
    """Records the mean loss of every few steps, shows it, and stops at the first NaN."""

    def __init__(self, total_steps: int, batch_size: int) -> None:
        super().__init__()
        self.curve: list[dict[str, float]] = []
        self._total, self._batch_size = total_steps, batch_size
        self._every = max(1, total_steps // _CURVE_POINTS)
        self._step, self._sum, self._seen = 0, 0.0, 0
        self._last_mean, self._epoch_step = 0.0, 0
        self._started = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_step, self._last_mean = 0, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        # Keras reports the mean since the epoch began; the step's own loss is the
        # difference of the sums.
        mean = float((logs or {})["loss"])
        self._epoch_step += 1
        self._sum += mean * self._epoch_step - self._last_mean * (self._epoch_step - 1)
        self._last_mean = mean
        self._step, self._seen = self._step + 1, self._seen + 1
        if self._step % self._every == 0 or self._step == self._total:
            self._record()

    def _record(self) -> None:
        loss = self._sum / self._seen
        if not np.isfinite(loss):
            raise RecsysError(
                "R322",
                f"The loss must be a number; it was none around step {self._step}.",
                "Lower train.table_learning_rate and train.tower_learning_rate.",
                loss,
            )
        self.curve.append({"step": self._step, "loss": round(loss, 6)})
        self._sum, self._seen = 0.0, 0
        speed = self._step * self._batch_size / (time.perf_counter() - self._started)
        emit(
            "progress",
            step=STEP,
            done=self._step,
            total=self._total,
            text=f"loss {loss:.3f} · {speed:,.0f} examples/s",
        )


def _write_probe(out: Path, model: TwoTower, store: InteractionStore, inputs: TowerInputs) -> None:
    """Writes queries and their embeddings, which the export must reproduce."""
    log, length = store.train, model.spec.config.history
    events = np.linspace(0, len(log) - 1, min(_PROBES, len(log))).astype(np.int64)
    user_row = np.array(log.user_row[events])
    history = log.histories(events, length)
    # A user without a row and one without a history are queries too, and users of whom
    # features alone are known.
    user_row[:1], history[1:2] = 0, 0
    untrained = _untrained_users(inputs)[: len(events) // 10]
    user_row[len(events) - len(untrained) :] = untrained
    query = embed_queries(model, user_row, history, inputs)
    np.savez(out / "probe.npz", user_row=user_row, history=history, query=query)


def _untrained_users(inputs: TowerInputs) -> np.ndarray:
    """Returns the rows of the users who have an id and no training positive."""
    return np.flatnonzero((inputs.users.row_counts == 0) & inputs.users.has_id())


def _write_summary(
    out: Path,
    placements: list[TablePlacement],
    curve: list[dict[str, float]],
    source: BatchSource,
    seconds: float,
    proof: StepProof | None,
) -> dict[str, Any]:
    examples = len(source) * source.batch_size
    summary = {
        "devices": jax.device_count(),
        "platform": jax.devices()[0].platform,
        "steps": len(source),
        "examples": examples,
        "seconds": round(seconds, 3),
        "examples_per_s": round(examples / seconds, 1),
        "sharding": [dataclasses.asdict(placement) for placement in placements],
        "step": None if proof is None else dataclasses.asdict(proof),
        "curve": curve,
    }
    (out / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    parser = argparse.ArgumentParser(prog="python -m recsys.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="whole config, or its parts")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    options = parser.parse_args(arguments)
    if keras.backend.backend() != "jax":
        raise UsageError(
            "R323",
            "Training must run with Keras on JAX.",
            "Set KERAS_BACKEND=jax.",
            os.environ.get("KERAS_BACKEND"),
        )
    summary = train(load_stage(options.config, TrainStage), options.data, options.out)
    return {"model": str(options.out), **{k: v for k, v in summary.items() if k != "curve"}}


if __name__ == "__main__":
    stage_main(main)
