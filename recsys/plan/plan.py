"""The plan of a training: memory and traffic of each device, without data or real devices.

The model is built from shapes only, and its training step is compiled ahead of time for simulated
CPU devices. So XLA reports the needs of the step, for any model.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import jax
import keras
from jax.sharding import NamedSharding, PartitionSpec

from recsys import registry
from recsys.config import Config, EvaluateStage, PairStage, RankerConfig, stage_of
from recsys.data.label_config import dependencies_first
from recsys.embedding.layout import activate, device_mesh, table_layout
from recsys.embedding.step_check import StepProof, sent_collectives
from recsys.embedding.table import Table, TablePlacement, planned
from recsys.embedding.table_config import resolve
from recsys.embedding.traffic import Collective, FeatureTraffic, leaving, total
from recsys.errors import UsageError
from recsys.models.inputs import ModelSpec
from recsys.models.lookups import LookupModel, Tables, model_class
from recsys.pair.config import ranker_stage
from recsys.plan.table_rows import TableRows
from recsys.tasks import side_of
from recsys.tasks.training_side import DataShape
from recsys.training.optimization import exclude_vectors, table_optimizers, tower_optimizer

MOST_DEVICES = 256
_LARGE_SLOTS = ("adagrad", "lazy_adam", "ftrl")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Memory and traffic of each device.

    Attributes:
        devices: Number of devices.
        n_batch: Number of parts of a batch.
        n_shards: Number of devices that share each copy of a table.
        tables: Placements of the tables.
        step: Properties of the compiled training step.
        traffic: Traffic of a device for each feature in a step.
        sent: Collectives of a device in the compiled step; for exchanges, the expected ones.
        saved_table_bytes: Size of the tables in a checkpoint, with slots and padding [bytes].
    """

    devices: int
    n_batch: int
    n_shards: int
    tables: tuple[TablePlacement, ...]
    step: StepProof
    traffic: tuple[FeatureTraffic, ...]
    sent: tuple[Collective, ...]
    saved_table_bytes: int

    @property
    def bytes_per_device(self) -> int:
        """Memory of a device: weights, slots, and temporary arrays of a step [bytes]."""
        return self.step.state_bytes + self.step.temporary_bytes

    @property
    def other_bytes(self) -> int:
        """Size of the other state: dense weights, their optimizer's slots, counters [bytes]."""
        return self.step.state_bytes - _total(self.tables)

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint [bytes]."""
        return self.saved_table_bytes + self.other_bytes

    def on_hosts(
        self, hosts: int, devices_per_host: int, *, link: int, fabric: int, disk: int
    ) -> dict[str, float]:
        """Returns the totals of identical hosts, and the arguments.

        `bytes_per_host` is the memory of its devices. A device sends `within_bytes` within its
        host in a step and, averaged over the host's devices, `leaving_bytes` to others, which take
        `within_s` and `leaving_s`: a step at least the longer one, `floor_s`. Each host writes its
        part of a checkpoint, in `checkpoint_s`.

        Args:
            hosts: Number of hosts.
            devices_per_host: Number of devices per host.
            link: Bandwidth between the devices of a host, one way [bytes/s].
            fabric: Bandwidth of a device to other hosts, one way [bytes/s].
            disk: Speed at which a host writes checkpoints [bytes/s].
        """
        between = leaving(list(self.sent))
        within = total(list(self.sent)) - between
        return {
            "hosts": hosts,
            "devices_per_host": devices_per_host,
            "link": link,
            "fabric": fabric,
            "disk": disk,
            "bytes_per_host": self.bytes_per_device * devices_per_host,
            "within_bytes": within,
            "leaving_bytes": between,
            "within_s": within / link,
            "leaving_s": between / fabric,
            "checkpoint_bytes": self.checkpoint_bytes,
            "checkpoint_s": self.checkpoint_bytes / hosts / disk,
            "floor_s": max(within / link, between / fabric),
        }


@dataclasses.dataclass(frozen=True)
class Change:
    """A suggested change of the command line.

    Attributes:
        words: Options to add.
        bytes_per_device: Memory of a device after the change [bytes].
        saved_bytes: Memory that the change saves [bytes].
        fits: Whether the plan then fits into the memory of a device.
    """

    words: str
    bytes_per_device: int
    saved_bytes: int
    fits: bool


def make_plan(config: Config, rows: TableRows, devices: int) -> Plan:
    """Returns the plan of a training.

    Args:
        config: The run.
        rows: Rows of its tables.
        devices: Number of devices, which JAX must have or simulate.

    Raises:
        RecsysError: A training with this config would fail before its first step.
    """
    mesh = config.mesh
    if mesh is not None and mesh.n_devices != devices:
        raise UsageError(
            "R313",
            f"The mesh data={mesh.data}, model={mesh.model} must have as many devices as there"
            " are.",
            "Change --devices, or the mesh.",
            devices,
        )
    n_batch, n_shards = (devices, devices) if mesh is None else (mesh.data, mesh.model)
    if reason := side_of(config.model, "training").uneven(config.train, n_batch):
        raise reason
    # Keras' distribution and stateless scopes are per thread.
    with ThreadPoolExecutor(1) as pool:
        step, traffic, sent = pool.submit(_step, config, rows, devices).result()
    placements = tuple(_placements(config, rows, n_shards))
    saved = _total(_placements(config, rows, n_shards, n_parts=1))
    return Plan(devices, n_batch, n_shards, placements, step, traffic, sent, saved)


def with_model(config: Config, rows: TableRows) -> Config:
    """Returns a config with the model that would be chosen for the data, if it names none."""
    order = "none" if config.data.split == "random" else config.data.interactions.ordered_by
    n_users, n_items = (rows.rows[name] for name in ("users", "items"))
    has_features = any(feature.needs_layers for feature in rows.features)
    shape = DataShape(rows.events, n_users, n_items, order, has_features)
    return side_of(config.model, "training").chosen(config, shape, None)


def ranker_run(config: Config, ranker: RankerConfig) -> Config:
    """Returns a config for which the ranker of a pair is the model."""
    judged = EvaluateStage().of_task(ranker.model.task)
    second = ranker_stage(stage_of(config, PairStage))
    parts = {"model": second.model, "train": second.train, "layout": second.layout}
    own = {"ranker": None, "task": None, "evaluate": judged.evaluate, "bless": judged.bless}
    return config.model_copy(update={**parts, **own})


def model_spec(config: Config, rows: TableRows) -> ModelSpec:
    """Returns the spec of a config's model for tables of `rows`."""
    features = [
        dataclasses.replace(feature, rows=rows.rows.get(feature.name, 0))
        for feature in rows.features
    ]
    labels = config.data.interactions.labels
    ordered = {name: labels[name] for name in dependencies_first(labels)}
    n_users, n_items = rows.rows["users"], rows.rows["items"]
    return ModelSpec.of(config.model, n_users, n_items, features, ordered)


