"""The planned traffic equals the compiled step's, and the cheapest exchange is chosen."""

import json
import subprocess
import sys

import numpy as np
import pytest
import step_traffic
from jax.sharding import AbstractMesh

from recsys.embedding.sharding import TableSharding
from recsys.embedding.step_check import first_group
from recsys.embedding.traffic import (
    ExchangeOptions,
    ReadPlan,
    TableTraffic,
    leaving,
    total,
    way_of,
)

SMALL = 400
"""Sums of counts, losses and dense weights, which no table sends [bytes]."""


def without(planned, collectives):
    """Returns what is planned beside collectives within 5 % of it; None if one isn't planned."""
    left = list(planned)
    for op, *sizes in collectives:
        near = [other for other in left if other[0] == op and is_near(other[1:], sizes)]
        if not near:
            return None
        left.remove(near[0])
    return left


def is_near(planned, sizes):
    """Returns whether what is sent, and what of it leaves a node, is within 5 %."""
    pairs = zip(planned, sizes, strict=True)
    return all(abs(plan - size) <= max(8, 0.05 * size) for plan, size in pairs)


def is_planned(planned, choices):
    """Returns whether one branch of each choice is planned, and nothing else is."""
    if not choices:
        return not planned
    rests = [without(planned, branch) for branch in choices[0]]
    return any(rest is not None and is_planned(rest, choices[1:]) for rest in rests)


def of_process(mesh, *options):
    script = step_traffic.__file__
    process = subprocess.run(
        [sys.executable, script, mesh, *options], capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("mesh", "exchange", "dtype", "node"),
    [
        ("8", "auto", "float32", ""),
        ("8", "nodes", "float32/int8", "4"),
        pytest.param("8", "cheapest", "bfloat16", "", marks=pytest.mark.thorough),
        pytest.param("8", "cheapest", "int8", "4", marks=pytest.mark.thorough),
        pytest.param("16", "nodes", "float32", "8", marks=pytest.mark.thorough),
        pytest.param("16", "gathered", "float32", "", marks=pytest.mark.thorough),
    ],
)
def test_a_device_sends_what_is_planned(mesh, exchange, dtype, node):
    measure = of_process if mesh == "16" else step_traffic.traffic
    step = measure(mesh, exchange, dtype, node)
    always = [c for c in step["always"] if c[0] != "all-reduce" or c[1] > SMALL]
    small = [c for c in step["planned"] if c[0] == "all-reduce" and c[1] <= SMALL]
    assert without(step["always"], small) is not None
    planned = without([c for c in step["planned"] if c not in small], always)
    assert planned is not None
    assert is_planned(planned, step["choices"])


@pytest.mark.parametrize("mesh", ["2×2", pytest.param("1×4", marks=pytest.mark.thorough)])
def test_a_device_of_a_grid_sends_what_is_planned_for_learned_weights_too(mesh):
    step = step_traffic.traffic(mesh, "auto", "float32", "2", "learned wide small")
    dense = [c for c in step["always"] if c[0] == "all-reduce" and c[1] <= SMALL]
    compiled = [c for c in step["always"] if c not in dense]
    for op in ("all-gather", "all-reduce", "reduce-scatter"):  # XLA joins sums that are alike.
        sent = [[c[1:] for c in of_step if c[0] == op] for of_step in (step["planned"], compiled)]
        assert is_near(*(np.sum(sizes, axis=0) for sizes in sent))
    assert not step["choices"]


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ("replica_groups={{0,1},{2,3}}", [0, 1]),
        ("replica_groups={{0,2},{1,3}}, use_global_device_ids=true", [0, 2]),
        ("replica_groups=[2,4]<=[8]", [0, 1, 2, 3]),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", [0, 4]),
        ("replica_groups=[1,8]<=[8]", list(range(8))),
        ("replica_groups=mesh['data'=2,'model'=3]", list(range(6))),
        ("replica_groups=mesh['data'=2,'model'=3] {'data'}", [0, 3]),
        ("replica_groups=mesh['data'=2,'model'=3] {'model'}", [0, 1, 2]),
        ("to_apply=add", [0]),
    ],
)
def test_groups_of_a_collective_are_read_in_every_form(groups, first):
    assert first_group(f"channel_id=1, {groups}, dimensions={{0}}") == first


