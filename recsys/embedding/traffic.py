"""The bytes that a device sends to read and to update a table, and the choice of the least.

A bag can be read in two ways from a table that is split by rows over the batch's axis:

- `gathered`: every device gets the ids of all, and adds up what it holds of every bag.
  What a device sends grows with the number of devices.
- `rows`: a device asks each owner once for each distinct row and adds up its bags itself.
  What it sends is what its own batch needs, on any number of devices.

The gradients go the same way back. Where a table has fewer rows than a batch has ids, there
is a third way for them, `dense`: one sum over the devices of all rows' gradients.

Everything here is known when a step is traced: shapes, and an expected share of distinct ids.
A plan lists the same collectives that the choices were made by.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from recsys.embedding.payload import packed_width
from recsys.embedding.sharding import TableSharding

Way = Literal["gathered", "rows"]
EXCHANGES = ("auto", "cheapest", "gathered", "rows", "dense")
FEW_DEVICES = 8
"""Up to so many devices `auto` gathers: they are near each other, and it computes less."""

_INDEX = _FLOAT = 4  # Bytes.


@dataclasses.dataclass(frozen=True)
class ExchangeOptions:
    """How the rows of a table travel.

    Attributes:
        exchange: `auto`: `gathered` on few devices, else as `cheapest`, by bytes. The others
            force one way, where a table can go it: `dense` for its gradients alone.
        distinct_share: Expected distinct ids of a device over all of its ids (0..1]; 1 if
            nothing is known.
        payload: What rows and gradients travel as, `float32` or `bfloat16`; sums over
            devices that XLA takes are float32.
        rows: Rows of the table, without padding: no more ids are distinct.
    """

    exchange: str = "auto"
    distinct_share: float = 1.0
    payload: str = "float32"
    rows: int = 2**31


@dataclasses.dataclass(frozen=True)
class Bags:
    """What a device reads of a table at once.

    Attributes:
        bags: Its bags.
        ids: Its ids, padding too.
        dim: Width of a row [floats].
        arrays: Arrays with a number for each id: places, and bags and weights if there are any.
        is_single: Whether each bag is one id of weight 1.
        learns_weights: Whether the loss is differentiated by the weights.
    """

    bags: int
    ids: int
    dim: int
    arrays: int = 1
    is_single: bool = False
    learns_weights: bool = False


class Reading(NamedTuple):
    """One reading of a table, as a device sees it.

    Attributes:
        bags: What is read.
        way: How.
        features: Names of the features.
    """

    bags: Bags
    way: Way
    features: tuple[str, ...] = ()


class Collective(NamedTuple):
    """One collective of a step.

    Attributes:
        op: Its name in HLO.
        sent_bytes: Bytes that a device sends in it.
    """

    op: str
    sent_bytes: int


Collectives = list[Collective]


def total(collectives: Collectives) -> int:
    """Returns the bytes that a device sends in all of them."""
    return sum(collective.sent_bytes for collective in collectives)


def way_of(sharding: TableSharding, bags: Bags, options: ExchangeOptions, places: int) -> Way:
    """Returns how a device reads bags, and hands over their gradients; see `TableTraffic`."""
    if sharding.split != "rows" or not sharding.shares_axis:
        return "gathered"
    if bags.is_single or options.exchange == "rows":
        return "rows"
    if options.exchange in ("gathered", "dense") or _keeps_to_few(sharding, options):
        return "gathered"
    ways: tuple[Way, Way] = ("gathered", "rows")
    sent = {}
    for way in ways:
        reading = Reading(bags, way)
        traffic = TableTraffic("", sharding, options, places, (reading,))
        sent[way] = total(traffic.to_read(reading)) + total(traffic.sparse_update([reading]))
    return min(ways, key=sent.__getitem__)


def _keeps_to_few(sharding: TableSharding, options: ExchangeOptions) -> bool:
    return options.exchange == "auto" and sharding.n_batch_parts <= FEW_DEVICES


@dataclasses.dataclass(frozen=True)
class TableTraffic:
    """The collectives by which a step reads and updates one table.

    Attributes:
        table: Its name.
        sharding: Where it lies.
        options: How its rows may travel.
        places: Places of the whole table.
        readings: All of its readings in a step.
        counts: How often each row comes up in the data `[rows]`, to expect distinct ids by;
            None to expect the share of the options.
    """

    table: str
    sharding: TableSharding
    options: ExchangeOptions
    places: int
    readings: tuple[Reading, ...]
    counts: np.ndarray | None = dataclasses.field(default=None, compare=False)

    @property
    def is_dense(self) -> bool:
        """Whether the gradients are summed as one array of the table's size."""
        sharding, exchange = self.sharding, self.options.exchange
        is_whole = sharding.is_local or sharding.split == "columns"
        if is_whole or exchange in ("gathered", "rows"):
            return False
        if exchange == "dense":
            return True
        ids = sharding.n_batch_parts * _ids(self.readings)
        if _keeps_to_few(sharding, self.options) or self.places > ids:
            return False
        return total(self.dense_update()) < total(self.sparse_update(self.readings))

    def to_read(self, reading: Reading) -> Collectives:
        """Returns what one reading sends, and the learning of its weights."""
        sharding, bags = self.sharding, reading.bags
        if sharding.is_local or sharding.split == "none":
            return []
        if reading.way == "rows":
            return self._row_exchange([reading])
        n, is_by_rows = sharding.n_shards, sharding.split == "rows"
        if not sharding.shares_axis:
            pooled = bags.bags * bags.dim * _FLOAT
            return [_all_reduce(pooled, n) if is_by_rows else _all_gather(pooled // n, n)]
        pooled = n * bags.bags * self._row_bytes(bags.dim if is_by_rows else bags.dim // n)
        is_sum = is_by_rows and self.options.payload == "float32"
        out = _reduce_scatter(pooled, n) if is_sum else _all_to_all(pooled, n)
        # The gradients of the bags, which weights need, are those that the update gathers.
        learned = [_reduce_scatter(n * bags.ids * _FLOAT, n)] if bags.learns_weights else []
        return [*_gathered_ids(bags, n), out, *learned]

    def to_update(self) -> Collectives:
        """Returns what the update of the table sends."""
        if self.sharding.is_local:
            return []
        return self.dense_update() if self.is_dense else self.sparse_update(self.readings)

    def dense_update(self) -> Collectives:
        """Returns what an update by one sum of all rows' gradients sends."""
        sharding, n = self.sharding, self.sharding.n_batch_parts
        row = (self.readings[0].bags.dim + 1) * _FLOAT
        if sharding.split == "rows" and sharding.shares_axis:
            return [_reduce_scatter(self.places * row, n)]
        return [_all_reduce(self.places // sharding.n_shards * row, n)]

    def sparse_update(self, readings: Sequence[Reading]) -> Collectives:
        """Returns what an update by the gradients of some readings sends, row by row."""
        sharding, n = self.sharding, self.sharding.n_batch_parts
        is_split, sent = sharding.split == "columns", []
        for bags in (reading.bags for reading in readings if reading.way == "gathered"):
            # Where a read gathered the ids already, XLA keeps them.
            sent += [] if self._reads_gather_ids else _gathered_ids(bags, n)
            width = bags.dim // sharding.n_shards if is_split else bags.dim
            if is_split and sharding.shares_axis:
                sent.append(_all_to_all(n * bags.bags * self._row_bytes(width), n))
            else:
                sent.append(_all_gather(bags.bags * self._row_bytes(width), n))
        return [*sent, *self._row_exchange([r for r in readings if r.way == "rows"])]

    @property
    def _reads_gather_ids(self) -> bool:
        return self.sharding.split != "none" and self.sharding.shares_axis

    def _row_exchange(self, readings: Sequence[Reading]) -> Collectives:
        """Returns one way of an exchange, of rows or of their gradients, without more rounds."""
        n = self.sharding.n_shards
        if not _ids(readings):
            return []
        chunks = n * self.expected_capacity(readings)
        return [
            _all_reduce((n + 1) * _INDEX, n),
            _all_to_all(chunks * _INDEX, n),
            _all_to_all(chunks * self._row_bytes(readings[0].bags.dim), n),
        ]

    def _row_bytes(self, width: int) -> int:
        return packed_width(width, self.options.payload) * _FLOAT

    def distinct_ids(self, readings: Sequence[Reading]) -> float:
        """Returns how many ids of some readings are expected to be distinct, on a device."""
        n_ids = _ids(readings)
        if self.counts is None or not self.counts.sum():
            return min(n_ids * self.options.distinct_share, self.options.rows, self.places)
        # Ids drawn as often as in the data: a row is missed by all with e^-(its mean).
        return float(-np.expm1(-n_ids * self.counts / self.counts.sum()).sum())

    def expected_capacity(self, readings: Sequence[Reading]) -> int:
        """Returns the capacity that an exchange takes if ids are as distinct as expected."""
        n, n_ids = self.sharding.n_shards, _ids(readings)
        even = self.distinct_ids(readings) / n
        # The fullest of n² chunks: of so many draws one lies √(2 ln n²) deviations above.
        fullest = min(even + math.sqrt(4 * math.log(n) * even), n_ids, self.places / n)
        has_bags = not all(reading.bags.is_single for reading in readings)
        sizes = capacities(n_ids, n, has_bags)
        return next((size for size in sizes if size >= fullest), sizes[-1])

    def by_feature(self, counts: np.ndarray | None = None) -> list[FeatureTraffic]:
        """Returns what a device sends for each reading.

        Args:
            counts: How often each row comes up in the data `[rows]`, if that is known. They
                change what is expected to be sent, not how.
        """
        sized = dataclasses.replace(self, counts=counts)
        return [self._feature(reading, sized) for reading in self.readings]

    def _feature(self, reading: Reading, sized: TableTraffic) -> FeatureTraffic:
        is_dense, is_local = self.is_dense, self.sharding.is_local
        is_joint = is_dense or reading.way == "rows"
        joint = [r for r in self.readings if is_dense or r.way == "rows"] if is_joint else [reading]
        way = "local" if is_local or self.sharding.split == "none" else reading.way
        update = "local" if is_local else "dense" if is_dense else reading.way
        sent = [] if is_local else self.dense_update() if is_dense else sized.sparse_update(joint)
        ids = reading.bags.ids
        return FeatureTraffic(
            feature=" + ".join(reading.features),
            table=self.table,
            exchange=way if way == update else f"{way}, {update}",
            ids=ids,
            distinct_ids=math.ceil(sized.distinct_ids([reading])),
            read_bytes=total(sized.to_read(reading)),
            update_bytes=total(sent) * ids // max(1, _ids(joint)),
        )


@dataclasses.dataclass(frozen=True)
class FeatureTraffic:
    """What a device sends for one feature in a training step.

    Attributes:
        feature: Its name; of several that are read together, all names.
        table: The table.
        exchange: How it is read, and how its gradients go if it is another way.
        ids: Ids of a device, padding too.
        distinct_ids: How many of them are expected to be distinct.
        read_bytes: Bytes that a device sends to read it.
        update_bytes: Bytes that it sends for the table's update; where several features
            share an exchange each has its part, by ids.
    """

    feature: str
    table: str
    exchange: str
    ids: int
    distinct_ids: int
    read_bytes: int
    update_bytes: int


def _ids(readings: Sequence[Reading]) -> int:
    return sum(reading.bags.ids for reading in readings)


def _gathered_ids(bags: Bags, n: int) -> Collectives:
    return [_all_gather(bags.ids * _INDEX, n)] * bags.arrays


# What a device sends of `n_bytes`: of its own part where all are gathered, else of all it has.


def _all_gather(n_bytes: int, n: int) -> Collective:
    return Collective("all-gather", n_bytes * (n - 1))


def _reduce_scatter(n_bytes: int, n: int) -> Collective:
    return Collective("reduce-scatter", n_bytes * (n - 1) // n)


def _all_reduce(n_bytes: int, n: int) -> Collective:
    return Collective("all-reduce", 2 * n_bytes * (n - 1) // n)


def _all_to_all(n_bytes: int, n: int) -> Collective:
    return Collective("all-to-all", n_bytes * (n - 1) // n)


# --- the chunks of a row exchange

SINGLE_SHARES = (0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5)
BAG_SHARES = (0.125, 0.1875, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0, 1.25)
"""Capacities of a chunk, as shares of the ids of a device divided by the devices."""

_MIN_CAPACITY = 8
_MANY = 100.0  # From this even share on 1.5 times it is five standard deviations more.


def capacities(n_ids: int, n_devices: int, has_bags: bool = False) -> tuple[int, ...]:
    """Returns the capacities of a chunk, ascending.

    Args:
        n_ids: Ids of a device.
        n_devices: Devices that exchange.
        has_bags: Whether ids are in bags, where more of them are alike.
    """
    shares = BAG_SHARES if has_bags else SINGLE_SHARES
    even = n_ids / n_devices
    wanted = [even * share for share in shares]
    # Few ids fill a chunk by chance: past five standard deviations hardly ever.
    wanted.append(even * shares[-1] if even > _MANY else even + 5 * even**0.5)
    rounded = {-(-int(np.ceil(n)) // 8) * 8 for n in wanted}
    # A chunk never holds more than all of a device's ids.
    limit = max(1, n_ids)
    return tuple(sorted({min(max(c, _MIN_CAPACITY), limit) for c in rounded}))