def _tables(config: Config, spec: ModelSpec) -> Tables:
    return model_class(spec.config).make_tables(spec, *table_optimizers(config.train, 1))


def _placements(
    config: Config, rows: TableRows, n_shards: int, n_parts: int | None = None
) -> Iterator[TablePlacement]:
    """Yields the placements of tables padded for `n_shards` devices, with `n_parts` per copy."""
    for table in _tables(config, model_spec(config, rows)).values():
        yield planned(Table([resolve(table)], n_shards), n_parts or n_shards)


def _step(
    config: Config, rows: TableRows, devices: int
) -> tuple[StepProof, tuple[FeatureTraffic, ...], tuple[Collective, ...]]:
    """Returns the proof of the step that `recsys.Trainer` would compile.

    Returns:
        The proof, the traffic of a device for each feature, and its collectives in the whole step.
    """
    train, spec = config.train, model_spec(config, rows)
    tables = _tables(config, spec)
    axes = config.mesh.model_dump() if config.mesh else {}
    mesh = device_mesh(**axes, devices=devices)
    tables_of_layout = list(tables.values())
    activate(table_layout(tables_of_layout, None, mesh, config.layout, train.node_devices))
    cls = model_class(spec.config)
    model = cls(spec, tables=tables, **cls.options_of(train))
    model.train_by(train)
    optimizer = tower_optimizer(train, 1)
    with keras.StatelessScope(initialize_variables=False):
        model.build()
        exclude_vectors(optimizer, model)
        model.compile(optimizer=optimizer, jit_compile=True)
        compiled = model.prove((_batch(config, rows, model, mesh),))
    counted = [(table, rows.counts.get(table.table)) for table in model.step_traffic]
    traffic = [feature for table, counts in counted for feature in table.by_feature(counts)]
    planned = [c for table, counts in counted for c in table.expected(counts)]
    sent = sent_collectives(compiled, train.node_devices)
    # If no branch matches the plan, the largest one.
    largest = [c for choice in sent.choices for c in max(choice, key=total)]
    expected = sent.expected(planned) or [*sent.always, *largest]
    return cast(StepProof, model.step_proof), tuple(traffic), tuple(expected)


