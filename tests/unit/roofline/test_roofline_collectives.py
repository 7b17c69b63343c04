"""Collective costs against public benchmarks, brute force and the scaling-book's examples."""

from __future__ import annotations

import math

import pytest

from analyzer import catalog
from analyzer.errors import UsageError
from analyzer.roofline import collectives as c
from analyzer.roofline import hardware, hierarchy, nccl, torus
from analyzer.roofline.achievable import interpolate, link_fraction, measured_curve
from analyzer.roofline.expected import (
    CollectiveCall,
    SwitchedLink,
    TorusLink,
    expected_time,
    placement,
)
from analyzer.roofline.hierarchy import Level
from analyzer.roofline.nccl import Protocol

GIB = 2**30


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("all_to_allv", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1),
        ("reduce", 1),
        ("send", 1),
        ("recv", 1),
        ("barrier", None),
    ],
)
def test_busbw_factors_of_eight_ranks(op: str, factor: float | None) -> None:
    assert c.busbw_factor(op, 8) == factor


def test_busbw_inverts_to_published_times() -> None:
    # ml-engineering: H200 NVLS 480 GB/s at 16 GiB; 4 nodes of 8 B200 377.34 GB/s at 4 GiB
    for size, ranks, busbw, time_ms in (
        (16 * GIB, 8, 480e9, 62.63),
        (4 * GIB, 32, 377.34e9, 22.05),
    ):
        wire = c.wire_bytes("all_reduce", size, ranks)
        assert wire is not None
        assert wire / busbw * 1e3 == pytest.approx(time_ms, abs=0.01)
        rate = c.busbw_bytes_per_s("all_reduce", size, ranks, wire / busbw)
        assert rate == pytest.approx(busbw)


def test_sizes_follow_nccl_tests() -> None:
    assert c.message_bytes("all_gather", 1, 8) == 8
    assert c.message_bytes("reduce_scatter", 8, 1) == 8
    assert c.message_bytes("all_reduce", 5, 5) == 5
    assert c.message_bytes("all_to_allv", 3, 7) == 7
    assert c.message_bytes("barrier", 0, 0) is None


def ring_by_hand(size: float, n: int, rate: float, hop: float) -> float:
    """A ring all-reduce chunk by chunk: 2(n-1) rounds, each moves one n-th."""
    clock = [0.0] * n
    for _ in range(2 * (n - 1)):
        sent = [t + hop + size / n / rate for t in clock]
        clock = [max(sent[i - 1], clock[i]) for i in range(n)]
    return max(clock)


@pytest.mark.parametrize("n", [2, 3, 8, 17])
def test_ring_equals_the_ring_played(n: int) -> None:
    size, rate, hop = 1e9, 450e9, 2e-6
    assert c.ring_all_reduce_s(size, n, rate, hop) == pytest.approx(
        ring_by_hand(size, n, rate, hop)
    )
    assert 2 * c.ring_gather_s(size, n, rate, hop) == c.ring_all_reduce_s(size, n, rate, hop)


def test_alpha_beta_models_agree_where_they_must() -> None:
    size, rate = 1e9, 450e9
    ring = c.ring_all_reduce_s(size, 8, rate)
    assert c.halving_doubling_all_reduce_s(size, 8, rate) == ring
    assert c.two_shot_all_reduce_s(size, 8, rate) == ring
    assert c.tree_all_reduce_s(size, 8, 1, rate) == 2 * size / rate
    assert c.in_network_all_reduce_s(size, rate) == size / rate
    # latency alone: steps times a hop
    assert c.ring_all_reduce_s(0, 8, rate, 1) == 14
    assert c.halving_doubling_all_reduce_s(0, 8, rate, 1) == 6
    assert c.two_shot_all_reduce_s(0, 8, rate, 1) == 2
    assert c.one_shot_all_reduce_s(0, 8, rate, 1) == 1
    assert c.tree_all_reduce_s(0, 8, 4, rate, (1, 1)) == 2 * (7 + 2)
    # one-shot beats two-shot only while latency dominates
    assert c.one_shot_all_reduce_s(1e3, 8, rate, 1e-6) < c.two_shot_all_reduce_s(1e3, 8, rate, 1e-6)
    assert c.one_shot_all_reduce_s(1e8, 8, rate, 1e-6) > c.two_shot_all_reduce_s(1e8, 8, rate, 1e-6)


