"""The bytes that a device sends to read and update a table, and the choice of an exchange.

Bags can be read in three ways from a table that is split by rows over the batch's axis:

- `gathered`: every device gets the ids of all devices, and pools its own rows of every bag. The
  bytes that a device sends grow with the number of devices.
- `rows`: a device requests each unique row once from its owner, and pools its own bags. It sends
  what its own batch needs, on any number of devices.
- `nodes`: `gathered` among the devices of a node, `rows` between nodes. A device gets the ids of
  its node, requests rows from the devices with its own index in other nodes, and pools their
  rows and its own for the node's bags. So a row travels between two nodes once, not once per
  device.

Gradients travel the same way back. If a table has fewer rows than a batch has ids, there is
another way for gradients, `dense`: one sum over the devices of all rows' gradients.

Links between nodes are slower than links within, so a byte that leaves a node counts as several
(`BETWEEN_NODES`).

Everything here is known when a step is traced: shapes, and an expected share of distinct ids. A
plan lists the same collectives that the choice was based on.
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
"""Largest number of devices on which `auto` gathers: links are fast, and it computes less."""
BETWEEN_NODES = 4
"""Cost of a byte between nodes, relative to one within a node. A GPU's links within a node are
2 to 3 times as fast over PCIe, and 9 times over NVLink (450 GB/s against 400 Gb/s)."""

_INDEX = _FLOAT = 4  # Bytes.


@dataclasses.dataclass(frozen=True)
class ExchangeOptions:
    """How the rows of a table travel between devices.

    Attributes:
        exchange: `auto` is `gathered` on few devices, else `cheapest`, the fewest bytes. The
            others force one way, if the table's sharding allows it; `dense` applies only to
            gradients.
        distinct_share: Expected share of distinct ids among a device's ids (0..1]; 1 if
            unknown.
        payload: Dtype in which rows and gradients travel, `float32`, `bfloat16` or `int8`; sums
            by XLA collectives are float32.
        between_nodes: Dtype between nodes for the exchanges `rows` and `nodes`; None for
            `payload`.
        rows: Logical rows of the table, the largest number of distinct ids.
    """

    exchange: str = "auto"
    distinct_share: float = 1.0
    payload: str = "float32"
    between_nodes: str | None = None
    rows: int = 2**31

    @property
    def payload_between(self) -> str:
        """Dtype in which rows and gradients travel between nodes in an exchange of rows."""
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
        leaving_bytes: Bytes of them that leave the node, averaged over its devices.
    """

    op: str
    sent_bytes: int
    leaving_bytes: int = 0


Collectives = list[Collective]


def total(collectives: Collectives) -> int:
    """Returns the bytes that a device sends in all `collectives`."""
    return sum(collective.sent_bytes for collective in collectives)


def leaving(collectives: Collectives) -> int:
    """Returns the bytes per device that leave a node in all `collectives`."""
    return sum(collective.leaving_bytes for collective in collectives)


def cost(collectives: Collectives) -> int:
    """Returns the cost of all `collectives`, in bytes within a node."""
    return total(collectives) + (BETWEEN_NODES - 1) * leaving(collectives)


def way_of(
    sharding: TableSharding, plan: ReadPlan, options: ExchangeOptions, n_physical: int
) -> Way:
    """Returns how bags and their gradients travel; see the module's docstring."""
    if sharding.split != "rows" or not sharding.shares_axis:
        return "gathered"
    if plan.is_single:
        return "rows"
    if options.exchange in ("rows", "nodes"):
        return "nodes" if options.exchange == "nodes" and sharding.has_nodes else "rows"
    if options.exchange in ("gathered", "dense") or _is_gathered_by_auto(sharding, options):
        return "gathered"
    ways: list[Way] = ["gathered", "rows"]
    if sharding.has_nodes:
        ways.append("nodes")
    costs = {}
    for way in ways:
        plan = plan._replace(way=way)
        traffic = TableTraffic("", sharding, options, n_physical, (plan,))
        costs[way] = cost(traffic.to_read(plan)) + cost(traffic.sparse_update([plan]))
    return min(ways, key=costs.__getitem__)


