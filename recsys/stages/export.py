"""Exports a trained model as a serving bundle, in a process with Keras on TensorFlow.

`recsys.export` is called where Keras runs on JAX, and a process has only one backend. So it starts
`python -m recsys.stages.export`, which reads the model from its folder.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from recsys.config import ExportConfig, ExportStage, Repeats, canonical_json
from recsys.config.load import load_stage
from recsys.errors import UsageError
from recsys.models.summary import SUMMARY, read_summary
from recsys.system.files import read_json
from recsys.system.process import run_stage_with_config, stage_main

_OPTIONS = {"evaluation": "--evaluation", "items": "--transform", "users": "--user-transform"}


def export(
    model: Any,
    data: Any,
    out: str | Path,
    *,
    name: str = "model",
    config: ExportConfig | None = None,
    repeats: Repeats | None = None,
    evaluation: str | Path | None = None,
    transforms: dict[str, str | Path] | None = None,
) -> Path:
    """Exports a trained model as a serving bundle, and checks its answers in a clean process.

    Args:
        model: A model that `recsys.Trainer` trained, the result of its `fit`, or a model folder.
        data: The data that it was trained on, or their folder. The bundle gets its users'
            histories.
        out: The bundle: absent, an empty folder, or an older bundle to replace.
        name: Name of the served model.
        config: Options of the export; None: the defaults.
        repeats: Handling of items that a user has seen; None: as in the model's training.
        evaluation: Evaluation folder of the model, for the model card.
        transforms: Outputs of Transform by side, `items` and `users`, for bundles that take
            raw columns; None: those that `recsys.ingest` stored with the data.

    Returns:
        Path of the bundle, for `recsys.load_bundle`.

    Raises:
        RecsysError: An input is damaged, or the bundle's answers differ from the trainer's
            (R520 … R539).
        UsageError: `model` is not a model (R536), its class can't be imported (R108), or `out`
            holds something else (R521).
    """
    bundle, more = Path(out).absolute(), {"evaluation": evaluation, **(transforms or {})}
    options = {_OPTIONS[key]: Path(path) for key, path in more.items() if path is not None}
    with tempfile.TemporaryDirectory(prefix="recsys-export-") as scratch:
        trained = _model_folder(model, data, Path(scratch))
        # The stage refuses a folder without a summary.
        has_summary = (trained / SUMMARY).is_file()
        trained_with = read_summary(trained)["stage"] if has_summary else {}
        _check_importable(trained_with)
        repeats = repeats or trained_with.get("repeats", "exclude")
        stage = ExportStage(name=name, export=config or ExportConfig(), repeats=repeats)
        options |= {"--model": trained, "--data": Path(getattr(data, "folder", data))}
        options |= {"--out": bundle}
        words = [word for name, path in options.items() for word in (name, str(path.absolute()))]
        run_stage_with_config(
            "recsys.stages.export", canonical_json(stage), words, backend="tensorflow"
        )
    return bundle


def _check_importable(stage: dict[str, Any]) -> None:
    """Checks that the classes of a model can be imported by another process."""
    if "__main__" in stage.get("plugins", ()):
        raise UsageError(
            "R108",
            "A class of an exported model must be importable; one of this model was registered"
            " in a script or a notebook.",
            "Move it into a module beside it, such as my_model.py, import it from there, and"
            " train again.",
            "__main__",
        )


def _model_folder(model: Any, data: Any, scratch: Path) -> Path:
    """Returns the folder of a model; writes a model in memory to `scratch`."""
    if isinstance(model, str | Path):
        return Path(model)
    result = model if hasattr(model, "summary") and hasattr(model, "stage") else None
    result = result or getattr(model, "training_result", None)
    if result is None:
        rule = "The model to export must be trained, or a model folder."
        cure = "Train it with recsys.Trainer, or name a folder written by training."
        raise UsageError("R536", rule, cure, type(model).__name__)
    from recsys.data.dataset import open_data
    from recsys.training.stage import write_model

    is_open = hasattr(data, "store")
    write_model(scratch, result, data if is_open else open_data(data))
    return scratch


def _main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        prog="python -m recsys.stages.export",
        description="`python -m recsys.stages.export`: from a model folder to a serving bundle.",
    )
    for name in ("config", "model", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--transform", type=Path, help="Transform's output for the items")
    parser.add_argument("--user-transform", type=Path, help="Transform's output for the users")
    parser.add_argument("--evaluation", type=Path)
    parser.add_argument("--data-origin", type=Path, help="origin of the raw data, for the manifest")
    options = vars(parser.parse_args())
    from recsys.bundles import export as exporting  # Needs TensorFlow.

    config, out, data_origin = (options.pop(name) for name in ("config", "out", "data_origin"))
    sources = exporting.Sources(**options, data_origin=data_origin and read_json(data_origin))
    return exporting.export(load_stage(config, ExportStage), sources, out.absolute())


if __name__ == "__main__":
    stage_main(_main)