def test_sparse_all_to_all_by_enumeration() -> None:
    # 2 independent targets over 4 shards, seen from shard 0: distinct remote shards of 4
    z, k = 4, 2
    outcomes = [{a, b} - {0} for a in range(z) for b in range(z)]
    share = sum(len(o) for o in outcomes) / len(outcomes) / z
    assert c.sparse_all_to_all_share(z, k) == pytest.approx(share)


# ---- NCCL's prior -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "us"), [(Protocol.LL, 15.0), (Protocol.LL128, 40.6), (Protocol.SIMPLE, 56.0)]
)
def test_nccl_ring_latency_of_one_node(protocol: Protocol, us: float) -> None:
    assert nccl.ring_latency_s("all_reduce", 8, 1, protocol) * 1e6 == pytest.approx(us)


def test_nccl_ring_latency_over_pci() -> None:
    hops = {Protocol.LL: 6.6 + 14 * 1.0, Protocol.LL128: 14 + 14 * 2.5, Protocol.SIMPLE: 8.4 + 79.8}
    for protocol, us in hops.items():
        found = nccl.ring_latency_s("all_reduce", 8, 1, protocol, nccl.Fabric.PCI)
        assert found * 1e6 == pytest.approx(us)


def test_nccl_multi_node_simple_all_reduce_is_scaled() -> None:
    plain = 8.4 + 28 * 3.4 + 2 * 14.0
    found = nccl.ring_latency_s("all_reduce", 16, 2, Protocol.SIMPLE)
    assert found * 1e6 == pytest.approx(1.4 * plain)
    gathered = nccl.ring_latency_s("all_gather", 16, 2, Protocol.SIMPLE)
    assert gathered * 1e6 == pytest.approx(8.4 + 14 * 3.4 + 14.0)
    tree = nccl.tree_latency_s(16, 2, Protocol.LL128)
    assert tree * 1e6 == pytest.approx(14 + 2 * (7 * 1.25 + 8.5))


def test_nccl_all_gather_latency() -> None:
    assert nccl.ring_latency_s("all_gather", 8, 1, Protocol.SIMPLE) * 1e6 == pytest.approx(32.2)


def test_nccl_prior_prefers_low_latency_for_small_and_bandwidth_for_large() -> None:
    small = nccl.nccl_time_s("all_reduce", 1024, 32, 4, 300e9)
    large = nccl.nccl_time_s("all_reduce", 4 * GIB, 8, 1, 370e9)
    assert small[1] == "tree ll"
    assert large[1] == "ring simple"
    assert large[0] == pytest.approx(1.75 * 4 * GIB / 370e9, rel=0.01)


def test_nccl_multi_node_steps() -> None:
    assert nccl.ring_steps("all_reduce", 32, 4) == (62, 6)
    expected = 6.6 + 56 * 0.6 + 6 * 2.7
    found = nccl.ring_latency_s("all_reduce", 32, 4, Protocol.LL)
    assert found * 1e6 == pytest.approx(expected)


# ---- torus and hierarchy ----------------------------------------------------------------------


def test_v5e_all_gather_ring_and_line() -> None:
    size = 2048 * 8192 * 2
    ring = torus.torus_gather_s(size, [4], 9e10)
    line = torus.line_gather_s(size, 4, 9e10)
    assert ring * 1e6 == pytest.approx(373, abs=0.5)
    assert line * 1e6 == pytest.approx(559, abs=0.5)


def test_small_messages_on_a_torus_cost_hops() -> None:
    # scaling-book: about 1 us a hop, half way round a ring, all along a line
    assert torus.torus_gather_s(1, [16], 1.8e11) == pytest.approx(8e-6)
    assert torus.torus_gather_s(1, [16, 8], 1.8e11) == pytest.approx(12e-6)
    assert torus.line_gather_s(1, 4, 1.8e11) == pytest.approx(3e-6)
    assert torus.torus_all_to_all_s(1, 16, 1.8e11) == pytest.approx(8e-6)
    assert torus.torus_all_to_all_s(1, 4, 1.8e11, wraps=False) == pytest.approx(3e-6)


def test_v4_all_gather() -> None:
    # 4x4x4, bf16[1024, 4096] sharded over X and Y: gathered over X, its array is a quarter
    size = 1024 * 4096 * 2
    assert torus.torus_gather_s(size / 4, [4], 9e10) * 1e6 == pytest.approx(23.3, abs=0.05)
    assert torus.torus_gather_s(size, [4, 4], 9e10) * 1e6 == pytest.approx(46.6, abs=0.05)