def _is_gathered_by_auto(sharding: TableSharding, options: ExchangeOptions) -> bool:
    return options.exchange == "auto" and sharding.n_batch_parts <= FEW_DEVICES


@dataclasses.dataclass(frozen=True)
class TableTraffic:
    """The collectives by which a step reads and updates one table.

    Attributes:
        table: Name of the table.
        sharding: Its sharding.
        options: How its rows may travel.
        n_physical: Its physical rows.
        reads: All of its reads in a step.
        counts: Occurrences of each row in the data `[rows]`, to estimate the number of distinct
            ids; None to use `options.distinct_share`.
    """

    table: str
    sharding: TableSharding
    options: ExchangeOptions
    n_physical: int
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
        if _is_gathered_by_auto(sharding, self.options) or self.n_physical > ids:
            return False
        return cost(self.dense_update()) < cost(self.sparse_update(self.reads))

    def to_read(self, plan: ReadPlan) -> Collectives:
        """Returns the collectives of one read, and of the gradients of its weights."""
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
        """Returns the sums of weights' gradients over the devices with the same batch."""
        mesh, n = self.sharding.mesh, self.sharding.n_batch_parts
        if not plan.learns_weights or mesh is None or mesh.size == n:
            return []
        among = _Devices(mesh.size // n, self.sharding.devices_in_node(mesh.axis_names[-1]))
        # Once for the weights of ids and once for the caller's.
        return [_all_reduce(plan.ids * _FLOAT, among)] * 2

    def _pooled(self, plan: ReadPlan, among: _Devices) -> Collectives:
        """Returns the collectives of a read by which devices gather ids and sum partial bags."""
        n, is_by_rows = among.n, self.sharding.split == "rows"
        width = plan.dim if is_by_rows else plan.dim // n
        pooled = n * plan.bags * self._row_bytes(width)
        is_sum = is_by_rows and self.options.payload == "float32"
        out = _reduce_scatter(pooled, among) if is_sum else _all_to_all(pooled, among)
        # Weights need the gradients of the bags, which the update gathers anyway.
        learned = [_reduce_scatter(n * plan.ids * _FLOAT, among)]
        return [*_gathered_ids(plan, among), out, *(learned if plan.learns_weights else [])]

    def to_update(self) -> Collectives:
        """Returns the collectives of the table's update."""
        return self._update(self, self.reads)

    def _update(self, sized: TableTraffic, reads: Sequence[ReadPlan]) -> Collectives:
        """Returns the collectives of an update, with the counts of `sized` and the way of self."""
        if self.sharding.is_local:
            return []
        return self.dense_update() if self.is_dense else sized.sparse_update(reads)

    def expected(self, counts: np.ndarray | None = None) -> Collectives:
        """Returns all collectives of a step for the table, with `counts` as in `by_feature`."""
        sized = dataclasses.replace(self, counts=counts)
        reads = [c for plan in self.reads for c in sized.to_read(plan)]
        return [*reads, *self._update(sized, self.reads)]

    def dense_update(self) -> Collectives:
        """Returns the collectives of an update by one sum of all rows' gradients."""
        sharding, among = self.sharding, self._batch_devices
        row = (self.reads[0].dim + 1) * _FLOAT
        if sharding.split == "rows" and sharding.shares_axis:
            return [_reduce_scatter(self.n_physical * row, among)]
        return [_all_reduce(self.n_physical // sharding.n_shards * row, among)]

    def sparse_update(self, reads: Sequence[ReadPlan]) -> Collectives:
        """Returns the collectives of an update by rows, for some reads."""
        sharding = self.sharding
        is_split, sent = sharding.split == "columns", []
        for plan in reads:
            among = self._batch_devices
            if plan.way == "rows":
                continue
            if plan.way == "nodes":
                among = self._in_node
            # XLA reuses ids that a read gathered.
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
    def _table_devices(self) -> _Devices:
        sharding = self.sharding
        return _Devices(sharding.n_shards, sharding.devices_in_node(sharding.table_axis))

    @property
    def _batch_devices(self) -> _Devices:
        sharding = self.sharding
        return _Devices(sharding.n_batch_parts, sharding.devices_in_node(sharding.batch_axis))

    @property
    def _in_node(self) -> _Devices:
        n = self.sharding.node.size
        return _Devices(n, n)

    def _row_exchange(self, reads: Sequence[ReadPlan], is_read: bool = False) -> Collectives:
        """Returns the collectives of one round of the exchanges, of rows or of gradients."""
        sent: Collectives = []
        n_exchanges = 0
        # The devices that exchange, and those among them in one node.
        among: dict[Way, tuple[_Devices, _Devices]] = {
            "rows": (self._table_devices, self._in_node),
            "nodes": (_Devices(self.sharding.peers.size, 1), _Devices(1, 1)),
        }
        exchanged = {way: [r for r in reads if r.way == way] for way in among}
        for way, of_way in exchanged.items():
            if _ids(of_way):
                (every, near), capacity = among[way], self.expected_capacity(of_way)
                dim, between = of_way[0].dim, self.options.payload_between
                own = self._row_bytes(dim)
                row = own if near == every else self._row_bytes(dim, between)
                # Rows are sent after a request; gradients together with their row indices.
                parts = [_INDEX, row] if is_read else [_INDEX + row]
                sent += [_all_to_all(every.n * capacity * part, every) for part in parts]
                if row != own and near.n > 1:
                    sent.append(_all_to_all(near.n * capacity * own, near))
                n_exchanges += 1
        if not sent:
            return []
        # Reached rows of each shard, and the fullest chunk of each exchange.
        agreed = self.sharding.n_shards + n_exchanges
        return [_all_reduce(agreed * _INDEX, self._table_devices), *sent]

    def _row_bytes(self, width: int, payload: str | None = None) -> int:
        return packed_width(width, payload or self.options.payload) * _FLOAT

    def distinct_ids(self, reads: Sequence[ReadPlan], devices: int = 1) -> float:
        """Returns the expected number of distinct ids of some reads, on `devices` devices."""
        n_ids = _ids(reads)
        if self.counts is None or not self.counts.sum():
            share = self.options.distinct_share
            # Heaps' law: n^β of n ids are distinct; β follows from the share of one device.
            heaps = 1 + math.log(share) / math.log(n_ids) if n_ids > 1 else 1.0
            distinct = n_ids * share * devices ** max(0.0, heaps)
            return min(distinct, self.options.rows, self.n_physical)
        # Ids are drawn as often as in the data: no id hits a row with probability e^-mean.
        mean = devices * n_ids * self.counts / self.counts.sum()
        return float(-np.expm1(-mean).sum())

    def expected_capacity(self, reads: Sequence[ReadPlan]) -> int:
        """Returns the expected capacity of the exchange of `reads`, which travel one way."""
        n_devices, n_ids = self.sharding.n_shards, _ids(reads)
        # A device requests its own rows, or its part of the rows that its node needs.
        together = self.sharding.node.size if reads[0].way == "nodes" else 1
        n = n_devices // together
        even = self.distinct_ids(reads, together) / n_devices
        # The fullest of n chunks is about √(2 ln n) standard deviations above the mean.
        spread = math.sqrt(2 * math.log(n_devices * n) * even)
        fullest = min(even + spread, together * n_ids, self.n_physical / n_devices)
        has_bags = not all(plan.is_single for plan in reads)
        sizes = capacities(n_ids, n, has_bags)
        return next((size for size in sizes if size >= fullest), sizes[-1])

    def by_feature(self, counts: np.ndarray | None = None) -> list[FeatureTraffic]:
        """Returns the traffic of a device for each read.

        Args:
            counts: Occurrences of each row in the data `[rows]`, or None. They change the
                expected bytes, not the way of the exchange.
        """
        sized, features = dataclasses.replace(self, counts=counts), []
        is_dense, is_local = self.is_dense, self.sharding.is_local
        for plan in self.reads:
            joint = [plan]
            if is_dense or plan.way != "gathered":
                joint = [r for r in self.reads if is_dense or r.way == plan.way]
            way = "local" if is_local or self.sharding.split == "none" else plan.way
            update = "local" if is_local else "dense" if is_dense else plan.way
            read, sent = sized.to_read(plan), self._update(sized, joint)
            n_joint = max(1, _ids(joint))
            features.append(
                FeatureTraffic(
                    feature=" + ".join(plan.features),
                    table=self.table,
                    exchange=way if way == update else f"{way}, {update}",
                    ids=plan.ids,
                    distinct_ids=math.ceil(sized.distinct_ids([plan])),
                    read_bytes=total(read),
                    update_bytes=total(sent) * plan.ids // n_joint,
                    leaving_bytes=leaving(read) + leaving(sent) * plan.ids // n_joint,
                )
            )
        return features


@dataclasses.dataclass(frozen=True)
class FeatureTraffic:
    """Traffic of a device for one feature in a training step.

    Attributes:
        feature: Name of the feature; all names if several are read together.
        table: Name of the table.
        exchange: How it is read, and how its gradients travel if that differs.
        ids: Ids of a device, padding included.
        distinct_ids: Expected number of distinct ids.
        read_bytes: Bytes that a device sends to read it.
        update_bytes: Bytes that a device sends for the table's update; features that share an
            exchange have their part, by ids.
        leaving_bytes: Bytes of both that leave the node, averaged over its devices.
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


class _Devices(NamedTuple):
    """The devices of a collective.

    Attributes:
        n: Number of devices.
        in_node: Number of them in one node.
    """

    n: int
    in_node: int


def _gathered_ids(plan: ReadPlan, among: _Devices) -> Collectives:
    of_ids = [_all_gather(plan.ids * _INDEX, among)] * plan.n_id_arrays
    return of_ids + [_all_gather(plan.bags * _FLOAT, among)] * plan.n_bag_arrays


# `n_bytes` is the size of a device's part for all-gather, else of its whole array.


def _all_gather(n_bytes: int, among: _Devices) -> Collective:
    return _collective("all-gather", n_bytes * (among.n - 1), among)


def _reduce_scatter(n_bytes: int, among: _Devices) -> Collective:
    return _collective("reduce-scatter", n_bytes * (among.n - 1) // among.n, among)


def _all_reduce(n_bytes: int, among: _Devices) -> Collective:
    return _collective("all-reduce", 2 * n_bytes * (among.n - 1) // among.n, among)


def _all_to_all(n_bytes: int, among: _Devices) -> Collective:
    return _collective("all-to-all", n_bytes * (among.n - 1) // among.n, among)


def _collective(op: str, sent: int, among: _Devices) -> Collective:
    return Collective(op, sent, leaving_of(op, sent, *among))


def leaving_of(op: str, sent_bytes: int, n: int, in_node: int) -> int:
    """Returns how many of the bytes that a device sends in a collective leave its node.

    An all-to-all sends equally to each other device. Other collectives run around a ring, where
    one device per node sends to another node.

    Args:
        op: Name of the collective in HLO.
        sent_bytes: Bytes that a device sends in it.
        n: Number of devices.
        in_node: Number of them in one node.
    """
    if in_node >= n:
        return 0
    if op == "all-to-all":
        return sent_bytes * (n - in_node) // (n - 1)
    return sent_bytes // in_node


# --- chunks of a row exchange

SINGLE_SHARES = (0.375, 0.5, 0.75, 1.0, 1.5)
BAG_SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 1.25)
"""Capacities of a chunk, relative to a device's ids divided by the number of devices."""

_MIN_CAPACITY = 8
_MANY = 100.0  # From this mean on, 1.5 times the mean is five standard deviations above it.


def capacities(n_ids: int, n_devices: int, has_bags: bool = False) -> tuple[int, ...]:
    """Returns the capacities of a chunk, ascending.

    Args:
        n_ids: Ids of a device.
        n_devices: Number of devices that exchange.
        has_bags: Whether ids are in bags, which have more duplicates.
    """
    shares = BAG_SHARES if has_bags else SINGLE_SHARES
    even = n_ids / n_devices
    wanted = [even * share for share in shares]
    # With few ids the fullest chunk varies: five standard deviations are hardly ever exceeded.
    wanted.append(even * shares[-1] if even > _MANY else even + 5 * even**0.5)
    rounded = {-(-int(np.ceil(n)) // 8) * 8 for n in wanted}
    # A chunk never holds more than all of a device's ids.
    limit = max(1, n_ids)
    return tuple(sorted({min(max(c, _MIN_CAPACITY), limit) for c in rounded}))