# --- choices

HISTORY = ReadPlan(bags=512, ids=512 * 50, dim=64, n_id_arrays=2)
GENRES = ReadPlan(bags=512, ids=512 * 4, dim=64, n_id_arrays=2)


def on_devices(n, split="rows", node=None):
    axis = None if split == "none" else "devices"
    return TableSharding(split, AbstractMesh((n,), ("devices",)), "devices", axis, node)


@pytest.mark.parametrize(
    ("devices", "bags", "exchange", "distinct_share", "way"),
    [
        (8, HISTORY, "auto", 0.1, "gathered"),
        (8, GENRES, "auto", 0.1, "gathered"),
        (8, GENRES, "cheapest", 0.5, "rows"),
        (2, HISTORY, "cheapest", 0.4, "gathered"),
        (16, HISTORY, "auto", 1.0, "gathered"),
        (16, HISTORY, "auto", 0.4, "rows"),
        (64, HISTORY, "auto", 1.0, "rows"),
        (64, HISTORY, "gathered", 0.1, "gathered"),
        (2, HISTORY, "rows", 1.0, "rows"),
        (2, ReadPlan(512, 512, 64, is_single=True), "auto", 1.0, "rows"),
    ],
)
def test_bags_go_the_way_that_sends_least(devices, bags, exchange, distinct_share, way):
    options = ExchangeOptions(exchange, distinct_share)
    assert way_of(on_devices(devices), bags, options, 10**8) == way


@pytest.mark.parametrize("split", ["columns", "none"])
def test_only_a_table_that_is_split_by_rows_sends_rows(split):
    assert way_of(on_devices(64, split), HISTORY, ExchangeOptions("rows"), 10**8) == "gathered"
    grid = TableSharding("rows", AbstractMesh((8, 8), ("data", "model")), "data", "model")
    assert way_of(grid, HISTORY, ExchangeOptions("rows"), 10**8) == "gathered"


@pytest.mark.parametrize(
    ("devices", "rows", "exchange", "is_dense"),
    [
        # Gathered: 15 · (25,600 · 8 + 512 · 256) bytes; dense: 2 · 15/16 · rows · 65 · 4.
        (16, 10_000, "auto", True),
        (16, 10_500, "auto", False),
        (8, 100, "auto", False),
        (8, 100, "cheapest", True),
        (64, 100, "gathered", False),
        (2, 10**6, "dense", True),
    ],
)
def test_gradients_of_a_small_table_are_summed_whole(devices, rows, exchange, is_dense):
    sharding, options = on_devices(devices, "none"), ExchangeOptions(exchange)
    traffic = TableTraffic("t", sharding, options, rows, (HISTORY._replace(way="gathered"),))
    assert traffic.is_dense == is_dense


def test_what_rows_send_does_not_grow_with_the_devices():
    def sent(devices):
        options, plan = ExchangeOptions(distinct_share=0.35), HISTORY._replace(way="rows")
        traffic = TableTraffic("t", on_devices(devices), options, 10**8, (plan,))
        return total(traffic.to_read(plan)) + total(traffic.to_update())

    # Half of the ids' room in chunks: places and rows of 64 floats, both ways.
    assert sent(64) == pytest.approx(2 * 12_800 * 65 * 4 * 63 / 64, rel=0.01)
    assert sent(64) < 1.3 * sent(8)
    assert sent(256) < 1.5 * sent(8)


# --- nodes


@pytest.mark.parametrize(
    ("nodes", "bags", "exchange", "way"),
    [
        (8, HISTORY, "auto", "nodes"),
        # Gathered data leave a node once for all of its devices.
        (2, HISTORY, "auto", "gathered"),
        (64, HISTORY, "auto", "nodes"),
        (8, ReadPlan(512, 512, 64, is_single=True), "auto", "rows"),
        (1, HISTORY, "nodes", "rows"),
        (2, ReadPlan(512, 512, 64, is_single=True), "nodes", "rows"),
    ],
)
def test_bags_keep_within_nodes_where_that_costs_least(nodes, bags, exchange, way):
    options = ExchangeOptions(exchange, 0.5)
    assert way_of(on_devices(8 * nodes, node=8), bags, options, 10**8) == way


