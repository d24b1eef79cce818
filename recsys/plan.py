"""From a config to the plan of its training: what each device will hold and send.

Tables are reckoned by `recsys.embedding`; here is what the two towers ask of them, and
what towers and loss add.
"""

from __future__ import annotations

import dataclasses

from recsys.config import Config, MeanConfig, MeshConfig, TrainConfig
from recsys.data.table_rows import TableRows
from recsys.embedding.config import resolve
from recsys.embedding.optimizers import row_optimizer
from recsys.embedding.planner import (
    FeatureShape,
    Held,
    Sent,
    StepPart,
    TablePlacement,
    passed_on,
    planned_without_devices,
    table_step,
)
from recsys.errors import UsageError
from recsys.losses import softmax_blocks
from recsys.models.retrieval import model_tables
from recsys.models.size import n_activations, n_tower_weights, two_tower_config
from recsys.models.spec import FeatureSpec, ModelSpec

_FLOAT_BYTES = 4
_SLOTS = {"adam": 2, "adamw": 2, "adagrad": 1, "lion": 1, "rmsprop": 1, "sgd": 0}
"""Numbers that Keras' optimizers keep for a weight, as `recsys.training.optimizers` makes them."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the model, on each device.

    Attributes:
        name: The table, `towers`, or `loss`.
        weights: Bytes of its weights.
        slots: Bytes of its optimizer's slots.
        step: What a training step sends and holds for it.
        placement: Where it lies, if it is a table.
    """

    name: str
    weights: int
    slots: int
    step: StepPart
    placement: TablePlacement | None = None

    @property
    def bytes_per_device(self) -> int:
        """All that a device holds of it."""
        return self.weights + self.slots + self.step.held_bytes


@dataclasses.dataclass(frozen=True)
class Plan:
    """What each device will hold and send.

    Attributes:
        devices: Devices.
        n_batch: Parts of a batch.
        n_shards: Devices that share each copy of a table.
        parts: The tables, then `towers` and `loss`.
    """

    devices: int
    parts: tuple[Part, ...]
    n_batch: int
    n_shards: int

    @property
    def bytes_per_device(self) -> int:
        """All that a device holds."""
        return sum(part.bytes_per_device for part in self.parts)

    @property
    def sent_bytes(self) -> int:
        """All that a device sends in a step."""
        return sum(part.step.sent_bytes for part in self.parts)