def crossing_share(n: int) -> float:
    """Bytes over one link, one direction, of an all-to-all on a ring by shortest paths."""
    loads = [0.0] * n
    for source in range(n):
        for distance in range(1, n):
            weight = 0.5 if 2 * distance == n else 1.0
            if distance <= n / 2:
                for hop in range(distance):
                    loads[(source + hop) % n] += weight
    return max(loads) / n**2


@pytest.mark.parametrize("n", [4, 8, 16])
def test_all_to_all_on_a_ring_is_a_quarter_of_a_gather(n: int) -> None:
    size, axis = 1e9, 1.8e11
    gather = torus.torus_gather_s(size, [n], axis, 0)
    assert torus.torus_all_to_all_s(size, n, axis, hop_s=0) == 0.25 * gather
    # by routing every chunk: V/n^2 each over links of W/2 one way
    assert size * crossing_share(n) / (axis / 2) == pytest.approx(0.25 * gather)


def test_all_to_all_on_a_line_is_its_middle_cut() -> None:
    n, size, axis = 8, 1e9, 1.8e11
    crossing = sum(1 for a in range(n) for b in range(n) if a < n / 2 <= b) * size / n**2
    assert torus.torus_all_to_all_s(size, n, axis, wraps=False, hop_s=0) == pytest.approx(
        crossing / (axis / 2)
    )


def test_tree_levels_of_an_h100_pod() -> None:
    # scaling-book, GPU chapter: 514 GB/s in the node, 413 GB/s in a scalable unit binds
    rate = 1 / hierarchy.tree_gather_s(1, [Level(8, 450e9), Level(32, 400e9)])
    assert rate / 1e9 == pytest.approx(413, abs=0.5)
    assert 1 / hierarchy.tree_gather_s(1, [Level(8, 450e9)]) / 1e9 == pytest.approx(514, abs=0.5)
    gather = hierarchy.tree_gather_s(4096 * 65_536 * 2, [Level(8, 450e9)])
    assert gather * 1e3 == pytest.approx(1.04, abs=0.005)


def test_sharding_inside_the_node_does_not_speed_up_the_outer_axis() -> None:
    # 32 nodes: the network binds, 31/32 of the array through 8 ports of 50 GB/s
    whole = hierarchy.sharded_gather_s(1e9, [Level(8, 450e9), Level(32, 50e9)], 1)
    assert whole == pytest.approx(31 / 32 * 1e9 / 400e9)
    outer = [Level(1, 450e9), Level(32, 50e9)]
    assert hierarchy.sharded_gather_s(1e9, outer, 8) == pytest.approx(whole)
    assert hierarchy.sharded_gather_s(1e9, outer, 32) == pytest.approx(whole / 4)


def test_b200_all_reduce_bracket_contains_the_measurement() -> None:
    # ml-engineering: 4 GiB over 4 nodes of 8 B200 with 50 GB/s ports took 22.05 ms
    size = 4 * GIB
    bracket = hierarchy.hierarchical_all_reduce_s(size, 8, 4, 900e9, 50e9)
    assert bracket.between_s * 1e3 == pytest.approx(16.1, abs=0.05)
    assert bracket.most_s * 1e3 == pytest.approx(24.5, abs=0.05)
    assert bracket.least_s <= 22.05e-3 <= bracket.most_s
    assert hierarchy.flat_ring_all_reduce_s(size, 32, 400e9) * 1e3 == pytest.approx(20.8, abs=0.05)
    naive = c.point_to_point_s(size, 50e9)  # one port carries it all once
    assert naive * 1e3 == pytest.approx(85.9, abs=0.05)


def test_nic_share() -> None:
    share = hierarchy.nic_share_bytes_per_s(377.34e9, 32, 4)
    assert share / 1e9 == pytest.approx(36.52, abs=0.01)
    assert share / 50e9 == pytest.approx(0.73, abs=0.005)


def test_all_to_all_over_two_nodes_is_four_and_a_half_times_slower() -> None:
    one = hierarchy.hierarchical_all_to_all_s(1e9, 8, 1, 450e9, 50e9)
    two = hierarchy.hierarchical_all_to_all_s(1e9, 8, 2, 450e9, 50e9)
    # 8·450/(2·400) = 4.5 with the (n-1)/n of the node left out, as the scaling-book does
    assert two / (1e9 / 450e9) == pytest.approx(4.5)
    assert two / one == pytest.approx(4.5 * 8 / 7)


# ---- what is typically reached ----------------------------------------------------------------


