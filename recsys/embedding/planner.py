"""Predicts memory and communication of the tables on each device, without devices.

Follows `recsys.embedding.exchange`, on one mesh axis or on two.
Ids count as all different and evenly spread. A collective sends what a ring
would: of an array that is gathered or scattered, all parts but one.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from recsys.embedding.config import Placement, TableSpec
from recsys.embedding.row_exchange import Axis
from recsys.embedding.sharding import padded_rows
from recsys.embedding.table import Table


@dataclasses.dataclass(frozen=True)
class TablePlacement:
    """Where one table lies.

    Attributes:
        table: Name of the table.
        placement: `row`, `column`, or `replicated`.
        rows: Logical rows, without padding.
        padded_rows: Rows with those that make the shards equal.
        dim: Width of a row [floats].
        shards: Devices that hold a part each of one copy.
        bytes_per_device: Bytes of the weights on each device.
        slot_bytes_per_device: Bytes of the optimizer's slots on each device.
    """

    table: str
    placement: Placement
    rows: int
    padded_rows: int
    dim: int
    shards: int
    bytes_per_device: int
    slot_bytes_per_device: int


def planned(table: Table, n_shards: int) -> TablePlacement:
    """Returns the placement of `table` when `n_shards` devices share a copy of it."""
    return _placement(table.name, table.spec, table.rows, table.n_physical, n_shards)


def planned_without_devices(members: Sequence[TableSpec], n_shards: int) -> TablePlacement:
    """Returns the placement of a table, or of a stack, that `n_shards` devices share.

    The same as `planned` says of the built table; nothing is built.

    Args:
        members: The tables stored as one, alike but for names and rows.
        n_shards: Devices that share a copy, if it is split.
    """
    spec, rows = members[0], sum(member.rows for member in members)
    places = padded_rows(rows, n_shards) if spec.placement == "row" else rows
    shards = 1 if spec.placement == "replicated" else n_shards
    name = "_".join(member.name for member in members)
    return _placement(name, spec, rows, places, shards)


def _placement(name: str, spec: TableSpec, rows: int, places: int, n_shards: int) -> TablePlacement:
    slots = () if spec.optimizer is None else spec.optimizer.slot_list()
    per_row = sum(slot.per_row for slot in slots)
    full = (len(slots) - per_row) * places * spec.dim * 4 // n_shards
    # On a column-wise table every device keeps the slots of whole rows.
    rows_here = places // (n_shards if spec.placement == "row" else 1)
    return TablePlacement(
        table=name,
        placement=spec.placement,
        rows=rows,
        padded_rows=places,
        dim=spec.dim,
        shards=n_shards,
        bytes_per_device=places * spec.dim * spec.itemsize // n_shards,
        slot_bytes_per_device=full + per_row * rows_here * 4,
    )


Collective = Literal["all-to-all", "all-gather", "reduce-scatter", "all-reduce"]

_NUMBER_BYTES = 4
# How pooled rows go to those who asked, and how their gradients come back.
_WAYS: dict[Placement, tuple[Collective | None, Collective]] = {
    "row": ("reduce-scatter", "all-gather"),
    "column": ("all-to-all", "all-to-all"),
    "replicated": (None, "all-gather"),
}


@dataclasses.dataclass(frozen=True)
class FeatureShape:
    """What one feature reads from its table in every step.

    Attributes:
        table: Name of its table.
        bags: Bags of the whole batch.
        length: Ids of a bag, of a ragged one on average; None for single ids.
        is_weighted: Whether each id of a bag has a weight.
        learns_weights: Whether these have gradients.
        is_ragged: Whether bags are values and lengths, without padding.
    """

    table: str
    bags: int
    length: int | None = None
    is_weighted: bool = False
    learns_weights: bool = False
    is_ragged: bool = False

    @property
    def n_ids(self) -> int:
        """Ids of the whole batch."""
        return self.bags * (1 if self.length is None else self.length)


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a device sends to others in a step.

    Attributes:
        what: What it is.
        collective: How it goes.
        bytes: How much it is.
    """

    what: str
    collective: Collective
    bytes: int


@dataclasses.dataclass(frozen=True)
class Held:
    """Temporary arrays of a device during a step.

    Attributes:
        what: What they are.
        bytes: How much they are.
    """

    what: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class StepPart:
    """What a device sends and holds for a part of a step.

    Attributes:
        sent: What it sends.
        held: What it holds beside the tables; not all of it at the same time.
    """

    sent: tuple[Sent, ...] = ()
    held: tuple[Held, ...] = ()

    @property
    def sent_bytes(self) -> int:
        """All that is sent."""
        return sum(sent.bytes for sent in self.sent)

    @property
    def held_bytes(self) -> int:
        """All that is held."""
        return sum(held.bytes for held in self.held)

    def by_collective(self) -> dict[str, int]:
        """Returns the bytes that each collective sends."""
        return _summed((sent.collective, sent.bytes) for sent in self.sent)

    def by_buffer(self) -> dict[str, int]:
        """Returns the bytes held of each thing."""
        return _summed((held.what, held.bytes) for held in self.held)


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for name, n_bytes in pairs:
        totals[name] += n_bytes
    return dict(totals)


