"""`calibration.json` of a model folder: the map of each label from log odds to probabilities.

    {"click": {"kind": "temperature", "scale": 0.91, "bias": -0.02}}

Labels without a map, and models without the file, have the logistic function of their log odds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from recsys.errors import RecsysError
from recsys.models.calibration import Calibration, Isotonic, Temperature

FILE = "calibration.json"
KINDS: dict[str, type[Temperature] | type[Isotonic]] = {
    "temperature": Temperature,
    "isotonic": Isotonic,
}
_Read = TypeAdapter(dict[str, Annotated[Calibration, Field(discriminator="kind")]])


def save_calibration(folder: Path, maps: Mapping[str, Calibration]) -> None:
    """Writes the maps by label into a model folder."""
    text = json.dumps({name: one.model_dump(mode="json") for name, one in maps.items()}, indent=1)
    (folder / FILE).write_text(text + "\n")


def load_calibration(folder: Path, labels: Iterable[str]) -> dict[str, Calibration]:
    """Returns the maps by label of a model; none without the file.

    Raises:
        RecsysError: The file is damaged, or has a label that isn't in `labels` (R396).
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        maps = _Read.validate_json(path.read_bytes(), strict=False)
        if unknown := [name for name in maps if name not in {*labels}]:
            raise ValueError(f"the label {unknown[0]!r}, which the model doesn't predict")
        return maps
    except (OSError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        where = "" if first is None else ".".join(map(str, first["loc"]))
        raise RecsysError(
            "R396",
            f"{str(path)!r} must hold the calibration that the training wrote.",
            "Train again; without the file, probabilities are not calibrated.",
            str(error) if first is None else f"{where}: {first['msg']}",
        ) from None
