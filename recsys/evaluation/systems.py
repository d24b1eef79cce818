"""Opens the models and the data of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.bundles.bundle import MANIFEST, read_manifest, repeats_of_folder, verify
from recsys.bundles.publishing import versions
from recsys.data.dataset import Data
from recsys.distributed.host_collectives import agreed, in_shares
from recsys.errors import RecsysError
from recsys.evaluation.config import EvaluateStage
from recsys.models.config import RetrievalConfig
from recsys.models.summary import read_summary
from recsys.registry import Choice, load_plugins
from recsys.strict import Repeats
from recsys.tasks.judging_side import BLESSED, MODEL, JudgingSide, SystemT
from recsys.tasks.task import judging_side

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh


def open_evaluation_data(data: Data | str | Path) -> Data:
    """Opens the data of an evaluation, and verifies all checksums.

    Raises:
        RecsysError: The store or the vocabulary is missing or damaged.
    """
    opened = data if isinstance(data, Data) else Data(data)
    in_shares(opened.verify)
    opened.items  # noqa: B018  It is read when it is first used.
    return opened


def open_systems(
    stage: EvaluateStage, data: Data, model: Any, blessed: Any, mesh: DeviceMesh | None = None
) -> tuple[JudgingSide[Any, Any, Any], dict[str, Any]]:
    """Opens the model and, if given, the last blessed model.

    Args:
        stage: Config of the evaluation.
        data: The data folder.
        model: As in `open_system`.
        blessed: As in `open_system`, or None.
        mesh: As in `open_system`.

    Returns:
        The judging side of their task, and the systems by name.

    Raises:
        RecsysError: As `open_system`, or the two have different tasks (R414).
    """
    models = {MODEL: model} | ({} if blessed is None else {BLESSED: blessed})
    configs = {name: _model_config(model) for name, model in models.items()}
    tasks = [config.task for config in configs.values()]
    if len({*tasks}) > 1:
        raise RecsysError(
            "R414",
            "Models can be compared only if they are of the same task.",
            "Evaluate the model alone: --set bless.over_blessed=0.",
            tasks,
        )
    side = judging_side(configs[MODEL])(stage, data)
    names = {MODEL: "the model", BLESSED: "the last blessed model"}
    return side, {n: open_system(side, model, names[n], mesh) for n, model in models.items()}


def open_system(
    side: JudgingSide[SystemT, Any, Any],
    model: Any,
    name: str | None = None,
    mesh: DeviceMesh | None = None,
) -> SystemT:
    """Opens a system to measure.

    Args:
        side: The judging side of its task.
        model: A model folder (`model.json`), a bundle (`manifest.json`), a `TrainedModel`, a model
            that `Trainer.fit` trained, or another built model for the rows of the data.
        name: Display name, to which a path is appended; empty: the path.
        mesh: Devices to split tables and candidates of a folder over; all of their processes must
            open it. None: everything is in this process.

    Raises:
        RecsysError: The folder is neither (R404) or damaged, or the task refuses the model.
    """
    if not isinstance(model, str | Path):
        return side.open_model(model, name or "the model")
    path = Path(model)
    name = str(path) if name is None else f"{name} ({path})"
    if not is_bundle(path):
        return side.open_folder(path, name, mesh)
    manifest = agreed(lambda: verify(path))
    return side.open_bundle(path, manifest, name, mesh)


def _model_config(model: Any) -> Any:
    """Returns the config, or its class, of a model that `open_system` takes."""
    if not isinstance(model, str | Path):
        return getattr(model, "model", model).spec.config
    path = Path(model)
    stage = read_manifest(path).get("config") if is_bundle(path) else read_summary(path)["stage"]
    load_plugins((stage or {}).get("plugins", ()))
    return Choice("model").config_of((stage or {}).get("model")) or RetrievalConfig


def repeats_of(model: Any) -> Repeats:
    """Returns the `repeats` with which a model was trained.

    Args:
        model: As in `open_system`.
    """
    if not isinstance(model, str | Path):
        trained = getattr(model, "training_result", model)
        return trained.stage.repeats if hasattr(trained, "stage") else "exclude"
    return repeats_of_folder(Path(model))


def is_bundle(path: Path) -> bool:
    """Returns whether a folder is a bundle rather than a model folder.

    Raises:
        RecsysError: It is neither (R404).
    """
    if (path / "model.json").is_file():
        return False
    if (path / MANIFEST).is_file():
        return True
    published = versions(path)
    newest = f": {str(published[-1])!r} is the newest version here" if published else ""
    raise RecsysError(
        "R404",
        f"{str(path)!r} must be a model folder, which has a model.json, or a bundle, which has"
        f" a {MANIFEST}; it {'has neither' if path.is_dir() else 'is no folder'}.",
        f"Name the folder that a training, an export or a push wrote{newest}.",
    )