def test_interpolation_is_linear_in_logarithms() -> None:
    assert interpolate(2.0, (1.0, 4.0), (0.2, 0.8)) == pytest.approx(0.4)
    assert interpolate(0.1, (1.0, 4.0), (0.2, 0.4)) == 0.2
    assert interpolate(9.0, (1.0, 4.0), (0.2, 0.4)) == 0.4


def test_fractions_across_nodes_match_the_published_shares() -> None:
    # ml-engineering, four nodes: 0.70 to 0.74 from 1 GiB, 0.30 at 64 MiB, 0.125 at 16 MiB
    row = next(row for row in catalog.benchmarks() if row.nodes == 4)
    shares = {
        size: hierarchy.nic_share_bytes_per_s(busbw, 32, 4) / 50 for size, busbw in row.points
    }
    assert shares[16 * 2**20] == pytest.approx(0.125, abs=0.005)
    assert shares[64 * 2**20] == pytest.approx(0.30, abs=0.005)
    assert shares[GIB] == pytest.approx(0.70, abs=0.005)
    assert shares[16 * GIB] == pytest.approx(0.74, abs=0.005)
    # the curve is the same share with the latency taken out: equal where latency does not matter
    curve = measured_curve(across_nodes=True)
    assert curve.at(16 * GIB) == pytest.approx(shares[16 * GIB], rel=0.001)
    assert all(curve.at(size) > share for size, share in shares.items())


@pytest.mark.parametrize("nodes", [1, 4])
def test_expected_time_reproduces_the_benchmark(nodes: int) -> None:
    link = hardware.switched_link(hardware.device("b200"))
    row = next(row for row in catalog.benchmarks() if row.nodes == nodes)
    for size, busbw in row.points:
        if nodes == 1 and size > GIB:
            continue  # in-network reduction: a ring does not get there
        call = CollectiveCall("all_reduce", size, tuple(range(row.ranks)))
        measured_s = 2 * (row.ranks - 1) / row.ranks * size / (busbw * 1e9)
        found = expected_time(call, link)
        assert found.t_typ_ns == pytest.approx(measured_s * 1e9, rel=0.005)
        assert found.t_spec_ns < found.t_typ_ns


def test_h100_ring_and_in_network_rates() -> None:
    # ml-engineering: H200 ring 367.61 and NVLS 482.26 GB/s of 450 at 16 GiB, 8 GPUs
    call = CollectiveCall("all_reduce", 16 * GIB, tuple(range(8)))
    made = hardware.device("h200")
    for in_network, busbw in ((False, 367.61e9), (True, 482.26e9)):
        time = expected_time(call, hardware.switched_link(made, in_network=in_network))
        assert 1.75 * 16 * GIB / (time.t_typ_ns * 1e-9) == pytest.approx(busbw, rel=0.01)
    assert time.formula_id == "COLL-NVLS-AR"


# ---- expected_time ----------------------------------------------------------------------------

H100 = SwitchedLink(8, 450e9, 50e9)
NODE = tuple(range(8))
POD = tuple(range(32))


@pytest.mark.parametrize(
    ("op", "ranks", "ideal_s", "formula"),
    [  # 1 GB by hand: bytes through the link that binds
        ("all_reduce", NODE, 1.75 * 1e9 / 450e9, "COLL-TWOSHOT-AR"),
        ("all_gather", NODE, 0.875 * 1e9 / 450e9, "COLL-DIRECT-AG"),
        ("reduce_scatter", NODE, 0.875 * 1e9 / 450e9, "COLL-DIRECT-AG"),
        ("all_to_all", NODE, 0.875 * 1e9 / 450e9, "COLL-A2A"),
        ("broadcast", NODE, 1e9 / 450e9, "COLL-P2P"),
        ("send", (0, 1), 1e9 / 450e9, "COLL-P2P"),
        # 4 nodes: 7/8 of it over NVLink takes longer than 3/4 of it over 8 ports; 16 nodes: not
        ("all_reduce", POD, 2 * 0.875 * 1e9 / 450e9, "COLL-TREE-AG"),
        ("all_gather", POD, 0.875 * 1e9 / 450e9, "COLL-TREE-AG"),
        ("all_gather", tuple(range(128)), 15 / 16 * 1e9 / (8 * 50e9), "COLL-TREE-AG"),
        ("all_gather", (0, 8, 16, 24), 0.75 * 1e9 / 50e9, "COLL-TREE-AG"),
        ("all_to_allv", POD, 24 / 32 * 1e9 / 50e9, "COLL-HIER-A2A"),
        ("dispatch", POD, 24 / 32 * 1e9 / 50e9, "COLL-HIER-A2A"),
        ("broadcast", POD, 1e9 / (8 * 50e9), "COLL-P2P"),
        ("send", (7, 8), 1e9 / 50e9, "COLL-P2P"),
    ],
)
def test_floor_of_a_gigabyte(op: str, ranks: tuple[int, ...], ideal_s: float, formula: str) -> None:
    found = expected_time(CollectiveCall(op, 1e9, ranks), H100)
    assert found.t_spec_ns == pytest.approx(ideal_s * 1e9, rel=0.01)
    assert found.t_spec_ns >= ideal_s * 1e9
    assert found.formula_id == formula
    assert found.t_typ_ns > found.t_spec_ns


