"""What the pipeline's model is measured against: one trained anew, and one left as it was."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from recsys.commit import commit_folder
from recsys.config import BlessConfig, Config, EvaluateStage, TrainStage, canonical_json, stage_of
from recsys.process import run_stage, stage_environment
from recsys.report.artifacts import read_json
from recsys.report.evaluated import BLESSED, Evaluated


class Arms:
    """The two other arms of a simulation.

    Args:
        config: The config of the nights.
        out: Folder of the simulation.
    """

    def __init__(self, config: Config, out: Path) -> None:
        evaluate = config.evaluate.model_copy(update={"baselines": ()})
        # Nothing is decided: the other model is there to be measured.
        bless = BlessConfig(metric=config.bless.metric, over={}, over_blessed=1.0)
        measured = {"evaluate": evaluate, "bless": bless, "warm_start": None}
        self._config = config.model_copy(update=measured)
        self._metric = config.bless.metric
        self._folder = out / "arms"
        self.frozen = self._folder / "frozen"
        """Model folder of the first night that gave one."""

    def freeze(self, model: Path) -> None:
        """Keeps a copy of the first model; later ones change nothing."""
        if not self.frozen.exists():
            temporary = self.frozen.with_name(".frozen.writing")
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(model, temporary)
            commit_folder(temporary, self.frozen)

    def measure(self, data: Path) -> dict[str, dict[str, Any]]:
        """Trains a model anew on the data of a night and measures it, and the frozen one.

        Args:
            data: The data folder that the pipeline's model of the night was trained on.

        Returns:
            What `of_training` tells and the deciding metric, by arm.
        """
        model, scores = self._folder / "cold", self._folder / "evaluation"
        for left_over in (model, scores, self._folder / "checkpoints"):
            shutil.rmtree(left_over, ignore_errors=True)
        self._run("recsys.train", "jax", TrainStage, {"data": data, "out": model})
        folders = {"data": data, "model": model, "blessed": self.frozen, "out": scores}
        self._run("recsys.evaluate", "jax", EvaluateStage, folders)
        found = evaluated(scores / "evaluation.json", self._metric)
        cold = {"value": found.figure("model", self._metric), **of_training(model)}
        frozen = {"value": found.figure(BLESSED, self._metric), "seconds": None, "steps": None}
        return {"cold": cold, "frozen": frozen}

    def _run(self, module: str, backend: str, stage: Any, folders: dict[str, Path]) -> None:
        self._folder.mkdir(exist_ok=True)
        words = [word for name, folder in folders.items() for word in (f"--{name}", str(folder))]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(canonical_json(stage_of(self._config, stage)))
            file.flush()
            with (self._folder / f"{module}.log").open("wb") as log:
                run_stage(module, ["--config", file.name, *words], stage_environment(backend), log)


def evaluated(file: Path, metric: str) -> Evaluated:
    """Returns what an `evaluation.json` holds."""
    return Evaluated(read_json(file, "The evaluation"), metric)


def of_training(model: Path) -> dict[str, Any]:
    """Returns how long the training of a model took, in `seconds` and `steps`, and its `base`."""
    told = json.loads((model / "training.json").read_text("utf-8"))
    base = (told.get("warm_start") or {}).get("base")
    return {"seconds": told["seconds"], "steps": told["steps"], "base": base}
