"""From a config to the plan of its training: what each device will hold and send.

Tables are reckoned by `recsys.embedding`; here is what the two towers ask of them, and
what towers and loss add.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from recsys import softmax_blocks
from recsys.config import Config
from recsys.embedding.config import resolve
from recsys.embedding.optimizers import row_optimizer
from recsys.embedding.plan import TablePlacement, planned_without_devices
from recsys.embedding.step_plan import FeatureShape, Held, Sent, StepPart, passed_on, table_step
from recsys.model.spec import FeatureSpec, ModelSpec
from recsys.model.two_tower import model_tables
from recsys.table_rows import TableRows

_FLOAT_BYTES = 4
_ADAM_SLOTS = 2


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
        devices: Devices, all on one axis that batch and tables share.
        parts: The tables, then `towers` and `loss`.
    """

    devices: int
    parts: tuple[Part, ...]

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
        devices: How many. Batches that they can't share evenly count as filled up.
    """
    spec = model_spec(config, rows)
    n_queries, n_negatives = (
        -(-size // devices) * devices
        for size in (config.train.batch_size, config.train.uniform_negatives)
    )
    n_candidates = n_queries + n_negatives
    optimizer = row_optimizer(config.train.table_optimizer)
    features = feature_shapes(spec, n_queries, n_candidates)
    tables = []
    for table in model_tables(spec, optimizer).values():
        members = [resolve(table)]
        placed = planned_without_devices(members, devices)
        step = table_step(members, features, devices)
        held = placed.bytes_per_device, placed.slot_bytes_per_device
        tables.append(Part(placed.table, *held, step, placed))
    towers = _towers(spec, n_queries // devices, n_candidates // devices, devices)
    loss = Part("loss", 0, 0, _loss(spec.config.dim, n_queries, n_candidates, devices))
    return Plan(devices, (*tables, towers, loss))


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
    return [
        FeatureShape("users", n_queries),
        FeatureShape("items", n_queries, history, is_weighted=True, learns_weights=True),
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


def _widths(spec: ModelSpec) -> Iterator[list[int]]:
    """Yields the widths of the query tower, from its inputs to its output, and the other's."""
    dim, hidden = spec.config.dim, spec.config.widths
    yield [2 * dim + sum(f.dim for f in spec.of_side("user")), *hidden, dim]
    yield [dim + sum(f.dim for f in spec.of_side("item")), *hidden, dim]


def n_tower_weights(spec: ModelSpec) -> int:
    """Returns the weights of both towers, and of the places in a history [floats]."""
    kernels = sum(a * b for w in _widths(spec) for a, b in itertools.pairwise(w))
    return kernels + 2 * sum(spec.config.widths) + spec.config.history


def _towers(spec: ModelSpec, n_queries: int, n_candidates: int, devices: int) -> Part:
    n = n_tower_weights(spec)
    # Each layer's values before and after its activation, and the gradients of both.
    counts = zip((n_queries, n_candidates), _widths(spec), strict=True)
    activations = sum(4 * count * sum(widths) for count, widths in counts)
    step = StepPart(
        (Sent("gradients", "all-reduce", 2 * passed_on(n, devices)),) if devices > 1 else (),
        (
            Held("gradients", n * _FLOAT_BYTES),
            Held("activations", activations * _FLOAT_BYTES),
        ),
    )
    return Part("towers", n * _FLOAT_BYTES, _ADAM_SLOTS * n * _FLOAT_BYTES, step)


# --- loss


def _loss(dim: int, n_queries: int, n_candidates: int, devices: int) -> StepPart:
    """Returns what the sampled softmax over all candidates takes of each device."""
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
        Held("logits", 2 * block * n_candidates * _FLOAT_BYTES),
    )
    return StepPart(sent if devices > 1 else (), held)
