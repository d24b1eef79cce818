"""The bytes that a device sends to read and to update a table, and the choice of the least.

A bag can be read in three ways from a table that is split by rows over the batch's axis:

- `gathered`: every device gets the ids of all, and adds up what it holds of every bag.
  What a device sends grows with the number of devices.
- `rows`: a device asks each owner once for each distinct row and adds up its bags itself.
  What it sends is what its own batch needs, on any number of devices.
- `nodes`: `gathered` among the devices of a node, `rows` between nodes. A device gets the ids
  of its node, asks the devices of its own place in the other nodes for the rows that those
  hold, and adds up what they and itself hold of the node's bags. So a row goes from one node
  to another once, and not once for each device.

The gradients go the same way back. Where a table has fewer rows than a batch has ids, there
is a further way for them, `dense`: one sum over the devices of all rows' gradients.

Links between nodes are slower than those within, so a byte that leaves a node counts as
several (`BETWEEN_NODES`).

Everything here is known when a step is traced: shapes, and an expected share of distinct ids.
A plan lists the same collectives that the choices were made by.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from recsys.distributed.collectives import packed_width
from recsys.embedding.sharding import TableSharding

Way = Literal["gathered", "rows", "nodes"]
EXCHANGES = ("auto", "cheapest", "gathered", "rows", "nodes", "dense")
FEW_DEVICES = 8
"""Up to so many devices `auto` gathers: they are near each other, and it computes less."""
BETWEEN_NODES = 4
"""Bytes within a node that cost as much as one between nodes. Of a GPU's links those within
are 2 to 3 times as fast over PCIe, and 9 over NVLink (450 GB/s beside 400 Gb/s)."""

_INDEX = _FLOAT = 4  # Bytes.


@dataclasses.dataclass(frozen=True)
class ExchangeOptions:
    """How the rows of a table travel.

    Attributes:
        exchange: `auto`: `gathered` on few devices, else as `cheapest`, by bytes. The others
            force one way, where a table can go it: `dense` for its gradients alone.
        distinct_share: Expected distinct ids of a device over all of its ids (0..1]; 1 if
            nothing is known.
        payload: What rows and gradients travel as, `float32`, `bfloat16` or `int8`; sums
            over devices that XLA takes are float32.
        between_nodes: What they travel as from one node to another in the exchanges `rows` and
            `nodes`; None: as `payload`.
        rows: Rows of the table, without padding: no more ids are distinct.
    """

    exchange: str = "auto"
    distinct_share: float = 1.0
    payload: str = "float32"
    between_nodes: str | None = None
    rows: int = 2**31

    @property
    def payload_between(self) -> str:
        """What rows and gradients travel as from one node to another in an exchange of rows."""
        return self.payload if self.between_nodes is None else self.between_nodes


class ReadPlan(NamedTuple):
    """Sizes of one read of a table on a device, and how its bags travel.

    Attributes:
        bags: Bags of the device.
        ids: Ids of the device, padding included.
        dim: Width of a row [floats].
        n_id_arrays: Arrays with an entry per id: rows, and bags and weights if there are any.
        is_single: Whether each bag is one id of weight 1.
        learns_weights: Whether the loss is differentiated by the weights.
        n_bag_arrays: Arrays with an entry per bag: the common weight of its ids, if any.
        features: Names of the features.
        way: How the bags travel.
    """

    bags: int
    ids: int
    dim: int
    n_id_arrays: int = 1
    is_single: bool = False
    learns_weights: bool = False
    n_bag_arrays: int = 0
    features: tuple[str, ...] = ()
    way: Way = "gathered"


class Collective(NamedTuple):
    """One collective of a step.

    Attributes:
        op: Its name in HLO.
        sent_bytes: Bytes that a device sends in it.
        leaving_bytes: Those of them that leave its node, in the mean over its devices.
    """

    op: str
    sent_bytes: int
    leaving_bytes: int = 0


Collectives = list[Collective]


def total(collectives: Collectives) -> int:
    """Returns the bytes that a device sends in all of them."""
    return sum(collective.sent_bytes for collective in collectives)


def leaving(collectives: Collectives) -> int:
    """Returns the bytes that leave a node in all of them, for each of its devices."""
    return sum(collective.leaving_bytes for collective in collectives)


def cost(collectives: Collectives) -> int:
    """Returns what all of them cost, in bytes within a node."""
    return total(collectives) + (BETWEEN_NODES - 1) * leaving(collectives)


def way_of(sharding: TableSharding, plan: ReadPlan, options: ExchangeOptions, places: int) -> Way:
    """Returns how a device reads bags, and hands over their gradients; see `TableTraffic`."""
    if sharding.split != "rows" or not sharding.shares_axis:
        return "gathered"
    if plan.is_single:
        return "rows"
    if options.exchange in ("rows", "nodes"):
        return "nodes" if options.exchange == "nodes" and sharding.has_nodes else "rows"
    if options.exchange in ("gathered", "dense") or _keeps_to_few(sharding, options):
        return "gathered"
    ways: list[Way] = ["gathered", "rows"]
    if sharding.has_nodes:
        ways.append("nodes")
    costs = {}
    for way in ways:
        plan = plan._replace(way=way)
        traffic = TableTraffic("", sharding, options, places, (plan,))
        costs[way] = cost(traffic.to_read(plan)) + cost(traffic.sparse_update([plan]))
    return min(ways, key=costs.__getitem__)


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
        reads: All of its reads in a step.
        counts: How often each row comes up in the data `[rows]`, to expect distinct ids by;
            None to expect the share of the options.
    """

    table: str
    sharding: TableSharding
    options: ExchangeOptions
    places: int
    reads: tuple[ReadPlan, ...]
    counts: np.ndarray | None = dataclasses.field(default=None, compare=False)

    @property
    def is_dense(self) -> bool:
        """Whether the gradients are summed as one array of the table's size."""
        sharding, exchange = self.sharding, self.options.exchange
        is_whole = sharding.is_local or sharding.split == "columns"
        if is_whole or exchange in ("gathered", "rows", "nodes"):
            return False
        if exchange == "dense":
            return True
        ids = sharding.n_batch_parts * _ids(self.reads)
        if _keeps_to_few(sharding, self.options) or self.places > ids:
            return False
        return cost(self.dense_update()) < cost(self.sparse_update(self.reads))

    def to_read(self, plan: ReadPlan) -> Collectives:
        """Returns what one plan sends, and the learning of its weights."""
        sharding = self.sharding
        if sharding.is_local:
            return []
        if sharding.split == "none":
            return self._learned_on_a_grid(plan)
        if plan.way == "rows":
            return self._row_exchange([plan], is_read=True)
        if plan.way == "nodes":
            rows = self._row_exchange([plan], is_read=True)
            return [*self._pooled(plan, self._in_node), *rows]
        if sharding.shares_axis:
            return self._pooled(plan, self._table_devices)
        among = self._table_devices
        pooled, learned = plan.bags * plan.dim * _FLOAT, self._learned_on_a_grid(plan)
        if sharding.split == "rows":
            back = [_all_reduce(pooled, among)] if learned else []
            return [_all_reduce(pooled, among), *back, *learned]
        back = [_reduce_scatter(pooled, among)] if learned else []
        return [_all_gather(pooled // among.n, among), *back, *learned]

    def _learned_on_a_grid(self, plan: ReadPlan) -> Collectives:
        """Returns the sums of weights' gradients over the devices that have the same batch."""
        mesh, n = self.sharding.mesh, self.sharding.n_batch_parts
        if not plan.learns_weights or mesh is None or mesh.size == n:
            return []
        among = _Among(mesh.size // n, self.sharding.devices_in_node(mesh.axis_names[-1]))
        # Once for the weights of ids and once for those that the caller has.
        return [_all_reduce(plan.ids * _FLOAT, among)] * 2

    def _pooled(self, plan: ReadPlan, among: _Among) -> Collectives:
        """Returns what a plan sends if devices gather their ids and sum each other's bags."""
        n, is_by_rows = among.n, self.sharding.split == "rows"
        width = plan.dim if is_by_rows else plan.dim // n
        pooled = n * plan.bags * self._row_bytes(width)
        is_sum = is_by_rows and self.options.payload == "float32"
        out = _reduce_scatter(pooled, among) if is_sum else _all_to_all(pooled, among)
        # The gradients of the bags, which weights need, are those that the update gathers.
        learned = [_reduce_scatter(n * plan.ids * _FLOAT, among)]
        return [*_gathered_ids(plan, among), out, *(learned if plan.learns_weights else [])]

    def to_update(self) -> Collectives:
        """Returns what the update of the table sends."""
        if self.sharding.is_local:
            return []
        return self.dense_update() if self.is_dense else self.sparse_update(self.reads)

    def expected(self, counts: np.ndarray | None = None) -> Collectives:
        """Returns all that a step sends for the table.

        Args:
            counts: As in `by_feature`.
        """
        sized = dataclasses.replace(self, counts=counts)
        reads = [c for plan in self.reads for c in sized.to_read(plan)]
        if self.sharding.is_local or self.is_dense:
            return [*reads, *self.to_update()]
        return [*reads, *sized.sparse_update(self.reads)]

    def dense_update(self) -> Collectives:
        """Returns what an update by one sum of all rows' gradients sends."""
        sharding, among = self.sharding, self._batch_devices
        row = (self.reads[0].dim + 1) * _FLOAT
        if sharding.split == "rows" and sharding.shares_axis:
            return [_reduce_scatter(self.places * row, among)]
        return [_all_reduce(self.places // sharding.n_shards * row, among)]

    def sparse_update(self, reads: Sequence[ReadPlan]) -> Collectives:
        """Returns what an update by the gradients of some reads sends, row by row."""
        sharding = self.sharding
        is_split, sent = sharding.split == "columns", []
        for plan in reads:
            among = self._batch_devices
            if plan.way == "rows":
                continue
            if plan.way == "nodes":
                among = self._in_node
            # Where a read gathered the ids already, XLA keeps them.
            sent += [] if self._reads_gather_ids else _gathered_ids(plan, among)
            width = plan.dim // sharding.n_shards if is_split else plan.dim
            if is_split and sharding.shares_axis:
                sent.append(_all_to_all(among.n * plan.bags * self._row_bytes(width), among))
            else:
                sent.append(_all_gather(plan.bags * self._row_bytes(width), among))
        return [*sent, *self._row_exchange(reads)]

    @property
    def _reads_gather_ids(self) -> bool:
        return self.sharding.split != "none" and self.sharding.shares_axis

    @property
    def _table_devices(self) -> _Among:
        sharding = self.sharding
        return _Among(sharding.n_shards, sharding.devices_in_node(sharding.table_axis))

    @property
    def _batch_devices(self) -> _Among:
        sharding = self.sharding
        return _Among(sharding.n_batch_parts, sharding.devices_in_node(sharding.batch_axis))

    @property
    def _in_node(self) -> _Among:
        n = self.sharding.node.size
        return _Among(n, n)

    def _row_exchange(self, reads: Sequence[ReadPlan], is_read: bool = False) -> Collectives:
        """Returns one way of the exchanges, of rows or of their gradients, without more rounds."""
        sent: Collectives = []
        n_exchanges = 0
        # All that exchange, and those of them that are in one node.
        among: dict[Way, tuple[_Among, _Among]] = {
            "rows": (self._table_devices, self._in_node),
            "nodes": (_Among(self.sharding.peers.size, 1), _Among(1, 1)),
        }
        exchanged = {way: [r for r in reads if r.way == way] for way in among}
        for way, of_way in exchanged.items():
            if _ids(of_way):
                (every, near), capacity = among[way], self.expected_capacity(of_way)
                dim, between = of_way[0].dim, self.options.payload_between
                own = self._row_bytes(dim)
                row = own if near == every else self._row_bytes(dim, between)
                # Rows come when they are asked for; gradients go with their places.
                parts = [_INDEX, row] if is_read else [_INDEX + row]
                sent += [_all_to_all(every.n * capacity * part, every) for part in parts]
                if row != own and near.n > 1:
                    sent.append(_all_to_all(near.n * capacity * own, near))
                n_exchanges += 1
        if not sent:
            return []
        # How far all get, and how full the fullest chunk of each exchange is.
        agreed = self.sharding.n_shards + n_exchanges
        return [_all_reduce(agreed * _INDEX, self._table_devices), *sent]

    def _row_bytes(self, width: int, payload: str | None = None) -> int:
        return packed_width(width, payload or self.options.payload) * _FLOAT

    def distinct_ids(self, reads: Sequence[ReadPlan], devices: int = 1) -> float:
        """Returns how many ids of some reads are expected to be distinct, on some devices."""
        n_ids = _ids(reads)
        if self.counts is None or not self.counts.sum():
            share = self.options.distinct_share
            # Heaps' law: of n ids n^β are distinct, by the share of one device's.
            heaps = 1 + math.log(share) / math.log(n_ids) if n_ids > 1 else 1.0
            distinct = n_ids * share * devices ** max(0.0, heaps)
            return min(distinct, self.options.rows, self.places)
        # Ids drawn as often as in the data: a row is missed by all with e^-(its mean).
        mean = devices * n_ids * self.counts / self.counts.sum()
        return float(-np.expm1(-mean).sum())

    def expected_capacity(self, reads: Sequence[ReadPlan]) -> int:
        """Returns the capacity that an exchange takes if ids are as distinct as expected.

        Args:
            reads: ReadPlans of one way, which exchange together.
        """
        n_devices, n_ids = self.sharding.n_shards, _ids(reads)
        # A device asks for its own rows, or for its part of what all of its node ask for.
        together = self.sharding.node.size if reads[0].way == "nodes" else 1
        n = n_devices // together
        even = self.distinct_ids(reads, together) / n_devices
        # The fullest of all chunks: of so many draws one lies √(2 ln chunks) deviations above.
        spread = math.sqrt(2 * math.log(n_devices * n) * even)
        fullest = min(even + spread, together * n_ids, self.places / n_devices)
        has_bags = not all(plan.is_single for plan in reads)
        sizes = capacities(n_ids, n, has_bags)
        return next((size for size in sizes if size >= fullest), sizes[-1])

    def by_feature(self, counts: np.ndarray | None = None) -> list[FeatureTraffic]:
        """Returns what a device sends for each plan.

        Args:
            counts: How often each row comes up in the data `[rows]`, if that is known. They
                change what is expected to be sent, not how.
        """
        sized = dataclasses.replace(self, counts=counts)
        return [self._feature(plan, sized) for plan in self.reads]

    def _feature(self, plan: ReadPlan, sized: TableTraffic) -> FeatureTraffic:
        is_dense, is_local = self.is_dense, self.sharding.is_local
        joint = [plan]
        if is_dense or plan.way != "gathered":
            joint = [r for r in self.reads if is_dense or r.way == plan.way]
        way = "local" if is_local or self.sharding.split == "none" else plan.way
        update = "local" if is_local else "dense" if is_dense else plan.way
        sent = [] if is_local else self.dense_update() if is_dense else sized.sparse_update(joint)
        ids, read = plan.ids, sized.to_read(plan)
        n_joint = max(1, _ids(joint))
        return FeatureTraffic(
            feature=" + ".join(plan.features),
            table=self.table,
            exchange=way if way == update else f"{way}, {update}",
            ids=ids,
            distinct_ids=math.ceil(sized.distinct_ids([plan])),
            read_bytes=total(read),
            update_bytes=total(sent) * ids // n_joint,
            leaving_bytes=leaving(read) + leaving(sent) * ids // n_joint,
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
        leaving_bytes: Bytes of both that leave its node, in the mean over its devices.
    """

    feature: str
    table: str
    exchange: str
    ids: int
    distinct_ids: int
    read_bytes: int
    update_bytes: int
    leaving_bytes: int


def _ids(reads: Sequence[ReadPlan]) -> int:
    return sum(plan.ids for plan in reads)


class _Among(NamedTuple):
    """The devices of a collective.

    Attributes:
        n: How many they are.
        in_node: How many of them are in one node.
    """

    n: int
    in_node: int


def _gathered_ids(plan: ReadPlan, among: _Among) -> Collectives:
    of_ids = [_all_gather(plan.ids * _INDEX, among)] * plan.n_id_arrays
    return of_ids + [_all_gather(plan.bags * _FLOAT, among)] * plan.n_bag_arrays


# What a device sends of `n_bytes`: of its own part where all are gathered, else of all it has.


def _all_gather(n_bytes: int, among: _Among) -> Collective:
    return _in_ring("all-gather", n_bytes * (among.n - 1), among)


def _reduce_scatter(n_bytes: int, among: _Among) -> Collective:
    return _in_ring("reduce-scatter", n_bytes * (among.n - 1) // among.n, among)


def _all_reduce(n_bytes: int, among: _Among) -> Collective:
    return _in_ring("all-reduce", 2 * n_bytes * (among.n - 1) // among.n, among)


def _in_ring(op: str, sent: int, among: _Among) -> Collective:
    return Collective(op, sent, leaving_of(op, sent, *among))


def _all_to_all(n_bytes: int, among: _Among) -> Collective:
    sent = n_bytes * (among.n - 1) // among.n
    return Collective("all-to-all", sent, leaving_of("all-to-all", sent, *among))


def leaving_of(op: str, sent_bytes: int, n: int, in_node: int) -> int:
    """Returns how many of the bytes that a device sends in a collective leave its node.

    An all-to-all goes to each of the others alike. The others go around a ring, where each
    device sends to the next: one of a node to another node.

    Args:
        op: Name of the collective in HLO.
        sent_bytes: Bytes that a device sends in it.
        n: Devices that take part.
        in_node: How many of them are in one node.
    """
    if in_node >= n:
        return 0
    if op == "all-to-all":
        return sent_bytes * (n - in_node) // (n - 1)
    return sent_bytes // in_node


# --- the chunks of a row exchange

SINGLE_SHARES = (0.375, 0.5, 0.75, 1.0, 1.5)
BAG_SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 1.25)
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
