"""What a checkpoint belongs to: the config, the data, and the code of a training run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from recsys.config import TrainStage
from recsys.data.store import MANIFEST
from recsys.errors import RecsysError
from recsys.fingerprint import code_fingerprint

_PARTS = ("vocabulary", "catalogue", "user_features")
_CHANGES_NOTHING = ("checkpoint", "profile_steps")


def identity(stage: TrainStage, data: Path, base: str | None = None) -> dict[str, str]:
    """Returns the fingerprints of `config`, `data` and `code`, each a sha256 in hex.

    That of the `base` is among them where a training goes on from an earlier model.

    Two runs with the same ones compute the same, so one may go on from the other's
    checkpoint. How often checkpoints are written, for example, is no part of them.

    Args:
        stage: The model and the training loop.
        data: Data folder of the InteractionEncoder.
        base: Fingerprint of the model that it goes on from; None: it begins anew.

    Raises:
        RecsysError: A file of the data can't be read.
    """
    described = stage.model_dump(mode="json")
    for key in _CHANGES_NOTHING:
        del described["train"][key]
    # Of no consequence to a training that begins anew.
    warm_start = described.pop("warm_start")
    more = {} if base is None else {"base": base}
    if base is not None:
        described["warm_start"] = warm_start
    config = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    code = code_fingerprint("recsys.train")
    return {"config": config, "data": _data_fingerprint(data), "code": code, **more}


def folder_name(parts: dict[str, str]) -> str:
    """Returns the name of the folder that the checkpoints of a run lie in."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _data_fingerprint(data: Path) -> str:
    """Returns one text for one content of a data folder.

    The store's manifest names the sha256 of each of its files.
    """
    files = [data / "store" / MANIFEST]
    for part in _PARTS:
        files += [file for file in (data / part).rglob("*") if file.is_file()]
    digest = hashlib.sha256()
    try:
        for file in sorted(files):
            digest.update(file.relative_to(data).as_posix().encode() + b"\0")
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    except OSError as error:
        raise RecsysError(
            "R374",
            f"The files of the data folder {str(data)!r} must be readable.",
            "Name the folder that the InteractionEncoder wrote, or run again.",
            f"{error.filename}: {error.strerror}",
        ) from None
    return digest.hexdigest()