def passed_on(n_numbers: int, n_devices: int) -> int:
    """Returns what a device sends of an array that is gathered or scattered [bytes]."""
    return n_numbers * _NUMBER_BYTES * (n_devices - 1) // n_devices


def table_step(
    members: Sequence[TableSpec],
    features: Iterable[FeatureShape],
    n_shards: int,
    n_batch: int | None = None,
) -> StepPart:
    """Returns what a training step sends and holds for a table, or for a stack.

    Args:
        members: The tables stored as one, alike but for names and rows.
        features: Features of the layer; those of other tables are left out.
        n_shards: Devices that a table is split over.
        n_batch: Parts of a batch on an axis of its own; None: the batch is split over the
            devices that the table is split over. A batch that doesn't divide counts as
            one that is filled up.
    """
    shard = _Shard(members[0], n_shards, n_batch or n_shards, n_batch is None)
    combiners = {member.name: member.combiner for member in members}
    mine = [feature for feature in features if feature.table in combiners]
    bags = [
        feature
        for feature in mine
        if feature.length is not None and combiners[feature.table] != "max"
    ]
    singles = _together(mine, combiners)
    if not shard.exchanges:
        bags += [FeatureShape("", n_ids, 1) for n_ids in singles]
        singles = []
    parts = [*(_read_singles(shard, n) for n in singles), *(_read_bags(shard, b) for b in bags)]
    if shard.spec.optimizer is not None:
        parts.append(_update(shard, sum(singles), sum(b.n_ids for b in bags)))
    return StepPart(
        tuple(sent for part in parts for sent in part.sent if sent.bytes),
        tuple(held for part in parts for held in part.held if held.bytes),
    )


