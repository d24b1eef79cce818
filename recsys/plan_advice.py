"""What stands in the way of a planned training, and what would let it fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from recsys.config import Config, MeshConfig
from recsys.data.table_rows import TableRows
from recsys.embedding.config import resolve
from recsys.embedding.optimizers import row_optimizer
from recsys.embedding.table import checked_columns
from recsys.errors import RecsysError, UsageError
from recsys.models.retrieval import model_tables
from recsys.plan import Plan, make_plan, model_spec
from recsys.training.preconditions import uneven, uneven_errors

MOST_DEVICES = 4096
_LEAST_DIM = 8
_MOST_PLACES = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Change:
    """Something to change on the command line.

    Attributes:
        words: What to add to it.
        bytes_per_device: What a device would hold then.
        saved_bytes: How much less that is.
        fits: Whether it has room for it.
    """

    words: str
    bytes_per_device: int
    saved_bytes: int
    fits: bool


def obstacles(config: Config, rows: TableRows, plan: Plan) -> list[RecsysError]:
    """Returns the errors that a training of this plan would stop with, memory apart."""
    found: list[RecsysError] = [*uneven_errors(config.train, plan.n_batch)]
    spec = model_spec(config, rows)
    try:
        spec.check()
    except UsageError as error:
        found.append(error)
    optimizer = row_optimizer(config.train.table_optimizer)
    for table in model_tables(spec, optimizer).values():
        try:
            checked_columns(resolve(table), plan.n_shards)
        except UsageError as error:
            found.append(error)
    for placed in (part.placement for part in plan.parts if part.placement):
        if placed.padded_rows > _MOST_PLACES:
            rule = f"Table {placed.table!r} must have fewer than 2³¹ rows, padding included."
            cure = "Hash its ids into fewer rows."
            found.append(UsageError("R354", rule, cure, placed.padded_rows))
    return found


def changes(config: Config, rows: TableRows, plan: Plan, memory: int) -> list[Change]:
    """Returns what would make a plan smaller; what makes it fit comes first.

    Args:
        config: The run.
        rows: Rows of its tables.
        plan: Its plan.
        memory: What a device has [bytes].
    """

    def change(keys: Mapping[str, Any], wider: Config = config, devices: int = 0) -> Change:
        n_bytes = make_plan(_changed(wider, keys), rows, devices or plan.devices).bytes_per_device
        words = [_devices_option(wider, devices)] if devices else []
        words += [f"--set {key}={value}" for key, value in keys.items()]
        saved = plan.bytes_per_device - n_bytes
        return Change(" ".join(words), n_bytes, saved, n_bytes <= memory)

    wider = _fewest_devices(config, rows, plan, memory)
    proposed = [] if wider is None else [change(_fitting_sizes(*wider), *wider)]
    settings = _settings(config)
    alone = [change({key: value}) for key, value in settings.items()]
    together = len(alone) > 1 and not any(one.fits for one in alone)
    dims = [change({"model.dim": dim}) for dim in _smaller_dims(config, plan.n_shards)]
    proposed += alone + ([change(settings)] if together else [])
    proposed += [next((one for one in dims if one.fits), dims[-1])] if dims else []
    smaller = [one for one in proposed if one.saved_bytes > 0]
    return sorted(smaller, key=lambda one: not one.fits)


def _devices_option(config: Config, devices: int) -> str:
    mesh = config.mesh
    return f"--devices {devices}" if mesh is None else f"--mesh data={mesh.data},model={mesh.model}"


def _fitting_sizes(config: Config, devices: int) -> dict[str, int]:
    parts = config.mesh.data if config.mesh else devices
    return {f"train.{key}": fitting for key, _, fitting in uneven(config.train, parts)}


def _settings(config: Config) -> dict[str, Any]:
    """Returns keys with values that make tables smaller."""
    found: dict[str, Any] = {}
    if config.model.table_placement == "replicated":
        found["model.table_placement"] = "row"
    if config.train.table_optimizer in ("adagrad", "lazy_adam", "ftrl"):
        found["train.table_optimizer"] = "row_wise_adagrad"
    if config.model.table_dtype == "float32":
        found["model.table_dtype"] = "bfloat16"
    return found


def _smaller_dims(config: Config, n_shards: int) -> list[int]:
    """Returns halves, quarters … of the width that the devices can split if they have to."""
    halvings = range(1, config.model.dim.bit_length())
    dims = [config.model.dim >> n for n in halvings]
    is_split = config.model.table_placement == "column"
    return [d for d in dims if d >= _LEAST_DIM and not (is_split and d % n_shards)]


def _fewest_devices(
    config: Config, rows: TableRows, plan: Plan, memory: int
) -> tuple[Config, int] | None:
    """Returns the fewest devices above those of `plan` that fit, and the config with their mesh.

    Of those that divide the batches, if any; columns must divide too. Of a mesh the
    axis `model` grows.
    """
    data = config.mesh.data if config.mesh else 1
    is_split = config.model.table_placement == "column"
    widths = (config.model.dim, config.model.feature_dim) if is_split else ()
    shards = range(plan.n_shards + 1, MOST_DEVICES // data + 1)
    more = [(_with_shards(config, n), n * data) for n in shards if not any(w % n for w in widths)]
    in_order = sorted(more, key=lambda choice: bool(_fitting_sizes(*choice)))
    return next(
        (
            (wider, n)
            for wider, n in in_order
            if make_plan(wider, rows, n).bytes_per_device <= memory
        ),
        None,
    )


def _with_shards(config: Config, n: int) -> Config:
    if config.mesh is None:
        return config
    return config.model_copy(update={"mesh": MeshConfig(data=config.mesh.data, model=n)})


def _changed(config: Config, keys: Mapping[str, Any]) -> Config:
    """Returns the config with other values of some keys `part.name`."""
    parts: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        part, name = key.split(".")
        parts.setdefault(part, {})[name] = value
    return config.model_copy(
        update={p: getattr(config, p).model_copy(update=values) for p, values in parts.items()}
    )
