"""`recsys init`: a starting config and data to try it on, in a folder of one's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from recsys.config import Config
from recsys.config.load import DEFAULT_NAME
from recsys.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent
_PATHS = {"configs/movielens_small.yaml": DEFAULT_NAME, "../runs/": "runs/", "../data/": "data/"}
"""What of the shipped config reads otherwise in a folder of its own."""


def init(folder: Path) -> list[Path]:
    """Writes a config, its JSON schema, and MovieLens `ml-latest-small` into a folder.

    Args:
        folder: The folder; made if it doesn't exist.

    Returns:
        What was written.

    Raises:
        UsageError: Something of it is there already (R111).
    """
    config, data, schemas = _starter()
    targets = {
        folder / DEFAULT_NAME: config,
        folder / "data" / data.name: data,
        folder / "schemas" / schemas.name: schemas,
        folder / "schema.json": None,
    }
    folders = {parent for target in targets for parent in target.parents}
    taken = [str(target) for target in targets if target.exists()]
    taken += [str(path) for path in folders if path.exists() and not path.is_dir()]
    if taken:
        raise UsageError(
            "R111",
            "recsys init overwrites nothing: the folder must hold none of its files.",
            "Name another folder: recsys init FOLDER.",
            taken[0],
        )
    for target, source in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        if source is None:
            target.write_text(json.dumps(Config.model_json_schema(), indent=1) + "\n")
        elif source.is_dir():
            shutil.copytree(source, target)
        else:
            target.write_text(_in_a_folder_of_its_own(source.read_text()))
    return list(targets)


def _starter() -> tuple[Path, Path, Path]:
    """Returns the config, the data and the schemas: of an installed package, or of a checkout."""
    name = "movielens_small"
    installed, checkout = _PACKAGE / "starter", _PACKAGE.parent
    if installed.is_dir():
        return installed / f"{name}.yaml", installed / "ml-latest-small", installed / name
    configs = checkout / "configs"
    data = checkout / "data" / "ml-latest-small"
    return configs / f"{name}.yaml", data, configs / "schemas" / name


def _in_a_folder_of_its_own(text: str) -> str:
    for old, new in _PATHS.items():
        text = text.replace(old, new)
    return text