def test_small_all_reduce_is_one_shot() -> None:
    found = expected_time(CollectiveCall("all_reduce", 4096, NODE), H100)
    assert found.formula_id == "COLL-ONESHOT-AR"


def test_bigger_messages_never_take_less() -> None:
    for op in ("all_reduce", "all_gather", "all_to_all", "send"):
        for ranks in (NODE[:2], (0, 8)) if op == "send" else (NODE, POD):
            times = [expected_time(CollectiveCall(op, 2.0**i, ranks), H100) for i in range(8, 36)]
            typical = [t.t_typ_ns for t in times]
            assert typical == sorted(typical), (op, ranks)
            assert [t.t_spec_ns for t in times] == sorted(t.t_spec_ns for t in times)


def test_group_of_one_is_free() -> None:
    assert expected_time(CollectiveCall("all_reduce", 1e9, (3,)), H100).t_typ_ns == 0


def test_barrier_is_latency_alone() -> None:
    assert 0 < expected_time(CollectiveCall("barrier", 0, NODE), H100).t_spec_ns < 5_000


def test_placement() -> None:
    assert placement(range(8), 8).nodes == 1
    strided = placement((0, 8, 16, 24), 8)
    assert (strided.nodes, strided.per_node, strided.even) == (4, 1, True)
    uneven = placement((6, 7, 8), 8)
    assert (uneven.nodes, uneven.per_node, uneven.even) == (2, 2, False)
    note = expected_time(CollectiveCall("all_gather", 1e9, (6, 7, 8)), H100).assumptions
    assert any("unevenly" in text for text in note)


def test_unknown_network_rate_is_an_error_only_across_nodes() -> None:
    link = SwitchedLink(8, 450e9, None)
    assert expected_time(CollectiveCall("all_gather", 1e9, NODE), link).level == "node"
    with pytest.raises(UsageError, match="rate between nodes"):
        expected_time(CollectiveCall("all_gather", 1e9, POD), link)


def test_torus_link() -> None:
    made = hardware.device("tpu-v5p")
    link = hardware.torus_link(made, (16,))
    assert link.axis_bytes_per_s == 1.8e11
    size = 1e9
    found = expected_time(CollectiveCall("all_gather", size, tuple(range(16))), link)
    assert found.t_spec_ns == pytest.approx(size / 1.8e11 * 1e9)
    assert found.t_typ_ns == pytest.approx(found.t_spec_ns / 0.9, rel=1e-3)
    twice = expected_time(CollectiveCall("all_reduce", size, tuple(range(16))), link)
    assert twice.t_spec_ns == pytest.approx(2 * found.t_spec_ns, abs=1)
    # S of an all-to-all is one rank's buffer; the array is 16 times that
    exchange = expected_time(CollectiveCall("all_to_all", size / 16, tuple(range(16))), link)
    assert exchange.t_spec_ns == pytest.approx(found.t_spec_ns / 4, abs=1)
    line = TorusLink((4,), 9e10, wraps=False)
    gathered = expected_time(CollectiveCall("all_gather", 2048 * 8192 * 2, (0, 1, 2, 3)), line)
    assert gathered.t_spec_ns == pytest.approx(559e3, abs=500)
    with pytest.raises(UsageError, match="does not fill"):
        expected_time(CollectiveCall("all_gather", size, (0, 1)), link)


def test_link_fraction_round_trip() -> None:
    # a transfer at 40 % of the link and NCCL's latency gives back 40 %
    size, n = 2.0**28, 8
    ideal = 1.75 * size / 450e9
    time = ideal / 0.4 + nccl.ring_latency_s("all_reduce", n, 1, Protocol.LL)
    assert link_fraction(size, 1.75 * size / time, n, 1, 450e9) == pytest.approx(0.4)
    assert math.isfinite(measured_curve(across_nodes=False).at(1))
