"""Opens the models that an evaluation compares, and the data that they are measured on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.bundles.bundle import MANIFEST, repeats_of_folder, verify
from recsys.bundles.publishing import versions
from recsys.data.dataset import Data
from recsys.distributed.host_collectives import agreed, in_shares
from recsys.errors import RecsysError
from recsys.strict import Repeats
from recsys.tasks.retrieval.judging.systems import System, open_bundle, open_folder, open_object

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh


def open_evaluation_data(data: Data | str | Path) -> Data:
    """Opens the data that systems are measured on, and compares every byte.

    Raises:
        RecsysError: The store or the vocabulary is missing or damaged.
    """
    opened = data if isinstance(data, Data) else Data(data)
    in_shares(opened.verify)
    opened.items  # noqa: B018  It is read when it is first used.
    return opened


def open_system(
    model: Any, data: Data, name: str | None = None, mesh: DeviceMesh | None = None
) -> System:
    """Opens a system to be measured.

    Args:
        model: A model folder (`model.json`), a bundle (`manifest.json`), a trained model as
            `load_model` returns it, one that `Trainer.fit` trained, or another built retrieval
            model, for the rows of `data`.
        data: The data folder to measure it on.
        name: Display name; a path is said with it, and is all by default.
        mesh: One axis of devices, over which tables and candidates of a folder are split; each
            of their processes opens it. None: all is in this process.

    Raises:
        RecsysError: The folder is neither (R404), is damaged, computes something else
            than its trainer did (R311) or no numbers (R402), or shares no item with the
            data (R403).
    """
    if not isinstance(model, str | Path):
        name = name or "the model"
        return System(name, open_object(model, data, name), data)
    path = Path(model)
    name = str(path) if name is None else f"{name} ({path})"
    if not is_bundle(path):
        return System(name, open_folder(path, name, mesh), data)
    manifest = agreed(lambda: verify(path))
    return System(name, open_bundle(path, manifest, name, mesh), data)


def repeats_of(model: Any) -> Repeats:
    """Returns whether the lists of a model have items that a user has seen: as it was trained.

    Args:
        model: As `open_system` takes it.
    """
    if not isinstance(model, str | Path):
        trained = getattr(model, "training_result", model)
        return trained.stage.repeats if hasattr(trained, "stage") else "exclude"
    return repeats_of_folder(Path(model))


def is_bundle(path: Path) -> bool:
    """Returns whether a folder is a bundle; if not, it is a model folder.

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