def make_plan(config: Config, rows: TableRows, devices: int) -> Plan:
    """Returns the plan of a training.

    Args:
        config: The run.
        rows: Rows of its tables.
        devices: How many, as many as `mesh` has. Batches that they can't share evenly count
            as filled up.

    Raises:
        UsageError: The mesh has another number.
    """
    check_mesh(config.mesh, devices)
    n_batch = config.mesh.data if config.mesh else devices
    n_shards = config.mesh.model if config.mesh else devices
    own_axis = n_batch if config.mesh else None
    spec = model_spec(config, rows)
    n_queries, n_negatives = (
        -(-size // n_batch) * n_batch
        for size in (config.train.batch_size, _negatives(config, rows))
    )
    n_candidates = n_queries + n_negatives
    optimizer = row_optimizer(config.train.table_optimizer)
    features = feature_shapes(spec, n_queries, n_candidates)
    tables = []
    for table in model_tables(spec, optimizer).values():
        members = [resolve(table)]
        placed = planned_without_devices(members, n_shards)
        step = table_step(members, features, n_shards, own_axis)
        weights = placed.bytes_per_device, placed.slot_bytes_per_device
        tables.append(Part(placed.table, *weights, step, placed))
    towers = _towers(spec, config.train, n_queries, n_candidates, n_batch)
    held = _loss(config.train, spec.config.dim, n_queries, n_candidates, n_batch)
    loss = Part("loss", 0, 0, held)
    return Plan(devices, (*tables, towers, loss), n_batch, n_shards)


def check_mesh(mesh: MeshConfig | None, devices: int) -> None:
    """Checks that a mesh has as many devices as there are.

    Raises:
        UsageError: It has another number.
    """
    if mesh is not None and mesh.n_devices != devices:
        raise UsageError(
            "R313",
            f"The mesh data={mesh.data}, model={mesh.model} must have as many devices as there"
            " are.",
            "Change --devices, or the mesh.",
            devices,
        )


def _negatives(config: Config, rows: TableRows) -> int:
    """Returns the candidates of a step that no example brings."""
    if config.train.loss.negatives == "catalogue":
        return rows.rows["items"]
    return config.train.uniform_negatives + config.train.hard_negatives.count


def model_spec(config: Config, rows: TableRows) -> ModelSpec:
    """Returns what the model of a config is for tables of `rows`."""
    features = tuple(
        FeatureSpec(
            name=name,
            side="user" if name in rows.of_users else "item",
            rows=rows.rows[name],
            width=width,
            dim=config.model.feature_dim,
        )
        for name, width in rows.widths.items()
    )
    return ModelSpec(
        config=config.model,
        user_rows=rows.rows["users"],
        item_rows=rows.rows["items"],
        features=features,
    )


def feature_shapes(spec: ModelSpec, n_queries: int, n_candidates: int) -> list[FeatureShape]:
    """Returns what a step of `TwoTower` asks of its tables."""
    history = spec.config.history
    users = [FeatureShape("users", n_queries)] if spec.config.user_id else []
    return [
        *users,
        FeatureShape("items", n_queries, history, is_weighted=True, learns_weights=True)
        if isinstance(two_tower_config(spec).encoder, MeanConfig)
        else FeatureShape("items", n_queries * history),
        FeatureShape("items", n_candidates),
        *(
            FeatureShape(
                f.name,
                n_candidates if f.side == "item" else n_queries,
                f.width,
                is_weighted=True,
            )
            for f in spec.features
        ),
    ]


# --- towers


def _towers(
    spec: ModelSpec, train: TrainConfig, n_queries: int, n_candidates: int, devices: int
) -> Part:
    n = n_tower_weights(spec)
    activations = n_activations(spec, n_queries // devices, n_candidates // devices)
    itemsize = 2 if train.compute_dtype == "bfloat16" else _FLOAT_BYTES
    step = StepPart(
        (Sent("gradients", "all-reduce", 2 * passed_on(n, devices)),) if devices > 1 else (),
        (
            Held("gradients", n * _FLOAT_BYTES),
            Held("activations", activations * itemsize),
        ),
    )
    # A moving average is as large as the weights, and so are gradients that are added up.
    copies = _SLOTS[train.tower_optimizer] + (train.ema is not None) + (train.accumulate > 1)
    return Part("towers", n * _FLOAT_BYTES, copies * n * _FLOAT_BYTES, step)


# --- loss


def _loss(
    train: TrainConfig, dim: int, n_queries: int, n_candidates: int, devices: int
) -> StepPart:
    """Returns what the loss over all candidates takes of each device."""
    of_candidates = n_candidates * dim
    block = min(
        n_queries // devices,
        max(softmax_blocks._FEWEST_QUERIES, softmax_blocks._LOGITS // n_candidates),
    )
    sent = (
        Sent("candidates", "all-gather", passed_on(of_candidates + 2 * n_candidates, devices)),
        Sent("gradients", "reduce-scatter", passed_on(of_candidates, devices)),
    )
    held = (
        Held("candidates", (of_candidates + 2 * n_candidates) * _FLOAT_BYTES),
        Held("gradients", of_candidates * _FLOAT_BYTES),
        # Pairs have no matrix of logits.
        Held("logits", 2 * block * n_candidates * _FLOAT_BYTES * train.loss.holds_logits),
    )
    return StepPart(sent if devices > 1 else (), held)