def _batch(
    config: Config, rows: TableRows, model: LookupModel, mesh: keras.distribution.DeviceMesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the arrays of a batch, without values."""
    has_weights = bool(config.data.interactions.columns.weight)
    side, n_items = side_of(config.model, "training"), rows.rows["items"]
    shapes = side.batch_shapes(config, model, mesh.shape[0], n_items, has_weights)
    place = NamedSharding(mesh.backend_mesh, PartitionSpec(mesh.axis_names[0]))
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=place)
        for name, (shape, dtype) in shapes.items()
    }


# --- suggestions


def changes(config: Config, rows: TableRows, plan: Plan, memory: int) -> list[Change]:
    """Returns changes that make tables smaller; changes with which the plan fits come first.

    Only the tables are placed again; other memory is taken from the plan.

    Args:
        config: The run.
        rows: Rows of its tables.
        plan: Plan of the config.
        memory: Memory of a device [bytes].
    """

    def change(words: str, changed: Config, n_shards: int) -> Change:
        saved = _total(plan.tables) - _total(_placements(changed, rows, n_shards))
        n_bytes = plan.bytes_per_device - saved
        return Change(words, n_bytes, saved, n_bytes <= memory)

    def setting(keys: Mapping[str, Any]) -> Change:
        words = " ".join(f"--set {key}={value}" for key, value in keys.items())
        return change(words, _changed(config, keys), plan.n_shards)

    more = (change(*choice) for choice in _more_devices(config, plan))
    proposed = [change for change in more if change.fits][:1]
    keys = _settings(config)
    proposed += [setting({key: value}) for key, value in keys.items()]
    if len(keys) > 1:
        proposed.append(setting(keys))
    proposed = [change for change in proposed if change.saved_bytes > 0]
    return sorted(proposed, key=lambda change: not change.fits)


def _more_devices(config: Config, plan: Plan) -> Iterator[tuple[str, Config, int]]:
    """Yields configs for 2, 4, … times the devices; a mesh grows along the axis `model`."""
    is_split = config.model.table_placement == "column"
    widths = (config.model.dim, config.model.feature_dim) if is_split else ()
    n = plan.n_shards * 2
    while n <= MOST_DEVICES:
        mesh = config.mesh
        words = f"--devices {n}" if mesh is None else f"--mesh data={mesh.data},model={n}"
        if in_node := config.train.node_devices:
            n_hosts = -(-n * (1 if mesh is None else mesh.data) // in_node)
            hosts = f"--hosts {n_hosts} --devices-per-host {in_node}"
            words = hosts if mesh is None else f"{hosts} {words}"
        n_parts = n if mesh is None else mesh.data
        divides = side_of(config.model, "training").uneven(config.train, n_parts) is None
        if divides and not any(width % n for width in widths):
            yield words, config, n
        n *= 2


def _settings(config: Config) -> dict[str, Any]:
    """Returns config keys with values that make tables smaller."""
    keys: dict[str, Any] = {}
    if config.model.table_placement == "replicated":
        keys["model.table_placement"] = "row"
    if registry.name_of("row_optimizer", config.train.table_optimizer) in _LARGE_SLOTS:
        keys["train.table_optimizer"] = "row_wise_adagrad"
    if config.model.table_dtype == "float32":
        keys["model.table_dtype"] = "bfloat16"
    return keys


def _changed(config: Config, keys: Mapping[str, Any]) -> Config:
    """Returns the config with changed keys `part.name`."""
    parts = config.model_dump(mode="json")
    for key, value in keys.items():
        part, name = key.split(".")
        parts[part][name] = value
    return Config.model_validate_json(json.dumps(parts))


def _total(tables: Iterable[TablePlacement]) -> int:
    return sum(table.bytes_per_device + table.slot_bytes_per_device for table in tables)