def test_the_bytes_that_leave_a_node_are_those_that_cross_it():
    """Sums over what each device sends to each other one."""
    n, node = 16, 4
    sharding, options = on_devices(n, node=node), ExchangeOptions(distinct_share=0.5)
    of_way = {}
    for way in ("gathered", "rows", "nodes"):
        plan = HISTORY._replace(way=way)
        traffic = TableTraffic("t", sharding, options, 10**8, (plan,))
        of_way[way] = {c.op: c for c in traffic.to_read(plan)}
    ids, pooled = HISTORY.ids * 4, HISTORY.bags * 64 * 4
    gathered = of_way["gathered"]
    # Around a ring of all devices one link of each node leaves it: of four devices' bytes one's.
    assert gathered["all-gather"].leaving_bytes == 15 * ids // 4
    assert gathered["reduce-scatter"].leaving_bytes == 15 * pooled // 4
    # All-to-all: 12 of 15 chunks that leave the device leave its node.
    rows = of_way["rows"]["all-to-all"]
    assert rows.leaving_bytes == pytest.approx(rows.sent_bytes * 12 / 15, abs=1)
    nodes = of_way["nodes"]
    assert nodes["all-gather"] == ("all-gather", 3 * ids, 0)
    assert nodes["reduce-scatter"] == ("reduce-scatter", 3 * pooled, 0)
    assert nodes["all-to-all"].leaving_bytes == nodes["all-to-all"].sent_bytes
    on_one = TableTraffic("t", on_devices(n), options, 10**8, (HISTORY._replace(way="rows"),))
    assert leaving(on_one.to_read(on_one.reads[0])) == 0


def test_between_nodes_a_row_goes_once_for_all_devices_of_a_node():
    def left(way):
        plan = HISTORY._replace(way=way)
        sharding, counts = on_devices(64, node=8), 10**7 // np.arange(1, 200_001)
        traffic = TableTraffic("t", sharding, ExchangeOptions(), 200_000, (plan,), counts)
        return leaving([*traffic.to_read(plan), *traffic.to_update()])

    # Eight devices with 10,063 distinct items each have 47,753 together.
    assert left("nodes") == pytest.approx(47_753 / 80_504 * left("rows"), rel=0.1)


def test_a_feature_is_said_to_send_its_part_of_what_it_shares():
    item = ReadPlan(512, 512, 64, is_single=True)
    reads = (
        HISTORY._replace(way="rows", features=("history",)),
        item._replace(way="rows", features=("item", "other")),
    )
    traffic = TableTraffic("items", on_devices(64), ExchangeOptions(), 10**8, reads)
    history, others = traffic.by_feature()
    assert (history.feature, others.feature) == ("history", "item + other")
    assert {history.exchange, others.exchange} == {"rows"}
    assert history.read_bytes == total(traffic.to_read(reads[0]))
    assert history.update_bytes + others.update_bytes == pytest.approx(
        total(traffic.to_update()), abs=1
    )
    assert history.update_bytes == pytest.approx(50 * others.update_bytes, rel=1e-3)


def test_counts_of_the_data_say_how_many_ids_are_expected_to_be_distinct():
    counts = 10**7 // np.arange(1, 50_001)
    plan = HISTORY._replace(way="rows", features=("history",))
    traffic = TableTraffic("items", on_devices(64), ExchangeOptions(), 50_000, (plan,))
    (feature,) = traffic.by_feature(counts)
    drawn = [
        len(
            np.unique(np.random.default_rng(n).choice(50_000, HISTORY.ids, p=counts / counts.sum()))
        )
        for n in range(5)
    ]
    assert feature.distinct_ids == pytest.approx(np.mean(drawn), rel=0.02)
    (without,) = traffic.by_feature()
    assert without.distinct_ids == HISTORY.ids
    assert feature.read_bytes < without.read_bytes


def test_no_more_ids_are_distinct_than_the_table_has_rows():
    options, plan = (
        ExchangeOptions(rows=21),
        GENRES._replace(way="gathered", features=("genres",)),
    )
    traffic = TableTraffic("genres", on_devices(8), options, 3840, (plan,))
    assert [feature.distinct_ids for feature in traffic.by_feature()] == [21]
