"""The model folder: a trained model with everything needed to use it.

model.json        spec, configs, versions, and the variables in order: see `recsys.models.summary`
weights/N.npy     one file per variable; tables in the order of their rows, large ones of several
                  processes in `weights/N/`: see `recsys.embedding.saved_arrays`; not the tables
                  that a ranker shares, which are in the folder above
vocabulary/       users.parquet, items.parquet
catalogue/        titles and features by item row
user_features/    features by user row, if there are any
event_features/   what the features of events learned, if there are any
candidates.npy    item embeddings [item rows, dim] float32, as computed in training
probe.npz         queries and their embeddings, which an export must reproduce
files/            files that its plugins read, see `recsys.registry.file_option`
training.json     loss curve, speed, placement of the tables
training_state/   state for warm starts, see `recsys.training.warm_start`; not read here
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding

from recsys.data.catalogue import Catalogue
from recsys.data.dataset import PARTS, seal_inputs
from recsys.data.vocabulary import Vocabulary
from recsys.distributed.coordination import agreed
from recsys.embedding.layout import (
    place_variables,
    replicate,
    table_layout,
    tables_of,
    verify_placement,
)
from recsys.embedding.saved_arrays import (
    SavedRows,
    SavedVariable,
    files_of,
    open_variable,
    path_of,
    write_variables,
)
from recsys.embedding.table import WEIGHTS, Table, chunk_rows, physical_order
from recsys.embedding.table_rows import put_rows
from recsys.models.inputs import ModelInputs, ModelSpec
from recsys.models.lookups import LookupModel, model_class
from recsys.models.summary import SUMMARY, damaged, read_summary, summary_text
from recsys.registry import plugins_needed
from recsys.registry.file_option import IN_FOLDER, copy_files, read_in_folder
from recsys.system import manifest as manifests
from recsys.system.files import DAMAGE
from recsys.tasks.config import TrainStage

_PACKAGES = ("keras", "jax", "numpy")
_TYPES = {"int32": "<i4"}  # Other weights are floats.


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model folder that was read.

    Attributes:
        model: The model with its weights.
        inputs: Vocabularies, features and histories of users and items.
        stage: Config of its training.
        folder: The folder; None if unknown.
    """

    model: LookupModel
    inputs: ModelInputs
    stage: TrainStage
    folder: Path | None = None

    @property
    def users(self) -> Vocabulary:
        """Vocabulary of the users."""
        return self.inputs.users

    @property
    def items(self) -> Vocabulary:
        """Vocabulary of the items."""
        return self.inputs.items

    @property
    def catalogue(self) -> Catalogue:
        """The items."""
        return self.inputs.catalogue


def save_model(
    folder: Path,
    model: LookupModel,
    stage: TrainStage,
    data: Path,
    inputs: ModelInputs | None = None,
) -> None:
    """Writes the model into `folder`; `model.json` comes last.

    Every process calls it.

    Args:
        folder: Folder to write to; made if missing.
        model: A built model.
        stage: Config of its training.
        data: The data folder, which is copied except for the store.
        inputs: Provides the counts of training events for the vocabularies; None: as in `data`.
    """
    agreed(lambda: _write_inputs(folder, data, inputs))
    agreed(lambda: copy_files(folder, stage, model.spec))
    plugins = plugins_needed(stage.plugins, stage.model, stage.train)
    stage = stage.model_copy(update={"plugins": plugins})
    kept = [
        SavedVariable(v, table, _TYPES.get(v.dtype, "<f4"))
        for v, table in kept_weights(model)
        if table is None or table.name not in model.shared_tables
    ]
    described = write_variables(folder / "weights", kept)
    summary = {
        "format": 1,
        "spec": model.spec.model_dump(mode="json", context=IN_FOLDER),
        "stage": stage.model_dump(mode="json", context=IN_FOLDER),
        "variables": described,
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }
    text = summary_text(summary)
    agreed(lambda: (folder / SUMMARY).write_text(text))


