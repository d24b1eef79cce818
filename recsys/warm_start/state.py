"""What a model folder keeps for a training that goes on from it.

    training_state/state.json   what is there, how far the training was, and size and
                                CRC-32 of each file that a later training reads
    training_state/N.npy        one file a variable: the tables' slots in the order of
                                their rows, the moments of the towers' optimizer, the
                                random state of dropout

With `weights/` that is all a training goes on from, to the bit. Nothing but a later
training reads it, and a folder without it is as good for all else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from recsys.commit import commit_text
from recsys.data.kept_events import KeptEvents, KeptShard
from recsys.embedding.placement import tables_of
from recsys.embedding.table import Table
from recsys.model import TwoTower
from recsys.model.saved import write_variable
from recsys.training import sealed
from recsys.training.variables import moments_of, seeds_of

FOLDER = "training_state"
FORMAT = 1
_MANIFEST = "state.json"
_READ = ("model.json", "weights", "vocabulary", "catalogue", "user_features", FOLDER)


@dataclasses.dataclass(frozen=True)
class State:
    """How far a training was.

    Attributes:
        cut: The moment that its data were split at [seconds since 1970, UTC].
        trained_until: All events that it was trained on are older, those of the models
            that it went on from too [seconds since 1970, UTC].
        updates: Updates of the weights, those of these models too.
        steps: Steps, those of these models too.
        warm_starts: How many such models there are.
    """

    cut: int
    trained_until: int
    updates: int
    steps: int
    warm_starts: int = 0

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the state that JSON describes; a `KeyError` where it lacks something."""
        return cls(**{field.name: int(fields[field.name]) for field in dataclasses.fields(cls)})


def drop_state(folder: Path) -> None:
    """Removes what another training left in a model folder, before it is written anew."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def save_state(folder: Path, model: TwoTower, state: State) -> None:
    """Writes `training_state/` into a model folder that is there; `state.json` comes last.

    Where validation chose an earlier step's weights, the slots and the moments are those
    of the last step: the best model is kept without any. They only set how far a step
    goes, and those of the last step go less far.

    Args:
        folder: The model folder, as `save_model` left it.
        model: The model, compiled, after its training.
        state: How far the training was.

    Raises:
        OSError: The disk is full.
    """
    (folder / FOLDER).mkdir(parents=True)
    described = []
    for number, (variable, table) in enumerate(_kept(model)):
        shape, dtype = tuple(variable.shape), np.dtype(variable.dtype).newbyteorder("<").str
        if table is not None:
            shape, dtype = (table.rows, shape[1]), "<f4"
        write_variable(folder / FOLDER / f"{number}.npy", variable, table, shape, dtype)
        described.append({"path": variable.path, "shape": list(shape)})
    files = [name for name in sealed.names_in(folder) if name.split("/")[0] in _READ]
    manifest = {
        "format": FORMAT,
        **dataclasses.asdict(state),
        "variables": described,
        "files": sealed.sums(folder, files),
    }
    commit_text(sealed.encoded(manifest), folder / FOLDER / _MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns what `state.json` of a model folder says.

    Raises:
        DamageError: There is none, or it isn't as it was written.
    """
    return sealed.read_manifest(folder / FOLDER / _MANIFEST)


def fingerprint(folder: Path) -> str | None:
    """Returns the sha256, in hex, of what a model folder holds; None where it has no state.

    `state.json` names the checksum of all that a later training reads.
    """
    try:
        text = sealed.encoded(read_manifest(folder))
    except sealed.DamageError:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def updates_of(model: TwoTower) -> int:
    """Returns how many updates the tables of a model have seen."""
    return max(int(np.asarray(table.steps.value)) for table in tables_of(model))


def trained_until(events: KeptEvents) -> int:
    """Returns the second after the newest event that training sees [seconds since 1970]."""
    return 1 + max(_newest(part) for part in events.shards if len(part))


def _newest(part: KeptShard) -> int:
    kept = np.delete(part.shard.timestamp, part.held) if len(part.held) else part.shard.timestamp
    return int(kept.max())


def _kept(model: TwoTower) -> list[tuple[Any, Table | None]]:
    """Returns what is kept beside the weights, and the table that each belongs to."""
    slots = [(slot, table) for table in tables_of(model) for slot in table.slots]
    whole = [*moments_of(model).values(), *seeds_of(model).values()]
    return [*slots, *((variable, None) for variable in whole)]
