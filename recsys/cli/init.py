"""`recsys init`: a starting config and data to try it on, in a folder of one's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from recsys.config import Config
from recsys.config.load import DEFAULT_NAME
from recsys.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent
_NAME, _DATA = "movielens_small", "ml-latest-small"
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
    installed, checkout = _PACKAGE / "starter", _PACKAGE.parent
    configs, schemas, data = (
        checkout / "configs",
        checkout / "configs" / "schemas",
        checkout / "data",
    )
    if installed.is_dir():
        configs = schemas = data = installed
    targets = {
        folder / DEFAULT_NAME: configs / f"{_NAME}.yaml",
        folder / "data" / _DATA: data / _DATA,
        folder / "schemas" / _NAME: schemas / _NAME,
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
            text = source.read_text()
            for old, new in _PATHS.items():
                text = text.replace(old, new)
            target.write_text(text)
    return list(targets)