def _write_inputs(folder: Path, data: Path, inputs: ModelInputs | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # A folder that is partly another model's must not be valid.
    (folder / SUMMARY).unlink(missing_ok=True)
    for part in PARTS:
        if (data / part).exists():
            shutil.copytree(data / part, folder / part, dirs_exist_ok=True)
    if inputs is not None:
        inputs.users.save(folder / "vocabulary" / "users.parquet")
        inputs.items.save(folder / "vocabulary" / "items.parquet")
    seal_inputs(folder)


def load_model(
    folder: Path,
    give: Callable[[Table, np.ndarray | SavedRows], None] | None = None,
    mesh: keras.distribution.DeviceMesh | None = None,
    tables: Path | None = None,
) -> TrainedModel:
    """Reads a model folder for inference, on any active backend and mesh.

    Args:
        folder: Folder that `save_model` wrote.
        give: Passes a table its weights `[rows, dim]` float32, memory-mapped, before it is
            built; None: Keras variables, with all rows in memory.
        mesh: One axis of devices, maybe of several processes, over which the tables are split.
            It stays Keras' active one. Each process then verifies its share of the files,
            and none holds a whole table.
        tables: Folder of the retriever whose tables the ranker of a pair shares; None: the folder
            above, the pair's.

    Raises:
        RecsysError: The folder holds no model, or it is damaged.
    """
    summary = read_summary(folder)
    try:
        # First, since it loads plugins that may register the model.
        stage = read_in_folder(TrainStage, summary["stage"], folder)
        spec = read_in_folder(ModelSpec, summary["spec"], folder)
        inputs = ModelInputs.open(folder)
    except DAMAGE as error:
        raise damaged(folder, f"{type(error).__name__}: {error}") from None
    if inputs.spec(spec.config) != spec:
        raise damaged(folder, "a model of other users, items or features than its folder has")
    model = model_class(spec.config)(spec)
    files = {e["path"]: (folder, number, summary) for number, e in enumerate(summary["variables"])}
    files |= _of_shared(model, tables or folder.parent)
    if give is not None:
        for own in model.embedding.tables:
            file = files.pop(_path(model, own), None)
            if file is None:
                raise damaged(folder, f"no weights of the table {own.name!r}")
            give(own, _read(*file, own.shape))
    layout = None
    if mesh is not None:
        layout = table_layout([*model.table_configs.values()], mesh=mesh)
        place_variables(model, layout)
    model.build()
    kept = kept_weights(model)
    if {variable.path for variable, _ in kept} != {*files}:
        raise damaged(folder, "other variables than the code has")
    for variable, table in kept:
        weights = _read(*files[variable.path], (table or variable).shape, mesh is not None)
        if table is not None:
            _give_rows(table, variable, weights)
        else:
            variable.assign(weights if mesh is None else replicate([weights], mesh)[0])
    if layout is not None:
        verify_placement(model, layout)
    return TrainedModel(model, inputs, stage, folder)


def read_shared_tables(model: LookupModel, folder: Path) -> None:
    """Reads the tables of a built model that are those of the model in a folder.

    Raises:
        RecsysError: The folder holds no model with such tables, or it is damaged.
    """
    files = _of_shared(model, folder)
    for table in tables_of(model):
        if (file := files.get(table.embeddings.path)) is not None:
            _give_rows(table, table.embeddings, _read(*file, table.shape, in_shares=True))


def _of_shared(model: LookupModel, folder: Path) -> dict[str, tuple[Path, int, dict[str, Any]]]:
    """Returns folder, number and `model.json` of each shared table, by its path in `model`."""
    if not model.shared_tables:
        return {}
    summary, files = read_summary(folder), {}
    numbers = {e["path"].partition("/")[2]: n for n, e in enumerate(summary["variables"])}
    for path in (_path(model, t) for t in model.embedding.tables if t.name in model.shared_tables):
        number = numbers.get(path.partition("/")[2])
        if number is None:
            raise damaged(folder, f"no weights like {path}, which a ranker shares")
        files[path] = (folder, number, summary)
    return files


def _give_rows(table: Table, variable: Any, weights: np.ndarray | SavedRows) -> None:
    """Assigns the weights of a table; on a mesh in chunks, so that no host holds all of them."""
    if not isinstance(getattr(variable.value, "sharding", None), NamedSharding):
        variable.assign(physical_order(table, weights))
        return
    n = chunk_rows(variable)
    parts = (np.arange(start, min(start + n, table.rows)) for start in range(0, table.rows, n))
    put_rows(table, variable, ((rows, weights[rows]) for rows in parts))


def kept_weights(model: LookupModel) -> list[tuple[Any, Table | None]]:
    """Returns the variables for inference, and the table of each, if it belongs to one.

    Slots, step counts and accumulated gradients are not among them.
    """
    buffers = {id(v) for v in model.gradient_buffers.variables}
    tables = {id(v): table for table in tables_of(model) for v in table.variables}
    kept = []
    for variable in model.weights:
        table = tables.get(id(variable))
        if id(variable) in buffers:
            continue
        if table is None or variable is table.embeddings:
            kept.append((variable, table))
    return kept


def _path(model: LookupModel, table: Table) -> str:
    """Returns the path of a table's weights in the built model."""
    return "/".join((model.name, model.embedding.name, table.name, WEIGHTS))


def _read(
    folder: Path,
    number: int,
    summary: dict[str, Any],
    shape: tuple[int, ...],
    in_shares: bool = False,
) -> np.ndarray | SavedRows:
    entry = summary["variables"][number]
    path = path_of(folder / "weights", number, entry)
    try:
        files = files_of(entry)
        if in_shares:
            files = manifests.share_of(files, jax.process_index(), jax.process_count())
        manifests.verify_files(folder / "weights", files)
        weights = open_variable(path)
    except manifests.ManifestError as damage:
        raise damaged(folder / "weights" / damage.name, damage.reason) from None
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, str(error)) from None
    described = tuple(entry["shape"])
    if weights.shape != described or weights.shape != tuple(shape):
        raise damaged(path, f"shape {weights.shape} where {described} was written")
    return weights