def _together(features: Iterable[FeatureShape], combiners: dict[str, str]) -> list[int]:
    """Returns the ids of each reading of single ids; those of as many bags go together."""
    together: Counter[int] = Counter()
    alone = []
    for feature in features:
        if feature.length is None:
            together[feature.bags] += feature.bags
        elif combiners[feature.table] == "max":
            # The maxima are taken where the ids were asked for.
            alone.append(feature.n_ids)
    return [*together.values(), *alone]


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A device's part of a table.

    Attributes:
        spec: The table.
        n: Devices that it is split over.
        n_batch: Parts of a batch.
        shares_axis: Whether these are the same devices.
    """

    spec: TableSpec
    n: int
    n_batch: int
    shares_axis: bool

    @property
    def exchanges(self) -> bool:
        """Whether single ids go by all-to-all."""
        return self.spec.placement == "row" and self.n > 1 and self.shares_axis

    @property
    def width(self) -> int:
        """What it holds of a row [floats]."""
        dim = self.spec.dim
        return -(-dim // self.n) if self.spec.placement == "column" else dim

    def here(self, n: int) -> int:
        """Returns a device's part of `n` entries of a batch."""
        return -(-n // self.n_batch)

    def whole(self, n: int) -> int:
        """Returns `n` entries of a batch, filled up to equal parts."""
        return self.here(n) * self.n_batch


# --- single ids


def chunks(n_places: int, n_devices: int) -> tuple[int, int]:
    """Returns the capacity of the chunks that an exchange will take, and its rounds.

    The fullest of n² chunks holds the mean, and as many standard deviations more as the
    largest of n² normal variables lies above theirs.

    Args:
        n_places: Places that a device asks for, all of them different.
        n_devices: Devices on the axis.
    """
    mean = n_places / n_devices
    above = math.sqrt(2 * math.log(n_devices**2)) * math.sqrt(mean * (1 - 1 / n_devices))
    fullest = max(1, min(n_places, math.ceil(mean + above)))
    capacities = Axis("", n_devices).capacities(n_places)
    capacity = next((c for c in capacities if c >= fullest), capacities[-1])
    return capacity, -(-fullest // capacity)


def _read_singles(shard: _Shard, n_ids: int) -> StepPart:
    n_here, dim = shard.here(n_ids), shard.spec.dim
    capacity, _ = chunks(n_here, shard.n)
    in_chunks = 2 * shard.n * capacity  # Sent, and received.
    return StepPart(
        _exchanged(shard, n_here, "rows"),
        (
            # Places, their order and ranks, the distinct ones, and which each id has.
            Held("ids", (5 * n_here + in_chunks) * _NUMBER_BYTES),
            Held("rows", (2 * n_here + in_chunks) * dim * _NUMBER_BYTES),
        ),
    )


def _exchanged(shard: _Shard, n_places: int, what: str) -> tuple[Sent, ...]:
    capacity, rounds = chunks(n_places, shard.n)
    to_others = (shard.n - 1) * capacity * rounds * _NUMBER_BYTES
    return (
        Sent("ids", "all-to-all", to_others),
        Sent(what, "all-to-all", to_others * shard.spec.dim),
    )


# --- bags


def _read_bags(shard: _Shard, feature: FeatureShape) -> StepPart:
    """Returns what goes for the ids of a feature, its pooled rows, and their gradients."""
    trains = shard.spec.optimizer is not None
    is_split = shard.spec.placement != "replicated"
    n_ids, n_batch = shard.whole(feature.n_ids), shard.n_batch
    sent = []
    if trains or (is_split and shard.shares_axis):
        # Gathered once, for the reading and for the update.
        n_per_id = 1 + feature.is_ragged
        sent.append(Sent("ids", "all-gather", passed_on(n_ids * n_per_id, n_batch)))
        sent.append(Sent("weights", "all-gather", passed_on(n_ids * feature.is_weighted, n_batch)))
    needs_gradients = trains or (is_split and feature.learns_weights)
    go = _pooled_on_one_axis if shard.shares_axis else _pooled_on_two_axes
    sent += go(shard, feature, needs_gradients)
    return StepPart(tuple(sent), _held_of_bags(shard, feature))


def _pooled_on_one_axis(
    shard: _Shard, feature: FeatureShape, needs_gradients: bool
) -> Iterator[Sent]:
    pooled = shard.whole(feature.bags) * shard.width
    there, back = _WAYS[shard.spec.placement]
    if there is not None:
        yield Sent("rows", there, passed_on(pooled, shard.n))
    if needs_gradients:
        yield Sent("gradients", back, passed_on(pooled, shard.n))
    if there is not None and feature.learns_weights:
        yield Sent("weights", "reduce-scatter", passed_on(shard.whole(feature.n_ids), shard.n))


def _pooled_on_two_axes(
    shard: _Shard, feature: FeatureShape, needs_gradients: bool
) -> Iterator[Sent]:
    here, dim = shard.here(feature.bags), shard.spec.dim
    if shard.spec.placement == "row":
        yield Sent("rows", "all-reduce", 2 * passed_on(here * dim, shard.n))
    if shard.spec.placement == "column":
        yield Sent("rows", "all-gather", passed_on(here * dim, shard.n))
    if needs_gradients:
        gathered = shard.whole(feature.bags) * shard.width
        yield Sent("gradients", "all-gather", passed_on(gathered, shard.n_batch))
    if shard.spec.placement != "replicated" and feature.learns_weights:
        n_ids = shard.here(feature.n_ids)
        yield Sent("weights", "all-reduce", 2 * passed_on(n_ids, shard.n))


def _held_of_bags(shard: _Shard, feature: FeatureShape) -> tuple[Held, ...]:
    n_ids, n_bags = shard.whole(feature.n_ids), shard.whole(feature.bags)
    n_weights = n_ids * (feature.is_weighted + feature.learns_weights)
    n_read = n_bags if shard.shares_axis else shard.here(feature.bags)
    out = shard.here(feature.bags) * shard.spec.dim
    return (
        Held("ids", n_ids * (1 + feature.is_ragged) * _NUMBER_BYTES),
        Held("weights", n_weights * _NUMBER_BYTES),
        # Pooled for all devices of the axis, and what comes back of it.
        Held("rows", (n_read * shard.width + out) * _NUMBER_BYTES),
        Held("gradients", (n_bags * shard.width + out) * _NUMBER_BYTES),
    )


# --- the update


def _update(shard: _Shard, n_singles: int, n_in_bags: int) -> StepPart:
    """Returns what goes for the gradients of single ids, and what an update holds."""
    sent: list[Sent] = []
    held: list[Held] = []
    n_entries = shard.whole(n_in_bags)
    if n_singles:
        n_here = shard.here(n_singles)
        sent += _exchanged(shard, n_here, "gradients")
        # What is received lies in the widest chunks there are.
        widest = shard.n * Axis("", shard.n).capacities(n_here)[-1]
        n_entries += widest
        n_rows = 2 * n_here + shard.n * chunks(n_here, shard.n)[0] + widest
        held.append(Held("gradients", n_rows * shard.width * _NUMBER_BYTES))
    optimizer = shard.spec.optimizer
    slots = () if optimizer is None else optimizer.slot_list()
    if shard.spec.placement == "column" and optimizer is not None:
        # Means and norms over whole rows.
        n_sums = any(slot.per_row for slot in slots) + bool(optimizer.clipnorm)
        sent.append(Sent("slots", "all-reduce", 2 * n_sums * passed_on(n_entries, shard.n)))
    per_entry = 3 * shard.width + sum(1 if s.per_row else shard.width for s in slots)
    # Gradients of each id, summed by row; the rows and their slots, changed.
    held.append(Held("update", n_entries * (4 + per_entry) * _NUMBER_BYTES))
    return StepPart(tuple(sent), tuple(held))
